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
from typing import Any

from ..basis import tree_costs, tree_flow, tree_potentials
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
            xp, b = self.problem.nx.xp, self.problem.carry(self.problem.b)
            # A constant first makes the sum 1: the derivative of a quotient squares its
            # denominator, which leaves the range of floats for masses of 1e-300.
            q = b / self.problem.nx.stop_gradient(xp.sum(b, axis=-1, keepdims=True))
            mass = xp.sum(self.a, axis=-1, keepdims=True)
            self._b = mass * (q / xp.sum(q, axis=-1, keepdims=True))
        return self._b

    @property
    def cost(self) -> Array:
        """Costs on the tree edges (..., n + m - 1), 0 on virtual ones."""
        if self._cost is None:
            problem, host = self.problem, self.host
            cost = tree_costs(problem.nx.xp, problem.M, host.rows, host.cols, host.virtual)
            self._cost = problem.carry(cost)
        return self._cost


def flow(x: Attached) -> Array:
    """Flow on the tree edges (..., n + m - 1): linear in the marginals; none on virtual edges."""
    xp, host = x.problem.nx.xp, x.host
    if not x.live:
        return host.flow
    on_tree = tree_flow(xp, host.order, host.size, x.a, x.b)
    change = on_tree - x.problem.nx.stop_gradient(on_tree)
    return host.flow + xp.where(host.virtual, xp.zeros_like(change), change)


def value(x: Attached) -> Array:
    """Value (...): bilinear in the marginals and the costs, so exact to every order."""
    xp, sg, host = x.problem.nx.xp, x.problem.nx.stop_gradient, x.host
    if not x.live:
        return host.value
    return (
        host.value
        + xp.sum(host.u * (x.a - sg(x.a)), axis=-1)
        + xp.sum(host.v * (x.b - sg(x.b)), axis=-1)
        + xp.sum(flow(x) * (x.cost - sg(x.cost)), axis=-1)
    )


def potentials(x: Attached) -> tuple[Array, Array]:
    """Potentials u (..., n), v (..., m) with <v, b'> = 0: linear in the costs of the tree edges."""
    nx, host = x.problem.nx, x.host
    xp, sg = nx.xp, nx.stop_gradient
    if not x.live:
        return host.u, host.v
    u, v = tree_potentials(nx, host.order, host.size, x.cost, x.a.shape[-1])
    weights = x.b / sg(xp.sum(x.b, axis=-1, keepdims=True))  # of sum 1, as in Attached.b
    gauge = xp.sum(v * weights, axis=-1, keepdims=True) / xp.sum(weights, axis=-1, keepdims=True)
    u, v = u + gauge, v - gauge
    return host.u + (u - sg(u)), host.v + (v - sg(v))
