"""What a solve may be told, and what it returns: the types that all kernels share."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .check import mass_tolerance, rounding
from .tree import Float, Int


class Options(NamedTuple):
    """What a solve may be told, apart from its arrays."""

    check_marginals: bool = True
    #: Machine epsilon of the weights. The mass tolerance follows from it and the size; as a number
    #: of its own it would make another compiled program for each size.
    eps: float = 2.0**-52
    max_iterations: int | None = None
    time_limit: float | None = None  # seconds for the whole call; the native kernel's only

    def mass_tolerance(self, size: int) -> float:
        """Return the relative mismatch of sums that is accepted."""
        return mass_tolerance(self.eps, size)

    def rounding(self, size: int) -> float:
        """Return the share of the mass that is rounding: no reason to use a huge cost."""
        return rounding(self.eps, size)


class Solution(NamedTuple):
    """The optimum of one problem (or, stacked, of a batch), with its certificate.

    ``value`` is min <P, M> over plans with row sums ``a`` and column sums
    ``b * sum(a) / sum(b)``; <u, a> + <v, b'> equals it up to rounding (``dual``), and u_i + v_j
    exceeds M_ij by at most ``violation`` anywhere outside the cells that are empty on both sides.
    """

    value: Float  # ()
    u: Float  # (n,)
    v: Float  # (m,)
    flow: Float  # (n + m - 1,) in the order of the tree's edges, as are rows and cols
    rows: Int
    cols: Int
    order: Int  # (n + m,) preorder
    size: Int  # (n + m,) subtree sizes by preorder position
    virtual: NDArray[np.bool_]  # (n + m - 1,)
    basis: Int  # (n + m,) parent of each node, -1 at the root
    dual: Float  # ()
    violation: Float  # ()
    iterations: Int  # () pivots, or -1 where the kernel does not count them


def empty_solution(batch: tuple[int, ...], n: int, m: int) -> Solution:
    """Allocate the solutions of a batch."""

    def real(*core: int) -> Float:
        return np.empty((*batch, *core), np.float64)

    def integer(*core: int) -> Int:
        return np.empty((*batch, *core), np.int32)

    edges, nodes = n + m - 1, n + m
    return Solution(
        value=real(), u=real(n), v=real(m), flow=real(edges), rows=integer(edges),
        cols=integer(edges), order=integer(nodes), size=integer(nodes),
        virtual=np.empty((*batch, edges), bool), basis=integer(nodes), dual=real(),
        violation=real(), iterations=integer(),
    )  # fmt: skip
