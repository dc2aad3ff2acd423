"""What pycall and set_gradients promise in JAX alone: control flow, caching, types, fallbacks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from frameworks import use
from numpy.testing import assert_allclose

from ot_backends.backends import ArraySpec, load_backend
from ot_backends.errors import HostFunctionError, NotDifferentiableError

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402

from ot_backends.backends import jax_extend, jax_hostcall  # noqa: E402

pytestmark = pytest.mark.usefixtures("jax64")

nx = load_backend("jax")
SCALAR = ArraySpec((), "float64")
X = np.array([1.0, 2.0, 3.0])


@dataclass(frozen=True)
class Scale:
    """A host function with a parameter; equal to every other of the same factor."""

    factor: float

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return self.factor * x


def cube(x: Any) -> Any:
    """x**3 summed, by a host function and a gradient that depends on x."""
    value = nx.pycall(lambda x: (x**3).sum(-1), nx.stop_gradient(x), out=SCALAR, vectorized=True)
    return nx.set_gradients(value, (x,), (3 * x**2,))


def true_cube(x: Any) -> Any:
    return (x**3).sum()


def scanned(f: Callable[..., Any]) -> Callable[..., Any]:
    def run(x: Any) -> Any:
        def body(x: Any, _: Any) -> Any:
            value = f(x)
            return 0.9 * x + 0.01 * value, value

        x, values = jax.lax.scan(body, x, None, length=3)
        return x.sum() + (values**2).sum()

    return run


TRANSFORMS: dict[str, Callable[[Any], Callable[[Any], Any]]] = {
    "grad": jax.grad,
    "hessian": jax.hessian,
    "jacrev of jacrev": lambda f: jax.jacrev(jax.jacrev(f)),
    "jacfwd of jacfwd": lambda f: jax.jacfwd(jax.jacfwd(f)),
    "jacrev of jacfwd": lambda f: jax.jacrev(jax.jacfwd(f)),
    "third": lambda f: jax.jacfwd(jax.hessian(f)),
    "scan": scanned,
    "hessian of scan": lambda f: jax.hessian(scanned(f)),
    "grad of value_and_grad of scan": lambda f: jax.grad(
        lambda x: sum(jnp.sum(y**2) for y in jax.value_and_grad(scanned(f))(x))
    ),
    "remat": lambda f: jax.hessian(jax.checkpoint(f)),
    "remat in scan": lambda f: jax.grad(scanned(jax.checkpoint(f))),
    "cond": lambda f: jax.hessian(lambda x: jax.lax.cond(x[0] > 0, f, lambda x: x[0], x)),
    "while": lambda f: jax.jacfwd(
        lambda x: jax.lax.while_loop(
            lambda s: s[0] < 2, lambda s: (s[0] + 1, s[1] * f(x)), (0, 1.0)
        )[1]
    ),
    "vmap": lambda f: lambda x: jax.vmap(jax.hessian(f))(jnp.stack([x, 2 * x])),
    "vmap of scan": lambda f: lambda x: jax.vmap(jax.grad(scanned(f)))(jnp.stack([x, 0.5 * x])),
    "grad of vmap": lambda f: jax.grad(lambda x: (jax.vmap(f)(jnp.outer(x, x)) ** 2).sum()),
    "shard_map": lambda f: jax.hessian(
        jax.shard_map(
            lambda x: jax.lax.psum(f(x), "x"),
            mesh=jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,)),
            in_specs=jax.sharding.PartitionSpec("x"),
            out_specs=jax.sharding.PartitionSpec(),
        )
    ),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_attached_gradients_under(name: str) -> None:
    f, true = (TRANSFORMS[name](g) for g in (cube, true_cube))
    assert_allclose(jax.jit(f)(jnp.array(X)), jax.jit(true)(jnp.array(X)), rtol=1e-12)


@pytest.mark.parametrize("name", ["grad", "hessian", "scan", "vmap"])
def test_attached_gradients_without_jit(name: str) -> None:
    f, true = (TRANSFORMS[name](g) for g in (cube, true_cube))
    assert_allclose(f(jnp.array(X)), jax.jit(true)(jnp.array(X)), rtol=1e-12)


def test_constant_gradients_have_no_second_derivative() -> None:
    f = lambda x: nx.set_gradients((x**3).sum(), x, jnp.array([5.0, 6.0, 7.0]))  # noqa: E731
    assert_allclose(jax.jit(jax.grad(scanned(f)))(jnp.array(X)).shape, (3,))
    assert_allclose(jax.jit(jax.hessian(f))(jnp.array(X)), 0)


def test_a_registered_pytree_of_inputs() -> None:
    @jax.tree_util.register_dataclass
    @dataclass
    class Pair:
        x: Any
        y: Any

    def f(x: Any) -> Any:
        pair = Pair(x, 2 * x)
        return nx.set_gradients((x**2).sum(), pair, Pair(2 * x, None))

    assert_allclose(jax.grad(f)(jnp.array(X)), 2 * X)


def test_low_precision_values_keep_their_type() -> None:
    x = jnp.array(X, "bfloat16")
    f = lambda x: nx.set_gradients(x.sum(), x, jnp.array(X, "float32"))  # noqa: E731
    assert f(x).dtype == "bfloat16"
    gradient = jax.grad(f)(x)
    assert gradient.dtype == "bfloat16"
    assert_allclose(gradient.astype("float32"), X)


# ---- programs and caches


def test_equal_host_functions_share_a_program() -> None:
    traces = []

    def f(x: Any, host: Scale) -> Any:
        traces.append(host)
        return nx.pycall(host, x, out=x)

    g = jax.jit(f, static_argnums=1)
    for _ in range(3):
        assert_allclose(g(X, Scale(2.0)), 2 * X)
    assert len(traces) == 1
    assert_allclose(g(X, Scale(3.0)), 3 * X)
    jaxprs = [str(jax.make_jaxpr(lambda x: nx.pycall(Scale(2.0), x, out=x))(X)) for _ in range(2)]
    assert jaxprs[0] == jaxprs[1]


def test_eager_calls_compile_nothing() -> None:
    x = jnp.array(X)
    nx.pycall(Scale(2.0), x, out=x)
    with jax.log_compiles(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax_extend.mlir, "emit_python_callback", None)
        patch.setattr(jax, "pure_callback", None)
        assert_allclose(nx.pycall(Scale(2.5), x, out=x), 2.5 * X)


def test_unused_results_are_never_computed() -> None:
    calls = []
    f = jax.jit(lambda x: (nx.pycall(lambda x: calls.append(1) or x, x, out=x), x + 1)[1])
    jax.block_until_ready(f(X))
    assert calls == []


def test_equal_calls_in_one_program_may_be_one() -> None:
    f = jax.jit(lambda x: nx.pycall(Scale(2.0), x, out=x) - nx.pycall(Scale(2.0), x, out=x))
    assert_allclose(f(X), 0)


# ---- types


def test_without_x64_declared_64_bit_types_narrow() -> None:
    with use("jax", False):
        for f in (lambda f: f, jax.jit):
            g = f(lambda x: nx.pycall(lambda x: (x, x.argmax()), x, out=(SCALAR_3, INDEX)))
            value, index = g(jnp.array(X, "float32"))
            assert (value.dtype, index.dtype) == ("float32", "int32")
    with use("jax", True):
        value, index = g(jnp.array(X))
        assert (value.dtype, index.dtype) == ("float64", "int64")


SCALAR_3, INDEX = ArraySpec((3,), "float64"), ArraySpec((), "int64")


def test_asarray_makes_an_array_of_its_own() -> None:
    x = X.copy()
    y = nx.asarray(x)
    x[0] = 9
    assert_allclose(y, X)
    assert nx.asarray([1, 2], dtype="float32").dtype == "float32"
    assert nx.asarray(2.0).dtype == "float64"
    with use("jax", False):
        assert nx.asarray(X).dtype == "float32"
        assert nx.asarray(X, dtype="float64").dtype == "float32"
    assert nx.dtype_name(jnp.ones(1, "bfloat16")) == "bfloat16"
    assert nx.dtype_name(1.0) == "float64"


# ---- errors


def test_transposition_is_refused() -> None:
    f = lambda x: nx.pycall(lambda x: 2 * x, x, out=x)  # noqa: E731
    with pytest.raises(NotDifferentiableError, match="transpose"):
        jax.linear_transpose(f, jnp.array(X))(jnp.array(X))


@pytest.mark.parametrize("where", ["scan", "cond", "remat", "jit", "while"])
def test_no_derivative_inside(where: str) -> None:
    f = lambda x: nx.pycall(lambda x: x.sum(), x, out=SCALAR)  # noqa: E731
    inside = {
        "scan": lambda x: jax.lax.scan(lambda c, _: (f(c * x), None), 1.0, None, length=2)[0],
        "cond": lambda x: jax.lax.cond(x[0] > 0, f, lambda x: x[0], x),
        "remat": jax.checkpoint(f),
        "jit": jax.jit(f),
        "while": lambda x: jax.lax.while_loop(lambda s: s < 1, lambda s: s + f(x), 0.0),
    }[where]
    with pytest.raises(NotDifferentiableError, match="stop_gradient"):
        jax.jvp(inside, (jnp.array(X),), (jnp.array(X),))


def test_violations_inside_a_program_name_the_function() -> None:
    def careless(x: np.ndarray) -> np.ndarray:
        return x[:2]

    f = jax.jit(lambda x: nx.pycall(careless, x, out=x))
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"careless.*\(2,\).*float64\[3\]"):
        jax.block_until_ready(f(X))
    assert_allclose(jax.jit(lambda x: nx.pycall(Scale(2.0), x, out=x))(X), 2 * X)


# ---- where JAX has changed its semi-public names


@pytest.fixture
def public_callback_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax_extend, "CAN_EMIT", False)
    monkeypatch.delattr(jax_extend.mlir, "emit_python_callback")


@pytest.mark.usefixtures("public_callback_only")
def test_the_public_callback_takes_over() -> None:
    x = jnp.array(X)
    assert_allclose(jax.jit(jax.hessian(cube))(x), jax.hessian(true_cube)(x))
    assert_allclose(jax.jit(jax.vmap(cube))(jnp.stack([x, x])), [36, 36])
    assert_allclose(jax.jit(scanned(cube))(x), scanned(true_cube)(x))
    f = jax.jit(lambda x: nx.pycall(lambda x: x[:2], x, out=x))
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"float64\[3\]"):
        jax.block_until_ready(f(x))


def test_arguments_that_jax_narrowed_are_refused() -> None:
    # As jax.pure_callback does in a thread that does not know of jax.enable_x64.
    params = {"fn": Scale(2.0), "batch_ndim": 0, "vectorized": False}
    outs = jax_hostcall.Outputs((ArraySpec((3,), "float64"),), single=True)
    callback = jax_hostcall._callback([((3,), np.dtype("float64"))], outs=outs, **params)
    assert_allclose(callback(X)[0], 2 * X)
    with pytest.raises(HostFunctionError, match="jax_enable_x64 for the whole program"):
        callback(X.astype("float32"))
