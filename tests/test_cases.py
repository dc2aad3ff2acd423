"""What users of such libraries have reported in public, each as a small input of our own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import frameworks
import judge
import numpy as np
import pytest
from problems import prob

import ot_backends

P = prob()
VALUE = 0.207643735650


@pytest.fixture
def fw(framework: Any) -> Any:
    return framework


@pytest.fixture
def diff(differentiable: Any) -> Any:
    return differentiable


@pytest.fixture
def jax() -> Iterator[Any]:
    with frameworks.use("jax") as framework:
        yield framework


@pytest.fixture
def torch() -> Iterator[Any]:
    with frameworks.use("torch") as framework:
        yield framework


def value_of(a: Any, b: Any, M: Any) -> Any:
    return ot_backends.solve(M, a, b).value


def plan_cost(a: Any, b: Any, M: Any) -> Any:
    return (ot_backends.emd(a, b, M) * M).sum()


THREE = pytest.mark.parametrize("f", [ot_backends.emd2, value_of, plan_cost])


@THREE
def test_case_1_jax_transforms(jax: Any, f: Any) -> None:
    a, b, M = jax.arrays(*P.args)
    plan = judge.reference(*P.args).plan
    for g in (f, jax.jit(f)):
        assert float(g(a, b, M)) == pytest.approx(VALUE, abs=1e-12)
        np.testing.assert_allclose(jax.grad(g, 2)(a, b, M), plan, rtol=0, atol=1e-13)
        both = jax.vmap(g, (None, None, 0))(a, b, jax.xp.stack([M, 2 * M]))
        np.testing.assert_allclose(both, [VALUE, 2 * VALUE], rtol=0, atol=1e-11)
        _, slope = jax.jvp(lambda M, g=g: g(a, b, M), (M,), (M,))
        assert float(slope) == pytest.approx(VALUE, abs=1e-12)

    def over(M: Any) -> Any:
        step = lambda total, k: (total + f(a, b, k * M), k)  # noqa: E731
        return jax.jax.lax.scan(step, 0.0, jax.array([1.0, 2.0]))[0]

    for g in (over, jax.jit(over)):
        assert float(g(M)) == pytest.approx(0.622931206951, abs=1e-11)
        np.testing.assert_allclose(jax.grad(g)(M), 3 * plan, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("of", "gradient", "true"),
    [
        (lambda x: (x**2).sum(), lambda x: [2.0, 4.0, 6.0], [2, 4, 6]),
        (lambda x: (x**2).sum(), lambda x: 2 * x, [2, 4, 6]),
        (lambda x: (x**3).sum(), lambda x: 3 * x**2, [3, 12, 27]),
    ],
    ids=["constant", "2 x", "3 x^2"],
)
def test_case_2_set_gradients(diff: Any, of: Any, gradient: Any, true: Any) -> None:
    x = diff.array([1.0, 2.0, 3.0])
    nx = ot_backends.get_backend(x)

    def f(x: Any) -> Any:
        g = gradient(x)
        return nx.set_gradients(of(x), (x,), (diff.array(g) if isinstance(g, list) else g,))

    assert float(f(x)) == float(of(x))
    for g in (diff.grad(f), diff.jit(diff.grad(f))):
        np.testing.assert_array_equal(diff.numpy(g(x)), true)
    if diff.name == "torch":
        np.testing.assert_array_equal(diff.numpy(diff.backward(f, x)[0]), true)
    for k, e in enumerate(np.eye(3)):
        assert float(diff.jvp(f, (x,), (diff.array(e),))[1]) == true[k]
    # gradients that depend on x stay differentiable, and count once
    second = {3: [6.0, 12.0, 18.0], 2: [2.0, 2.0, 2.0]}[3 if true[0] == 3 else 2]
    if gradient(x) is not None and not isinstance(gradient(x), list):
        for H in (diff.jacfwd(diff.jacrev(f)), diff.jacrev(diff.jacrev(f))):
            np.testing.assert_array_equal(diff.numpy(H(x)), np.diag(second))


@THREE
def test_case_3_torch_transforms(torch: Any, f: Any) -> None:
    a, b, M = torch.arrays(*P.args)
    func = torch.torch.func
    r = judge.reference(*P.args)
    both = func.vmap(f, (None, None, 0))(a, b, torch.torch.stack([M, 2 * M]))
    np.testing.assert_allclose(both, [VALUE, 2 * VALUE], rtol=0, atol=1e-11)
    true = (r.u, r.v, r.plan) if f is not plan_cost else (None, None, r.plan)
    value, vjp = func.vjp(f, a, b, M)
    assert float(value) == pytest.approx(VALUE, abs=1e-12)
    found = [func.grad(f, k)(a, b, M) for k in range(3)]
    for g in (
        found,
        vjp(torch.array(1.0)),
        func.jacrev(f, (0, 1, 2))(a, b, M),
        func.jacfwd(f, (0, 1, 2))(a, b, M),
        torch.backward(f, a, b, M),
    ):
        for x, t in zip(g, true, strict=True):
            if t is not None:
                np.testing.assert_allclose(torch.numpy(x), t, rtol=0, atol=1e-12)
    _, slope = func.jvp(lambda M: f(a, b, M), (M,), (M,))
    assert float(slope) == pytest.approx(VALUE, abs=1e-12)
    H = func.hessian(lambda M: f(a, b, M) ** 2)(M)
    np.testing.assert_allclose(H, 2 * np.multiply.outer(r.plan, r.plan), rtol=0, atol=1e-12)


@THREE
def test_case_3_torch_compile(torch: Any, f: Any) -> None:
    """fullgraph=True is an error at the first graph break; forward and backward."""
    a, b, M = torch.arrays(*P.args)
    g = torch.torch.compile(f, fullgraph=True, backend="aot_eager")
    assert float(g(a, b, M)) == pytest.approx(VALUE, abs=1e-12)
    _, _, gM = torch.backward(g, a, b, M)
    np.testing.assert_allclose(gM, judge.reference(*P.args).plan, rtol=0, atol=1e-13)


def test_case_5_integer_and_boolean_weights(fw: Any) -> None:
    M = np.array([[0.0, 1.0], [1.0, 0.0]])
    for dtype in ("int64", "int32", "uint8"):
        a, b = fw.arrays([3, 7], [7, 3], dtype=dtype)
        assert float(ot_backends.emd2(a, b, fw.array(M))) == 4.0
        assert float(ot_backends.emd2(a, b, fw.array(M * 0.1))) == pytest.approx(0.4, rel=1e-15)
        if fw.name != "numpy":
            plan = fw.grad(lambda M, a=a, b=b: ot_backends.emd2(a, b, M))(fw.array(M))
            np.testing.assert_array_equal(fw.numpy(plan), [[3.0, 0.0], [4.0, 3.0]])
    a, b = fw.arrays([True, False], [False, True], dtype="bool")
    assert float(ot_backends.emd2(a, b, fw.array(M * 0.5))) == 0.5


@pytest.mark.parametrize("fill", [np.nan, np.inf])
def test_case_6_never_a_finite_loss_in_training(diff: Any, fill: float) -> None:
    """An assignment loss whose network has gone wrong must say so, not train on a number."""
    costs = np.full((6, 5), fill)
    for M in (costs, np.where(np.eye(6, 5) > 0, fill, P.M) if fill != np.inf else costs):
        with pytest.raises(ValueError, match="M"):
            diff.grad(lambda M: ot_backends.emd2(None, None, M))(diff.array(M))


@pytest.mark.parametrize("limit", [1, 20, 100])
def test_case_7_iteration_limit(fw: Any, limit: int) -> None:
    p = prob(60, 60, 5)
    a, b, M = fw.arrays(*p.args)
    assert judge.reference_value(*p.args) == pytest.approx(0.030865, abs=1e-6)
    try:
        value, log = ot_backends.emd2(a, b, M, numItermax=limit, log=True, return_matrix=True)
    except ValueError:
        return
    assert float(value) == pytest.approx(judge.reference_value(*p.args), rel=1e-10)
    assert fw.numpy(log["G"]).sum() == pytest.approx(1.0, abs=1e-12)


def test_case_8_weights_of_another_mass(diff: Any) -> None:
    b = 2.5 * P.b
    f = lambda *x: ot_backends.emd2(*x, check_marginals=False)  # noqa: E731
    found = diff.grad(f, (0, 1, 2))(*diff.arrays(P.a, b, P.M))
    for g, true in zip(found, judge.gradients(P.a, b, P.M), strict=True):
        np.testing.assert_allclose(diff.numpy(g), true, rtol=0, atol=1e-10)


def test_case_13_hessian_of_the_square(diff: Any) -> None:
    a, b, M = diff.arrays(*P.args)
    plan = judge.reference(*P.args).plan
    f = lambda M: ot_backends.emd2(a, b, M) ** 2  # noqa: E731
    d = (diff.jacfwd, diff.jacrev)
    for outer in d:
        for inner in d:
            H = diff.numpy(outer(inner(f))(M))
            np.testing.assert_allclose(H, 2 * np.multiply.outer(plan, plan), rtol=0, atol=1e-13)


@pytest.mark.parametrize("fill", [0.0, 1e9, np.inf, np.nan])
def test_case_16_padding(diff: Any, fill: float) -> None:
    p = prob(4, 5)
    a, M = np.append(p.a, [0.0, 0.0]), np.vstack([p.M, np.full((2, 5), fill)])
    x = diff.arrays(a, p.b, M)
    r = judge.reference(*p.args)
    assert float(ot_backends.emd2(*x)) == pytest.approx(r.value, rel=1e-13)
    ga, gb, gM = (diff.numpy(g) for g in diff.grad(ot_backends.emd2, (0, 1, 2))(*x))
    on_padding = (fill - r.v).min() if np.isfinite(fill) else 0.0  # <v, b'> = 0 in this gauge
    np.testing.assert_allclose(ga, np.append(r.u, [on_padding] * 2), rtol=1e-14, atol=1e-13)
    np.testing.assert_allclose(gb, r.v, rtol=0, atol=1e-13)
    np.testing.assert_allclose(gM, np.vstack([r.plan, np.zeros((2, 5))]), rtol=0, atol=1e-13)


@dataclass(frozen=True)
class Solver:
    """A host function written for one problem, and how often the host was called."""

    vectorized: bool
    calls: list[tuple[int, ...]] = field(default_factory=list, compare=False)

    def __call__(self, A: np.ndarray, b: np.ndarray) -> np.ndarray:
        self.calls.append(A.shape)
        if self.vectorized:
            return np.linalg.solve(A, b[..., None])[..., 0]
        assert (A.ndim, b.ndim) == (2, 1)
        return np.linalg.solve(A, b)


@pytest.mark.parametrize("axes", [(0, 0), (0, None), (None, 0), (2, 1), (None, 1)])
@pytest.mark.parametrize("vectorized", [True, False])
def test_case_19_vmap_of_a_host_solver(diff: Any, axes: Any, vectorized: bool) -> None:
    rng = np.random.default_rng(0)
    A = rng.random((7, 3, 3)) + 3 * np.eye(3)
    b = rng.random((7, 3))
    args = [x[0] if k is None else np.moveaxis(x, 0, k) for x, k in zip((A, b), axes, strict=True)]
    solver = Solver(vectorized)
    nx = ot_backends.get_backend(diff.array(b))

    def f(A: Any, b: Any) -> Any:
        return nx.pycall(solver, A, b, out=b, vectorized=vectorized)

    found = diff.numpy(diff.vmap(f, axes)(*diff.arrays(*args)))
    full = [x[:1] if k is None else x for x, k in zip((A, b), axes, strict=True)]
    true = np.linalg.solve(full[0], full[1][..., None])[..., 0]
    np.testing.assert_allclose(found, true, rtol=1e-14)
    assert len(solver.calls) == (1 if vectorized else 7)
