"""What the numbers mean: rescaled marginals, gauge, zero weights and padding, forbidden cells."""

from __future__ import annotations

from typing import Any

import judge
import numpy as np
import pytest
from problems import by_name, prob

import ot_backends
from ot_backends.errors import InfeasibleError, MassMismatchError

FILL = [0.0, 1e9, np.inf, np.nan, -np.inf, -1e9]


@pytest.fixture
def fw(framework: Any) -> Any:
    return framework


@pytest.fixture
def diff(differentiable: Any) -> Any:
    return differentiable


# ---- marginals


def test_the_plan_has_the_mass_of_a(fw: Any) -> None:
    p = prob()
    a, b, M = fw.arrays(3 * p.a, 0.5 * p.b, p.M)
    result = ot_backends.solve(M, a, b, check_marginals=False)
    judge.check_result(result, 3 * p.a, 0.5 * p.b, p.M)
    assert float(result.value) == pytest.approx(3 * judge.reference_value(*p.args), rel=1e-12)
    np.testing.assert_allclose(fw.numpy(result.plan).sum(0), 3 * p.b, rtol=0, atol=1e-12)


def test_masses_that_differ_are_refused(fw: Any) -> None:
    p = prob()
    for factor in (2.5, 1.01, 0.999):
        a, b, M = fw.arrays(p.a, factor * p.b, p.M)
        for f, args in (
            (ot_backends.emd2, (a, b, M)),
            (ot_backends.emd, (a, b, M)),
            (ot_backends.solve, (M, a, b)),
        ):
            with pytest.raises(MassMismatchError, match="check_marginals") as caught:
                f(*args)
            assert isinstance(caught.value, AssertionError)
            assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("mismatch", [1e-15, 1e-12, 5e-9, 1e-7])
def test_rounding_of_the_masses_is_rescaled(fw: Any, mismatch: float) -> None:
    p = prob()
    b = p.b * (1 + mismatch)
    result = ot_backends.solve(*fw.arrays(p.M, p.a, b))
    judge.check_result(result, p.a, b, p.M)


# ---- gauge


def test_gauge(fw: Any) -> None:
    p = by_name("counts")
    a, b, M = fw.arrays(*p.args)
    u, v = (fw.numpy(x) for x in ot_backends.solve(M, a, b).potentials)
    assert v @ p.b == pytest.approx(0.0, abs=1e-14 * p.b.sum())
    assert u @ p.a == pytest.approx(judge.reference_value(*p.args), rel=1e-13)


def test_gauge_does_not_depend_on_the_start() -> None:
    p = prob(8, 7, 3)
    cold = ot_backends.solve(p.M, p.a, p.b)
    warm = ot_backends.solve(p.M, p.a, p.b, basis=cold.basis)
    transposed = ot_backends.solve(p.M.T, p.b, p.a)
    np.testing.assert_allclose(warm.u, cold.u, atol=1e-14)
    shift = transposed.u @ p.b
    np.testing.assert_allclose(transposed.v + shift, cold.u, atol=1e-14)


# ---- zero weights and padding


def padded(n: int, m: int, fill: float, extra: float) -> tuple[np.ndarray, ...]:
    """prob(4, 5) with n more rows and m more columns without mass; ``extra`` in the corner."""
    p = prob(4, 5)
    M = np.full((4 + n, 5 + m), fill)
    M[:4, :5] = p.M
    M[4:, 5:] = extra
    return np.append(p.a, np.zeros(n)), np.append(p.b, np.zeros(m)), M


@pytest.mark.parametrize("fill", FILL)
@pytest.mark.parametrize(("n", "m"), [(2, 0), (0, 3), (2, 3)])
def test_padding_may_hold_anything(fw: Any, n: int, m: int, fill: float) -> None:
    p = prob(4, 5)
    plain = ot_backends.solve(*fw.arrays(p.M, p.a, p.b))
    for extra in FILL:
        a, b, M = padded(n, m, fill, extra)
        result = ot_backends.solve(*fw.arrays(M, a, b))
        assert float(result.value) == pytest.approx(float(plain.value), rel=1e-14)
        plan = fw.numpy(result.plan)
        np.testing.assert_allclose(plan[:4, :5], fw.numpy(plain.plan), rtol=0, atol=1e-15)
        assert np.sum(np.abs(plan)) == pytest.approx(1.0, rel=1e-14)
        u, v = (fw.numpy(x) for x in result.potentials)
        np.testing.assert_allclose(u[:4], fw.numpy(plain.u), rtol=0, atol=1e-14)
        np.testing.assert_allclose(v[:5], fw.numpy(plain.v), rtol=0, atol=1e-14)
        assert np.isfinite(u).all()
        assert np.isfinite(v).all()


@pytest.mark.parametrize("fill", FILL)
def test_gradients_on_padding(diff: Any, fill: float) -> None:
    p = prob(4, 5)
    args = padded(2, 3, fill, fill)
    found = diff.grad(ot_backends.emd2, (0, 1, 2))(*diff.arrays(*args))
    ga, gb, gM = (diff.numpy(g) for g in found)
    r = judge.reference(*p.args)
    np.testing.assert_allclose(ga[:4], r.u, rtol=0, atol=1e-13)
    np.testing.assert_allclose(gb[:5], r.v, rtol=0, atol=1e-13)
    np.testing.assert_allclose(gM[:4, :5], r.plan, rtol=0, atol=1e-13)
    np.testing.assert_array_equal(gM[4:], 0.0)
    np.testing.assert_array_equal(gM[:, 5:], 0.0)
    # into an empty row: min over the columns with mass; nothing where no cell is finite
    row = fill - r.v.max() if np.isfinite(fill) else 0.0
    col = fill - r.u.max() if np.isfinite(fill) else 0.0
    np.testing.assert_allclose(ga[4:], row, rtol=1e-15, atol=1e-13)
    np.testing.assert_allclose(gb[5:], col, rtol=1e-15, atol=1e-13)


@pytest.mark.parametrize("fill", FILL)
def test_second_derivatives_and_plans_on_padding_are_finite(diff: Any, fill: float) -> None:
    x = diff.arrays(*padded(2, 3, fill, np.nan))
    second = diff.fast(diff.jacfwd(diff.grad(ot_backends.emd2, 2), 0))
    mixed = diff.numpy(second(*x))
    true = diff.numpy(second(*diff.arrays(*prob(4, 5).args)))
    np.testing.assert_allclose(mixed[:4, :5, :4], true, rtol=0, atol=1e-14)
    assert np.isfinite(mixed).all()
    assert np.isfinite(diff.numpy(diff.fast(diff.jacrev(ot_backends.emd, 1))(*x))).all()
    u = lambda M: ot_backends.solve(M, x[0], x[1]).u  # noqa: E731
    assert np.isfinite(diff.numpy(diff.fast(diff.jacrev(u))(x[2]))).all()


def test_batch_of_different_padding(diff: Any) -> None:
    """Ragged problems in one batch: each has the value and gradients that it has alone."""
    sizes = [(6, 5), (4, 5), (2, 3), (1, 1), (6, 2)]
    a, b, M = np.zeros((5, 6)), np.zeros((5, 5)), np.full((5, 6, 5), np.nan)
    ps = [prob(n, m, 3) for n, m in sizes]
    for k, p in enumerate(ps):
        n, m = p.M.shape
        a[k, :n], b[k, :m], M[k, :n, :m] = p.args
    loss = lambda a, b, M: ot_backends.emd2(a, b, M).sum()  # noqa: E731
    ga, gb, gM = (diff.numpy(g) for g in diff.grad(loss, (0, 1, 2))(*diff.arrays(a, b, M)))
    for k, p in enumerate(ps):
        r, (n, m) = judge.reference(*p.args), p.M.shape
        np.testing.assert_allclose(ga[k, :n], r.u, rtol=0, atol=1e-13)
        np.testing.assert_allclose(gb[k, :m], r.v, rtol=0, atol=1e-13)
        np.testing.assert_allclose(gM[k, :n, :m], r.plan, rtol=0, atol=1e-13)
    assert all(np.isfinite(g).all() for g in (ga, gb, gM))


# ---- forbidden cells


@pytest.mark.parametrize(
    "name", ["forbidden cells", "forbidden cells, only one plan", "two balanced blocks"]
)
def test_forbidden_cells_carry_nothing(diff: Any, name: str) -> None:
    p = by_name(name)
    a, b, M = diff.arrays(*p.args)
    gM = diff.numpy(diff.grad(ot_backends.emd2, 2)(a, b, M))
    np.testing.assert_array_equal(gM[np.isinf(p.M)], 0.0)
    np.testing.assert_allclose(gM.sum(1), p.a, rtol=0, atol=1e-13)
    plan = diff.numpy(ot_backends.emd(a, b, M))
    np.testing.assert_array_equal(plan[np.isinf(p.M)], 0.0)
    # nor does a derivative: what balances the blocks is no mass that moves
    for k in (0, 1):
        moves = diff.numpy(diff.fast(diff.jacfwd(ot_backends.emd, k))(a, b, M))
        np.testing.assert_array_equal(moves[np.isinf(p.M)], 0.0)


def test_derivatives_inside_balanced_blocks(diff: Any) -> None:
    """Mass moved within a block has the derivative of that block alone."""
    p = by_name("two balanced blocks")
    ga, gb, _ = (
        diff.numpy(g) for g in diff.grad(ot_backends.emd2, (0, 1, 2))(*diff.arrays(*p.args))
    )
    for rows, cols in ((slice(0, 3), slice(2, 5)), (slice(3, 6), slice(0, 2))):
        if np.isinf(p.M[rows, cols]).all():
            cols = slice(0, 2) if cols.start else slice(2, 5)
        block = judge.reference(p.a[rows], p.b[cols], p.M[rows, cols])
        u, v = ga[rows] - ga[rows][0], gb[cols] - gb[cols][0]
        np.testing.assert_allclose(u, block.u - block.u[0], rtol=0, atol=1e-13)
        np.testing.assert_allclose(v, block.v - block.v[0], rtol=0, atol=1e-13)


def infeasible() -> dict[str, tuple[np.ndarray, ...]]:
    p = prob()
    row, every, block = p.M.copy(), np.full((6, 5), np.inf), p.M.copy()
    row[2] = np.inf
    block[:3, :2] = block[3:, 2:] = np.inf
    column = p.M.copy()
    column[:, 4] = np.inf
    narrow = np.where(np.arange(5) == 0, p.M, np.inf)
    narrow[0] = p.M[0]
    return {
        "a row": (p.a, p.b, row), "a column": (p.a, p.b, column), "everything": (p.a, p.b, every),
        "blocks out of balance": (p.a, p.b, block), "a column too small": (p.a, p.b, narrow),
    }  # fmt: skip


@pytest.mark.parametrize("kind", infeasible())
def test_infeasible_is_an_error(fw: Any, kind: str) -> None:
    a, b, M = fw.arrays(*infeasible()[kind])
    with pytest.raises(InfeasibleError, match="M"):
        ot_backends.emd2(a, b, M)
    with pytest.raises(InfeasibleError, match="M"):
        ot_backends.emd(a, b, M)


# ---- huge costs


@pytest.mark.parametrize("seed", range(30))
def test_huge_costs_are_right_whether_needed_or_not(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, m = rng.integers(2, 9, 2)
    p = prob(int(n), int(m), seed)
    M = np.where(
        rng.random(p.M.shape) < rng.choice([0.1, 0.4, 0.7]), 10.0 ** rng.choice([14, 20, 32]), p.M
    )
    result = ot_backends.solve(M, p.a, p.b)
    judge.check_result(result, p.a, p.b, M, huge=1e13)


@pytest.mark.parametrize("code", [1e8, 1e10, 1e12, 1e14, 1e16, 1e20, 1e32, 1e100, 1e300])
def test_codes_that_are_not_needed_change_nothing(fw: Any, code: float) -> None:
    p = by_name("forbidden cells")
    M = np.where(np.isinf(p.M), code, p.M)
    exact = judge.reference(*p.args)
    result = ot_backends.solve(*fw.arrays(M, p.a, p.b))
    assert float(result.value) == pytest.approx(exact.value, rel=1e-12)
    np.testing.assert_allclose(fw.numpy(result.plan), exact.plan, rtol=0, atol=1e-12)
    np.testing.assert_allclose(fw.numpy(result.u), exact.u, rtol=0, atol=1e-12)
