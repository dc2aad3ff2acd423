"""An external linear solve in JAX: every derivative to third order, under every transform."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import host_functions
import numpy as np
import pytest
from host_functions import factored, problem, solve
from subprocesses import python, run_script

from ot_backends import host_function
from ot_backends.errors import NotDifferentiableError

jax = pytest.importorskip("jax")
jnp = jax.numpy
MODES = {"fwd": jax.jacfwd, "rev": jax.jacrev}
MIXES = [mix for order in (1, 2, 3) for mix in itertools.product(MODES, repeat=order)]


def reference(A: Any, b: Any) -> Any:
    return jnp.linalg.inv(A) @ b


def same(got: Any, want: Any, tolerance: float = 1e-10) -> None:
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=tolerance, atol=tolerance)


def curved(solve: Callable[..., Any]) -> Callable[..., Any]:
    """Something without a vanishing third derivative in A and b."""
    return lambda A, b: jnp.sum(jnp.sin(3 * solve(A, b)))


@pytest.mark.usefixtures("jax64")
@pytest.mark.parametrize("mix", MIXES, ids="-".join)
def test_every_order_in_every_mix_of_modes(mix: tuple[str, ...]) -> None:
    A, b = map(jnp.asarray, problem(2))
    for argnums in ([0] * len(mix), [k % 2 for k in range(len(mix))]):

        def derivative(f: Any, argnums: Any = argnums) -> Any:
            for mode, argnum in zip(mix, argnums, strict=True):
                f = MODES[mode](f, argnum)
            return jax.jit(f)

        same(derivative(curved(solve))(A, b), derivative(curved(reference))(A, b))


@pytest.mark.usefixtures("jax64")
@pytest.mark.parametrize("mix", [mix for mix in MIXES if len(mix) == 2], ids="-".join)
def test_second_order_without_jit(mix: tuple[str, ...]) -> None:
    A, b = map(jnp.asarray, problem(2))
    outer, inner = MODES[mix[0]], MODES[mix[1]]
    same(outer(inner(curved(solve)), 1)(A, b), outer(inner(curved(reference)), 1)(A, b))


def in_scan(solve: Any) -> Any:
    def f(A: Any, b: Any) -> Any:
        def body(x: Any, step: Any) -> Any:
            x = solve(A + step * jnp.eye(len(b)), x + b)
            return x, x.sum()

        last, sums = jax.lax.scan(body, b, jnp.arange(3.0))
        return jnp.sum(jnp.sin(last)) + jnp.sum(sums**2)

    return f


def in_remat(solve: Any) -> Any:
    return lambda A, b: jax.checkpoint(curved(solve))(A, jax.checkpoint(solve)(A, b))


def in_cond(solve: Any) -> Any:
    f = curved(solve)
    return lambda A, b: jax.lax.cond(b[0] > 0, f, lambda A, b: A.sum(), A, b)


def in_vmap(solve: Any) -> Any:
    return lambda A, b: jnp.sum(jax.vmap(curved(solve), (None, 0))(A, jnp.stack([b, 2 * b, b * b])))


def in_nested_vmap(solve: Any) -> Any:
    def f(A: Any, b: Any) -> Any:
        As, bs = jnp.stack([A, 2 * A]), jnp.stack([b, 2 * b, b * b])
        nested = jax.vmap(jax.vmap(curved(solve), (None, 0)), (0, None))
        return jnp.sum(nested(As, bs) ** 2)

    return f


def in_scan_of_vmap_of_remat(solve: Any) -> Any:
    def f(A: Any, b: Any) -> Any:
        step = jax.checkpoint(jax.vmap(solve, (None, 0)))
        last, _ = jax.lax.scan(lambda x, _: (step(A, x + b), None), jnp.stack([b, b * b]), length=2)
        return jnp.sum(jnp.sin(last))

    return f


def in_while_inside_vmap(solve: Any) -> Any:
    # Forward and reverse mode go around the loop, which has no derivative of its own.
    def f(A: Any, b: Any) -> Any:
        start = jax.lax.stop_gradient((A, b))
        x = jax.lax.fori_loop(0, 2, lambda k, x: solve(start[0], x), start[1])
        return curved(solve)(A, b * x)

    return lambda A, b: jnp.sum(jax.vmap(f, (None, 0))(A, jnp.stack([b, b * b])))


def of_gradient(solve: Any) -> Any:
    def f(A: Any, b: Any) -> Any:
        value, grad = jax.value_and_grad(in_scan(solve))(A, b)
        return value + jnp.sum(grad**2)

    return f


PLACES = [in_scan, in_remat, in_cond, in_vmap, in_nested_vmap, in_scan_of_vmap_of_remat,
          in_while_inside_vmap, of_gradient]  # fmt: skip


@pytest.mark.usefixtures("jax64")
@pytest.mark.parametrize("place", PLACES, ids=lambda f: f.__name__)
def test_inside(place: Any) -> None:
    A, b = map(jnp.asarray, problem(2))
    f, g = place(solve), place(reference)
    same(jax.jit(f)(A, b), g(A, b))
    for d in (jax.jacfwd, jax.jacrev):
        same(jax.jit(d(f, (0, 1)))(A, b), jax.jit(d(g, (0, 1)))(A, b))
    for d in (jax.hessian, lambda f: jax.jacrev(jax.jacfwd(f)), lambda f: jax.jacrev(jax.grad(f))):
        same(jax.jit(d(f))(A, b), jax.jit(d(g))(A, b))


@pytest.mark.usefixtures("jax64")
@pytest.mark.parametrize("kind", ["residuals by array code", "residuals by the host", "one kind"])
def test_other_rules_inside_scan_and_vmap(kind: str) -> None:
    A, b = map(jnp.asarray, problem(2))
    if kind == "one kind":
        other = host_function(out=lambda A, b: b, vectorized=True)(solve.fn)
        other.rules = {k: rule for k, rule in solve.rules.items() if k[0] == "vjp"}
    else:
        other = factored(kind == "residuals by array code")
    for place in (in_scan, in_nested_vmap, in_scan_of_vmap_of_remat):
        got, want = jax.jit(jax.grad(place(other)))(A, b), jax.grad(place(reference))(A, b)
        same(got, want)
    if kind == "residuals by the host":
        got, want = (jax.jit(jax.hessian(in_scan(f)))(A, b) for f in (other, reference))
        same(got, want)
    if kind == "residuals by array code":
        with pytest.raises(NotDifferentiableError, match="residual"):
            jax.jit(jax.hessian(in_scan(other)))(A, b)


@pytest.mark.usefixtures("jax64")
def test_one_host_call_per_batch_in_second_derivatives() -> None:
    (A, b), calls = map(jnp.asarray, problem()), host_functions.CALLS
    f = jax.jit(jax.vmap(jax.vmap(jax.hessian(curved(solve)), (None, 0)), (0, None)))
    As, bs = jnp.stack([A, 2 * A]), jnp.stack([b, 2 * b, b * b])
    f(As, bs)
    calls.clear()
    jax.block_until_ready(f(As, bs))
    one, calls[:] = list(calls), []
    jax.block_until_ready(jax.jit(jax.hessian(curved(solve)))(A, b))
    assert 0 < len(one) <= len(calls), (len(one), len(calls))  # as many as for one problem


@dataclass(frozen=True)
class Scaled:
    factor: float

    def __call__(self, x: Any) -> Any:
        return self.factor * x


def like_x(x: Any) -> Any:
    return x


def rule(nx: Any, ct: Any, out: Any, x: Any) -> Any:
    return ct * 2


def made() -> Any:
    f = host_function(out=like_x)(Scaled(2.0))
    f.def_vjp(rule)
    f.def_jvp(lambda_free_jvp)
    return f


def lambda_free_jvp(nx: Any, tangents: Any, out: Any, x: Any) -> Any:
    return tangents[0] * 2


@pytest.mark.usefixtures("jax64")
def test_equal_host_functions_compile_once() -> None:
    compiled: list[str] = []

    def listen(event: str, duration: float, **_: Any) -> None:
        if "compile" in event:
            compiled.append(event)

    def use(f: Any) -> None:
        x = jnp.arange(3.0)
        for g in (f, jax.grad(lambda x: f(x).sum()), lambda x: jax.jvp(f, (x,), (x,))[1],
                  jax.vmap(jax.grad(f)), jax.hessian(lambda x: (f(x) ** 2).sum())):  # fmt: skip
            g(x)

    use(made())
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        for _ in range(3):
            use(made())
    finally:
        jax.monitoring.clear_event_listeners()
    assert compiled == []
    assert str(jax.make_jaxpr(made())(1.0)) == str(jax.make_jaxpr(made())(1.0))


@pytest.mark.usefixtures("jax64")
def test_registered_containers() -> None:
    @jax.tree_util.register_dataclass
    @dataclass
    class Point:
        x: Any
        y: Any

    @host_function(out=lambda p: p)
    def swap(p: Any) -> Any:
        assert isinstance(p, Point)
        assert isinstance(p.x, np.ndarray)
        return Point(p.y * p.x, p.x)

    @swap.def_vjp
    def _(nx: Any, ct: Any, out: Any, p: Any) -> Any:
        return Point(ct.x * p.y + ct.y, ct.x * p.x)

    f = lambda p: swap(p).x * 10 + swap(p).y  # noqa: E731
    g = jax.jit(jax.grad(f))(Point(2.0, 3.0))
    assert (float(g.x), float(g.y)) == (31, 20)


@pytest.mark.usefixtures("jax64")
def test_other_ways_through_jax() -> None:
    A, b = map(jnp.asarray, problem(2))
    value, linear = jax.linearize(curved(solve), A, b)
    same(linear(A, b), jax.jvp(curved(reference), (A, b), (A, b))[1])
    with jax.disable_jit():
        same(jax.grad(in_scan(solve))(A, b), jax.grad(in_scan(reference))(A, b))
    with pytest.raises(NotDifferentiableError, match="transposed"):
        jax.linear_transpose(lambda b: solve(A, b), b)(b)
    traced = jax.jit(jax.grad(curved(solve))).trace(A, b).lower()
    assert "callback" in traced.as_text()
    same(value, curved(reference)(A, b))


def test_without_64_bits() -> None:
    A, b = problem(2)
    got = jax.jit(jax.grad(curved(solve)))(A, b)
    assert got.dtype == jnp.float32
    same(got, jax.grad(curved(reference))(jnp.asarray(A), jnp.asarray(b)), 1e-5)


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Any]:
    lines = run_script(*python("host_function_devices.py"), devices=4, limit=200)
    return {line["check"]: line["error"] for line in lines}


@pytest.mark.parametrize("vma", ["check_vma", "no check_vma"])
@pytest.mark.parametrize(
    "name", ["sharded A", "replicated A", "inside", "scan", "root", "constants"]
)
def test_shard_map(outcomes: dict[str, Any], name: str, vma: str) -> None:
    assert outcomes[f"{name}[{vma}]"] is None, outcomes[f"{name}[{vma}]"]
