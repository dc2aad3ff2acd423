"""The host function that backends call: a whole batch of problems in one call."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .check import check_shapes
from .problem import Options, Solution, solve_problem

#: Below this many cells a problem costs more in Python than in the kernel, which alone runs in
#: parallel; above it, a chunk is one problem.
_PARALLEL_CELLS = 96 * 96


def available_threads() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass(frozen=True)
class HostSolve:
    """Solve batches: ``a`` (..., n), ``b`` (..., m), ``M`` (..., n, m), ``basis`` (..., n + m).

    Leading dimensions broadcast. Equal options make equal, hashable host functions, so that no
    framework compiles again for a new instance.
    """

    options: Options = Options()
    threads: int | None = None

    def __call__(
        self,
        a: NDArray[Any],
        b: NDArray[Any],
        M: NDArray[Any],
        basis: NDArray[np.integer] | None = None,
    ) -> Solution:
        """Return the solutions stacked over the broadcast leading dimensions."""
        shapes = check_shapes(a.shape, b.shape, M.shape, None if basis is None else basis.shape)
        core = [np.asarray(x, np.float64) for x in (a, b, M)] + ([] if basis is None else [basis])
        if not shapes.batch:
            return solve_problem(*core[:3], basis, self.options, "")
        arrays = [
            np.broadcast_to(x, shapes.batch + x.shape[x.ndim - k :])
            for x, k in zip(core, (1, 1, 2, 1), strict=False)
        ]

        def one(index: tuple[int, ...]) -> Solution:
            where = f" of problem {index[0] if len(index) == 1 else index}"
            parts = [x[index] for x in arrays]
            return solve_problem(
                *parts[:3], parts[3] if basis is not None else None, self.options, where
            )

        solved = list(self._map(one, list(np.ndindex(*shapes.batch)), shapes.n * shapes.m))
        return Solution(*(np.reshape(x, shapes.batch + x[0].shape) for x in map(np.stack, zip(*solved, strict=True))))

    def _map(self, one: Any, indices: list[tuple[int, ...]], cells: int) -> Iterator[Solution]:
        threads = min(self.threads or available_threads(), len(indices))
        if threads == 1 or cells < _PARALLEL_CELLS:
            return map(one, indices)
        # The pool lives for this call only: a thread that outlives it would hang a forked child.
        with ThreadPoolExecutor(threads) as pool:
            return pool.map(one, indices)
