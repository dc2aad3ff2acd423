"""First derivatives equal differences of an independent solver; on a tie they are subgradients."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import frameworks
import judge
import numpy as np
import pytest
from problems import PROBLEMS, SMOOTH, Problem, by_name, names, prob

import ot_backends

smooth = pytest.mark.parametrize("p", SMOOTH, ids=names(SMOOTH))


@pytest.fixture
def fw(differentiable: Any) -> Any:
    return differentiable


@cache
def true_gradients(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return judge.gradients(*by_name(name).args)


def emd2(a: Any, b: Any, M: Any) -> Any:
    return ot_backends.emd2(a, b, M, check_marginals=False)


@cache
def gradient(name: str) -> Callable[..., Any]:
    """The gradient in all three arguments, compiled once per shape and not once per problem."""
    fw = frameworks.ALL[name]()
    return fw.fast(fw.grad(emd2, (0, 1, 2)))


@cache
def slope(name: str) -> Callable[..., Any]:
    """Value and derivative along a direction, in forward mode."""
    fw = frameworks.ALL[name]()
    return fw.fast(lambda x, t: fw.jvp(emd2, x, t))


def reverse(fw: Any, p: Problem) -> list[np.ndarray]:
    return [fw.numpy(g) for g in gradient(fw.name)(*fw.arrays(*p.args))]


def forward(fw: Any, p: Problem, d: tuple[np.ndarray, ...]) -> tuple[float, float]:
    value, change = slope(fw.name)(fw.arrays(*p.args), fw.arrays(*d))
    return float(value), float(change)


def directions(p: Problem, count: int, seed: int = 0) -> list[tuple[np.ndarray, ...]]:
    """Random directions in (a, b, M), none of them keeping the masses; 0 in forbidden cells."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        dM = np.where(np.isfinite(p.M), rng.standard_normal(p.M.shape), 0.0)
        found.append((rng.standard_normal(p.a.shape), rng.standard_normal(p.b.shape), dM))
    return found


def moved(p: Problem, d: tuple[np.ndarray, ...], t: float) -> list[np.ndarray]:
    return [x + t * dx for x, dx in zip(p.args, d, strict=True)]


# ---- where the optimum is unique


@smooth
def test_reverse(fw: Any, p: Problem) -> None:
    for found, true in zip(reverse(fw, p), true_gradients(p.name), strict=True):
        np.testing.assert_allclose(found, true, rtol=0, atol=1e-10)


@smooth
def test_forward(fw: Any, p: Problem) -> None:
    for d in directions(p, 2):
        parts = [
            (d[0], 0 * d[1], 0 * d[2]),
            (0 * d[0], d[1], 0 * d[2]),
            (0 * d[0], 0 * d[1], d[2]),
            d,
        ]
        for t in parts:
            value, change = forward(fw, p, t)
            true = sum(np.sum(g * dx) for g, dx in zip(true_gradients(p.name), t, strict=True))
            assert change == pytest.approx(true, rel=1e-9, abs=1e-10)
            assert value == pytest.approx(judge.reference_value(*p.args), rel=1e-12)


@pytest.mark.parametrize("which", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2)])
def test_any_subset_of_the_arguments(fw: Any, which: tuple[int, ...]) -> None:
    p = by_name("wide")
    found = fw.grad(emd2, which)(*fw.arrays(*p.args))
    for k, g in zip(which, found, strict=True):
        np.testing.assert_allclose(fw.numpy(g), true_gradients(p.name)[k], rtol=0, atol=1e-10)


def test_torch_backward_and_compiled_gradients(fw: Any) -> None:
    p = prob()
    x = fw.arrays(*p.args)
    true = true_gradients("random")
    found = fw.backward(emd2, *x) if fw.name == "torch" else fw.jit(fw.grad(emd2, (0, 1, 2)))(*x)
    for g, t in zip(found, true, strict=True):
        np.testing.assert_allclose(fw.numpy(g), t, rtol=0, atol=1e-10)


@smooth
def test_gradients_are_potentials_and_plan(fw: Any, p: Problem) -> None:
    a, b, M = fw.arrays(*p.args)
    result = ot_backends.solve(M, a, b)
    ratio = p.a.sum() / p.b.sum()
    true = (fw.numpy(result.u), fw.numpy(result.v) * ratio, fw.numpy(result.plan))
    for g, t in zip(reverse(fw, p), true, strict=True):
        np.testing.assert_allclose(g, t, rtol=0, atol=1e-14)


@pytest.mark.parametrize("p", PROBLEMS, ids=names(PROBLEMS))
def test_bilinear_identities(fw: Any, p: Problem) -> None:
    """<da, a> = <dM, M> = value and <db, b> = 0, on every problem; and no gradient is NaN."""
    value = judge.to_numpy(ot_backends.solve(p.M, p.a, p.b).value).item()
    ga, gb, gM = reverse(fw, p)
    for g in (ga, gb, gM):
        assert np.isfinite(g).all()
    cost = np.where(np.isfinite(p.M), p.M, 0.0)
    size = np.max(np.abs(cost[gM > 0]), initial=0.0) * p.a.sum()
    assert np.sum(gM * cost) == pytest.approx(value, rel=1e-12, abs=1e-14 * size)
    size = np.max(np.abs(ga[p.a > 0])) * p.a.sum()
    assert ga @ p.a == pytest.approx(value, rel=1e-11, abs=1e-13 * size)
    assert abs(gb @ p.b) <= 1e-13 * (size + np.max(np.abs(gb[p.b > 0])) * p.b.sum())


def test_gradient_of_a_sum_over_a_batch(fw: Any) -> None:
    ps = [prob(6, 5, s) for s in (1, 2, 3)]
    a, b, M = (np.stack([getattr(p, k) for p in ps]) for k in "abM")
    weights = fw.array([1.0, -2.0, 0.5])
    loss = lambda a, b, M: (weights * emd2(a, b, M)).sum()  # noqa: E731
    found = fw.grad(loss, (0, 1, 2))(*fw.arrays(a, b, M))
    for k, p in enumerate(ps):
        for g, x in zip(found, reverse(fw, p), strict=True):
            np.testing.assert_allclose(fw.numpy(g)[k], float(weights[k]) * x, rtol=0, atol=1e-14)


def test_gradient_of_shared_weights_sums_over_the_batch(fw: Any) -> None:
    p = prob()
    scales = np.array([1.0, 2.0, 3.0])
    loss = lambda a, b, M: ot_backends.solve(M, a, b).value.sum()  # noqa: E731
    args = fw.arrays(p.a, p.b, scales[:, None, None] * p.M)
    ga, gb, gM = (fw.numpy(g) for g in fw.grad(loss, (0, 1, 2))(*args))
    ra, rb, rM = true_gradients("random")
    np.testing.assert_allclose(ga, 6 * ra, rtol=0, atol=1e-9)
    np.testing.assert_allclose(gb, 6 * rb, rtol=0, atol=1e-9)
    np.testing.assert_allclose(gM, np.stack([rM] * 3), rtol=0, atol=1e-9)


def test_float32_gradients(fw: Any) -> None:
    p = by_name("larger")
    cast = [x.astype(np.float32) for x in p.args]
    found = gradient(fw.name)(*fw.arrays(*cast, dtype="float32"))
    exact = reverse(fw, Problem("cast", *(x.astype(np.float64) for x in cast)))
    for g, t in zip(found, exact, strict=True):
        assert fw.numpy(g).dtype == np.float32
        np.testing.assert_allclose(fw.numpy(g), t, rtol=0, atol=8 * 2.0**-23 * np.abs(t).max())


# ---- mass


def test_directions_that_change_the_mass(fw: Any) -> None:
    p = prob()
    rows, cols = np.zeros(6), np.zeros(5)
    for da, db in ((np.ones(6), cols), (p.a, cols), (rows, np.ones(5)), (rows, p.b)):
        d = (da, db, 0 * p.M)
        true = judge.central(lambda t, d=d: judge.reference_value(*moved(p, d, t)))
        back = sum(np.sum(g * dx) for g, dx in zip(reverse(fw, p), d, strict=True))
        assert forward(fw, p, d)[1] == pytest.approx(true, abs=1e-10)
        assert back == pytest.approx(true, abs=1e-10)


@pytest.mark.parametrize("factor", [2.5, 1e-3, 400.0])
def test_weights_of_another_mass(fw: Any, factor: float) -> None:
    p = prob()
    scaled = Problem("scaled", p.a, factor * p.b, p.M)
    ga, gb, gM = reverse(fw, scaled)
    ra, rb, rM = true_gradients("random")
    np.testing.assert_allclose(ga, ra, rtol=0, atol=1e-10)
    np.testing.assert_allclose(gb * factor, rb, rtol=0, atol=1e-10)
    np.testing.assert_allclose(gM, rM, rtol=0, atol=1e-10)
    if factor > 1:
        true = judge.central(
            lambda t: judge.reference_value(p.a, factor * p.b + t * np.eye(5)[2], p.M)
        )
        assert gb[2] == pytest.approx(true, abs=1e-10)


# ---- one side only: into empty rows and columns


@pytest.mark.parametrize(
    "name", ["empty rows", "empty columns", "empty rows and columns", "one full row"]
)
def test_one_sided_into_empty_nodes(fw: Any, name: str) -> None:
    p = by_name(name)
    ga, gb, _ = reverse(fw, p)
    for i in np.flatnonzero(p.a == 0):
        true = judge.one_sided(
            lambda t, i=i: judge.reference_value(p.a + t * np.eye(6)[i], p.b, p.M)
        )
        assert ga[i] == pytest.approx(true, abs=1e-7), f"row {i}"
    for j in np.flatnonzero(p.b == 0):
        true = judge.one_sided(
            lambda t, j=j: judge.reference_value(p.a, p.b + t * np.eye(5)[j], p.M)
        )
        assert gb[j] == pytest.approx(true, abs=1e-7), f"column {j}"
    # several rows at once are still linear
    d = np.where(p.a == 0, np.arange(1.0, 7.0), 0.0)
    true = judge.one_sided(lambda t: judge.reference_value(p.a + t * d, p.b, p.M))
    assert ga @ d == pytest.approx(true, abs=1e-6)
    assert forward(fw, p, (d, 0 * p.b, 0 * p.M))[1] == pytest.approx(true, abs=1e-6)


def test_a_row_and_a_column_at_once_are_an_upper_bound(fw: Any) -> None:
    p = by_name("empty rows and columns")
    ga, gb, _ = reverse(fw, p)
    for i in np.flatnonzero(p.a == 0):
        for j in np.flatnonzero(p.b == 0):

            def f(t: float, i: int = i, j: int = j) -> float:
                return judge.reference_value(p.a + t * np.eye(6)[i], p.b + t * np.eye(5)[j], p.M)

            assert judge.one_sided(f) <= ga[i] + gb[j] + 1e-7


# ---- where several bases are optimal

TIED = [p for p in PROBLEMS if p.huge is None and 1e-3 < np.abs(p.a.sum()) < 1e3]
TIED = [p for p in TIED if 1e-3 < np.max(np.abs(p.M[np.isfinite(p.M)]), initial=1e-2) < 1e3]


@pytest.mark.parametrize("p", TIED, ids=names(TIED))
def test_subgradient_inequalities(fw: Any, p: Problem) -> None:
    """value is concave in M, and convex in (a, b) as long as neither changes its mass."""
    value = judge.reference_value(*p.args)
    ga, gb, gM = reverse(fw, p)
    rng = np.random.default_rng(5)
    full = (p.a > 0)[:, None] & (p.b > 0)  # moves between nodes with mass only
    for scale in (1e-3, 0.1, 1.0):
        for _ in range(3):
            dM = scale * rng.standard_normal(p.M.shape)
            bound = value + np.sum(gM * dM)
            assert judge.reference_value(p.a, p.b, p.M + dM) <= bound + 1e-9
            if np.isinf(p.M).any():
                continue  # moved masses may be infeasible
            to_a, to_b = (w * rng.random(w.shape) for w in (full.any(1), full.any(0)))
            da = scale * (to_a / to_a.sum() * p.a.sum() - p.a)
            db = scale * (to_b / to_b.sum() * p.b.sum() - p.b)
            for x, y in ((da, 0 * db), (0 * da, db), (da, db), (da * 2 + p.a * 0.3, 0 * db)):
                if (p.a + x < 0).any():
                    continue
                other = judge.reference_value(p.a + x, p.b + y, p.M)
                assert other >= value + ga @ x + gb @ y - 1e-9
