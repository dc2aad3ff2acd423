"""POT's compiled network simplex, given only what it is known to solve rightly.

The kernel itself checks nothing: it crashes on empty input, reads past short weights, calls a NaN
"optimal", gives wrong values for costs far from 1 and "infeasible" for masses far from 1. Its
callers therefore hand it positive masses of total 1 and finite, non-negative costs of about 1 only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ..errors import IterationLimitError, OTError, ProblemError
from .tree import Float

#: POT's result codes (``ot.lp.emd_wrap``): 1 is optimal, 3 the iteration limit.
OPTIMAL, _ITERATION_LIMIT = 1, 3
NO_LIMIT = 2**62
#: With perturbed masses, a true flow below minus this says that another tree is optimal.
NEGATIVE_FLOW = 2e-15


class KernelResult(NamedTuple):
    """An optimal plan (n, m) of total mass 1 and optimal duals (n,), (m,)."""

    plan: Float
    u: Float
    v: Float


@lru_cache(maxsize=1)
def load_kernel() -> Callable[..., Any]:
    """Import the kernel: ``import ot`` takes seconds, for it imports torch and jax where installed.

    Call this in the user's own thread before anything is traced or forked; an import inside a
    callback of a running program may never end.
    """
    from ot.lp.emd_wrap import emd_c  # type: ignore[import-untyped]

    return emd_c  # type: ignore[no-any-return]


def pot_kernel(
    a: Float, b: Float, M: Float, max_iterations: int | None, start: tuple[Float, Float] | None
) -> KernelResult:
    """Solve one problem: positive ``a``, ``b`` of total 1, finite ``M`` >= 0 scaled to about 1.

    ``start`` holds potentials to begin from, for instance those of an earlier basis.
    """
    if max_iterations is not None and max_iterations < 1:
        raise ProblemError(
            f"the iteration limit must be positive, but it is {max_iterations}; "
            "leave it out for no limit"
        )
    u0, v0 = (None, None) if start is None else start
    M = np.ascontiguousarray(M)
    plan, _, u, v, code = load_kernel()(a, b, M, max_iterations or NO_LIMIT, 1, u0, v0)
    if code == OPTIMAL:
        return KernelResult(plan, u, v)
    if code == _ITERATION_LIMIT:
        raise IterationLimitError(
            f"the solver stopped at its limit of {max_iterations} iterations before the optimum; "
            "raise numItermax (max_iterations), or leave it out for no limit"
        )
    raise OTError(f"POT's kernel returned the code {code} on a problem that has a solution")


def perturbed(a: Float, b: Float, eps: float | None = None) -> tuple[Float, Float]:
    """Perturb the masses (Orden) so that the support of an optimal plan is a tree already.

    Every row gains eps and the largest column gains all of it. With eps = 1e-14 / n the flows
    change by less than the rounding of the weights, but no proper subset of rows and columns
    balances any more, so no edge of the basis is left without flow.
    """
    if eps is None:
        eps = 1e-14 / len(a)
    p, q = a + eps, b.copy()
    q[q.argmax()] += len(a) * eps
    total = p.sum()
    return p / total, q / total
