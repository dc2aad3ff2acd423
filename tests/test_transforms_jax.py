"""Every JAX transformation of emd2, emd and solve, against the function that they are.

Near a problem with one optimal basis, emd2 is a bilinear function of the marginals and the costs
on the cells of HiGHS's plan. Written in plain jax.numpy it has its derivatives from JAX alone.

A compiled program calls the solver by itself where the kernel was built (jax.ffi), through Python
where it was not. Tests that count calls, and all in `through_python`, take the latter way.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import judge
import numpy as np
import pytest
from frameworks import use
from numpy.testing import assert_allclose
from problems import prob

import ot_backends

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402

from ot_backends.backends import jax_ffi, jax_hostcall  # noqa: E402

pytestmark = pytest.mark.usefixtures("jax64")

P = prob()
N, M_ = P.M.shape
W = np.random.default_rng(1).standard_normal((N, M_))
THETA = np.array([0.3, -0.2, 0.1])


@functools.cache
def frozen() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The rows and columns of the optimal cells, and the matrix from marginals to flows on them."""
    rows, cols = np.nonzero(judge.reference(P.a, P.b, P.M).plan > 1e-9)
    assert len(rows) == N + M_ - 1
    incidence = np.zeros((N + M_, N + M_ - 1))
    incidence[rows, np.arange(len(rows))] = incidence[N + cols, np.arange(len(rows))] = 1
    return rows, cols, np.linalg.pinv(incidence)


def true_solve(a: Any, b: Any, M: Any) -> tuple[Any, Any, Any, Any]:
    """Value, plan, u and v of the problems near P."""
    rows, cols, tree = frozen()
    b = b * jnp.sum(a) / jnp.sum(b)
    flow = tree @ jnp.concatenate([a, b])
    cost = M[rows, cols]
    u, v = jnp.split(tree.T @ cost, [N])  # the potentials with least norm; then <v, b'> = 0
    gauge = v @ b / jnp.sum(b)
    return flow @ cost, jnp.zeros((N, M_)).at[rows, cols].set(flow), u + gauge, v - gauge


def _emd2(a: Any, b: Any, M: Any) -> Any:
    return ot_backends.emd2(a, b, M)


def _true_emd2(a: Any, b: Any, M: Any) -> Any:
    return true_solve(a, b, M)[0]


def _weigh(value: Any, plan: Any, u: Any, v: Any, again: Any) -> Any:
    return (
        value * 3 + jnp.sum(plan**2 * W) + u @ W[:, 0] * value + jnp.sum(v**2) + jnp.sum(again * W)
    )


def _emd_and_solve(a: Any, b: Any, M: Any) -> Any:
    result = ot_backends.solve(M, a, b)
    return _weigh(result.value, result.plan, *result.potentials, ot_backends.emd(a, b, M))


def _true_emd_and_solve(a: Any, b: Any, M: Any) -> Any:
    value, plan, u, v = true_solve(a, b, M)
    return _weigh(value, plan, u, v, plan)


def on_theta(f: Callable[..., Any]) -> Callable[[Any], Any]:
    """f of marginals and costs that all depend on theta, and stay near P."""

    def loss(theta: Any) -> Any:
        mass = jnp.exp(0.2 * theta[1])
        a = mass * jax.nn.softmax(jnp.log(P.a) + 0.05 * theta[0] * jnp.arange(N))
        b = mass * jax.nn.softmax(jnp.log(P.b) + 0.05 * theta[2] * theta[1] * jnp.arange(M_))
        M = P.M + 0.02 * theta[0] * theta[2] * W + 0.02 * jnp.sin(theta[1]) * W**2
        return f(a, b, M) * jnp.exp(theta[1])

    return loss


LOSSES = {
    "emd2": (on_theta(_emd2), on_theta(_true_emd2)),
    "emd and solve": (on_theta(_emd_and_solve), on_theta(_true_emd_and_solve)),
}


def scanned(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def run(theta: Any) -> Any:
        def body(carry: Any, _: Any) -> Any:
            value = f(carry)
            return carry * 0.9 + 0.01 * value, value

        carry, values = jax.lax.scan(body, theta, None, length=3)
        return values.sum() + carry.sum()

    return run


def looped(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def run(theta: Any) -> Any:
        def body(state: Any) -> Any:
            k, t, total = state
            value = f(t)
            return k + 1, t * 0.9 + 0.01 * value, total + value

        return jax.lax.while_loop(lambda s: s[0] < 3, body, (0, theta, 0.0))[2]

    return run


def branched(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def run(theta: Any) -> Any:
        one = jax.lax.cond(theta[0] > 0, f, lambda t: 0.0 * t[0], theta)
        other = jax.lax.cond(theta[0] < 0, f, lambda t: t[1] ** 2, theta)
        return one + other + jax.lax.switch(1, [lambda t: t[0], f], 0.5 * theta)

    return run


def mapped(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda t: jnp.sum(jax.lax.map(f, jnp.stack([t, 0.5 * t])) ** 2)


def values_and_gradients(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function of both, to differentiate again."""

    def run(theta: Any) -> Any:
        value, gradient = jax.value_and_grad(f)(theta)
        return value**2 + jnp.sum(gradient * jnp.arange(1.0, 4.0))

    return run


def linearized(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def run(theta: Any) -> Any:
        value, tangent = jax.linearize(f, theta)
        return value, tangent(jnp.ones(3)), tangent(theta)

    return run


BATCH = np.stack([THETA, -THETA, 0.5 * THETA, 0 * THETA])

TRANSFORMS: dict[str, Callable[[Any], Callable[[Any], Any]]] = {
    "value": lambda f: f,
    "grad": jax.grad,
    "value_and_grad": jax.value_and_grad,
    "jvp": lambda f: lambda t: jax.jvp(f, (t,), (jnp.ones(3),)),
    "vjp": lambda f: lambda t: jax.vjp(f, t)[1](2.0),
    "linearize": linearized,
    "jacfwd": jax.jacfwd,
    "jacrev": jax.jacrev,
    "hessian": jax.hessian,
    "jacrev of jacrev": lambda f: jax.jacrev(jax.jacrev(f)),
    "jacfwd of jacfwd": lambda f: jax.jacfwd(jax.jacfwd(f)),
    "jacrev of jacfwd": lambda f: jax.jacrev(jax.jacfwd(f)),
    "jvp of jvp": lambda f: lambda t: jax.jvp(lambda t: jax.jvp(f, (t,), (t,))[1], (t,), (t,)),
    "third order": lambda f: jax.jacfwd(jax.hessian(f)),
    "third order, reverse": lambda f: jax.jacrev(jax.jacrev(jax.jacrev(f))),
    "grad of value_and_grad": lambda f: jax.grad(values_and_gradients(f)),
    "scan": scanned,
    "grad of scan": lambda f: jax.grad(scanned(f)),
    "jvp of scan": lambda f: jax.jacfwd(scanned(f)),
    "hessian of scan": lambda f: jax.hessian(scanned(f)),
    "grad of value_and_grad of scan": lambda f: jax.grad(values_and_gradients(scanned(f))),
    "scan of grad": lambda f: scanned(lambda t: jax.grad(f)(t).sum()),
    "while_loop": looped,
    "jacfwd of while_loop": lambda f: jax.jacfwd(looped(f)),
    "hessian of while_loop": lambda f: jax.jacfwd(jax.jacfwd(looped(f))),
    "cond": branched,
    "grad of cond": lambda f: jax.grad(branched(f)),
    "hessian of cond": lambda f: jax.hessian(branched(f)),
    "lax.map": mapped,
    "grad of lax.map": lambda f: jax.grad(mapped(f)),
    "remat": lambda f: jax.value_and_grad(jax.checkpoint(f)),
    "hessian of remat": lambda f: jax.hessian(jax.checkpoint(f)),
    "grad of remat in scan": lambda f: jax.grad(scanned(jax.checkpoint(f))),
    "remat saving nothing": lambda f: jax.grad(
        jax.checkpoint(lambda t: f(jnp.sin(t)), policy=jax.checkpoint_policies.nothing_saveable)
    ),
}
BATCHED: dict[str, Callable[[Any], Callable[[Any], Any]]] = {
    "vmap": jax.vmap,
    "vmap of grad": lambda f: jax.vmap(jax.grad(f)),
    "vmap of hessian": lambda f: jax.vmap(jax.hessian(f)),
    "grad of vmap": lambda f: jax.grad(lambda x: (jax.vmap(f)(x) ** 2).sum()),
    "hessian of vmap": lambda f: jax.hessian(lambda x: (jax.vmap(f)(x) ** 2).sum()),
    "nested vmap": lambda f: (
        lambda x: jax.vmap(lambda s: jax.vmap(lambda t: f(s * t))(x))(x[:, :1])
    ),
    "vmap of scan": lambda f: jax.vmap(jax.grad(scanned(f))),
    "vmap of while_loop": lambda f: jax.vmap(looped(f)),
    "vmap of cond": lambda f: jax.vmap(jax.grad(branched(f))),
    "vmap of remat": lambda f: jax.vmap(jax.grad(jax.checkpoint(f))),
    "scan of vmap": lambda f: jax.grad(lambda x: scanned(lambda x: (jax.vmap(f)(x) ** 2).sum())(x)),
}


def same(got: Any, want: Any, rtol: float = 1e-10) -> None:
    got, want = jax.tree.leaves(got), jax.tree.leaves(want)
    for x, y in zip(got, want, strict=True):
        scale = float(jnp.max(jnp.abs(y)))
        assert_allclose(x, y, rtol=0, atol=rtol * scale)


def quick_jit(f: Callable[..., Any]) -> Callable[..., Any]:
    """jit, traced anew, with less of LLVM: compiling these programs takes all the time."""
    return jax.jit(lambda *x: f(*x), compiler_options={"xla_backend_optimization_level": 0})


@pytest.fixture
def through_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that are compiled from here on call the host through Python."""
    monkeypatch.setattr(jax_hostcall, "compiled_twin", lambda *_: None)


@pytest.fixture
def host_calls(through_python: None, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The shapes of the arguments of every host call, in programs that are traced from here on."""
    original, calls = jax_hostcall.run_host, []

    def spy(fn: Any, arrays: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append([x.shape for x in arrays])
        return original(fn, arrays, *args, **kwargs)

    monkeypatch.setattr(jax_hostcall, "run_host", spy)
    return calls


def check(name: str, loss: str) -> None:
    transform, (f, true) = {**TRANSFORMS, **BATCHED}[name], LOSSES[loss]
    x = jnp.array(THETA if name in TRANSFORMS else BATCH)
    same(quick_jit(transform(f))(x), quick_jit(transform(true))(x))


@pytest.mark.parametrize("name", [*TRANSFORMS, *BATCHED])
def test_emd2_under(name: str) -> None:
    check(name, "emd2")


#: Plan and potentials take longer to compile: each kind of transformation once.
FOR_ALL = [
    "grad", "jvp", "hessian", "jacrev of jacrev", "jacfwd of jacfwd", "jacrev of jacfwd",
    "grad of scan", "hessian of scan", "grad of value_and_grad of scan", "jacfwd of while_loop",
    "grad of cond", "grad of lax.map", "remat", "vmap of grad", "nested vmap", "vmap of scan",
]  # fmt: skip


@pytest.mark.usefixtures("through_python")
@pytest.mark.parametrize("name", FOR_ALL)
def test_emd_and_solve_under(name: str) -> None:
    check(name, "emd and solve")


EAGER = ["value", "value_and_grad", "jvp", "hessian", "hessian of scan", "grad of cond"]


@pytest.mark.parametrize("name", [*EAGER, "vmap of grad", "nested vmap"])
def test_without_jit(name: str) -> None:
    transform, (f, true) = {**TRANSFORMS, **BATCHED}[name], LOSSES["emd2"]
    x = jnp.array(THETA if name in TRANSFORMS else BATCH)
    same(transform(f)(x), quick_jit(transform(true))(x))


@pytest.mark.parametrize("name", ["value_and_grad", "grad of cond", "vmap of grad"])
def test_disable_jit(name: str) -> None:
    transform, (f, true) = {**TRANSFORMS, **BATCHED}[name], LOSSES["emd2"]
    x = jnp.array(THETA if name in TRANSFORMS else BATCH)
    want = quick_jit(transform(true))(x)
    with jax.disable_jit():
        same(jax.jit(transform(f))(x), want)


# ---- which arguments are batched

ARGUMENTS = [
    (0, None, None), (None, 0, None), (None, None, 0), (0, 0, None), (0, None, 0), (None, 0, 0),
    (0, 0, 0), (1, 0, 2), (-1, None, 1),
]  # fmt: skip


@pytest.mark.parametrize("axes", ARGUMENTS, ids=str)
def test_vmap_over_any_arguments(axes: tuple[Any, ...], host_calls: list[Any]) -> None:
    rng = np.random.default_rng(3)
    weights = [rng.random((4, k)) + 0.2 for k in (N, M_)]
    many = [*(w / w.sum(1, keepdims=True) for w in weights), rng.random((4, N, M_))]
    one = [x if d is not None else x[0] for x, d in zip(many, axes, strict=True)]
    stacked = [x if d is None else np.moveaxis(x, 0, d) for x, d in zip(one, axes, strict=True)]
    picked = [[x if d is None else x[k] for x, d in zip(one, axes, strict=True)] for k in range(4)]
    want = [judge.reference_value(*args) for args in picked]
    got = quick_jit(jax.vmap(ot_backends.emd2, axes))(*stacked)
    assert_allclose(got, want, rtol=1e-9)
    shapes = [(N,), (M_,), (N, M_)]
    expected = [((1 if d is None else 4), *s) for d, s in zip(axes, shapes, strict=True)]
    assert host_calls == [expected]
    gradient = jax.grad(ot_backends.emd2, (0, 1, 2))
    batched = jax.jit(jax.vmap(gradient, axes))(*stacked)
    same([x[2] for x in batched], gradient(*map(jnp.asarray, picked[2])))


def test_nested_vmap_of_different_arguments_is_one_call(host_calls: list[Any]) -> None:
    rng = np.random.default_rng(4)
    a, b, M = rng.random((2, N)) + 0.2, rng.random((3, M_)) + 0.2, rng.random((4, N, M_))
    a, b = a / a.sum(1, keepdims=True), b / b.sum(1, keepdims=True)
    f = jax.vmap(
        jax.vmap(jax.vmap(ot_backends.emd2, (None, None, 0)), (None, 0, None)), (0, None, None)
    )
    got = quick_jit(f)(a, b, M)
    want = [[[judge.reference_value(x, y, C) for C in M] for y in b] for x in a]
    assert_allclose(got, want, rtol=1e-9)
    assert host_calls == [[(2, 1, 1, N), (1, 3, 1, M_), (1, 1, 4, N, M_)]]


def test_vmap_over_a_batch_of_solve() -> None:
    # The costs have a batch of their own, the weights don't; vmap adds one to both.
    rng = np.random.default_rng(5)
    a, M = rng.random((3, N)) + 0.2, rng.random((3, 3, N, M_))
    a = a / a.sum(1, keepdims=True)
    got = jax.vmap(lambda a, M: ot_backends.solve(M, a).value)(a, M)
    b = np.ones(M_) / M_
    want = [[judge.reference_value(a[i], b, M[i, j]) for j in range(3)] for i in range(3)]
    assert_allclose(got, want, rtol=1e-9)


# ---- one host solve


SHARING = ["value", "value_and_grad", "hessian", "jacrev of jacrev", "jvp", "third order"]


@pytest.mark.parametrize(
    ("name", "compile_"), [*((n, quick_jit) for n in SHARING), ("hessian", None)]
)
def test_derivatives_share_one_solve(name: str, compile_: Any, host_calls: list[Any]) -> None:
    f = TRANSFORMS[name](LOSSES["emd2"][0])
    f = compile_(f) if compile_ else f
    jax.block_until_ready(f(jnp.array(THETA)))
    assert len(host_calls) == 1


@pytest.mark.parametrize("name", ["value_and_grad", "hessian"])
def test_the_compiled_solver_is_called_once(name: str) -> None:
    f = quick_jit(TRANSFORMS[name](LOSSES["emd2"][0]))
    program = f.lower(jnp.array(THETA)).compile().as_text()
    if not any(jax_ffi._registered.values()):
        pytest.skip("the kernel was not built, or not for this JAX")
    assert program.count('custom_call_target="ot_backends') == 1
    assert "callback" not in program


def test_scan_solves_once_a_step(host_calls: list[Any]) -> None:
    f = quick_jit(jax.value_and_grad(scanned(LOSSES["emd2"][0])))
    jax.block_until_ready(f(jnp.array(THETA)))
    assert len(host_calls) == 3


@pytest.mark.parametrize("name", ["vmap", "vmap of grad", "vmap of hessian"])
def test_vmap_of_64_problems_is_one_call(name: str, host_calls: list[Any]) -> None:
    f = quick_jit(BATCHED[name](LOSSES["emd2"][0]))
    jax.block_until_ready(f(jnp.array(np.tile(BATCH, (16, 1)))))
    assert host_calls == [[(64, N), (64, M_), (64, N, M_)]]


def test_what_reverse_mode_keeps_is_linear_in_n_and_m() -> None:
    n, m = 256, 200
    rng = np.random.default_rng(0)
    a, b, M = jnp.ones(n) / n, jnp.ones(m) / m, jnp.array(rng.random((n, m)))
    _, pullback = jax.vjp(ot_backends.emd2, a, b, M)
    kept = sum(x.nbytes for x in jax.tree.leaves(pullback))
    limit = 12 * 8 * (n + m)  # bytes
    assert 0 < kept <= limit < M.nbytes / 2


# ---- a basis as state


def test_basis_is_a_scan_carry() -> None:
    a, b, M = map(jnp.array, P.args)

    def step(state: Any, _: Any) -> Any:
        M, basis = state
        loss = lambda M: ot_backends.solve(M, a, b, basis=basis)  # noqa: E731
        value, pullback, result = jax.vjp(lambda M: ((r := loss(M)).value, r), M, has_aux=True)
        (dM,) = pullback(jnp.ones(()))
        return (M - 0.1 * dM, result.basis), value

    cold = jnp.full(N + M_, -1, jnp.int32)
    (_, basis), values = jax.jit(lambda s: jax.lax.scan(step, s, None, length=4))((M, cold))
    assert basis.dtype == jnp.int32
    for _ in range(4):
        assert_allclose(values[0], judge.reference_value(a, b, M), rtol=1e-9)
        values, M = values[1:], M - 0.1 * jnp.array(judge.reference(a, b, M).plan)


# ---- types


@pytest.mark.parametrize("x64", [True, False])
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_types_of_values_and_gradients(dtype: str, x64: bool) -> None:
    if dtype == "float64" and not x64:
        pytest.skip("JAX has no float64 without x64")
    with use("jax", x64):
        a, b, M = (jnp.asarray(x.astype("float32")).astype(dtype) for x in P.args)
        exact = [np.asarray(x.astype("float32"), "float64") for x in (a, b, M)]
        kwargs = {"check_marginals": False}  # eight bits of mantissa don't sum to one
        f = functools.partial(ot_backends.emd2, **kwargs)
        for g in (f, jax.jit(f)):
            value = g(a, b, M)
            assert value.dtype == dtype
            assert value.shape == ()
            eps = float(jnp.finfo(dtype).eps)
            assert_allclose(float(value), judge.reference_value(*exact), rtol=max(8 * eps, 1e-9))
        gradients = jax.jit(jax.grad(f, (0, 1, 2)))(a, b, M)
        assert [g.dtype for g in gradients] == [dtype] * 3
        plan = judge.reference(*exact).plan
        assert_allclose(np.asarray(gradients[2].astype("float32")), plan, atol=max(4 * eps, 1e-9))
        hessian = jax.jit(jax.jacfwd(jax.grad(f, 2), 0))(a, b, M)
        assert hessian.dtype == dtype
        assert bool(jnp.isfinite(hessian).all())


@pytest.mark.usefixtures("through_python")
def test_x64_in_a_context_while_inputs_are_pending() -> None:
    # JAX runs the callback in a thread that does not know of the context.
    heavy = jnp.asarray(np.random.default_rng(0).random((600, 600)))
    f = jax.jit(lambda a, b, M, x: ot_backends.emd2(a, b, M + 0 * x[:N, :M_]))
    args = [jnp.array(x) for x in P.args]
    f.lower(*args, heavy).compile()
    for _ in range(3):
        x = heavy
        for _ in range(4):
            x = (x @ x) / 600
        value = f(*args, x)
        assert value.dtype == "float64"
        assert_allclose(value, 0.207643735650, rtol=1e-11)


# ---- the rest of JAX


def test_shapes_without_solving(host_calls: list[Any]) -> None:
    args = [jax.ShapeDtypeStruct(x.shape, "float32") for x in P.args]
    value = jax.eval_shape(ot_backends.emd2, *args)
    plan = jax.eval_shape(ot_backends.emd, *args)
    result = jax.eval_shape(lambda a, b, M: ot_backends.solve(M, a, b), *args)
    hessian = jax.eval_shape(jax.hessian(ot_backends.emd2, 2), *args)
    assert host_calls == []
    assert (value.shape, value.dtype) == ((), "float32")
    assert (plan.shape, plan.dtype) == ((N, M_), "float32")
    assert result.basis.shape == (N + M_,)
    assert result.basis.dtype == "int32"
    assert hessian.shape == (N, M_, N, M_)


def test_results_are_pytrees() -> None:
    result = jax.jit(lambda a, b, M: ot_backends.solve(M, a, b))(*P.args)
    assert type(result).__name__ == "Result"
    assert jax.tree.map(lambda x: x, result).plan.shape == (N, M_)
    assert_allclose(result.plan, judge.reference(*P.args).plan, atol=1e-12)


def test_ahead_of_time(host_calls: list[Any]) -> None:
    f, _ = LOSSES["emd2"]
    spec = jax.ShapeDtypeStruct((3,), "float64")
    compiled = quick_jit(jax.value_and_grad(f)).lower(spec).compile()
    assert host_calls == []
    got = compiled(jnp.array(THETA))
    assert len(host_calls) == 1
    same(got, jax.value_and_grad(LOSSES["emd2"][1])(jnp.array(THETA)))


def test_donated_arguments() -> None:
    step = jax.jit(lambda M: M - 0.1 * jax.grad(ot_backends.emd2, 2)(P.a, P.b, M), donate_argnums=0)
    M = jnp.array(P.M)
    got = step(M)
    assert M.is_deleted()
    assert_allclose(got, P.M - 0.1 * judge.reference(*P.args).plan, atol=1e-12)


@pytest.mark.parametrize("name", ["value_and_grad", "hessian", "hessian of scan"])
def test_no_leaked_tracers_and_no_nans(name: str) -> None:
    transform, (f, _) = TRANSFORMS[name], LOSSES["emd and solve"]
    with jax.checking_leaks(), jax.debug_nans(True), jax.debug_infs(True):
        got = jax.jit(transform(lambda t: f(t)))(jnp.array(THETA))
    assert all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(got))


def test_debug_nans_with_forbidden_cells() -> None:
    M = P.M.copy()
    M[0, 0] = np.inf
    with jax.debug_nans(True):
        value, plan = jax.jit(jax.value_and_grad(ot_backends.emd2, 2))(P.a, P.b, M)
        jax.value_and_grad(ot_backends.emd2, 2)(jnp.array(P.a), jnp.array(P.b), jnp.array(M))
    assert_allclose(value, judge.reference_value(*P.args[:2], M), rtol=1e-9)
    assert plan[0, 0] == 0


def test_numpy_arrays_and_lists_beside_jax_arrays() -> None:
    want = judge.reference_value(*P.args)
    value = ot_backends.emd2(P.a, P.b.tolist(), jnp.array(P.M))
    assert isinstance(value, jax.Array)
    assert_allclose(value, want, rtol=1e-9)
    assert_allclose(jax.jit(lambda M: ot_backends.emd2(P.a.tolist(), P.b, M))(P.M), want, rtol=1e-9)


@pytest.mark.parametrize("way", ["default", "through Python"])
def test_bad_input_in_a_compiled_program(way: str, request: pytest.FixtureRequest) -> None:
    if way == "through Python":
        request.getfixturevalue("through_python")
    f = quick_jit(jax.value_and_grad(ot_backends.emd2, 2))
    bad = P.M.copy()
    bad[2, 3] = np.nan
    for _ in range(2):
        with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match=r"M.*NaN|NaN.*M"):
            jax.block_until_ready(f(P.a, P.b, bad))
        assert_allclose(f(*P.args)[0], 0.207643735650, rtol=1e-11)
    with pytest.raises(ValueError, match="NaN"):  # not compiled: the error itself
        ot_backends.emd2(jnp.array(P.a), jnp.array(P.b), jnp.array(bad))


def test_no_recompilation_for_equal_calls() -> None:
    traces = []

    @jax.jit
    def f(a: Any, b: Any, M: Any) -> Any:
        traces.append(1)
        return ot_backends.emd2(a, b, M)

    for k in range(3):
        f(P.a, P.b, P.M + k)
    assert len(traces) == 1
