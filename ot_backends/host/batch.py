"""The host function that backends call: a whole batch of problems in one call."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..errors import ProblemError
from .check import check_shapes
from .native import solve_native
from .pot_kernel import load_kernel
from .problem import solve_problem
from .solution import Options, Solution, empty_solution
from .which import choose_kernel
from .xla import XlaCall, xla_call

#: Below this many cells a problem costs more in Python than in the kernel, which alone runs in
#: parallel; above it, a chunk is one problem.
_PARALLEL_CELLS = 96 * 96

DEFAULT_OPTIONS = Options()


def available_threads() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass(frozen=True)
class HostSolve:
    """Solve batches: ``a`` (..., n), ``b`` (..., m), ``M`` (..., n, m), ``start`` (..., n + m).

    Leading dimensions broadcast. ``start`` is the basis of an earlier problem (integers), or
    potentials [u, v] (floats). Equal options make equal, hashable host functions, so that no
    framework compiles again for a new instance.
    """

    options: Options = DEFAULT_OPTIONS
    threads: int | None = None
    kernel: str | None = None  # "native" or "pot"; None: see choose_kernel
    trusted: ClassVar[bool] = True  # its outputs need no check

    def prepare(self) -> None:
        """Get ready in the caller's thread, before anything is traced or forked."""
        if choose_kernel(self.kernel) == "pot":
            load_kernel()

    def xla_call(self, args: Sequence[tuple[tuple[int, ...], str]]) -> XlaCall | None:
        """Describe the compiled twin of this function, for frameworks on XLA; see ``xla.py``."""
        if choose_kernel(self.kernel) != "native":
            return None
        return xla_call(args, self.options, self.threads or available_threads())

    def __call__(
        self,
        a: NDArray[Any],
        b: NDArray[Any],
        M: NDArray[Any],
        start: NDArray[Any] | None = None,
    ) -> Solution:
        """Return the solutions stacked over the broadcast leading dimensions."""
        if choose_kernel(self.kernel) == "native":
            # One problem needs one thread, and does not ask how many there are.
            threads = 1 if M.ndim == a.ndim + 1 == b.ndim + 1 == 2 else self.threads
            threads = threads or available_threads()
            return solve_native(a, b, M, start, self.options, threads)
        start_shape = None if start is None else start.shape
        batch, n, m = check_shapes(a.shape, b.shape, M.shape, start_shape)
        if self.options.time_limit is not None:
            raise ProblemError("time_limit needs the native kernel, but POT's solves here")
        a, b, M = (np.asarray(x, np.float64) for x in (a, b, M))
        if not batch:
            return solve_problem(a, b, M, start, self.options, "")
        a, b = np.broadcast_to(a, (*batch, n)), np.broadcast_to(b, (*batch, m))
        M = np.broadcast_to(M, (*batch, n, m))
        starts = None if start is None else np.broadcast_to(start, (*batch, n + m))
        result = empty_solution(batch, n, m)
        arrays: tuple[NDArray[Any], ...] = result

        def one(k: tuple[int, ...]) -> None:
            where = f" of problem {k[0] if len(k) == 1 else k}"
            start = None if starts is None else starts[k]
            solution = solve_problem(a[k], b[k], M[k], start, self.options, where)
            for array, part in zip(arrays, solution, strict=True):
                array[k] = part

        self._for_each(one, list(np.ndindex(*batch)), n * m)
        return result

    def _for_each(
        self, one: Callable[[tuple[int, ...]], None], indices: list[tuple[int, ...]], cells: int
    ) -> None:
        threads = min(self.threads or available_threads(), len(indices))
        if threads <= 1 or cells < _PARALLEL_CELLS:
            for k in indices:
                one(k)
            return
        # The pool lives for this call only: a thread that outlives it would hang a forked child.
        with ThreadPoolExecutor(threads) as pool:
            for _ in pool.map(one, indices):
                pass
