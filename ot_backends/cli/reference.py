"""An evaluation that shares no code with the solver: SciPy's HiGHS, and differences of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.optimize import linprog

__all__ = ["slope", "transport_value"]

Float = NDArray[np.float64]

#: HiGHS accepts constraints that are off by its tolerance; the default, 1e-7, blurs differences.
_TIGHT: Any = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}


def transport_value(a: Float, b: Float, M: Float) -> float:
    """Return min <P, M> over plans P with row sums a and column sums b * sum(a) / sum(b)."""
    n, m = M.shape
    row_sums = sp.kron(sp.eye_array(n), np.ones((1, m)))
    column_sums = sp.kron(np.ones((1, n)), sp.eye_array(m))
    A: Any = sp.vstack([row_sums, column_sums])
    sums = np.concatenate([a, b * (a.sum() / b.sum())])
    found: Any = linprog(M.ravel(), A_eq=A, b_eq=sums, method="highs-ds", options=_TIGHT)
    if found.status != 0:
        raise ArithmeticError(f"HiGHS did not solve the problem: {found.message}")
    return float(found.fun)


def slope(f: Callable[[float], float], h: float) -> float:
    """Return f'(0) by a central difference.

    A transport value is piecewise smooth in the weights and costs: the difference is a derivative
    only where the optimal basis is the same at -h and h. For random weights and a small h it is.
    """
    return (f(h) - f(-h)) / (2 * h)
