"""From a kernel's plan and duals to an optimal spanning tree.

A degenerate plan has fewer than n + m - 1 positive cells, so its support is only a forest. Joining
the parts by a minimum spanning tree of reduced costs is wrong: it is often dual infeasible. Here
one part grows instead, always over the smallest crossing reduced cost, and its duals move by that
amount, as in the primal-dual method: every step keeps all reduced costs non-negative.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .tree import Float, walk


class Edges(NamedTuple):
    """The n + m - 1 edges of a spanning tree; virtual ones lie on cells that are not allowed."""

    rows: list[int]
    cols: list[int]
    virtual: list[bool]


def spanning_edges(plan: Float, u: Float, v: Float, M: Float) -> Edges:
    """Extend the support of an optimal plan to an optimal spanning tree.

    Parameters
    ----------
    plan : (n, m), non-negative, every row and column with mass
    u, v : (n,), (m,) optimal duals of the kernel, used to align the parts of the forest
    M : (n, m) costs; +inf where a cell is not allowed
    """
    n, m = plan.shape
    size = n + m
    rows, cols = np.nonzero(plan > 0)
    if len(rows) >= size:  # rounding closed a cycle: the walk below keeps the largest flows
        first = np.argsort(-plan[rows, cols], kind="stable")
        rows, cols = rows[first], cols[first]
    forest = walk(n, size, rows.tolist(), cols.tolist(), M[rows, cols].tolist(), range(size))
    kept = [e for e in forest.edge if e >= 0]
    edges = Edges(rows[kept].tolist(), cols[kept].tolist(), [False] * len(kept))
    if len(kept) == size - 1:
        return edges

    component = np.array(forest.component)
    potential = np.array(forest.potential)
    _, first_node = np.unique(component, return_index=True)
    kernel = np.concatenate([u, -v])
    potential += (kernel - potential)[first_node][component]
    # Reduced costs r_ij = M_ij - u_i - v_j, exact within each part, aligned by the kernel between.
    reduced = M - potential[:n, None] + potential[None, n:]
    _grow(edges, reduced, component[:n], component[n:])
    return edges


def _grow(
    edges: Edges, reduced: Float, row_part: NDArray[np.intp], col_part: NDArray[np.intp]
) -> None:
    """Join the parts of a forest, one at a time, to the part that contains part 0.

    ``shift`` is what the duals of the grown part S have moved so far. Moving them up by d lowers
    the reduced costs of the cells (row in S, column outside) by d and raises those of the cells
    (row outside, column in S), so the smallest crossing reduced cost may become the next edge.
    """
    n, m = reduced.shape
    by_column = np.ascontiguousarray(reduced.T)
    out_best = np.full(m, np.inf)  # min over rows i in S of r_ij, in the shifted scale
    out_row = np.zeros(m, np.intp)
    in_best = np.full(n, np.inf)  # min over columns j in S of r_ij
    in_col = np.zeros(n, np.intp)
    row_inside = np.zeros(n)  # 0 outside S, +inf inside: added to exclude
    col_inside = np.zeros(m)
    shift = 0.0
    part = 0
    edge: tuple[int, int, bool]
    parts = int(max(row_part.max(), col_part.max())) + 1
    for step in range(parts):
        rows, cols = np.flatnonzero(row_part == part), np.flatnonzero(col_part == part)
        row_inside[rows] = np.inf
        col_inside[cols] = np.inf
        for row in rows:
            t = reduced[row] + shift
            better = t < out_best
            out_best[better] = t[better]
            out_row[better] = row
        for col in cols:
            t = by_column[col] - shift
            better = t < in_best
            in_best[better] = t[better]
            in_col[better] = col
        if step == parts - 1:
            return
        going_out, coming_in = out_best + col_inside, in_best + row_inside
        j, i = int(going_out.argmin()), int(coming_in.argmin())
        up, down = going_out[j] - shift, coming_in[i] + shift
        if up <= down and up < np.inf:
            shift += up
            edge, part = (int(out_row[j]), j, False), int(col_part[j])
        elif down < np.inf:
            shift -= down
            edge, part = (i, int(in_col[i]), False), int(row_part[i])
        else:  # no allowed cell crosses: a virtual edge, and the next block of cells begins
            shift = 0.0
            edge, part = _virtual_edge(row_inside, col_inside, row_part, col_part)
        edges.rows.append(edge[0])
        edges.cols.append(edge[1])
        edges.virtual.append(edge[2])


def _virtual_edge(
    row_inside: Float, col_inside: Float, row_part: NDArray[np.intp], col_part: NDArray[np.intp]
) -> tuple[tuple[int, int, bool], int]:
    rows_in, cols_in = np.flatnonzero(row_inside), np.flatnonzero(col_inside)
    rows_out, cols_out = np.flatnonzero(row_inside == 0), np.flatnonzero(col_inside == 0)
    if len(rows_in) and len(cols_out):
        i, j = int(rows_in[0]), int(cols_out[0])
        return (i, j, True), int(col_part[j])
    i, j = int(rows_out[0]), int(cols_in[0])
    return (i, j, True), int(row_part[i])
