"""stop_gradient, zero_grad, custom_gradient, linear_solve, root, check_grads on every backend."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from frameworks import use
from host_functions import problem, solve
from numpy.testing import assert_allclose, assert_array_equal
from test_host_function import BACKENDS, every_mix

import ot_backends
from ot_backends import host_function
from ot_backends.backends import load_backend
from ot_backends.errors import NotDifferentiableError


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


# ---- no gradient, zero gradient, a gradient of one's own


def test_values_stay(framework: Any) -> None:
    x = framework.array([1.0, np.inf])
    for f in (ot_backends.stop_gradient, ot_backends.zero_grad):
        (y,), z = f({"a": (x,), "b": x}).values()
        assert_array_equal(framework.numpy(y), [1, np.inf])
        assert_array_equal(framework.numpy(z), [1, np.inf])


@pytest.mark.parametrize("name", ["stop_gradient", "zero_grad"])
def test_no_derivative(differentiable: Any, name: str) -> None:
    f, x = getattr(ot_backends, name), differentiable.array([1.0, 2.0])
    g = lambda x: (f([x])[0] * x).sum()  # noqa: E731
    for mix in every_mix(differentiable, 1):
        assert_array_equal(differentiable.numpy(mix(g)(x)), [1, 2])
    for mix in every_mix(differentiable, 2):
        # + 0: torch may return a tensor of zeros without memory, here as for x.detach() * x
        assert_array_equal(differentiable.numpy(mix(g)(x) + 0), np.zeros((2, 2)))


def functions(xp: Any) -> dict[str, tuple[Any, Any, dict[float, float]]]:
    """Value, gradient, and what the gradient is where the textbook formula is nan, or anyway."""
    return {
        "log1pexp": (
            lambda x: xp.logaddexp(x, xp.zeros_like(x)),
            lambda x: 1 / (1 + xp.exp(-x)),
            {0.0: 0.5, 100.0: 1.0, 1000.0: 1.0},
        ),
        "r1psqrt": (
            lambda x: x / (1 + xp.sqrt(x)),
            lambda x: (xp.sqrt(x) + 2) / (2 * (xp.sqrt(x) + 1) ** 2),
            {0.0: 1.0, 4.0: 2 / 9},
        ),
    }


@pytest.mark.parametrize("name", ["log1pexp", "r1psqrt"])
def test_custom_gradient(differentiable: Any, name: str) -> None:
    value, grad, right = functions(differentiable.xp)[name]
    f = ot_backends.custom_gradient(value, grad)
    x = differentiable.array(list(right))
    assert_allclose(differentiable.numpy(f(x)), differentiable.numpy(value(x)))
    for d in every_mix(differentiable, 1):
        got = [float(d(f)(differentiable.array(p))) for p in right]
        assert_allclose(got, list(right.values()), rtol=1e-15)
    got = differentiable.vmap(differentiable.grad(f))(x)
    assert_allclose(differentiable.numpy(got), list(right.values()), rtol=1e-15)
    got = differentiable.grad(lambda x: f(x).sum())(x)  # elementwise
    assert_allclose(differentiable.numpy(got), list(right.values()), rtol=1e-15)
    if name == "log1pexp":  # s (1 - s)
        for d in every_mix(differentiable, 2):
            assert float(d(f)(differentiable.array(0.0))) == 0.25


def test_custom_gradient_of_several_arguments(differentiable: Any) -> None:
    opaque = host_function(out=lambda x, y: ot_backends.ArraySpec((), x.dtype))(lambda x, y: x @ y)
    f = ot_backends.custom_gradient(opaque, lambda x, y: (y, None))
    x, y = differentiable.arrays([1.0, 2.0], [3.0, 4.0])
    assert float(f(x, y)) == 11
    assert_array_equal(differentiable.numpy(differentiable.grad(f)(x, y)), [3, 4])
    assert_array_equal(differentiable.numpy(differentiable.grad(f, 1)(x, y)), [0, 0])


# ---- solvers


def by_linear_solve(A: Any, b: Any) -> Any:
    return ot_backends.linear_solve(
        lambda x, A: A @ x,
        b,
        A,
        solve=lambda b, A: solve(A, b),
        transpose_solve=lambda b, A: solve(A.mT, b),
    )


def cubes(x: Any, A: Any, b: Any) -> Any:
    return A @ x**3 - b


@host_function(out=lambda x, A, b: x)
def newton(x: np.ndarray, A: np.ndarray, b: np.ndarray) -> np.ndarray:
    x = x.copy()
    for _ in range(60):
        x -= np.linalg.solve(A * (3 * x**2), A @ x**3 - b)
    return x


def by_root(A: Any, b: Any) -> Any:
    return ot_backends.root(cubes, 0 * b + 1, A, b, solve=newton)


def by_root_with_solver(A: Any, b: Any) -> Any:
    # The derivative of cubes is A diag(3 x^2): found by an external solver too.
    def tangent_solve(g: Any, y: Any) -> Any:
        nx = ot_backends.get_backend(y)
        columns = nx.vmap(g)(nx.asarray(np.eye(3), y))
        return solve(columns.mT, y)

    return ot_backends.root(cubes, 0 * b + 1, A, b, solve=newton, tangent_solve=tangent_solve)


SOLVERS = {
    "linear_solve": (by_linear_solve, lambda x: x),
    "root": (by_root, lambda x: x ** (1 / 3)),
    "root with tangent_solve": (by_root_with_solver, lambda x: x ** (1 / 3)),
}


def points(framework: Any) -> list[Any]:
    A, _ = problem()
    return framework.arrays(A, A @ np.array([1.0, 2.0, 3.0]))


@pytest.mark.parametrize("name", SOLVERS)
def test_solver_values(framework: Any, name: str) -> None:
    f, of_x = SOLVERS[name]
    A, b = points(framework)
    assert_allclose(framework.numpy(f(A, b)), of_x(np.array([1.0, 2.0, 3.0])), rtol=1e-13)


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("name", SOLVERS)
def test_solver_derivatives(differentiable: Any, name: str, order: int) -> None:
    f, of_x = SOLVERS[name]
    A, b = points(differentiable)
    inv = differentiable.xp.linalg.inv
    along = lambda f: lambda t: f(A * (1 + t), b + t**2 * A[0]).sum()  # noqa: E731
    t = differentiable.array(0.3)
    for mix in every_mix(differentiable, order)[:: 3 if order == 3 else 1]:
        got = differentiable.fast(mix(along(f)))(t)
        want = differentiable.fast(mix(along(lambda A, b: of_x(inv(A) @ b))))(t)
        assert_allclose(float(got), float(want), rtol=1e-9)


@pytest.mark.parametrize("name", SOLVERS)
def test_solvers_under_vmap(differentiable: Any, name: str) -> None:
    f, of_x = SOLVERS[name]
    A, b = points(differentiable)
    inv, s = differentiable.xp.linalg.inv, differentiable.array([1.0, 2.0])
    total = lambda f: lambda A: differentiable.vmap(lambda s: f(s * A, b))(s).sum()  # noqa: E731
    got = differentiable.grad(total(f))(A)
    want = differentiable.grad(total(lambda A, b: of_x(inv(A) @ b)))(A)
    assert_allclose(differentiable.numpy(got), differentiable.numpy(want), atol=1e-12)


def test_trees_of_unknowns(differentiable: Any) -> None:
    def f(x: Any, p: Any) -> Any:
        return {"u": x["u"] ** 2 - p["a"], "v": (x["u"] * x["v"][0] - p["b"],)}

    @host_function(out=lambda x, p: x)
    def by_hand(x: Any, p: Any) -> Any:
        u = np.sqrt(p["a"])
        return {"u": u, "v": (p["b"] / u,)}

    def g(a: Any, b: Any) -> Any:
        x = ot_backends.root(f, {"u": a, "v": (b,)}, {"a": a, "b": b}, solve=by_hand)
        return x["u"] + x["v"][0] ** 2

    a, b = differentiable.arrays(4.0, 3.0)
    for d in every_mix(differentiable, 2):
        got = differentiable.fast(d(lambda a: g(a, b)))(a)
        assert_allclose(float(got), -0.25 * 4**-1.5 + 2 * 9 / 4**3)


def test_reverse_mode_without_transpose_solve(differentiable: Any) -> None:
    A, b = points(differentiable)
    f = lambda b: ot_backends.linear_solve(  # noqa: E731
        lambda x, A: A @ x, b, A, solve=lambda b, A: solve(A, b)
    ).sum()
    assert_allclose(float(differentiable.jvp(f, (b,), (b,))[1]), 6, rtol=1e-13)
    with pytest.raises(NotDifferentiableError, match="transpose_solve"):
        differentiable.grad(f)(b)


def test_what_is_captured_counts_or_raises(differentiable: Any) -> None:
    A, b = points(differentiable)
    sg = differentiable.nx.stop_gradient

    def linear(A: Any) -> Any:
        return ot_backends.linear_solve(
            lambda x: A @ x,
            b,
            solve=lambda b: solve(sg(A), b),
            transpose_solve=lambda b: solve(sg(A).mT, b),
        ).sum()

    def implicit(A: Any) -> Any:
        guess = 0 * b + 1
        return ot_backends.root(
            lambda x: cubes(x, A, b), guess, solve=lambda x: newton(x, sg(A), b)
        ).sum()

    for f, name in ((linear, "linear_solve"), (implicit, "root")):
        explicit = lambda A, name=name: SOLVERS[name][0](A, b).sum()  # noqa: E731
        for d in every_mix(differentiable, 1):
            try:
                got = d(f)(A)
            except NotDifferentiableError as error:
                assert differentiable.name != "jax"
                assert "params" in str(error)  # noqa: PT017
            else:
                want = d(explicit)(A)
                assert_allclose(differentiable.numpy(got), differentiable.numpy(want), atol=1e-12)


def test_wrong_structure_of_what_f_returns(framework: Any) -> None:
    x = framework.array([1.0])
    with pytest.raises(TypeError, match=r"root: solve.*tuple of 1"):
        ot_backends.root(lambda x: x, {"a": x}, solve=lambda x: (x["a"],))


# ---- check_grads


def test_check_grads_accepts_what_is_right(differentiable: Any) -> None:
    A, b = differentiable.arrays(*problem(2))
    ot_backends.check_grads(solve, (A, b), order=2)
    ot_backends.check_grads(lambda A: (solve(A, b), A), (A,), order=3, modes=["rev"])


@pytest.mark.parametrize(
    ("rule", "order"), [(lambda x: 2 * x, 1), (lambda x: 3 * x * x + 0 * x, 0), (None, 2)]
)
def test_check_grads_finds_what_is_wrong(differentiable: Any, rule: Any, order: int) -> None:
    nx = differentiable.nx
    if rule is None:  # right to first order, with no second derivative
        rule = lambda x: nx.stop_gradient(3 * x * x)  # noqa: E731
    f = lambda x: nx.set_gradients(x**3, x, rule(x))  # noqa: E731
    x = differentiable.array([0.5, 2.0])
    for modes in (["fwd"], ["rev"], ["fwd", "rev"]):
        if order == 0:
            ot_backends.check_grads(f, (x,), modes=modes)
            continue
        if order == 2:
            ot_backends.check_grads(f, (x,), order=1, modes=modes)
        with pytest.raises(AssertionError):
            ot_backends.check_grads(f, (x,), order=order, modes=modes)


def test_check_grads_says_what_it_needs() -> None:
    with pytest.raises(NotDifferentiableError, match="NumPy"):
        ot_backends.check_grads(np.sin, (np.ones(2),))
    with pytest.raises(ValueError, match="modes"):
        ot_backends.check_grads(np.sin, (np.ones(2),), modes=["forward"])
    with pytest.raises(ValueError, match="order"):
        ot_backends.check_grads(np.sin, (np.ones(2),), order=0)
