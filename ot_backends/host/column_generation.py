"""A problem that moved a little: a few cells around the earlier optimum, priced against all.

POT's dense kernel looks at every cell from the beginning each time. From the potentials of an
earlier problem, its sparse kernel solves a restricted problem first, over the cells that the
optimum probably uses. Its duals then price the whole matrix: cells with M_ij < u_i + v_j enter, and
it is solved again. When none is left, the restricted optimum is the optimum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order

from .extract import Edges
from .pot_kernel import NEGATIVE_FLOW, NO_LIMIT, OPTIMAL, perturbed
from .tree import Duals, Float, duals_of_parents, root_tree

Index = NDArray[np.intp]

#: Below this many rows or columns the dense kernel, cold, is faster than any start.
SMALLEST = 256
#: Cells of the first restricted problem, for each row and column.
_CELLS = 4
#: Violated cells that enter in one round, at most, in each row.
_ENTERING = 16
#: Solve densely after this many rounds, or when this many times more cells would take part: the
#: start is of no use.
_ROUNDS = 12
_TOO_MANY = 4
#: Violations of the duals of costs in [0, 1) up to this, relative to their terms, are rounding.
_ROUNDING = 1e-14
#: Mass that every row gains; the kernel reports no flow below 1e-15.
_PERTURBATION = 4e-15
#: Cells of a block of rows in one step of pricing: it stays in the cache.
_BLOCK = 2**15


@lru_cache(maxsize=1)
def load_sparse_kernel() -> Callable[..., Any] | None:
    """Import POT's sparse kernel; None where POT is too old to have it."""
    try:
        from ot.lp.emd_wrap import emd_c_sparse  # type: ignore[import-untyped]
    except ImportError:
        return None
    return emd_c_sparse  # type: ignore[no-any-return]


def generate_columns(
    a: Float, b: Float, M: Float, start: Duals | None, max_iterations: int | None
) -> Edges | None:
    """Solve over few cells at a time; return an optimal tree, or None: solve it densely.

    Parameters
    ----------
    a, b : (n,), (m,) positive masses of total 1
    M : (n, m) costs, all finite, scaled into [0, 1)
    start : (n,), (m,) potentials to begin from; those of a tree tell the most
    """
    kernel = load_sparse_kernel()
    n, m = M.shape
    if start is None or kernel is None or min(n, m) < SMALLEST:
        return None
    # Masses for which the support of an optimal plan is a tree already.
    p, q = perturbed(a, b, _PERTURBATION)
    u, v = start
    cells = _first_cells(p, q, M, u, v)
    if cells is None:
        return None
    known = np.zeros(M.size, bool)
    for _ in range(_ROUNDS):
        known[cells] = True
        rows, cols = np.divmod(cells, m)
        i, j, flow, _, u, v, code = kernel(
            p, q, rows.astype(np.uint64), cols.astype(np.uint64), M[rows, cols],
            max_iterations or NO_LIMIT, u, v,
        )  # fmt: skip
        used = flow > 0
        i, j = i[used].astype(np.intp), j[used].astype(np.intp)
        duals = _tree_duals(i, j, M) if code == OPTIMAL else None
        if duals is None:
            return None
        u, v = duals
        violated, reduced = _violated(M, u, v)
        if len(violated) > _TOO_MANY * _CELLS * (n + m):
            return None
        violated = _worst(violated, reduced, m)
        if not len(violated):
            edges = Edges(i.tolist(), j.tolist(), [False] * len(i))
            return edges if _carries(edges, flow[used], a, b, M) else None
        entering = violated[~known[violated]]
        # None enters where it is the kernel's own rounding.
        if not 0 < len(entering) <= _TOO_MANY * _CELLS * (n + m) - len(cells):
            return None
        cells = np.concatenate([cells, entering])
    return None


def _tree_duals(rows: Index, cols: Index, M: Float) -> Duals | None:
    """Compute the duals on the tree of these cells, or None where they are no spanning tree.

    They are exact to rounding; the kernel's own have drifted.
    """
    n, m = M.shape
    size = n + m
    if len(rows) != size - 1:
        return None
    graph = csr_array((np.ones(len(rows)), (rows, cols + n)), shape=(size, size))
    _, parent = breadth_first_order(graph, 0, directed=False)
    parent[0] = -1
    return duals_of_parents(parent, M)  # what was not reached has a parent below -1


def _carries(edges: Edges, flow: Float, a: Float, b: Float, M: Float) -> bool:
    """Whether the tree is feasible for the masses themselves; ``flow`` is of the perturbed."""
    if flow.min() > 4 * len(a) * _PERTURBATION:
        return True
    tree = root_tree(*edges, a, b, M, keep_negative=True)
    return bool(tree.flow.min() >= -NEGATIVE_FLOW)


def _first_cells(a: Float, b: Float, M: Float, u: Float, v: Float) -> Index | None:
    """Choose the cells of the smallest reduced costs, and some that can carry the masses."""
    n, m = M.shape
    wanted = _CELLS * (n + m)
    # A sample says below which reduced cost about that many lie. An odd step meets all columns.
    step = max(1, wanted // 128) | 1
    at = np.arange(0, M.size, step)
    rows, cols = np.divmod(at, m)
    sample = M[rows, cols] - u[rows] - v[cols]
    k = min(len(sample) - 1, wanted // step)
    threshold = max(float(np.partition(sample, k)[k]), _ROUNDING)
    if np.mean(sample <= threshold) * M.size > _TOO_MANY * wanted:
        return None
    found = [base + np.flatnonzero(r <= threshold) for base, r in _blocks(M, u, v)]
    chosen = np.concatenate(found)
    return _joined(chosen, _staircase(a, b))


def _joined(cells: Index, more: Index) -> Index:
    """Append those of ``more`` that are not among ``cells``, which are in order."""
    at = np.searchsorted(cells, more)
    at[at == len(cells)] = 0
    return np.concatenate([cells, more[cells[at] != more]])


def _staircase(a: Float, b: Float) -> Index:
    """Cells of the north-west corner rule: they carry any masses a and b."""
    p, q = a.cumsum()[:-1], b.cumsum()[:-1]
    at = np.concatenate([[0.0], np.sort(np.concatenate([p, q]))])
    return np.searchsorted(p, at, "right") * len(b) + np.searchsorted(q, at, "right")


def _blocks(M: Float, u: Float, v: Float) -> Iterator[tuple[int, Float]]:
    """Yield the reduced costs M - u - v by blocks of rows, flat, with the index of their first."""
    n, m = M.shape
    rows = max(1, _BLOCK // m)
    buffer = np.empty((rows, m))
    for i in range(0, n, rows):
        block = M[i : i + rows]
        r = np.subtract(block, v, out=buffer[: len(block)])
        r -= u[i : i + rows, None]
        yield i * m, r.reshape(-1)


def _violated(M: Float, u: Float, v: Float) -> tuple[Index, Float]:
    """Return the cells that violate the duals beyond rounding, and by how much (negative)."""
    m = M.shape[1]
    index, reduced = [], []
    for base, r in _blocks(M, u, v):
        k = np.flatnonzero(r < -_ROUNDING)
        index.append(k + base)
        reduced.append(r[k])
    cells, r = np.concatenate(index), np.concatenate(reduced)
    i, j = np.divmod(cells, m)
    beyond = r < -_ROUNDING * (1 + np.abs(u[i]) + np.abs(v[j]))
    return cells[beyond], r[beyond]


def _worst(cells: Index, reduced: Float, m: int) -> Index:
    """Keep the most violated cells of each row."""
    rows = cells // m
    order = np.lexsort((reduced, rows))
    rows = rows[order]
    rank = np.arange(len(rows)) - np.searchsorted(rows, rows)
    return cells[order[rank < _ENTERING]]
