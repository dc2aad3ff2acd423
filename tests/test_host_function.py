"""Host functions with derivative rules, written once for every backend."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import host_functions
import numpy as np
import pytest
from frameworks import use
from host_functions import factored, problem, solve
from numpy.testing import assert_allclose, assert_array_equal
from subprocesses import PACKAGE

from ot_backends import ArraySpec, host_function
from ot_backends.backends import load_backend
from ot_backends.errors import HostFunctionError, NotDifferentiableError

BACKENDS = ["numpy", "jax", "torch"]  # those that carry rules
SCALAR = ArraySpec((), "float64")


@pytest.fixture(params=BACKENDS)
def framework(request: pytest.FixtureRequest) -> Iterator[Any]:
    with use(request.param) as framework:
        framework.nx = load_backend(request.param)
        yield framework


@pytest.fixture(params=[name for name in BACKENDS if name != "numpy"])
def differentiable(request: pytest.FixtureRequest) -> Iterator[Any]:
    with use(request.param) as framework:
        framework.nx = load_backend(request.param)
        yield framework


def every_mix(differentiable: Any, order: int) -> list[Any]:
    """All compositions of forward and reverse mode of this order."""
    mixes: list[Any] = [lambda f: f]
    for _ in range(order):
        mixes = [
            lambda f, m=m, d=d: d(m(f))
            for m in mixes
            for d in (differentiable.jacfwd, differentiable.jacrev)
        ]
    return mixes


def refusal(differentiable: Any, j: Any) -> type[Exception]:
    """The error to expect; while Torch compiles, its own has the message of ours."""
    compiles = differentiable.name == "torch" and j == differentiable.jit
    return Exception if compiles else NotDifferentiableError


# ---- values


def test_value(framework: Any) -> None:
    A, b = problem()
    x = framework.nx.pycall(solve, *framework.arrays(A, b))
    assert_allclose(framework.numpy(x), np.linalg.solve(A, b), rtol=1e-15)
    assert type(x) is type(framework.array(b))
    assert_array_equal(framework.numpy(solve(*framework.arrays(A, b))), framework.numpy(x))


class Pair(NamedTuple):
    first: Any
    second: Any


@host_function(
    out=lambda point, scale: {"sum": point["x"], "rest": [Pair(scale, point["y"][0]), None]}
)
def scaled(point: Any, scale: Any) -> Any:
    (y,) = point["y"]
    return {"rest": [Pair(scale + 1, scale * y), None], "sum": point["x"] * scale}


@scaled.def_vjp
def _(nx: Any, ct: Any, out: Any, point: Any, scale: Any) -> Any:
    dsum, (pair, nothing) = ct["sum"], ct["rest"]
    assert nothing is None
    (y,) = point["y"]
    dpoint = {"x": scale * dsum, "y": (scale * pair.second,)}
    return dpoint, pair.first + (dsum * point["x"]).sum() + (pair.second * y).sum()


@scaled.def_jvp
def _(nx: Any, tangents: Any, out: Any, point: Any, scale: Any) -> Any:
    dpoint, dscale = tangents
    (y,), (dy,) = point["y"], dpoint["y"]
    dsum = dscale * point["x"] + scale * dpoint["x"]
    return {"sum": dsum, "rest": [Pair(dscale, dscale * y + scale * dy), None]}


def test_trees_in_and_out(framework: Any) -> None:
    x, y, s = framework.arrays([1.0, 2.0], [3.0, 4.0, 5.0], 2.0)
    out = scaled({"x": x, "y": (y,)}, s)
    assert list(out) == ["sum", "rest"]
    pair, nothing = out["rest"]
    assert nothing is None
    assert type(pair) is Pair
    assert_array_equal(framework.numpy(out["sum"]), [2, 4])
    assert float(pair.first) == 3
    assert_array_equal(framework.numpy(pair.second), [6, 8, 10])


def test_derivatives_through_trees(differentiable: Any) -> None:
    x, y, s = differentiable.arrays([1.0, 2.0], [3.0, 4.0, 5.0], 2.0)

    def f(x: Any, y: Any, s: Any) -> Any:
        out = scaled({"x": x, "y": (y,)}, s)
        return (out["sum"] ** 2).sum() + out["rest"][0].first * out["rest"][0].second.sum()

    def plain(x: Any, y: Any, s: Any) -> Any:
        return ((s * x) ** 2).sum() + (s + 1) * (s * y).sum()

    for k in range(3):
        for mix in every_mix(differentiable, 1):
            got, want = (
                mix(lambda z, g=g, k=k: g(*[x, y, s][:k], z, *[x, y, s][k + 1 :]))
                for g in (f, plain)
            )
            z = (x, y, s)[k]
            assert_allclose(differentiable.numpy(got(z)), differentiable.numpy(want(z)))


def test_no_float_is_no_derivative(differentiable: Any) -> None:
    @host_function(out=lambda x, k: (x, k))
    def pick(x: Any, k: Any) -> Any:
        return x * k, k + 1

    @pick.def_vjp
    def _(nx: Any, ct: Any, out: Any, x: Any, k: Any) -> Any:
        assert ct[1] is None
        return ct[0] * k, None

    @pick.def_jvp
    def _(nx: Any, tangents: Any, out: Any, x: Any, k: Any) -> Any:
        assert tangents[1] is None
        return tangents[0] * k, None

    x, k = differentiable.array([1.0, 2.0]), differentiable.array([3, 4], "int32")
    f = lambda x: (pick(x, k)[0] * pick(x, k)[1]).sum()  # noqa: E731
    assert_allclose(differentiable.numpy(differentiable.grad(f)(x)), [12, 20])
    assert float(differentiable.jvp(f, (x,), (x,))[1]) == 52


# ---- rules per argument and all at once


def wave_function(kind: str, calls: list[str]) -> Any:
    """x^2 sin(y), with its rules written in one of the ways."""

    @host_function(out=lambda x, y: x)
    def wave(x: Any, y: Any) -> Any:
        return x**2 * np.sin(y)

    if kind == "per argument":

        @wave.def_vjp(argnum=0)
        def _(nx: Any, ct: Any, out: Any, x: Any, y: Any) -> Any:
            calls.append("x")
            return ct * 2 * x * nx.xp.sin(y)

        @wave.def_vjp(argnum=1)
        def _(nx: Any, ct: Any, out: Any, x: Any, y: Any) -> Any:
            calls.append("y")
            return ct * x**2 * nx.xp.cos(y)

        @wave.def_jvp(argnum=0)
        def _(nx: Any, dx: Any, out: Any, x: Any, y: Any) -> Any:
            calls.append("x")
            return dx * 2 * x * nx.xp.sin(y)

        @wave.def_jvp(argnum=1)
        def _(nx: Any, dy: Any, out: Any, x: Any, y: Any) -> Any:
            calls.append("y")
            return dy * x**2 * nx.xp.cos(y)

    if kind in ("at once", "vjp alone"):

        @wave.def_vjp
        def _(nx: Any, ct: Any, out: Any, x: Any, y: Any) -> Any:
            return ct * 2 * x * nx.xp.sin(y), ct * x**2 * nx.xp.cos(y)

    if kind in ("at once", "jvp alone"):

        @wave.def_jvp
        def _(nx: Any, tangents: Any, out: Any, x: Any, y: Any) -> Any:
            dx, dy = tangents
            return dx * 2 * x * nx.xp.sin(y) + dy * x**2 * nx.xp.cos(y)

    if kind == "one of each":

        @wave.def_vjp(argnum=0)
        def _(nx: Any, ct: Any, out: Any, x: Any, y: Any) -> Any:
            return ct * 2 * x * nx.xp.sin(y)

        @wave.def_jvp(argnum=1)
        def _(nx: Any, dy: Any, out: Any, x: Any, y: Any) -> Any:
            return dy * x**2 * nx.xp.cos(y)

    return wave


KINDS = ["per argument", "at once", "vjp alone", "jvp alone", "one of each"]


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_ways_to_write_rules(differentiable: Any, kind: str, order: int) -> None:
    wave, xp = wave_function(kind, []), differentiable.xp
    x, y = differentiable.arrays(1.5, 0.7)
    f = lambda x: wave(x, x * y)  # noqa: E731
    plain = lambda x: x**2 * xp.sin(x * y)  # noqa: E731
    for mix in every_mix(differentiable, order):
        assert_allclose(float(mix(f)(x)), float(mix(plain)(x)), rtol=1e-14)


def test_only_the_rules_that_are_needed_run(differentiable: Any) -> None:
    calls: list[str] = []
    wave = wave_function("per argument", calls)
    x, y = differentiable.arrays(1.5, 0.7)
    assert_allclose(float(differentiable.grad(wave, 1)(x, y)), 1.5**2 * np.cos(0.7))
    assert set(calls) == {"y"}
    calls.clear()
    differentiable.jvp(lambda x: wave(x, y), (x,), (x,))
    assert set(calls) == {"x"}


def test_none_is_no_derivative(differentiable: Any) -> None:
    wave = wave_function("at once", [])
    wave.def_vjp(None, argnum=1)
    x, y = differentiable.arrays(1.5, 0.7)
    f = lambda x, y: wave(x, y) * y  # noqa: E731
    want = 1.5**2 * np.sin(0.7)
    assert_allclose(float(differentiable.grad(f, 1)(x, y)), want)
    assert_allclose(float(differentiable.jacfwd(f, 1)(x, y)), want)


def test_no_rule_raises(differentiable: Any) -> None:
    @host_function(out=lambda x, y: x)
    def wave(x: Any, y: Any) -> Any:
        return x * y

    x, y = differentiable.arrays(1.5, 0.7)
    with pytest.raises(NotDifferentiableError, match="wave"):
        differentiable.grad(wave)(x, y)
    wave.def_vjp(lambda nx, ct, out, x, y: ct * y, argnum=0)
    assert float(differentiable.grad(wave)(x, y)) == 0.7
    for d in (differentiable.grad, differentiable.jacfwd):
        with pytest.raises(NotDifferentiableError, match=r"wave.*argument 1.*def_vjp"):
            d(wave, 1)(x, y)
    f = lambda y: wave(x, differentiable.nx.stop_gradient(y)) * y  # noqa: E731
    assert_allclose(float(differentiable.grad(f)(y)), 1.05)


# ---- only one kind, calling the host


@pytest.mark.parametrize("kind", ["vjp", "jvp"])
def test_one_kind_that_calls_the_host(differentiable: Any, kind: str) -> None:
    @host_function(out=lambda A, b: b)
    def invert(A: Any, b: Any) -> Any:
        return np.linalg.solve(A, b)

    if kind == "vjp":

        @invert.def_vjp
        def _(nx: Any, ct: Any, x: Any, A: Any, b: Any) -> Any:
            y = nx.pycall(invert, A.mT, ct)
            return -y[:, None] * x, y
    else:

        @invert.def_jvp
        def _(nx: Any, tangents: Any, x: Any, A: Any, b: Any) -> Any:
            return nx.pycall(invert, A, tangents[1] - tangents[0] @ x)

    A, b = differentiable.arrays(*problem())
    right, wrong = differentiable.jacrev, differentiable.jacfwd
    if kind == "jvp":
        right, wrong = wrong, right
    inv = differentiable.xp.linalg.inv
    f, plain = (lambda A: (invert(A, b) ** 2).sum()), (lambda A: ((inv(A) @ b) ** 2).sum())
    for mix in (right, lambda f: right(right(f))):  # every order in its own mode
        got, want = mix(f)(A), mix(plain)(A)
        assert_allclose(differentiable.numpy(got), differentiable.numpy(want), atol=1e-12)
    for j in (lambda f: f, differentiable.jit):
        with pytest.raises(refusal(differentiable, j), match=r"invert.*calls the host"):
            j(wrong(f))(A)


# ---- residuals


@pytest.mark.parametrize("by_array_code", [True, False])
def test_residuals(differentiable: Any, by_array_code: bool) -> None:
    solve_once = factored(by_array_code)
    A, b = differentiable.arrays(*problem())
    inv = differentiable.xp.linalg.inv
    assert_allclose(differentiable.numpy(solve_once(A, b)), differentiable.numpy(inv(A) @ b))
    f = lambda A: (solve_once(A, b) ** 3).sum()  # noqa: E731
    plain = lambda A: ((inv(A) @ b) ** 3).sum()  # noqa: E731
    for mix in every_mix(differentiable, 1):
        got, want = mix(f)(A), mix(plain)(A)
        assert_allclose(differentiable.numpy(got), differentiable.numpy(want), atol=1e-12)
    for mix in every_mix(differentiable, 2):
        if by_array_code:
            with pytest.raises(NotDifferentiableError, match=r"solve_once.*residual"):
                mix(f)(A)
        else:
            got, want = mix(f)(A), mix(plain)(A)
            assert_allclose(differentiable.numpy(got), differentiable.numpy(want), atol=1e-12)


def test_residuals_under_vmap(differentiable: Any) -> None:
    A, b = problem()
    As = differentiable.array([A, 2 * A, A.T])
    b = differentiable.array(b)
    inv = differentiable.xp.linalg.inv
    f = lambda g: lambda As: (differentiable.vmap(g, (0, None))(As, b) ** 2).sum()  # noqa: E731
    got = differentiable.grad(f(factored(True)))(As)
    want = differentiable.grad(f(lambda A, b: inv(A) @ b))(As)
    assert_allclose(differentiable.numpy(got), differentiable.numpy(want), atol=1e-12)


def test_missing_residuals(framework: Any) -> None:
    @host_function(out=lambda x: x, residuals=lambda x: x)
    def forgets(x: Any) -> Any:
        return x

    with pytest.raises(HostFunctionError, match=r"forgets.*\(outputs, residuals\)"):
        forgets(framework.array([1.0, 2.0, 3.0]))


# ---- rules on the host


def cube_on_host(modes: str) -> Any:
    @host_function(out=lambda x: x)
    def cube(x: Any) -> Any:
        return x**3

    if "vjp" in modes:

        @cube.def_vjp(host=True)
        def _(ct: Any, out: Any, x: Any) -> Any:
            assert type(x) is type(ct) is np.ndarray
            return 3 * x**2 * ct

    if "jvp" in modes:

        @cube.def_jvp(host=True)
        def _(tangents: Any, out: Any, x: Any) -> Any:
            return 3 * x**2 * tangents[0]

    return cube


def test_host_rules_give_one_order(differentiable: Any) -> None:
    cube, x = cube_on_host("vjp jvp"), differentiable.array([1.0, 2.0])
    f = lambda x: (cube(x) ** 2).sum()  # noqa: E731
    for j in (lambda f: f, differentiable.jit):
        for d in every_mix(differentiable, 1):
            assert_allclose(differentiable.numpy(j(d(f))(x)), [6, 192])
        assert_allclose(
            differentiable.numpy(j(differentiable.vmap(differentiable.grad(f)))(x[:, None])),
            [[6], [192]],
        )
        for d in every_mix(differentiable, 2):
            with pytest.raises(refusal(differentiable, j), match=r"cube.*one order"):
                j(d(f))(x)


@pytest.mark.parametrize("mode", ["vjp", "jvp"])
def test_a_host_rule_cannot_be_transposed(differentiable: Any, mode: str) -> None:
    cube, x = cube_on_host(mode), differentiable.array([1.0, 2.0])
    f = lambda x: cube(x).sum()  # noqa: E731
    right, wrong = differentiable.jacrev, differentiable.jacfwd
    if mode == "jvp":
        right, wrong = wrong, right
    assert_allclose(differentiable.numpy(right(f)(x)), [3, 12])
    with pytest.raises(NotDifferentiableError, match=r"cube.*calls the host"):
        wrong(f)(x)


def test_host_rule_returns_none_and_trees(differentiable: Any) -> None:
    @host_function(out=lambda p, y: p["x"], vectorized=True)
    def f(p: Any, y: Any) -> Any:
        return p["x"] * y

    @f.def_vjp(host=True)
    def _(ct: Any, out: Any, p: Any, y: Any) -> Any:
        return {"x": ct * y, "k": None}, None

    x, k = differentiable.array([1.0, 2.0]), differentiable.array(3, "int32")
    y = differentiable.array([5.0, 6.0])
    g = lambda x, y: f({"x": x, "k": k}, y)  # noqa: E731
    total = lambda x, y: differentiable.vmap(g, (0, None))(x, y).sum()  # noqa: E731
    xs = differentiable.array(np.ones((3, 2)))
    assert_allclose(differentiable.numpy(differentiable.grad(total)(xs, y)), [[5, 6]] * 3)
    assert_allclose(differentiable.numpy(differentiable.grad(total, 1)(xs, y)), [0, 0])
    assert float(differentiable.grad(lambda x: g(x, y).sum())(x)[0]) == 5


# ---- batches


@pytest.mark.parametrize("compiled", [False, True])
def test_one_host_call_per_batch(differentiable: Any, compiled: bool) -> None:
    (A, _), j = problem(), differentiable.jit if compiled else (lambda f: f)
    Bs, A = (
        differentiable.array(np.random.default_rng(1).random((4, 5, 3))),
        differentiable.array(A),
    )
    vmap, inv = differentiable.vmap, differentiable.xp.linalg.inv

    def total(solve: Any) -> Any:
        nested = vmap(vmap(solve, (None, 0)), (None, 0))
        return lambda A, Bs: (nested(A, Bs) ** 2).sum()

    plain = total(lambda A, b: inv(A) @ b)
    host_functions.CALLS.clear()
    got = j(total(solve))(A, Bs)
    assert_allclose(float(got), float(plain(A, Bs)), rtol=1e-13)
    assert [shape for _, shape in host_functions.CALLS] == [(4, 5, 3)]
    host_functions.CALLS.clear()
    got = j(differentiable.grad(total(solve)))(A, Bs)
    want = differentiable.grad(plain)(A, Bs)
    assert_allclose(differentiable.numpy(got), differentiable.numpy(want), atol=1e-12)
    assert [shape for _, shape in host_functions.CALLS] == [(4, 5, 3)] * 2  # forward, backward
    per_example = vmap(differentiable.grad(lambda b, A: (solve(A, b) ** 2).sum()), (0, None))
    host_functions.CALLS.clear()
    j(per_example)(Bs[0], A)
    assert [shape for _, shape in host_functions.CALLS] == [(5, 3)] * 2


def test_a_loop_over_the_batch(differentiable: Any) -> None:
    @host_function(out=lambda A, b: b)
    def one(A: Any, b: Any) -> Any:
        assert A.ndim == 2
        return np.linalg.solve(A, b)

    one.def_vjp(lambda nx, ct, x, A, b: (None, one(A.mT, ct)))
    A, b = problem()
    A, Bs = differentiable.arrays(A, [b, 2 * b])
    f = lambda Bs: (differentiable.vmap(one, (None, 0))(A, Bs) ** 2).sum()  # noqa: E731
    want = 2 * np.linalg.solve(
        problem()[0].T, np.linalg.solve(problem()[0], np.array([b, 2 * b]).T)
    )
    assert_allclose(differentiable.numpy(differentiable.grad(f)(Bs)), want.T)


# ---- host functions and rules that break their word

WRONG = {
    "shape": (lambda x: x[:1], "shape"),
    "dtype": (lambda x: x + 1j, "complex"),
    "count": (lambda x: (x, x), "tuple of 2"),
    "no array": (lambda x: "text", "declared"),
    "none": (lambda x: None, "None"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_results(framework: Any, kind: str) -> None:
    f, message = WRONG[kind]

    @host_function(out=lambda x: x)
    def careless(x: Any) -> Any:
        return f(x)

    x = framework.array([1.0, 2.0])
    with pytest.raises(HostFunctionError, match=message) as caught:
        careless(x)
    assert "careless" in str(caught.value)
    assert_array_equal(framework.numpy(host_function(out=x)(lambda x: 2 * x)(x)), [2, 4])


def test_wrong_structure(framework: Any) -> None:
    @host_function(out=lambda x: {"a": x, "b": (x, x)})
    def careless(x: Any) -> Any:
        return {"a": x, "b": (x,)}

    with pytest.raises(HostFunctionError, match=r"careless.*tuple of 1 at \['b'\].*out="):
        careless(framework.array([1.0, 2.0]))


def test_exceptions_and_writing(framework: Any) -> None:
    @host_function(out=lambda x: x)
    def fails(x: Any) -> Any:
        raise KeyError("what the host said")

    @host_function(out=lambda x: x)
    def writes(x: Any) -> Any:
        x[0] = 7
        return x

    x = framework.array([1.0, 2.0])
    for _ in range(2):
        with pytest.raises(KeyError, match="what the host said"):
            fails(x)
        with pytest.raises(ValueError, match="read-only"):
            writes(x)
    assert_array_equal(framework.numpy(x), [1, 2])


def test_a_reused_buffer(framework: Any) -> None:
    buffer = np.zeros(2)

    @host_function(out=lambda x: x)
    def reuses(x: Any) -> Any:
        buffer[:] = x
        return buffer

    first = reuses(framework.array([1.0, 2.0]))
    reuses(framework.array([3.0, 4.0]))
    assert_array_equal(framework.numpy(first), [1, 2])


WRONG_RULES = {
    "shape": (lambda ct: ct[:1], "shape"),
    "count": (lambda ct: (ct, ct, ct), "tuple of 3"),
    "one for two": (lambda ct: ct, "cotangents"),
}


@pytest.mark.parametrize("kind", WRONG_RULES)
def test_wrong_rules(differentiable: Any, kind: str) -> None:
    rule, message = WRONG_RULES[kind]

    @host_function(out=lambda x, y: x)
    def careless(x: Any, y: Any) -> Any:
        return x * y

    @careless.def_vjp
    def _(nx: Any, ct: Any, out: Any, x: Any, y: Any) -> Any:
        return (rule(ct), ct) if kind == "shape" else rule(ct)

    x = differentiable.array([1.0, 2.0])
    with pytest.raises(HostFunctionError, match=f"vjp rule.*careless.*{message}"):
        differentiable.grad(lambda x: careless(x, x).sum())(x)


def test_misuse(framework: Any) -> None:
    f, x = host_function(out=lambda x: x)(lambda x: x), framework.array([1.0])
    with pytest.raises(TypeError, match="out must not be given"):
        framework.nx.pycall(f, x, out=x)
    with pytest.raises(TypeError, match="argnum"):
        f.def_vjp(None)
    with pytest.raises(TypeError, match="argnum"):
        f.def_vjp(lambda: None, argnum=-1)
    with pytest.raises(TypeError, match="rule"):
        f.def_jvp(3)
    with pytest.raises(TypeError, match=r"\.shape"):
        host_function(out=3)(lambda x: x)
    with pytest.raises(TypeError, match="function"):
        host_function(out=x)(3)
    f.def_vjp(None, argnum=4)
    with pytest.raises(TypeError, match="argument 4"):
        f(x)


# ---- equality, memory, threads


@dataclass(frozen=True)
class Power:
    exponent: int

    def __call__(self, x: Any) -> Any:
        return x**self.exponent


def like_x(x: Any) -> Any:
    return x


def no_rule(nx: Any, ct: Any, out: Any, x: Any) -> Any:
    return ct


def test_equality() -> None:
    make = lambda k: host_function(out=like_x)(Power(k))  # noqa: E731
    assert make(2) == make(2)
    assert hash(make(2)) == hash(make(2))
    assert make(2) != make(3)
    other = make(2)
    other.def_vjp(no_rule)
    assert other != make(2)
    assert hash(other) == hash(make(2))
    assert make(2) != host_function(out=like_x, vectorized=True)(Power(2))
    fixed = host_function(out=np.zeros(2))(Power(2))
    assert fixed == host_function(out=ArraySpec((2,), "float64"))(Power(2))


class Weight:
    """Something that lives as long as the host function that uses it."""

    def __init__(self, value: float) -> None:
        self.value = value


def count_living(step: Any, x: Any, steps: int) -> int:
    references = []
    for k in range(steps):
        weight = Weight(float(k))
        references.append(weakref.ref(weight))
        step(weight, x)
    del weight
    gc.collect()
    return sum(r() is not None for r in references)


def test_ten_thousand_host_functions_are_forgotten(framework: Any) -> None:
    def step(weight: Weight, x: Any) -> None:
        host_function(out=like_x)(lambda x: x * weight.value)(x)

    assert count_living(step, framework.array([1.0, 2.0]), 10_000) < 20


def test_rules_are_forgotten(differentiable: Any) -> None:
    def step(weight: Weight, x: Any) -> None:
        f = host_function(out=like_x)(lambda x: x * weight.value)
        f.def_vjp(lambda nx, ct, out, x: ct * weight.value)
        differentiable.grad(lambda x: f(x).sum())(x)

    # JAX remembers what the last 2048 operations that it traced come to.
    assert count_living(step, differentiable.array([1.0, 2.0]), 2500) <= 2048


def test_eight_threads(framework: Any) -> None:
    A, b = problem()
    wrong: list[Any] = []

    def work(k: int) -> None:
        with use(framework.name) as own:  # the types allowed in JAX are a thread's own
            x = own.arrays(A, (k + 1) * b)
            for _ in range(10):
                got = own.numpy(solve(*x))
                if not np.allclose(got, (k + 1) * np.linalg.solve(A, b), rtol=1e-13):
                    wrong.append((k, got))
                if own.traced:
                    grad = own.numpy(own.grad(lambda b: solve(x[0], b).sum())(x[1]))
                    if not np.allclose(grad, np.linalg.solve(A.T, np.ones(3)), rtol=1e-13):
                        wrong.append((k, grad))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


def test_unused_scalar_spec() -> None:
    total = host_function(out=SCALAR)(lambda x: x.sum())
    assert total(np.ones(3)) == 3


FORKED = """
import os
import numpy as np
from host_functions import problem, solve
A, b = problem()
want = solve(A, b)
child = os.fork()
if child == 0:
    os._exit(0 if np.array_equal(solve(A, b), want) else 1)
assert os.waitpid(child, 0)[1] == 0
"""


def test_after_a_fork() -> None:
    path = os.pathsep.join([str(Path(__file__).parent), str(PACKAGE)])
    command = [sys.executable, "-c", FORKED]
    env = os.environ | {"PYTHONPATH": path}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
