"""The contract of pycall, stop_gradient and set_gradients, on every backend."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from ot_backends.backends import ArraySpec
from ot_backends.errors import HostFunctionError, NotDifferentiableError

SCALAR = ArraySpec((), "float64")
PAIR = ArraySpec((2,), "float64")


@dataclass(frozen=True, eq=False)
class Recorded:
    """A host function that notes what it was called with; equal to itself only."""

    fn: Any
    calls: list[tuple[Any, ...]] = field(default_factory=list)

    def __call__(self, *args: np.ndarray) -> Any:
        self.calls.append(args)
        return self.fn(*args)


def dot(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return (x * y).sum(-1)


def dot_of_one(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    assert x.ndim == y.ndim == 1
    return x @ y


# ---- what a call returns


def test_returns_what_is_declared(framework: Any) -> None:
    nx, x = framework.nx, framework.array([1.0, 2.0, 3.0])
    one = nx.pycall(lambda x: 2 * x, x, out=ArraySpec((3,), "float64"))
    assert_array_equal(framework.numpy(one), [2, 4, 6])
    assert nx.dtype_name(one) == "float64"

    pair = nx.pycall(lambda x: (x.sum(), np.argmax(x)), x, out=(SCALAR, ArraySpec((), "int32")))
    assert isinstance(pair, tuple)
    assert [nx.dtype_name(y) for y in pair] == ["float64", "int32"]
    assert [float(y) for y in pair] == [6, 2]

    single = nx.pycall(lambda x: (x.sum(),), x, out=(SCALAR,))
    assert isinstance(single, tuple)
    assert len(single) == 1


def test_out_may_be_a_function_of_specs_or_an_array(framework: Any) -> None:
    nx, x = framework.nx, framework.array(np.ones((3, 2)))
    seen = []

    def transposed(spec: ArraySpec) -> ArraySpec:
        seen.append((tuple(spec.shape), spec.dtype))
        return ArraySpec(spec.shape[::-1], spec.dtype)

    y = nx.pycall(lambda x: x.T, x, out=transposed)
    assert tuple(y.shape) == (2, 3)
    assert set(seen) == {((3, 2), "float64")}
    assert tuple(nx.pycall(lambda x: -x, x, out=x).shape) == (3, 2)


def test_lists_and_scalars_become_arrays(framework: Any) -> None:
    x = framework.array([1.0, 2.0])
    y = framework.nx.pycall(lambda x, y, s: x @ y + s, x, [3.0, 4.0], 0.5, out=SCALAR)
    assert float(y) == 11.5


@pytest.mark.parametrize("made", ["reversed", "transposed", "broadcast", "float32", "list"])
def test_any_memory_layout_is_taken(framework: Any, made: str) -> None:
    values = np.arange(6.0).reshape(2, 3)
    ways = {
        "reversed": lambda: values[:, ::-1].copy()[:, ::-1],
        "transposed": lambda: np.asfortranarray(values),
        "broadcast": lambda: np.broadcast_to(np.float64(1.5), (2, 3)),
        "float32": lambda: values.astype("float32"),
        "list": lambda: values.tolist(),
    }
    y = framework.nx.pycall(
        lambda x: ways[made](), framework.array(0.0), out=ArraySpec((2, 3), "float64")
    )
    assert framework.nx.dtype_name(y) == "float64"
    assert_array_equal(framework.numpy(y), ways[made]())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "int32", "bool"])
def test_types_on_the_way_in_and_out(framework: Any, dtype: str) -> None:
    if framework.name == "numpy" and dtype == "bfloat16":
        pytest.skip("NumPy has no bfloat16")
    x = framework.array([0.0, 1.0, 1.0], dtype)
    seen = []

    def fn(x: np.ndarray) -> np.ndarray:
        seen.append(x.dtype.name)
        return x

    y = framework.nx.pycall(fn, x, out=x)
    assert set(seen) == {"float32" if dtype == "bfloat16" else dtype}
    assert framework.nx.dtype_name(y) == dtype
    assert_array_equal(framework.numpy(y).astype("float64"), [0, 1, 1])


# ---- nobody's memory is changed behind his back


def test_arguments_are_read_only(framework: Any) -> None:
    x = framework.array([1.0, 2.0])

    def writes(x: np.ndarray) -> np.ndarray:
        x[0] = 7
        return x

    with pytest.raises(ValueError, match="read-only"):
        framework.nx.pycall(writes, x, out=x)
    assert_array_equal(framework.numpy(x), [1, 2])


def test_a_reused_buffer_does_not_change_earlier_results(framework: Any) -> None:
    buffer = np.zeros(2)

    def reuses(x: np.ndarray) -> np.ndarray:
        buffer[:] = x
        return buffer

    spec = ArraySpec((2,), "float64")
    first = framework.nx.pycall(reuses, framework.array([1.0, 2.0]), out=spec)
    second = framework.nx.pycall(reuses, framework.array([3.0, 4.0]), out=spec)
    buffer[:] = -1
    assert_array_equal(framework.numpy(first), [1, 2])
    assert_array_equal(framework.numpy(second), [3, 4])


def test_a_returned_argument_is_copied(framework: Any) -> None:
    x = np.array([1.0, 2.0])
    y = framework.nx.pycall(lambda x: x, framework.array(x), out=ArraySpec((2,), "float64"))
    if framework.name == "numpy":
        y = framework.nx.pycall(lambda x: x, x, out=ArraySpec((2,), "float64"))
        x[0] = 9
        assert y.flags.writeable
    assert_array_equal(framework.numpy(y), [1, 2])


# ---- host functions that break their word

VIOLATIONS = {
    "shape": (lambda: np.zeros(3), "shape"),
    "rank": (lambda: np.zeros((1, 2)), "shape"),
    "kind": (lambda: np.zeros(2, complex), "complex"),
    "none": (lambda: None, "None"),
    "text": (lambda: np.array(["a", "b"]), "declared"),
    "ragged": (lambda: [1.0, [2.0]], "list"),
    "tuple": (lambda: (np.zeros(2), np.zeros(2)), "tuple of 2"),
}


@pytest.mark.parametrize("kind", VIOLATIONS)
def test_violations_name_the_function_and_the_declaration(framework: Any, kind: str) -> None:
    def careless(x: np.ndarray) -> Any:
        return VIOLATIONS[kind][0]()

    nx, x, spec = framework.nx, framework.array(0.0), ArraySpec((2,), "float64")
    with pytest.raises(HostFunctionError, match=VIOLATIONS[kind][1]) as caught:
        nx.pycall(careless, x, out=spec)
    assert "careless" in str(caught.value)
    assert "float64[2]" in str(caught.value)
    assert_array_equal(framework.numpy(nx.pycall(lambda x: np.ones(2), x, out=spec)), [1, 1])


def test_number_of_outputs(framework: Any) -> None:
    nx, x = framework.nx, framework.array(0.0)
    with pytest.raises(HostFunctionError, match="returned 3 outputs"):
        nx.pycall(lambda x: (1.0, 2.0, 3.0), x, out=(SCALAR, SCALAR))
    with pytest.raises(HostFunctionError, match="returned an array"):
        nx.pycall(lambda x: np.zeros(2), x, out=(SCALAR, SCALAR))


def test_integers_that_do_not_fit(framework: Any) -> None:
    nx, x, spec = framework.nx, framework.array(0.0), ArraySpec((), "int32")
    assert int(nx.pycall(lambda x: np.int64(2**31 - 1), x, out=spec)) == 2**31 - 1
    with pytest.raises(HostFunctionError, match="do not fit"):
        nx.pycall(lambda x: np.int64(2**31), x, out=spec)
    with pytest.raises(HostFunctionError, match="float"):
        nx.pycall(lambda x: np.float64(1.0), x, out=spec)


def test_bad_declarations_and_functions(framework: Any) -> None:
    nx, x = framework.nx, framework.array(0.0)
    with pytest.raises(TypeError, match=r"\.shape and \.dtype"):
        nx.pycall(lambda x: 1.0, x, out=(3,))
    with pytest.raises(TypeError, match="function"):
        nx.pycall(3, x, out=SCALAR)

    class Unhashable:
        __hash__ = None  # type: ignore[assignment]

        def __call__(self, x: np.ndarray) -> float:
            return 1.0

    with pytest.raises(TypeError, match="frozen dataclass"):
        nx.pycall(Unhashable(), x, out=SCALAR)


# ---- exceptions of the host function


def test_its_own_exception_reaches_the_caller(framework: Any) -> None:
    def fails(x: np.ndarray) -> float:
        raise KeyError("what the host said")

    x = framework.array([1.0])
    for _ in range(2):
        with pytest.raises(KeyError, match="what the host said"):
            framework.nx.pycall(fails, x, out=SCALAR)
    assert float(framework.nx.pycall(lambda x: x[0], x, out=SCALAR)) == 1


def test_exception_in_compiled_code(differentiable: Any) -> None:
    def fails_below_zero(x: np.ndarray) -> np.ndarray:
        if x[0] < 0:
            raise ValueError("what the host said")
        return x[0]

    nx = differentiable.nx
    f = differentiable.jit(lambda x: nx.pycall(fails_below_zero, x, out=SCALAR) + 1)
    assert float(f(differentiable.array([1.0]))) == 2
    with pytest.raises(Exception, match="what the host said"):
        float(f(differentiable.array([-1.0])))
    assert float(f(differentiable.array([2.0]))) == 3


def test_exception_in_a_batch_says_which_element(differentiable: Any) -> None:
    def fails_below_zero(x: np.ndarray) -> np.ndarray:
        if x < 0:
            raise ValueError("what the host said")
        return x

    nx = differentiable.nx
    f = differentiable.vmap(lambda x: nx.pycall(fails_below_zero, x, out=SCALAR))
    with pytest.raises(ValueError, match="what the host said") as caught:
        f(differentiable.array([1.0, -1.0]))
    assert "element (1,)" in "".join(caught.value.__notes__)


# ---- batches: one call

AXES = [(0, 0), (0, None), (None, 0), (1, 0), (-1, 1)]


@pytest.mark.parametrize("vectorized", [True, False])
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("axes", AXES)
def test_vmap_is_one_call(
    differentiable: Any, axes: tuple[Any, Any], compiled: bool, vectorized: bool
) -> None:
    rng = np.random.default_rng(0)
    x, y = (rng.random(3) if d is None else rng.random((5, 3)) for d in axes)
    want = dot(x, y)
    x, y = (v if d is None else np.moveaxis(v, 0, d) for v, d in zip((x, y), axes, strict=True))
    host = Recorded(dot if vectorized else dot_of_one)
    nx = differentiable.nx
    f = differentiable.vmap(
        lambda x, y: nx.pycall(host, x, y, out=SCALAR, vectorized=vectorized), axes
    )
    f = differentiable.jit(f) if compiled else f
    got = f(differentiable.array(x), differentiable.array(y))
    assert_allclose(differentiable.numpy(got), want, rtol=1e-15)
    assert len(host.calls) == (1 if vectorized else 5)
    if vectorized:
        sizes = [1 if d is None else 5 for d in axes]
        assert [v.shape for v in host.calls[0]] == [(n, 3) for n in sizes]


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_the_batch_may_be_any_axis(differentiable: Any, axis: int) -> None:
    x = np.arange(30.0).reshape(5, 3, 2)
    nx = differentiable.nx
    f = differentiable.vmap(lambda x: nx.pycall(lambda x: x[0] - x[1], x, out=PAIR), axis)
    got = f(differentiable.array(np.moveaxis(x, 0, axis)))
    assert_array_equal(differentiable.numpy(got), x[:, 0] - x[:, 1])


@pytest.mark.parametrize("vectorized", [True, False])
def test_nested_vmap_is_one_call(differentiable: Any, vectorized: bool) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.random((4, 2, 3)), rng.random((5, 3))
    host = Recorded(dot if vectorized else dot_of_one)
    nx, vmap = differentiable.nx, differentiable.vmap
    f = lambda x, y: nx.pycall(host, x, y, out=SCALAR, vectorized=vectorized)  # noqa: E731
    outer = vmap(vmap(vmap(f, (0, None)), (None, 0)), (0, None))
    got = outer(differentiable.array(x), differentiable.array(y))
    want = np.einsum("aci,bi->abc", x, y)
    assert_allclose(differentiable.numpy(got), want, rtol=1e-14)
    if vectorized:
        assert len(host.calls) == 1
        assert {v.ndim for v in host.calls[0]} == {4}
    else:
        assert len(host.calls) == 40


def test_several_outputs_under_vmap(differentiable: Any) -> None:
    nx = differentiable.nx
    out = (ArraySpec((2,), "float64"), ArraySpec((), "int32"))
    f = differentiable.vmap(lambda x: nx.pycall(lambda x: (x[:2], x.argmax()), x, out=out))
    x = np.array([[1.0, 5.0, 2.0], [7.0, 1.0, 2.0]])
    first, second = f(differentiable.array(x))
    assert_array_equal(differentiable.numpy(first), x[:, :2])
    assert_array_equal(differentiable.numpy(second), [1, 0])


@pytest.mark.parametrize("vectorized", [True, False])
def test_a_vectorized_function_must_return_the_whole_batch(
    differentiable: Any, vectorized: bool
) -> None:
    nx = differentiable.nx
    f = differentiable.vmap(
        lambda x: nx.pycall(lambda x: np.zeros(7), x, out=SCALAR, vectorized=vectorized)
    )
    with pytest.raises(HostFunctionError, match="shape"):
        f(differentiable.array(np.zeros((5, 3))))


def test_empty_batch_calls_nobody(framework: Any) -> None:
    if framework.name == "numpy":
        pytest.skip("NumPy has no vmap")
    nx, host = framework.nx, Recorded(lambda x: x.sum(-1))
    f = framework.vmap(lambda x: nx.pycall(host, x, out=SCALAR, vectorized=True))
    assert tuple(f(framework.array(np.zeros((0, 3)))).shape) == (0,)
    assert host.calls == []


# ---- no derivative


def test_differentiating_raises(differentiable: Any) -> None:
    nx, x = differentiable.nx, differentiable.array([1.0, 2.0])

    def opaque(y: np.ndarray, x: np.ndarray) -> np.ndarray:
        return x.sum()

    f = lambda x: nx.pycall(opaque, nx.stop_gradient(x), x, out=SCALAR)  # noqa: E731
    for derivative in (
        lambda: differentiable.grad(f)(x),
        lambda: differentiable.jvp(f, (x,), (x,)),
        lambda: differentiable.jacfwd(differentiable.jacrev(f))(x),
        lambda: differentiable.grad(lambda x: differentiable.vmap(f)(x[None]).sum())(x),
        lambda: differentiable.vmap(differentiable.grad(f))(x[None]),
    ):
        with pytest.raises(NotDifferentiableError, match=r"argument 1") as caught:
            derivative()
        assert "opaque" in str(caught.value)
        assert "stop_gradient" in str(caught.value)
    assert float(f(x)) == 3


def test_stop_gradient_says_constant(differentiable: Any) -> None:
    nx, x = differentiable.nx, differentiable.array([1.0, 2.0])

    def f(x: Any) -> Any:
        return nx.pycall(lambda x: x.sum(), nx.stop_gradient(x), out=SCALAR) * x[0]

    assert_allclose(differentiable.numpy(differentiable.grad(f)(x)), [3, 0])
    assert float(differentiable.jvp(f, (x,), (x,))[1]) == 3
    assert_allclose(differentiable.numpy(differentiable.jacfwd(differentiable.jacrev(f))(x)), 0)


def test_stop_gradient_takes_trees(differentiable: Any) -> None:
    def f(x: Any) -> Any:
        tree = differentiable.nx.stop_gradient({"a": (x, 2 * x), "b": [x]})
        return (tree["a"][0] + tree["a"][1] + tree["b"][0] + x).sum()

    x = differentiable.array([1.0, 2.0])
    assert_allclose(differentiable.numpy(differentiable.grad(f)(x)), [1, 1])


def test_integer_arguments_carry_no_derivative(differentiable: Any) -> None:
    nx, k = differentiable.nx, differentiable.array([1, 0], "int32")
    f = lambda x: nx.pycall(lambda k: k.astype(float).sum(), k, out=SCALAR) * x  # noqa: E731
    assert float(differentiable.grad(f)(differentiable.array(2.0))) == 1


# ---- many callers


def test_eight_threads_at_once(framework: Any) -> None:
    wrong = []

    def work(k: int) -> None:
        for j in range(20):
            x = np.full(3, float(100 * k + j), "float32")
            y = framework.nx.pycall(
                lambda x: x.sum(), framework.array(x, "float32"), out=ArraySpec((), "float32")
            )
            if float(y) != x.sum():
                wrong.append((k, j))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


# ---- set_gradients


def test_gradients_are_delivered_exactly(differentiable: Any) -> None:
    nx, x = differentiable.nx, differentiable.array([1.0, 2.0, 3.0])
    constant = differentiable.array([2.0, 4.0, 6.0])
    cases = {
        "constant": (lambda x: nx.set_gradients((x**2).sum(), (x,), (constant,)), [2, 4, 6]),
        "live": (lambda x: nx.set_gradients((x**2).sum(), (x,), (2 * x,)), [2, 4, 6]),
        "cubic": (lambda x: nx.set_gradients((x**3).sum(), (x,), (3 * x**2,)), [3, 12, 27]),
        "wrong on purpose": (lambda x: nx.set_gradients((x**3).sum(), x, 5 * x), [5, 10, 15]),
    }
    for name, (f, want) in cases.items():
        assert_allclose(differentiable.numpy(differentiable.grad(f)(x)), want, err_msg=name)
        assert_allclose(differentiable.numpy(differentiable.jacfwd(f)(x)), want, err_msg=name)
        compiled = differentiable.jit(differentiable.grad(f))
        assert_allclose(differentiable.numpy(compiled(x)), want, err_msg=name)
        assert float(f(x)) == float((x**2).sum() if "2" in str(want[0]) else (x**3).sum())


@pytest.mark.parametrize("modes", ["rr", "rf", "fr", "ff", "frr", "rrr", "fff", "rff"])
def test_higher_orders_count_once(differentiable: Any, modes: str) -> None:
    nx = differentiable.nx
    f = lambda x: nx.set_gradients(x**3, x, 3 * x**2)  # noqa: E731
    for mode in modes:
        f = (differentiable.jacrev if mode == "r" else differentiable.jacfwd)(f)
    want = {2: 12.0, 3: 6.0}[len(modes)]
    assert float(f(differentiable.array(2.0))) == want
    assert float(differentiable.vmap(f)(differentiable.array([2.0]))[0]) == want


def test_constants_give_what_constants_give(differentiable: Any) -> None:
    nx, x = differentiable.nx, differentiable.array([1.0, 2.0])
    g = differentiable.array([3.0, -1.0])
    f = lambda x: nx.set_gradients((x**3).sum(), (x,), (g,)) ** 2  # noqa: E731
    hessian = differentiable.jacfwd(differentiable.grad(f))(x)
    want = 2 * np.outer([3, -1], [3, -1])  # the value itself has no curvature
    assert_allclose(differentiable.numpy(hessian), want)


def test_the_value_is_detached(differentiable: Any) -> None:
    nx, x = differentiable.nx, differentiable.array([1.0, 2.0])
    f = lambda x, y: nx.set_gradients((x * y).sum(), (x,), (y,))  # noqa: E731
    first, second = (differentiable.grad(f, k)(x, 3 * x) for k in (0, 1))
    assert_allclose(differentiable.numpy(first), [3, 6])
    assert_allclose(differentiable.numpy(second), 0)
    mixed = differentiable.jacrev(differentiable.grad(f, 0), 1)(x, 3 * x)  # through the gradient
    assert_allclose(differentiable.numpy(mixed), np.eye(2))


def test_trees_none_and_integers(differentiable: Any) -> None:
    nx, x = differentiable.nx, differentiable.array([1.0, 2.0])
    k = differentiable.array([1, 2], "int32")

    def f(x: Any, y: Any) -> Any:
        inputs = {"x": (x, y), "k": [k], "y": y}
        grads = {"x": (2 * x, None), "k": [x], "y": 10.0}
        return nx.set_gradients((x**2).sum(), inputs, grads)

    assert_allclose(differentiable.numpy(differentiable.grad(f, 0)(x, x)), [2, 4])
    assert_allclose(differentiable.numpy(differentiable.grad(f, 1)(x, x)), [10, 10])
    nothing = differentiable.grad(lambda x: nx.set_gradients((x**2).sum(), (x,), (None,)) + x[0])
    assert_allclose(differentiable.numpy(nothing(x)), [1, 0])


def test_broadcast_gradients(differentiable: Any) -> None:
    nx, x = differentiable.nx, differentiable.array(np.ones((2, 3)))
    rows = differentiable.array([[5.0], [7.0]])
    f = lambda x: nx.set_gradients(x.sum(), x, rows)  # noqa: E731
    assert_allclose(differentiable.numpy(differentiable.grad(f)(x)), [[5, 5, 5], [7, 7, 7]])


def test_one_input_used_twice(differentiable: Any) -> None:
    nx = differentiable.nx
    f = lambda x: nx.set_gradients(x * x, (x, x), (x, x))  # noqa: E731
    x = differentiable.array(3.0)
    assert float(differentiable.grad(f)(x)) == 6
    assert float(differentiable.grad(differentiable.grad(f))(x)) == 2


def test_batched_values(differentiable: Any) -> None:
    nx = differentiable.nx
    x = differentiable.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    shared = differentiable.array([1.0, 2.0])
    per_row = lambda x: nx.set_gradients((x**2).sum(-1), x, 2 * x)  # noqa: E731
    jacobian = lambda s: nx.set_gradients((x * s).sum(-1), s, x)  # noqa: E731
    got = differentiable.numpy(differentiable.jacrev(per_row)(x))
    want = np.einsum("bi,bc->bci", 2 * differentiable.numpy(x), np.eye(3))
    assert_allclose(got, want)
    assert_allclose(
        differentiable.numpy(differentiable.jacrev(jacobian)(shared)), differentiable.numpy(x)
    )
    elementwise = lambda x: nx.set_gradients(x**3, x, 3 * x**2).sum()  # noqa: E731
    assert_allclose(differentiable.numpy(differentiable.grad(elementwise)(shared)), [3, 12])


def test_vmap_of_the_inputs_or_the_gradients_alone(differentiable: Any) -> None:
    nx = differentiable.nx
    x, g = differentiable.array([1.0, 2.0]), differentiable.array([[3.0, 4.0], [5.0, 6.0]])
    value = differentiable.array(7.0)
    f = lambda x, g: nx.set_gradients(value, x, g)  # noqa: E731
    total = lambda x: differentiable.vmap(f, (None, 0))(x, g).sum()  # noqa: E731
    assert_allclose(differentiable.numpy(differentiable.grad(total)(x)), [8, 10])
    rows = lambda x: differentiable.vmap(f, (0, None))(x, x[0]).sum()  # noqa: E731
    assert_allclose(differentiable.numpy(differentiable.jacfwd(rows)(g)), [[3, 4], [3, 4]])


def test_infinite_inputs_do_not_poison_the_value(differentiable: Any) -> None:
    nx = differentiable.nx
    x = differentiable.array([1.0, np.inf, -np.inf, np.nan])
    g = differentiable.array([2.0, 0.0, 0.0, 0.0])
    f = lambda x: nx.set_gradients(differentiable.array(3.0), (x,), (g,))  # noqa: E731
    assert float(f(x)) == 3
    assert float(differentiable.jit(f)(x)) == 3
    assert_allclose(differentiable.numpy(differentiable.grad(f)(x)), [2, 0, 0, 0])


def test_wrong_gradients_are_refused(framework: Any) -> None:
    nx, x = framework.nx, framework.array([1.0, 2.0])
    with pytest.raises(ValueError, match=r"inputs\[0\].*\(3,\)"):
        nx.set_gradients(x.sum(), (x,), (framework.array([1.0, 2.0, 3.0]),))
    with pytest.raises(ValueError, match="structure of inputs"):
        nx.set_gradients(x.sum(), (x,), (x, x))
    with pytest.raises(ValueError, match="structure of inputs"):
        nx.set_gradients(x.sum(), {"x": x}, (x,))


def test_an_integer_value_cannot_carry_gradients(differentiable: Any) -> None:
    x = differentiable.array([1.0, 2.0])
    with pytest.raises(ValueError, match="int32"):
        differentiable.nx.set_gradients(differentiable.array(1, "int32"), x, x)


def test_numpy_returns_the_value() -> None:
    from ot_backends.backends import load_backend

    value = np.float64(3.0)
    assert load_backend("numpy").set_gradients(value, (np.ones(2),), (np.ones(2),)) is value


def test_functions_with_a_given_gradient(differentiable: Any) -> None:
    # log(1 + e^x) and 1 / (1 + sqrt x): the textbook formula of the derivative is nan at the ends.
    nx, xp = differentiable.nx, differentiable.xp

    def log1pexp(x: Any) -> Any:
        return nx.set_gradients(xp.logaddexp(x, xp.zeros_like(x)), x, 1 / (1 + xp.exp(-x)))

    for x, want in {0.0: 0.5, 100.0: 1.0, 1000.0: 1.0}.items():
        assert float(differentiable.grad(log1pexp)(differentiable.array(x))) == want

    def r1psqrt(x: Any) -> Any:
        return nx.set_gradients(
            (1 + x) / (1 + xp.sqrt(x)), x, differentiable.array([1.0, 2 / 9])[int(x == 4)]
        )

    assert float(differentiable.grad(log1pexp)(differentiable.array(100.0))) == 1.0
