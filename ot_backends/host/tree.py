"""The optimal basis as a rooted spanning tree: preorder, subtree sizes, flows and potentials.

Nodes 0 .. n-1 are the rows, n .. n+m-1 the columns. A tree is given by its n + m - 1 edges
(row, column); what is computed here is the float64 reference for ``ot_backends.basis``, which
repeats the same two formulas inside a framework.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]
Int = NDArray[np.int32]
Duals = tuple[Float, Float]


class Walk(NamedTuple):
    """A depth-first walk over the forest of some edges."""

    order: list[int]  # nodes in preorder
    parent: list[int]  # parent of each node; -1 at a root
    edge: list[int]  # index of the edge to the parent; -1 at a root
    component: list[int]
    potential: list[float]  # u on rows, -v on columns; 0 at each root


def walk(
    n: int, size: int, rows: Sequence[int], cols: Sequence[int], cost: Sequence[float],
    roots: Iterable[int],
) -> Walk:  # fmt: skip
    """Walk the forest of the edges from the given roots, in preorder.

    Along an edge (i, j) the potentials satisfy u_i + v_j = cost, that is
    potential[i] = potential[n + j] + cost.
    """
    neighbours: list[list[tuple[int, int]]] = [[] for _ in range(size)]
    for e, (i, j) in enumerate(zip(rows, cols, strict=True)):
        neighbours[i].append((n + j, e))
        neighbours[n + j].append((i, e))
    unseen = -2
    w = Walk([], [unseen] * size, [-1] * size, [0] * size, [0.0] * size)
    components = 0
    for root in roots:
        if w.parent[root] != unseen:
            continue
        w.parent[root] = -1
        stack = [root]
        while stack:
            k = stack.pop()
            w.order.append(k)
            w.component[k] = components
            base = w.potential[k]
            for child, e in neighbours[k]:
                if w.parent[child] == unseen:
                    w.parent[child] = k
                    w.edge[child] = e
                    w.potential[child] = base + cost[e] if child < n else base - cost[e]
                    stack.append(child)
        components += 1
    return w


class Tree(NamedTuple):
    """An optimal spanning tree with its flows and potentials, all of one problem.

    The edge of position k = 1 .. n+m-1 of the preorder joins ``order[k]`` to its parent; ``rows``,
    ``cols``, ``virtual`` and ``flow`` are listed in that order (shape (n + m - 1,)).
    """

    order: Int  # (n + m,) nodes in preorder, the heaviest first
    size: Int  # (n + m,) number of nodes in the subtree of order[k]
    parent: Int  # (n + m,) parent of node k (not of position k), -1 at the root
    rows: Int
    cols: Int
    virtual: NDArray[np.bool_]  # edges over cells that are not allowed: cost 0, no flow
    flow: Float
    u: Float
    v: Float


def root_tree(
    rows: Sequence[int], cols: Sequence[int], virtual: Sequence[bool], a: Float, b: Float, M: Float,
    *, keep_negative: bool = False,
) -> Tree:  # fmt: skip
    """Root the tree of the given edges at its heaviest node; compute its flows and potentials.

    Each edge carries the net supply of the subtree below it. The sums run from the leaves to the
    root, so with the heaviest node as the root even weights of 1e-17 keep their relative accuracy.
    Potentials are shifted so that <v, b> = 0.
    """
    n, m = M.shape
    size = n + m
    cost = np.where(virtual, 0.0, M[rows, cols])
    root = int(np.concatenate([a, b]).argmax())
    w = walk(n, size, rows, cols, cost.tolist(), (root,))
    if len(w.order) != size or len(rows) != size - 1:
        raise AssertionError("the edges do not form a spanning tree")

    supply = np.concatenate([a, -b]).tolist()
    count = [1] * size
    for k in reversed(w.order[1:]):
        supply[w.parent[k]] += supply[k]
        count[w.parent[k]] += count[k]

    order = np.array(w.order, np.int32)
    parent = np.array(w.parent, np.int32)
    child, above = order[1:], parent[order[1:]]
    is_row = child < n
    is_virtual = np.array(virtual, bool)[np.array(w.edge)[child]]
    # flow = sign * (net supply of the subtree), sign = +1 where the child is a row. On an optimal
    # tree it is negative by rounding only, which is cut off.
    flow = np.where(is_row, 1.0, -1.0) * np.array(supply)[child]
    if not keep_negative:
        flow = np.maximum(flow, 0.0)
    potential = np.array(w.potential)
    u, v = potential[:n], -potential[n:]
    shift = float(v @ b) / float(b.sum())
    return Tree(
        order=order,
        size=np.array(count, np.int32)[order],
        parent=parent,
        rows=np.where(is_row, child, above).astype(np.int32),
        cols=(np.where(is_row, above, child) - n).astype(np.int32),
        virtual=is_virtual,
        flow=np.where(is_virtual, 0.0, flow),
        u=u + shift,
        v=v - shift,
    )


def duals_of_parents(parent: NDArray[np.integer], M: Float) -> Duals | None:
    """Return the potentials (u, v) of a parent array, or None if it is not a spanning tree.

    Any array is accepted: what is not a tree of row-column edges simply gives no warm start.
    Edges over cells that are not finite count as virtual, of cost 0.
    """
    n, m = M.shape
    node = np.arange(n + m)
    is_row = node < n
    root = np.flatnonzero(parent < 0)
    if len(root) != 1:
        return None
    above = parent.astype(np.intp)
    above[root] = root
    if (above >= n + m).any() or ((is_row == (above < n)) & (node != root)).any():
        return None
    other = above.copy()
    other[root] = n if root < n else 0
    cost = M[np.where(is_row, node, other), np.where(is_row, other, node) - n]
    # u on rows and -v on columns: on the way down it grows by the cost at a row and falls by it at
    # a column. What a node knows is the sum over a part of its way up, which doubles each time.
    potential = np.where(is_row, 1.0, -1.0) * np.where(np.isfinite(cost), cost, 0.0)
    potential[root] = 0.0
    for _ in range(int(n + m).bit_length()):
        if (above == root).all():
            return potential[:n], -potential[n:]
        potential += potential[above]
        above = above[above]
    return None  # a cycle
