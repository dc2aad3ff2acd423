"""Validation at the door: after these checks the code inside may trust its arrays."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import InfeasibleError, MassMismatchError, ProblemError

Float = NDArray[np.float64]

#: The mass mismatch that POT accepts (``assert_almost_equal`` with six decimals).
POT_MASS_TOLERANCE = 1.5e-6


class Shapes(NamedTuple):
    """The sizes of a problem: leading batch dimensions, rows, columns."""

    batch: tuple[int, ...]
    n: int
    m: int


def check_shapes(
    a: tuple[int, ...], b: tuple[int, ...], M: tuple[int, ...], basis: tuple[int, ...] | None = None
) -> Shapes:
    """Check the shapes: ``a`` (..., n), ``b`` (..., m), ``M`` (..., n, m), ``basis`` (..., n + m).

    Leading dimensions broadcast against each other. Needs no values, so a traced program
    gets these errors while it is traced.
    """
    if len(M) < 2:
        raise ProblemError(f"M must have the shape (n, m) or (..., n, m), but its shape is {M}")
    n, m = M[-2:]
    if n == 0 or m == 0:
        raise ProblemError(f"M is empty (shape {M}): a transport problem needs rows and columns")
    sizes = {"a": (a, n, "rows"), "b": (b, m, "columns")}
    if basis is not None:
        sizes["basis"] = (basis, n + m, "rows plus columns")
    for name, (shape, size, what) in sizes.items():
        if not shape or shape[-1] != size:
            raise ProblemError(
                f"Dimension mismatch: {name} has the shape {shape} but M has the shape {M}; "
                f"the last dimension of {name} must be {size}, the number of {what} of M"
            )
    leading = [s[:-1] for s, _, _ in sizes.values()] + [M[:-2]]
    batch = _broadcast(leading)
    if batch is None:
        raise ProblemError(
            f"the batch dimensions of {', '.join(sizes)} and M do not broadcast: {leading}"
        )
    return Shapes(batch, n, m)


def _broadcast(shapes: list[tuple[int, ...]]) -> tuple[int, ...] | None:
    """Broadcast shapes, or return None: plain Python, which torch.compile traces."""
    ndim = max(len(shape) for shape in shapes)
    result = []
    for d in range(-ndim, 0):
        sizes = [shape[d] for shape in shapes if len(shape) >= -d and shape[d] != 1]
        if any(size != sizes[0] for size in sizes):
            return None
        result.append(sizes[0] if sizes else 1)
    return tuple(result)


def rounding(eps: float, size: int) -> float:
    """Relative mismatch of sums of weights that rounding alone can cause.

    ``eps`` is the machine epsilon of the coarser weights: each stored weight is off by eps / 2,
    and a sum of ``size`` terms, carried in float32 at worst, by about eps * sqrt(size)
    (5e-5 was seen in a float32 softmax of 200,000 entries).
    """
    carried = min(eps, float(np.finfo(np.float32).eps))
    return max(1e-12, 4 * eps + 2 * carried * math.sqrt(size))


def mass_tolerance(eps: float, size: int) -> float:
    """Relative mismatch of ``sum(a)`` and ``sum(b)`` that is accepted: rounding, or POT's."""
    return max(POT_MASS_TOLERANCE, rounding(eps, size))


def check_weights(name: str, w: Float, where: str) -> float:
    """Check one weight vector and return its sum."""
    with np.errstate(over="ignore", invalid="ignore"):
        total = float(w.sum())
    low = w.min()
    if low >= 0 and 0 < total < math.inf:  # False for NaN, too
        return total
    if not np.isfinite(w).all():
        k = int(np.flatnonzero(~np.isfinite(w))[0])
        raise ProblemError(f"{name}{where} must be finite, but {name}[{k}] is {w[k]}")
    if low < 0:
        k = int(w.argmin())
        raise ProblemError(
            f"{name}{where} must not be negative, but {name}[{k}] is {w[k]}; "
            "clip it, or use a softmax or a squared parameter"
        )
    if total == 0:
        raise ProblemError(f"{name}{where} sums to zero: at least one weight must be positive")
    raise ProblemError(f"the sum of {name}{where} overflows; rescale a and b by the same factor")


def check_masses(total_a: float, total_b: float, tolerance: float, where: str) -> None:
    """Refuse totals that differ by more than ``tolerance``, relative to the larger."""
    if abs(total_a - total_b) > tolerance * max(total_a, total_b):
        raise MassMismatchError(
            f"a and b vector must have the same sum{where}, but sum(a) is {total_a!r} and sum(b) "
            f"is {total_b!r}; normalise them, or pass check_marginals=False to rescale b to sum(a)"
        )


def check_costs(S: Float, rows: NDArray[np.intp], cols: NDArray[np.intp], where: str) -> bool:
    """Check the costs between the rows and columns that carry mass.

    Returns whether every cell is finite; ``+inf`` marks a forbidden cell and is no error.
    """
    low, high = S.min(), S.max()
    if low > -math.inf and high < math.inf:  # False for NaN, too
        return True
    for bad, what, remedy in (
        (np.isnan(S), "NaN", "find where it comes from, or use +inf for a forbidden cell"),
        (-math.inf == S, "-inf", "every cost must be above -inf"),
    ):
        if np.any(bad):
            i, j = np.argwhere(bad)[0]
            raise ProblemError(
                f"M{where} is {what} at [{rows[i]}, {cols[j]}], "
                f"a cell whose row and column both carry mass; {remedy}"
            )
    return False


def infeasible(where: str, detail: str) -> InfeasibleError:
    """Build the error for a problem whose allowed cells cannot carry the masses."""
    return InfeasibleError(
        f"the problem is infeasible{where}: {detail}; M may hold +inf (forbidden cells) "
        "only where the other cells can still carry a and b"
    )
