"""x with f(x) = 0 by a solver of your own, differentiated by the implicit function theorem."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..backends.rules import Mode
from ..backends.trees import Tree
from ..errors import NotDifferentiableError
from .flat import Flat, Point, nothing_captured, replaced

__all__ = ["root"]

Arrays = Sequence[Any]


def root(
    f: Callable[..., Any],
    initial_guess: Any,
    *params: Any,
    solve: Callable[..., Any],
    tangent_solve: Callable[..., Any] | None = None,
) -> Any:
    """Return x with ``f(x, *params) = 0``, with derivatives in `params` of every order.

    Parameters
    ----------
    f : callable
        ``f(x, *params)`` returns what looks like x: array code, which is differentiated.
    initial_guess : array or tree of arrays
        What x looks like; x has no derivative in it.
    *params : array or tree of arrays
        What the root depends on. On JAX the functions may capture it instead.
    solve : callable
        ``solve(initial_guess, *params)`` returns x. Not differentiated: it may be a host function
        or call one.
    tangent_solve : callable, optional
        ``tangent_solve(g, y)`` returns z with g(z) = y, where g is linear: the derivative of f in x
        or its transpose. Array code, differentiated for higher orders; default: the matrix of g is
        built and inverted.

    Returns
    -------
    array or tree of arrays

    Notes
    -----
    With F = df/dx:  F dx = -df/dtheta dtheta, and for a cotangent c:  F^T y = c,
    theta* = -(df/dtheta)^T y. A root that `solve` finds to a tolerance has derivatives to that
    tolerance.

    Examples
    --------
    >>> import jax, numpy as np
    >>> from ot_backends import host_function, root
    >>> cube_root = host_function(out=lambda x, a: x)(lambda x, a: np.cbrt(a))
    >>> f = lambda a: root(lambda x, a: x**3 - a, 1.0, a, solve=cube_root)
    >>> first, second = jax.grad(f), jax.grad(jax.grad(f))  # a^(-2/3) / 3, -2 a^(-5/3) / 9
    >>> print(f"{first(8.0):.4f} {second(8.0):.4f}")
    0.0833 -0.0069
    """
    point = Point(initial_guess, params)
    functions = point.flat(f, "root: f"), point.flat(solve, "root: solve")
    n, shapes = len(point.x), tuple(tuple(x.shape) for x in point.x)
    implicit = Implicit(n, len(point.theta), shapes, point.tree, *functions, tangent_solve)
    return point.tree.unflatten(implicit.run(point.nx, point.x, point.theta))


@dataclass(frozen=True)
class Implicit:
    """f(x, theta) = 0, as `Rules`: the arguments are theta, the value is x."""

    count: int
    size: int  # of theta
    shapes: tuple[tuple[int, ...], ...]
    tree: Tree
    f: Flat
    solve: Flat
    tangent_solve: Callable[..., Any] | None
    name: str = "root"

    def run(self, nx: Any, guess: Arrays, theta: Arrays) -> list[Any]:
        """Return x, with its derivatives."""
        fixed = [nx.stop_gradient(t) for t in theta]
        x = list(self.solve(*[nx.stop_gradient(g) for g in guess], *fixed))
        if not nx.tracks(*theta):
            return x
        # The derivative of what f captures unseen would be lost: f(x), as an argument without a
        # rule, raises if there is any.
        unseen = [] if nx.name == "jax" else self.f(*map(nx.stop_gradient, x), *fixed)
        outs: list[Any] = nx.set_rules(x, [*theta, *unseen], self)
        return outs

    def constant(self, position: int) -> bool:
        """Whether the argument has no derivative."""
        return False

    def has(self, mode: Mode, position: int) -> bool:
        """Whether there is a rule."""
        return position < self.size

    def jvp(
        self, nx: Any, active: Sequence[int], tangents: Arrays, values: Arrays, args: Arrays
    ) -> list[Any]:
        """Solve F dx = -df/dtheta dtheta."""
        theta = args[: self.size]
        _, changes = nx.jvp(
            lambda *some: self.f(*values, *replaced(theta, active, some)),
            [args[k] for k in active],
            list(tangents),
        )
        g = lambda *v: nx.jvp(lambda *x: self.f(*x, *theta), values, v)[1]  # noqa: E731
        return self._solve(nx, g, [-c for c in changes])

    def vjp(
        self, nx: Any, active: Sequence[int], cotangents: Arrays, values: Arrays, args: Arrays
    ) -> list[Any]:
        """Solve F^T y = c; then theta* = -(df/dtheta)^T y."""
        theta = args[: self.size]
        _, pull = nx.vjp(lambda *x: self.f(*x, *theta), *values)
        y = self._solve(nx, lambda *v: pull(tuple(v)), list(cotangents))
        _, pull_theta = nx.vjp(
            lambda *some: self.f(*values, *replaced(theta, active, some)),
            *[args[k] for k in active],
        )
        return [-t for t in pull_theta(tuple(y))]

    def _solve(self, nx: Any, g: Callable[..., Any], y: list[Any]) -> list[Any]:
        if self.tangent_solve is None:
            return self._dense_solve(nx, g, y)
        as_tree = self.tree.unflatten
        z = self.tangent_solve(lambda v: as_tree(list(g(*self.tree.flatten_up_to(v)))), as_tree(y))
        return self.tree.flatten_up_to(z)

    def _dense_solve(self, nx: Any, g: Callable[..., Any], y: list[Any]) -> list[Any]:
        xp, sizes = nx.xp, [math.prod(s) for s in self.shapes]
        ends = [sum(sizes[: k + 1]) for k in range(len(sizes))]

        def split(v: Any) -> list[Any]:
            parts = zip(ends, sizes, self.shapes, strict=True)
            return [xp.reshape(v[end - size : end], shape) for end, size, shape in parts]

        def join(parts: Arrays) -> Any:
            return xp.concat([xp.reshape(p, (-1,)) for p in parts])

        right = join(y)
        basis = nx.asarray(
            [[float(i == j) for j in range(ends[-1])] for i in range(ends[-1])],
            right,
            nx.dtype_name(right),
        )
        columns = nx.vmap(lambda v: join(g(*split(v))))(basis)  # row i is g(e_i)
        # inv and not solve, whose nested forward mode is wrong in torch.
        return split(xp.linalg.inv(xp.matrix_transpose(columns)) @ right)

    def missing(self, position: int) -> NotDifferentiableError:
        """Return the error for what is captured."""
        return nothing_captured(self.name)

    def cannot_transpose(self, mode: Mode) -> NotDifferentiableError:
        """Not needed: there are both rules."""
        raise NotImplementedError

    def residual_error(self) -> NotDifferentiableError:
        """Not needed: there are no residuals."""
        raise NotImplementedError
