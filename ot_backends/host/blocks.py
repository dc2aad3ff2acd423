"""Blocks of cells: where the allowed ones do not connect rows and columns, each must balance."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from .tree import Float


def balance_blocks(
    a: Float, b: Float, allowed: NDArray[np.bool_], tolerance: float
) -> Float | None:
    """Return ``b`` rescaled to the mass of ``a`` in each block, or None if a block cannot balance.

    Blocks that agree up to ``tolerance`` (of the total mass 1) differ by rounding only.
    """
    n, m = allowed.shape
    rows, cols = np.nonzero(allowed)
    graph = coo_array((np.ones(len(rows), np.int8), (rows, n + cols)), shape=(n + m, n + m))
    blocks, label = connected_components(graph, directed=False)
    if blocks == 1:
        return b
    mass_a = np.bincount(label[:n], weights=a, minlength=blocks)
    mass_b = np.bincount(label[n:], weights=b, minlength=blocks)
    if (np.abs(mass_a - mass_b) > tolerance).any() or (mass_a == 0).any() or (mass_b == 0).any():
        return None
    balanced: Float = b * (mass_a / mass_b)[label[n:]]
    return balanced
