"""Which cells a plan may use: forbidden cells, and cells coded as forbidden by a huge cost.

Beside costs of 1, a cost of 1e14 or 1e32 drowns every difference that decides the plan. Such cells
are first left out. If the rest is feasible and its duals also hold on the huge cells, its optimum
is the optimum. If the rest is infeasible, the problem is solved in two passes: first the huge
costs alone, then the small costs over the cells that stay tight, which gives the lexicographic
optimum of (huge, small).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .blocks import balance_blocks
from .column_generation import generate_columns
from .extract import Edges, spanning_edges
from .pot_kernel import NEGATIVE_FLOW, perturbed, pot_kernel
from .tree import Duals, Float, Tree, root_tree

Bool = NDArray[np.bool_]

#: Costs that are this many binary orders (1e6) above all smaller ones are left out at first.
_GAP = 20
#: Costs looked at in one step, which stay in the cache.
_BLOCK = 2**15
#: A plan that needs more than this mass (of total 1) on cells left out is infeasible.
_LEAK = 1e-12
#: Reduced costs within this of zero, relative to their terms, count as zero.
_TIGHT = 1e-13


class Masses(NamedTuple):
    """Positive weights of total 1, and the iteration limit.

    Blocks of cells must balance up to ``tolerance``; less than ``rounding`` is no reason to use a
    huge cost.
    """

    a: Float
    b: Float
    tolerance: float
    rounding: float
    max_iterations: int | None


def optimal_edges(
    w: Masses, M: Float, allowed: Bool | None, start: Duals | None = None
) -> Edges | None:
    """Find an optimal basis over the allowed cells (None: all); return None where infeasible.

    ``M`` must be finite on the allowed cells. ``start`` holds potentials to begin from.
    """
    threshold = _size_gap(M if allowed is None else M[allowed])
    if threshold is None:
        return _solve(w, M, allowed, start)
    small = np.abs(M) <= threshold
    if allowed is not None:
        small &= allowed
    if small.any(axis=1).all() and small.any(axis=0).all():
        edges = optimal_edges(w._replace(tolerance=w.rounding), M, small, start)
        if edges is not None:
            tree = root_tree(*edges, w.a, w.b, M)
            certified = not (_reduced(tree, M, allowed) < 0).any()
            return edges if certified else _solve(w, M, allowed, start)

    huge_costs = np.where(small, 0.0, M)
    edges = optimal_edges(w, huge_costs, allowed)
    if edges is None:
        return None
    huge = root_tree(*edges, w.a, w.b, huge_costs)
    small_costs = np.where(small, M, 0.0)
    edges = optimal_edges(w, small_costs, _reduced(huge, huge_costs, allowed) <= 0)
    if edges is None:
        raise AssertionError("the tight cells of an optimal basis must be feasible")
    rest = root_tree(*edges, w.a, w.b, small_costs)
    plan = np.zeros(M.shape)
    plan[rest.rows, rest.cols] = rest.flow
    costs = M if allowed is None else np.where(allowed, M, np.inf)
    return spanning_edges(plan, huge.u + rest.u, huge.v + rest.v, costs)


def _size_gap(costs: Float) -> float | None:
    """Return the size above which costs are huge: the top gap of 1e6 in the sizes, if any."""
    offset = 1100  # the exponents of float64 lie within +-1100
    counts = np.zeros(2 * offset, np.intp)
    flat = costs.reshape(-1)
    for k in range(0, flat.size, _BLOCK):
        block = flat[k : k + _BLOCK]
        counts += np.bincount(np.frexp(block)[1] + offset, minlength=2 * offset)
        counts[offset] -= block.size - np.count_nonzero(block)  # frexp(0) is (0, 0)
    filled = np.flatnonzero(counts)
    gaps = np.flatnonzero(np.diff(filled) > _GAP)
    return float(np.ldexp(1.0, int(filled[gaps[-1]]) - offset)) if gaps.size else None


def _reduced(tree: Tree, M: Float, allowed: Bool | None) -> Float:
    """Reduced costs M - u - v, rounded to 0 where they vanish beside their terms.

    Cells that are not allowed get +inf: neither tight nor violated.
    """
    u, v = tree.u[:, None], tree.v[None, :]
    reduced: Float = M - u - v
    reduced[np.abs(reduced) <= _TIGHT * (np.abs(M) + np.abs(u) + np.abs(v))] = 0.0
    if allowed is not None:
        reduced[~allowed] = np.inf
    return reduced


def _solve(w: Masses, M: Float, allowed: Bool | None, start: Duals | None) -> Edges | None:
    """Solve over the allowed cells, with their costs shifted and scaled exactly into [0, 1)."""
    inside = M if allowed is None else M[allowed]
    low, high = float(inside.min()), float(inside.max())
    # (M - low) * 2^-e in halves, since high - low may overflow; powers of two do not round.
    e = int(np.frexp(high / 2 - low / 2)[1])
    scaled: Float = np.ldexp(M / 2 - low / 2, -e)
    if start is not None:
        start = np.ldexp(start[0] / 2 - low / 2, -e), np.ldexp(start[1] / 2, -e)
    if allowed is not None:
        return _solve_allowed(w, scaled, allowed, start)

    edges = generate_columns(w.a, w.b, scaled, start, w.max_iterations)
    if edges is not None:
        return edges

    # The start was of no use, or there is none: potentials would slow the dense kernel down.
    # Perturbed masses give a plan whose support is the tree, unless a weight is so small that the
    # perturbation changes the optimal basis.
    a, b = perturbed(w.a, w.b)
    result = pot_kernel(a, b, scaled, w.max_iterations, None)
    edges = spanning_edges(*result, scaled)
    if root_tree(*edges, w.a, w.b, scaled, keep_negative=True).flow.min() >= -NEGATIVE_FLOW:
        return edges
    return spanning_edges(*pot_kernel(w.a, w.b, scaled, w.max_iterations, None), scaled)


def _solve_allowed(
    w: Masses, scaled: Float, allowed: Bool, start: Duals | None
) -> Edges | None:  # fmt: skip
    b = balance_blocks(w.a, w.b, allowed, w.tolerance)
    if b is None:
        return None
    # A detour over allowed cells costs less than min(n, m) + 1, so a plan pays this price only
    # where its block of cells is infeasible.
    priced = np.where(allowed, scaled, 4.0 * (min(scaled.shape) + 1))
    plan, u, v = pot_kernel(w.a, b, priced, w.max_iterations, start)
    if plan[~allowed].sum() > _LEAK:
        return None
    plan[~allowed] = 0.0
    return spanning_edges(plan, u, v, np.where(allowed, scaled, np.inf))
