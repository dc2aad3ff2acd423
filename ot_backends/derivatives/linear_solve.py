"""x with A x = b by a solver of your own, differentiated as the solution and not as the solver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..backends.rules import Mode
from ..errors import NotDifferentiableError
from .flat import Flat, Point, nothing_captured, replaced

__all__ = ["linear_solve"]

Arrays = Sequence[Any]


def linear_solve(
    matvec: Callable[..., Any],
    b: Any,
    *params: Any,
    solve: Callable[..., Any],
    transpose_solve: Callable[..., Any] | None = None,
) -> Any:
    """Solve ``matvec(x, *params) = b``, with derivatives in `b` and `params` of every order.

    Parameters
    ----------
    matvec : callable
        ``matvec(x, *params)``, linear in x, square: array code, which is differentiated.
    b : array or tree of arrays
    *params : array or tree of arrays
        What the matrix depends on. On JAX the functions may capture it instead.
    solve : callable
        ``solve(b, *params)`` returns x. Not differentiated: it may be a host function or call one.
    transpose_solve : callable, optional
        ``transpose_solve(b, *params)`` solves with the transposed matrix. Reverse mode needs it; of
        a symmetric matrix it is `solve`.

    Returns
    -------
    array or tree of arrays
        As `b`. Each derivative costs one more solve.

    Raises
    ------
    NotDifferentiableError
        In reverse mode without `transpose_solve`.

    Notes
    -----
    A dx = db - dA x, and for a cotangent c:  A^T y = c,  b* = y,  A* = -y x^T.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, numpy as np
    >>> from ot_backends import host_function, linear_solve
    >>> host = host_function(out=lambda b, A: b)(lambda b, A: np.linalg.solve(A, b))
    >>> def f(A, b):
    ...     matvec = lambda x, A: A @ x
    ...     transposed = lambda b, A: host(b, A.T)
    ...     return linear_solve(matvec, b, A, solve=host, transpose_solve=transposed)
    >>> print(jax.jacrev(f, 1)(jnp.diag(jnp.array([2.0, 4.0])), jnp.ones(2)))
    [[0.5  0.  ]
     [0.   0.25]]
    """
    point = Point(b, params)
    by, solver = (
        point.flat(matvec, "linear_solve: matvec"),
        point.flat(solve, "linear_solve: solve"),
    )
    transposed = None
    if transpose_solve is not None:
        transposed = point.flat(transpose_solve, "linear_solve: transpose_solve")
    n = len(point.x)
    system = LinearSystem(n, n + len(point.theta), by, solver, transposed)
    return point.tree.unflatten(system.run(point.nx, point.x, point.theta))


@dataclass(frozen=True)
class LinearSystem:
    """A x = b with A = A(theta), as `Rules`: the arguments are b and theta, the value x."""

    count: int
    size: int  # of b and theta
    matvec: Flat
    solve: Flat
    transpose_solve: Flat | None
    name: str = "linear_solve"

    def run(self, nx: Any, b: Arrays, theta: Arrays) -> list[Any]:
        """Return x, with its derivatives."""
        fixed = [nx.stop_gradient(x) for x in (*b, *theta)]
        x = list(self.solve(*fixed))
        if not nx.tracks(*b, *theta):
            return x
        # The derivative of what matvec captures unseen would be lost: A x, as an argument without
        # a rule, raises if there is any.
        unseen = [] if nx.name == "jax" else self.matvec(*x, *fixed[self.count :])
        outs: list[Any] = nx.set_rules(x, [*b, *theta, *unseen], self)
        return outs

    def constant(self, position: int) -> bool:
        """Whether the argument has no derivative."""
        return False

    def has(self, mode: Mode, position: int) -> bool:
        """Whether there is a rule."""
        return position < self.size and (mode == "jvp" or self.transpose_solve is not None)

    def jvp(
        self, nx: Any, active: Sequence[int], tangents: Arrays, values: Arrays, args: Arrays
    ) -> list[Any]:
        """Solve A dx = db - dA x."""
        n, dots = self.count, dict(zip(active, tangents, strict=True))
        theta = args[n : self.size]
        rhs = [dots[k] if k in dots else nx.xp.zeros_like(args[k]) for k in range(n)]
        moving = [k - n for k in active if k >= n]
        if moving:
            at = lambda *some: self.matvec(*values, *replaced(theta, moving, some))  # noqa: E731
            _, changes = nx.jvp(at, [theta[k] for k in moving], [dots[k + n] for k in moving])
            rhs = [r - c for r, c in zip(rhs, changes, strict=True)]
        return self.run(nx, rhs, theta)

    def vjp(
        self, nx: Any, active: Sequence[int], cotangents: Arrays, values: Arrays, args: Arrays
    ) -> list[Any]:
        """Solve A^T y = c; then b* = y and theta* = -(d (A x) / d theta)^T y."""
        n, theta = self.count, args[self.count : self.size]
        y = self.transposed(nx).run(nx, cotangents, theta)
        moving = [k - n for k in active if k >= n]
        grads: dict[int, Any] = dict(enumerate(y))
        if moving:
            at = lambda *some: self.matvec(*values, *replaced(theta, moving, some))  # noqa: E731
            _, pull = nx.vjp(at, *[theta[k] for k in moving])
            grads |= {k + n: -g for k, g in zip(moving, pull(tuple(y)), strict=True)}
        return [grads[k] for k in active]

    def transposed(self, nx: Any) -> LinearSystem:
        """Return the system of A^T."""
        assert self.transpose_solve is not None

        def matvec(*leaves: Any) -> tuple[Any, ...]:
            y, theta = leaves[: self.count], leaves[self.count :]
            zeros = [nx.xp.zeros_like(x) for x in y]
            _, pull = nx.vjp(lambda *x: self.matvec(*x, *theta), *zeros)
            return tuple(pull(tuple(y)))

        return replace(self, matvec=matvec, solve=self.transpose_solve, transpose_solve=self.solve)

    def missing(self, position: int) -> NotDifferentiableError:
        """Return the error for what is captured."""
        return nothing_captured(self.name)

    def cannot_transpose(self, mode: Mode) -> NotDifferentiableError:
        """Return the error for reverse mode without `transpose_solve`."""
        return NotDifferentiableError(
            "linear_solve: reverse mode needs transpose_solve, the solver of the transposed system "
            "(of a symmetric matrix: transpose_solve=solve)"
        )

    def residual_error(self) -> NotDifferentiableError:
        """Not needed: there are no residuals."""
        raise NotImplementedError
