"""Second derivatives: the Hessian, the mixed part on its own, the plan and the potentials."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import product
from typing import Any

import frameworks
import judge
import numpy as np
import pytest
from problems import prob

import ot_backends

P = prob()
THETA = np.array([0.3, -0.2, 0.15])
MODES = ["forward", "reverse"]
ORDERS = [f"{outer} over {inner}" for outer in MODES for inner in MODES]


@pytest.fixture
def fw(differentiable: Any) -> Any:
    return differentiable


def emd2(a: Any, b: Any, M: Any) -> Any:
    return ot_backends.emd2(a, b, M, check_marginals=False)


def twice(fw: Any, f: Callable[..., Any], order: str) -> Callable[..., Any]:
    outer, _, inner = order.partition(" over ")
    d = {"forward": fw.jacfwd, "reverse": fw.jacrev}
    return fw.fast(d[outer](d[inner](f)))


def weights(theta: Any, fw: Any) -> tuple[Any, Any, Any]:
    """a, b and M, all of theta: a changes its mass, b is a softmax, M is quadratic."""
    xp = fw.xp
    a, b, M, slope = fw.arrays(P.a, P.b, P.M, np.linspace(-1.0, 1.0, 6))
    a = a * xp.exp(0.3 * theta[0] * slope + 0.2 * theta[1])
    e = b * xp.exp(theta[1] * slope[:5] * 0.4 + 0.1 * theta[2] ** 2)
    M = (M * (1.0 + 0.3 * theta[2]) + 0.1 * slope[:, None] * theta[0]) ** 2
    return a, e / e.sum(), M


def loss(theta: Any, fw: Any, value: Callable[..., Any]) -> Any:
    return value(*weights(theta, fw)) * fw.xp.exp(0.5 * theta[1]) + value(*weights(theta, fw)) ** 2


def differences(f: Callable[[np.ndarray], Any], x: np.ndarray, h: float = 2e-3) -> np.ndarray:
    """The Jacobian of f at x by central differences, the last axis for x."""
    axes = np.eye(x.size).reshape(x.size, *x.shape)
    return np.stack([judge.central(lambda t, e=e: f(x + t * e), h) for e in axes], -1)


@cache
def true_hessian() -> np.ndarray:
    numpy = frameworks.Framework()
    f = lambda theta: loss(theta, numpy, judge.reference_value)  # noqa: E731
    return differences(lambda theta: differences(f, theta), THETA, 4e-3)


@pytest.mark.parametrize("order", ORDERS)
def test_full_hessian(fw: Any, order: str) -> None:
    true = true_hessian()
    np.testing.assert_allclose(true, true.T, rtol=1e-6, atol=1e-7)  # the differences are good
    found = fw.numpy(twice(fw, lambda t: loss(t, fw, emd2), order)(fw.array(THETA)))
    np.testing.assert_allclose(found, found.T, rtol=0, atol=1e-13)
    assert np.abs(found - true).max() <= 1e-6 * np.abs(true).max()


def test_gradient_of_the_loss(fw: Any) -> None:
    numpy = frameworks.Framework()
    true = differences(lambda t: loss(t, numpy, judge.reference_value), THETA)
    for d in (fw.jacfwd, fw.jacrev):
        found = fw.numpy(fw.fast(d(lambda t: loss(t, fw, emd2)))(fw.array(THETA)))
        np.testing.assert_allclose(found, true, rtol=1e-9)


@cache
def true_plan_derivatives() -> tuple[np.ndarray, np.ndarray]:
    """d plan / da and d plan / db of HiGHS, coordinates of the weights last; masses change."""
    da = differences(lambda a: judge.reference(a, P.b, P.M).plan, P.a)
    db = differences(lambda b: judge.reference(P.a, b, P.M).plan, P.b)
    return da, db


@pytest.mark.parametrize(("first", "second"), list(product(MODES, repeat=2)))
def test_mixed_second_derivative_on_its_own(fw: Any, first: str, second: str) -> None:
    """d2 value / dM da = d plan / da, whichever comes first; and it is not zero."""
    a, b, M = fw.arrays(*P.args)
    d = {"forward": fw.jacfwd, "reverse": fw.jacrev}
    da, db = true_plan_derivatives()
    assert np.abs(da).max() > 0.5
    for k, true in ((0, da), (1, db)):
        M_first = fw.numpy(fw.fast(d[second](d[first](emd2, 2), k))(a, b, M))
        np.testing.assert_allclose(M_first, true, rtol=0, atol=1e-10)
        M_last = fw.numpy(fw.fast(d[second](d[first](emd2, k), 2))(a, b, M))
        np.testing.assert_allclose(M_last, np.moveaxis(true, -1, 0), rtol=0, atol=1e-10)


def test_second_derivatives_by_block(fw: Any) -> None:
    """The rescaling of b bends the value in b; in a alone and in M alone it is straight."""
    a, b, M = fw.arrays(*P.args)
    H = twice(fw, emd2, "forward over reverse")
    np.testing.assert_allclose(fw.numpy(H(a, b, M)), 0.0, atol=1e-13)  # argument 0: a
    in_b = twice(fw, lambda b: emd2(a, b, M), "forward over reverse")(b)
    v = lambda b: judge.reference(P.a, b, P.M).v * P.a.sum() / b.sum()  # noqa: E731
    np.testing.assert_allclose(fw.numpy(in_b), differences(v, P.b), atol=1e-10)
    in_M = twice(fw, lambda M: emd2(a, b, M), "forward over reverse")(M)
    np.testing.assert_allclose(fw.numpy(in_M), 0.0, atol=1e-13)
    in_ab = fw.fast(fw.jacfwd(fw.jacrev(emd2, 0), 1))(a, b, M)
    u = lambda b: judge.reference(P.a, b, P.M).u  # noqa: E731
    np.testing.assert_allclose(fw.numpy(in_ab), differences(u, P.b), atol=1e-10)


@pytest.mark.parametrize("mode", MODES)
def test_plan_in_the_weights(fw: Any, mode: str) -> None:
    a, b, M = fw.arrays(*P.args)
    d = {"forward": fw.jacfwd, "reverse": fw.jacrev}[mode]

    def emd(a: Any, b: Any, M: Any) -> Any:
        return ot_backends.emd(a, b, M, check_marginals=False)

    da, db = true_plan_derivatives()
    for k, true in ((0, da), (1, db)):
        np.testing.assert_allclose(fw.numpy(fw.fast(d(emd, k))(a, b, M)), true, rtol=0, atol=1e-10)
    in_M = fw.numpy(fw.fast(d(emd, 2))(a, b, M))  # on a fixed basis the plan does not move with M
    np.testing.assert_array_equal(in_M, np.zeros((6, 5, 6, 5)))

    def sparse(a: Any) -> Any:
        return ot_backends.solve(M, a, b, check_marginals=False).flow

    rows, cols, _ = (fw.numpy(x) for x in ot_backends.solve(M, a, b).sparse_plan)
    np.testing.assert_allclose(fw.numpy(d(sparse)(a)), da[rows, cols], rtol=0, atol=1e-10)


@pytest.mark.parametrize("mode", MODES)
def test_potentials_in_the_costs(fw: Any, mode: str) -> None:
    a, b, M = fw.arrays(*P.args)
    d = {"forward": fw.jacfwd, "reverse": fw.jacrev}[mode]
    for k in (0, 1):
        u_or_v = lambda M, k=k: ot_backends.solve(M, a, b).potentials[k]  # noqa: E731
        found = fw.numpy(fw.fast(d(u_or_v))(M))
        true = differences(lambda M, k=k: judge.reference(P.a, P.b, M)[2 + k], P.M)
        np.testing.assert_allclose(found.reshape(true.shape), true, rtol=0, atol=1e-10)


def test_potentials_in_the_weights(fw: Any) -> None:
    """On a fixed basis only the gauge <v, b'> = 0 moves them, and it moves with b alone."""
    a, b, M = fw.arrays(*P.args)

    def potentials(a: Any, b: Any) -> Any:
        return ot_backends.solve(M, a, b, check_marginals=False).potentials

    found = fw.fast(fw.jacrev(lambda a, b: fw.xp.concat(potentials(a, b)), (0, 1)))(a, b)
    both = lambda a, b: np.concatenate(judge.reference(a, b, P.M)[2:])  # noqa: E731
    true = differences(lambda a: both(a, P.b), P.a), differences(lambda b: both(P.a, b), P.b)
    for x, t in zip(found, true, strict=True):
        np.testing.assert_allclose(fw.numpy(x), t, rtol=0, atol=1e-10)


def test_plan_and_potentials_in_every_argument_in_one_loss(fw: Any) -> None:
    """A loss of plan and value with first derivatives by both modes against differences."""
    C = np.cos(np.arange(30.0)).reshape(6, 5)

    def f(theta: Any, fw: Any) -> Any:
        a, b, M = weights(theta, fw)
        if fw.name == "numpy":
            r = judge.reference(a, b, M)
            return np.sum(r.plan**2 * C) + r.value
        r = ot_backends.solve(M, a, b, check_marginals=False)
        return (r.plan**2 * fw.array(C)).sum() + r.value

    numpy = frameworks.Framework()
    true = differences(lambda t: f(t, numpy), THETA)
    for d in (fw.jacfwd, fw.jacrev):
        np.testing.assert_allclose(
            fw.numpy(d(lambda t: f(t, fw))(fw.array(THETA))), true, rtol=1e-8
        )


def test_hessian_of_a_batch_is_the_batch_of_hessians(fw: Any) -> None:
    thetas = np.stack([THETA, 0.9 * THETA])
    H = twice(fw, lambda t: loss(t, fw, emd2), "forward over reverse")
    found = fw.numpy(fw.fast(fw.vmap(H))(fw.array(thetas)))
    for x, h in zip(thetas, found, strict=True):
        np.testing.assert_allclose(h, fw.numpy(H(fw.array(x))), rtol=1e-12, atol=1e-14)
    true = true_hessian()
    assert np.abs(found[0] - true).max() <= 1e-6 * np.abs(true).max()
