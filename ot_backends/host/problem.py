"""One transport problem: check it, solve it on the cells that matter, complete the tree.

Rows and columns without mass take no part in the solve. Each becomes a leaf of the finished tree,
on the cell that decides its one-sided derivative.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import OTError
from .check import check_costs, check_masses, check_weights, infeasible
from .column_generation import SMALLEST
from .extract import Edges
from .levels import Masses, optimal_edges
from .solution import Options, Solution
from .tree import Duals, Float, Tree, duals_of_parents, root_tree

#: A result whose certificate is worse than this, relative to its largest cost or potential, is
#: not handed out.
_CERTIFIED = 1e-9


def solve_problem(
    a: Float, b: Float, M: Float, start: NDArray[Any] | None, options: Options, where: str
) -> Solution:
    """Solve one problem in float64; ``where`` says which of a batch it is, for messages."""
    total_a, total_b = check_weights("a", a, where), check_weights("b", b, where)
    tolerance = options.mass_tolerance(len(a) + len(b))
    if options.check_marginals:
        check_masses(total_a, total_b, tolerance, where)
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        rows, cols = np.flatnonzero(a), np.flatnonzero(b)
        full = len(rows) == len(a) and len(cols) == len(b)
        S = M if full else M[np.ix_(rows, cols)]
        allowed = None if check_costs(S, rows, cols, where) else np.isfinite(S)
        w = Masses(
            a[rows] / total_a, b[cols] / total_b, tolerance, options.rounding(len(a) + len(b)),
            options.max_iterations,
        )  # fmt: skip
        if allowed is not None and not (allowed.any(axis=1).all() and allowed.any(axis=0).all()):
            raise infeasible(where, "a row or column with mass has no finite cell in M")
        edges = optimal_edges(w, S, allowed, _start(start, M, rows, cols))
        if edges is None:
            raise infeasible(where, "the finite cells of M cannot carry the masses a and b")

        # b' = b * sum(a) / sum(b), with the quotient first: both sums may be near the limits.
        scaled_b = b * (total_a / total_b)
        if not full:
            edges = _hang_empty(edges, root_tree(*edges, w.a, w.b, S), M, rows, cols)
        tree = root_tree(*edges, a, scaled_b, M)
        _isolate(tree, a, b)
        return _certified(tree, a, scaled_b, M, where)


def _start(
    start: NDArray[Any] | None, M: Float, rows: NDArray[np.intp], cols: NDArray[np.intp]
) -> Duals | None:
    """Turn what the caller has from an earlier problem into potentials for the kernel.

    Integers are a basis (parents of an earlier tree), floats the potentials [u, v]. What is of no
    use means a cold start; so do small problems, where a start costs more than it saves.
    """
    if start is None or min(len(rows), len(cols)) < SMALLEST:
        return None
    n = len(M)
    if start.dtype.kind == "f":
        u, v = start[:n].astype(np.float64), start[n:].astype(np.float64)
    else:
        duals = duals_of_parents(start, M)
        if duals is None:
            return None
        u, v = duals
    u, v = u[rows], v[cols]
    return (u, v) if np.isfinite(u).all() and np.isfinite(v).all() else None


def _hang_empty(
    edges: Edges, tree: Tree, M: Float, rows: NDArray[np.intp], cols: NDArray[np.intp]
) -> Edges:
    """Add the rows and columns without mass as leaves.

    An empty row i hangs on the column with mass that minimises M_ij - v_j. Then
    u_i = min_j (M_ij - v_j), the one-sided derivative for mass moving into it; columns likewise.
    One without any finite cell hangs on a virtual edge.
    """
    r, c, virtual = rows[edges.rows].tolist(), cols[edges.cols].tolist(), list(edges.virtual)
    no_rows = np.setdiff1d(np.arange(M.shape[0]), rows)
    no_cols = np.setdiff1d(np.arange(M.shape[1]), cols)
    for gap, empty, partner, empty_out, partner_out in (
        (M[np.ix_(no_rows, cols)] - tree.v, no_rows, cols, r, c),
        (M[np.ix_(rows, no_cols)].T - tree.u, no_cols, rows, c, r),
    ):
        if len(empty):
            gap[~np.isfinite(gap)] = math.inf  # padding may hold anything
            empty_out += empty.tolist()
            partner_out += partner[gap.argmin(axis=1)].tolist()
            virtual += (gap.min(axis=1) == math.inf).tolist()
    return Edges(r, c, virtual)


def _isolate(tree: Tree, a: Float, b: Float) -> None:
    """Give empty rows and columns without a finite cell the potential 0: they decide nothing."""
    rows, cols = tree.rows[tree.virtual], tree.cols[tree.virtual]
    tree.u[rows[a[rows] == 0]] = 0.0
    tree.v[cols[b[cols] == 0]] = 0.0


def _certified(tree: Tree, a: Float, b: Float, M: Float, where: str) -> Solution:
    """Compute the value and its certificate; refuse a result that is not optimal."""
    cost = np.where(tree.virtual, 0.0, M[tree.rows, tree.cols])
    value, dual = float(tree.flow @ cost), float(tree.u @ a + tree.v @ b)
    excess = tree.u[:, None] + tree.v[None, :] - M
    excess[np.ix_(a == 0, b == 0)] = 0.0
    violation = float(excess.max(initial=0.0))
    if not violation < math.inf:  # NaN or -inf in the padding
        violation = float(excess[np.isfinite(M)].max(initial=0.0))
    # Quotients, not products: an operand near the end of the range may be flushed to zero.
    scale = max(float(np.abs(x).max()) for x in (cost, tree.u, tree.v))
    gap = abs(value - dual) / float(a.sum())
    if scale > 0 and max(violation, gap) / scale > _CERTIFIED:
        raise OTError(
            f"the solver returned a plan that is not optimal{where} (value {value!r}, dual value "
            f"{dual!r}, dual violation {violation!r}); please report this problem"
        )
    return Solution(
        value=np.asarray(value), u=tree.u, v=tree.v, flow=tree.flow, rows=tree.rows, cols=tree.cols,
        order=tree.order, size=tree.size, virtual=tree.virtual, basis=tree.parent,
        dual=np.asarray(dual), violation=np.asarray(violation), iterations=np.asarray(-1, np.int32),
    )  # fmt: skip
