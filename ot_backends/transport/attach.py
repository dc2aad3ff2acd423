"""The linear attachment: where a host result becomes differentiable, and the only place.

The host's numbers stay what they are; a term that is zero is added, and its derivatives are the
right ones. With sg = stop_gradient, b' = b * sum(a) / sum(b) and M_e the costs on the tree edges:

    value + <u, a - sg(a)> + <v, b' - sg(b')> + <plan(a, b'), M_e - sg(M_e)>

Only one factor of the bilinear form stays differentiable (the plan; u and v are detached): with
both, the mixed second derivative d2 value / da dM = d plan / da would come out twice. No custom
derivative rule is involved, so every transform of every framework applies.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..backends import Backend
from ..basis import tree_costs, tree_flow, tree_potentials, zero_where
from .problem import Optimum, Problem

Array = Any


@dataclass
class Attached:
    """A problem and its optimum; the differentiable inputs, computed where they are needed."""

    problem: Problem
    host: Optimum
    # Not functools.cached_property: Dynamo does not trace its lock (Python 3.11).
    _b: Array = field(default=None, init=False)
    _cost: Array = field(default=None, init=False)

    def __post_init__(self) -> None:
        """Ask once whether anything may be differentiated."""
        self.live = self.problem.nx.tracks(self.problem.a, self.problem.b, self.problem.M)

    @property
    def a(self) -> Array:
        """``a`` in the carried type."""
        return self.problem.carry(self.problem.a)

    @property
    def b(self) -> Array:
        """b' = b * sum(a) / sum(b) in the carried type."""
        if self._b is None:
            self._b = rescaled(self.problem.nx, self.a, self.problem.carry(self.problem.b))
        return self._b

    @property
    def cost(self) -> Array:
        """Entries of M on the tree edges (..., n + m - 1)."""
        if self._cost is None:
            problem, host = self.problem, self.host
            self._cost = problem.carry(tree_costs(problem.nx.xp, problem.M, host.rows, host.cols))
        return self._cost


def rescaled(nx: Backend, a: Array, b: Array) -> Array:
    """Return b' = b * sum(a) / sum(b)."""
    xp = nx.xp
    # A constant first makes the sum 1: the derivative of a quotient squares its denominator,
    # which leaves the range of floats for masses of 1e-300.
    q = b / nx.stop_gradient(xp.sum(b, axis=-1, keepdims=True))
    return xp.sum(a, axis=-1, keepdims=True) * (q / xp.sum(q, axis=-1, keepdims=True))


def flow(x: Attached) -> Array:
    """Flow on the tree edges (..., n + m - 1): linear in the marginals; none on virtual edges."""
    return _flow(x.problem.nx, x.host, x.a, x.b) if x.live else x.host.flow


def _flow(nx: Backend, host: Optimum, a: Array, b: Array) -> Array:
    on_tree = tree_flow(nx.xp, host.order, host.size, a, b)
    change = on_tree - nx.stop_gradient(on_tree)
    return host.flow + zero_where(nx.xp, host.virtual, change)


def value(x: Attached) -> Array:
    """Value (...): bilinear in the marginals and the costs, so exact to every order."""
    problem, host = x.problem, x.host
    if not x.live:
        return host.value
    rule = _Value(problem.nx, host)
    return problem.nx.deferred(host.value, (x.a, problem.carry(problem.b), x.cost), rule)


class _Value(NamedTuple):
    """The value as a function of the marginals and of the costs on the tree edges."""

    nx: Backend
    host: Optimum

    def __call__(self, a: Array, b: Array, cost: Array) -> Array:
        """Return the host's value with all derivatives."""
        nx, host = self.nx, self.host
        xp, sg = nx.xp, nx.stop_gradient
        b, cost = rescaled(nx, a, b), zero_where(xp, host.virtual, cost)
        return (
            host.value
            + xp.sum(host.u * (a - sg(a)), axis=-1)
            + xp.sum(host.v * (b - sg(b)), axis=-1)
            + xp.sum(_flow(nx, host, a, b) * (cost - sg(cost)), axis=-1)
        )

    def gradient(self, k: int, a: Array, b: Array, cost: Array) -> Array:
        """Return the first derivative in argument k: the gauge <v, b'> = 0 makes it this."""
        xp, host = self.nx.xp, self.host
        if k == 0:
            return host.u
        if k == 1:
            return host.v * (xp.sum(a, axis=-1, keepdims=True) / xp.sum(b, axis=-1, keepdims=True))
        return zero_where(xp, host.virtual, host.flow)


def potentials(x: Attached) -> tuple[Array, Array]:
    """Potentials u (..., n), v (..., m) with <v, b'> = 0: linear in the costs of the tree edges."""
    nx, host = x.problem.nx, x.host
    xp, sg = nx.xp, nx.stop_gradient
    if not x.live:
        return host.u, host.v
    cost = zero_where(xp, host.virtual, x.cost)
    u, v = tree_potentials(nx, host.order, host.size, cost, x.a.shape[-1])
    weights = x.b / sg(xp.sum(x.b, axis=-1, keepdims=True))  # of sum 1, as in Attached.b
    gauge = xp.sum(v * weights, axis=-1, keepdims=True) / xp.sum(weights, axis=-1, keepdims=True)
    u, v = u + gauge, v - gauge
    return host.u + (u - sg(u)), host.v + (v - sg(v))
