"""The tree algebra: flow, potentials and tree costs of an optimal basis, inside a framework.

On a fixed spanning tree the flow is linear in the marginals and the potentials are linear in the
costs. With the nodes in depth-first preorder, the subtree of the node at position k is the range
``k : k + size[k]``, so both are a gather and a cumulative sum: O(n + m) on the device.

Nodes 0 .. n-1 are rows, n .. n+m-1 columns. The tree is given by ``order`` (..., n + m), the nodes
in preorder, and ``size`` (..., n + m), the subtree sizes by position. The edge of position
k = 1 .. n+m-1 joins ``order[k]`` to its parent. Each function works on any array namespace and is
differentiable by its framework; leading dimensions are a batch.
"""

from __future__ import annotations

from typing import Any

Array = Any


def _sign(xp: Any, order: Array, n: int, like: Array) -> Array:
    """+1 where the child of an edge is a row (supply flows up), -1 where it is a column."""
    up = xp.astype(order[..., 1:] < n, like.dtype)
    return 2 * up - 1


def tree_flow(xp: Any, order: Array, size: Array, a: Array, b: Array) -> Array:
    """Flow on each tree edge (..., n + m - 1) for marginals ``a`` (..., n) and ``b`` (..., m).

    Each edge carries the net supply of the subtree below it:

        flow[k] = sign[k] * (C[k + size[k]] - C[k]),   C = concat([0, cumsum(supply[order])]),
        supply = concat([a, -b]).
    """
    batch = order.shape[:-1]
    n, m = a.shape[-1], b.shape[-1]
    supply = xp.concat([xp.broadcast_to(a, (*batch, n)), xp.broadcast_to(-b, (*batch, m))], axis=-1)
    net = xp.take_along_axis(supply, order, axis=-1)
    total = cumulative_sum(xp, xp.concat([xp.zeros_like(net[..., :1]), net], axis=-1))
    position = xp.arange(1, n + m, dtype=order.dtype, device=device_of(xp, order))
    below = xp.take_along_axis(total, position + size[..., 1:], axis=-1) - total[..., 1:-1]
    return _sign(xp, order, n, below) * below


def tree_potentials(nx: Any, order: Array, size: Array, cost: Array, n: int) -> tuple[Array, Array]:
    """Potentials u (..., n) and v (..., m) with u_i + v_j = cost on every tree edge, 0 at the root.

    The transpose of ``tree_flow``: add sign[k] * cost[k] at k, take it off at k + size[k], and
    the cumulative sum gives u on rows and -v on columns, in preorder.
    """
    xp = nx.xp
    nodes = order.shape[-1]
    step = _sign(xp, order, n, cost) * cost
    position = xp.arange(1, nodes, dtype=order.dtype, device=device_of(xp, order))
    ends = position + size[..., 1:]
    closing = scatter_add(nx, nodes + 1, ends, step)[..., :-1]
    opening = xp.concat([xp.zeros_like(closing[..., :1]), step], axis=-1)
    in_preorder = cumulative_sum(xp, opening - closing)
    potential = scatter_add(nx, nodes, order, in_preorder)
    return potential[..., :n], -potential[..., n:]


def tree_costs(xp: Any, M: Array, rows: Array, cols: Array) -> Array:
    """Entries of ``M`` on the tree edges (..., n + m - 1), also where an edge is virtual.

    Only tree entries of ``M`` are touched, so a forbidden cell elsewhere can't become inf - inf.
    """
    batch, edges = rows.shape[:-1], rows.shape[-1]
    if len(M.shape) == 2:
        return M[rows, cols]
    n, m = M.shape[-2:]
    flat = xp.reshape(xp.broadcast_to(M, (*batch, n, m)), (-1, n, m))
    rows, cols = xp.reshape(rows, (-1, edges)), xp.reshape(cols, (-1, edges))
    return xp.reshape(flat[_rows_of(xp, rows), rows, cols], (*batch, edges))


def zero_where(xp: Any, mask: Array, x: Array) -> Array:
    """``x`` with zeros, that have no derivative, at ``mask``, whatever ``x`` holds there."""
    return xp.where(mask, xp.zeros_like(x), x)


def dense_plan(nx: Any, rows: Array, cols: Array, flow: Array, n: int, m: int) -> Array:
    """Dense plan (..., n, m) of the flows on the tree edges."""
    xp = nx.xp
    batch, edges = rows.shape[:-1], rows.shape[-1]
    if not batch:
        return nx.scatter_add((n, m), (rows, cols), flow)
    rows, cols, flow = (xp.reshape(x, (-1, edges)) for x in (rows, cols, flow))
    shape = (rows.shape[0], n, m)
    return xp.reshape(nx.scatter_add(shape, (_rows_of(xp, rows), rows, cols), flow), (*batch, n, m))


def scatter_add(nx: Any, size: int, index: Array, values: Array) -> Array:
    """Add ``values`` (..., k) into zeros (..., size) at ``index`` (..., k)."""
    xp = nx.xp
    batch, k = index.shape[:-1], index.shape[-1]
    if not batch:
        return nx.scatter_add((size,), (index,), values)
    index, values = xp.reshape(index, (-1, k)), xp.reshape(values, (-1, k))
    shape = (index.shape[0], size)
    return xp.reshape(nx.scatter_add(shape, (_rows_of(xp, index), index), values), (*batch, size))


def cumulative_sum(xp: Any, x: Array) -> Array:
    """Cumulative sum along the last axis.

    By its old name, which all three frameworks share: array-api-compat's ``cumulative_sum`` looks
    its namespace up at each call, about which torch.compile warns.
    """
    return xp.cumsum(x, axis=-1)


def _rows_of(xp: Any, index: Array) -> Array:
    """Row numbers that go with a 2-D index."""
    return xp.arange(index.shape[0], dtype=index.dtype, device=device_of(xp, index))[:, None]


def device_of(xp: Any, x: Array) -> Any:
    """The device for a new array beside ``x``; tracers have none to give, and need none."""
    return x.device if xp.__name__.endswith("torch") else None
