"""Host functions with rules on four JAX devices; prints one line of JSON per check."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from host_functions import CALLS, problem, solve
from jax.sharding import PartitionSpec as P

import ot_backends

CHECKS: dict[str, Callable[[bool], None]] = {}


def check(name: str) -> Callable[[Any], Any]:
    def add(f: Any) -> Any:
        CHECKS[name] = f
        return f

    return add


def same(got: Any, want: Any) -> None:
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=1e-10, atol=1e-10)


def reference(A: Any, b: Any) -> Any:
    return jnp.linalg.inv(A) @ b


def problems() -> tuple[Any, Any]:
    A, b = problem(2)
    k = jnp.arange(1.0, 9.0)
    return jnp.asarray(A) + k[:, None, None] * jnp.eye(2), k[:, None] * b


def mapped(f: Any, specs: Any, out: Any, vma: bool) -> Any:
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    return jax.shard_map(f, mesh=mesh, in_specs=specs, out_specs=out, check_vma=vma)


def loss(solve: Any, in_axes: Any) -> Any:
    return lambda A, b: jnp.sum(jnp.sin(3 * jax.vmap(solve, in_axes)(A, b)))


def compare(f: Any, g: Any, A: Any, b: Any) -> None:
    """The value, and every mix of modes to second order, third in two."""
    same(jax.jit(f)(A, b), g(A, b))
    ones, twos = (jax.jacfwd, jax.jacrev), []
    for d in ones:
        same(jax.jit(d(f, (0, 1)))(A, b), jax.jit(d(g, (0, 1)))(A, b))
        twos += [lambda f, d=d, e=e: d(e(f, 0), 1) for e in ones]
    thirds = [
        lambda f: jax.jacfwd(jax.hessian(f), 1),
        lambda f: jax.jacrev(jax.jacrev(jax.grad(f))),
    ]
    for d in twos + thirds:
        same(jax.jit(d(f))(A, b), jax.jit(d(g))(A, b))


@check("sharded A")
def sharded(vma: bool) -> None:
    A, b = problems()
    part = lambda A, b: jax.lax.psum(loss(solve, (0, 0))(A, b), "x")  # noqa: E731
    f = mapped(part, (P("x"), P("x")), P(), vma)
    CALLS.clear()
    jax.block_until_ready(jax.jit(f)(A, b))
    assert CALLS == [((2, 2, 2), (2, 2))] * 4, CALLS  # one call per device, on its own shard
    compare(f, loss(reference, (0, 0)), A, b)


@check("replicated A")
def replicated(vma: bool) -> None:
    (A, *_), b = problems()
    part = lambda A, b: jax.lax.psum(loss(solve, (None, 0))(A, b), "x")  # noqa: E731
    f = mapped(part, (P(), P("x")), P(), vma)
    CALLS.clear()
    jax.block_until_ready(jax.jit(f)(A, b))
    assert CALLS == [((1, 2, 2), (2, 2))] * 4, CALLS
    compare(f, loss(reference, (None, 0)), A, b)


@check("inside")
def gradients_taken_inside(vma: bool) -> None:
    (A, *_), b = problems()

    def step(A: Any, b: Any) -> Any:
        dA, db = jax.grad(loss(solve, (None, 0)), (0, 1))(A, b)
        return (dA if vma else jax.lax.psum(dA, "x")), db

    f = mapped(step, (P(), P("x")), (P(), P("x")), vma)
    same(jax.jit(f)(A, b), jax.grad(loss(reference, (None, 0)), (0, 1))(A, b))


@check("scan")
def training_in_scan(vma: bool) -> None:
    (A, *_), b = problems()

    def train(solve: Any, devices: bool) -> Any:
        total = lambda x: jax.lax.psum(x, "x") if devices else x  # noqa: E731

        def run(A: Any, b: Any) -> Any:
            def body(b: Any, _: Any) -> Any:
                value, db = jax.value_and_grad(loss(solve, (None, 0)), 1)(A, b)
                return b - 0.1 * db, total(value)

            return jax.lax.scan(body, b, length=3)[1].sum()

        return run

    f = mapped(train(solve, True), (P(), P("x")), P(), vma)
    g = train(reference, False)
    same(jax.jit(jax.grad(f, (0, 1)))(A, b), jax.jit(jax.grad(g, (0, 1)))(A, b))


@check("root")
def implicit(vma: bool) -> None:
    (A, *_), b = problems()

    def by_root(A: Any, b: Any) -> Any:
        return ot_backends.root(
            lambda x, A, b: A @ x - b, b, A, b, solve=lambda x, A, b: solve(A, b)
        )

    part = lambda A, b: jax.lax.psum(loss(by_root, (None, 0))(A, b), "x")  # noqa: E731
    f = mapped(part, (P(), P("x")), P(), vma)
    g = loss(reference, (None, 0))
    for d in (jax.grad, lambda f, n: jax.jacfwd(jax.grad(f), 1)):
        same(jax.jit(d(f, (0, 1)))(A, b), jax.jit(d(g, (0, 1)))(A, b))


@check("constants")
def rules_and_values_that_do_not_vary(vma: bool) -> None:
    """What is the same on all devices, by its type, beside what is not."""
    (A, *_), b = problems()

    @ot_backends.host_function(out=lambda A, b: b, vectorized=True)
    def shift(A: Any, b: Any) -> Any:
        return b + A.sum((-2, -1))[..., None]

    ones = lambda x: jnp.ones(x.shape)  # noqa: E731
    shift.def_vjp(lambda nx, ct, x, A, b: (ones(A), ones(b)))
    shift.def_jvp(lambda nx, tangents, x, A, b: ones(b))

    def fixed(A: Any, b: Any) -> Any:  # x = 1, and dx = db
        moves = lambda x, b: x - 1 - b + jax.lax.stop_gradient(b)  # noqa: E731
        return ot_backends.root(moves, jnp.ones(2), b, solve=lambda x, b: jnp.ones(2))

    for f, dA, db in ((shift, jnp.full((2, 2), 8.0), ones(b)), (fixed, jnp.zeros((2, 2)), ones(b))):

        def part(A: Any, b: Any, f: Any = f) -> Any:
            return jax.lax.psum(jax.vmap(f, (None, 0))(A, b).sum(), "x")

        g = mapped(part, (P(), P("x")), P(), vma)
        same(jax.jit(jax.grad(g, (0, 1)))(A, b), (dA, db))
        one = lambda A, b, f=f: f(A, b[0])  # noqa: E731
        g = mapped(
            lambda A, b, one=one: jax.jvp(one, (A, b), (A, ones(b)))[1], (P(), P("x")), P("x"), vma
        )
        same(jax.jit(g)(A, b), jnp.ones(8))


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    print(json.dumps({"started": True}), flush=True)
    for name, f in CHECKS.items():
        for vma in (True, False):
            try:
                f(vma)
                outcome = None
            except Exception:
                outcome = traceback.format_exc()[-4000:]
            label = f"{name}[{'' if vma else 'no '}check_vma]"
            print(json.dumps({"check": label, "error": outcome}), flush=True)


if __name__ == "__main__":
    main()
