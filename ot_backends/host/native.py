"""The native kernel, one call for a whole batch; absent where the package was built without it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import (
    InfeasibleError,
    IterationLimitError,
    MassMismatchError,
    OTError,
    ProblemError,
)
from .solution import Options, Solution

try:
    from . import _kernel
except ImportError:  # no compiler at installation
    _kernel = None  # type: ignore[assignment]

__all__ = ["available", "solve_native"]

#: The status codes of ``kernel/types.hpp``; all others are bad input.
_ERRORS: dict[int, type[OTError]] = {
    8: InfeasibleError,
    9: IterationLimitError,
    10: IterationLimitError,
    12: OTError,
    13: MassMismatchError,
    14: OTError,
}


def available() -> bool:
    """Return whether the native kernel was built."""
    return _kernel is not None


def solve_native(
    a: NDArray[Any],
    b: NDArray[Any],
    M: NDArray[Any],
    start: NDArray[Any] | None,
    options: Options,
    threads: int,
) -> Solution:
    """Solve a batch; leading dimensions broadcast.

    float32 costs are read as they are. Only a basis is a start here: potentials are of no use.
    """
    basis = None if start is None or start.dtype.kind == "f" else start
    size = sum(M.shape[-2:])
    tolerance = options.mass_tolerance(size)
    status, *fields, mass = _kernel.solve(
        M, a, b, basis, threads, options.max_iterations or 0, options.time_limit or 0.0,
        tolerance, tolerance if options.check_marginals else -1.0, options.rounding(size),
    )  # fmt: skip
    if status.max(initial=0) > 0:  # codes; row and column are -1 where all is well
        _raise(status, mass)
    return Solution(*fields)


def _raise(status: NDArray[np.int32], mass: NDArray[np.float64]) -> None:
    """Raise for the first problem of the batch that was not solved."""
    k = next(k for k in np.ndindex(status.shape[:-1]) if status[k][0])
    code, row, column = (int(x) for x in status[k])
    text = _kernel.message(code, row, column, *(float(x) for x in mass[k]))
    where = f" (in problem {k[0] if len(k) == 1 else k} of the batch)" if k else ""
    raise _ERRORS.get(code, ProblemError)(text + where)
