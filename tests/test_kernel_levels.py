"""The native kernel on costs of very different sizes: it ends, and huge codes act as such.

The long form: ``OT_BACKENDS_KERNEL_PROBLEMS=20000 pytest tests/test_kernel_levels.py``.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
from kernel_problems import Array, K, Solved, check_tree, solve, spanning_tree, weights

COUNT = int(os.environ.get("OT_BACKENDS_KERNEL_PROBLEMS", "500"))
KINDS = ("coded", "one code", "continuous", "staircase", "staircase, uniform")


def spread_costs(kind: str, n: int, m: int, rng: np.random.Generator) -> Array:
    if kind in ("coded", "one code"):
        M = rng.random((n, m))
        code = 10.0 ** rng.integers(10, 32, (n, m) if kind == "coded" else ())
        return np.where(rng.random((n, m)) < 0.4, code, M)
    if kind == "continuous":
        return 10.0 ** rng.uniform(-8, 32, (n, m))
    return 10.0 ** (4.0 * rng.integers(-2, 6, (n, m))) * rng.choice([-1, 1], (n, m))


@pytest.mark.parametrize("kind", KINDS)
def test_every_spread_of_costs_ends(kind: str) -> None:
    """Rounding behind huge edges must not make it cycle: some dozens of pivots, never thousands."""
    for k in range(2 * COUNT):
        rng = np.random.default_rng([20, k])
        n, m = (int(x) for x in rng.integers(2, 12, 2))
        M = spread_costs(kind, n, m, rng)
        w = "uniform" if kind.endswith("uniform") else "random"
        a, b = weights(w, n, rng), weights(w, m, rng)
        r = solve(M, a, b, max_pivots=20000)
        assert r.status[0] == 0, (k, r.status)
        assert r.iterations < 300
        size = r.flow @ np.abs(M[r.rows, r.cols])
        assert abs(r.value - r.dual) <= 1e-12 * size + 1e-15 * np.abs(M).max()


def by_level(r: Solved, M: Array, huge: Array) -> tuple[float, float]:
    """The mass on huge cells and the small part of the value."""
    on_huge = huge[r.rows, r.cols]
    cost = np.where(on_huge | r.virtual, 0, M[r.rows, r.cols])
    return float(r.flow[on_huge].sum()), float(r.flow @ cost)


@pytest.mark.parametrize("variant", ["plain", "float32", "empty", "forbidden", "uniform"])
def test_one_code_is_lexicographic(variant: str) -> None:
    """As little mass as possible on the code, then the smallest value: as for a code of 1e4.

    With costs of 0 to 1, that is already more than any detour over small cells.
    """
    needed = 0
    for k in range(COUNT):
        rng = np.random.default_rng([21, k])
        n, m = (int(x) for x in rng.integers(2, 12, 2))
        M = rng.integers(0, 65, (n, m)) / 64
        huge = rng.random((n, m)) < rng.choice([0.2, 0.4, 0.6, 0.8])
        w = "uniform" if variant == "uniform" else "random"
        a, b = weights(w, n, rng), weights(w, m, rng)
        if variant == "empty":
            a[: n // 2], b[: m // 2] = 0, 0
            M[: n // 2] = rng.choice([np.nan, np.inf, -np.inf, 1e300, 1e-300, 1], (n // 2, m))
            huge[: n // 2] = False
        if variant == "forbidden":
            M[rng.random((n, m)) < 0.15] = np.inf
            huge &= np.isfinite(M)
        reference = solve(np.where(huge, 1e4, M), a, b)
        coded = np.where(huge, 10.0 ** rng.integers(10, 32), M)
        if variant == "float32":
            coded = coded.astype(np.float32)
        for basis in (None, reference.basis, spanning_tree(n, m, rng)):
            r = solve(coded, a, b, basis)
            assert r.status[0] == reference.status[0]
            if r.status[0] != 0:
                continue
            check_tree(r, np.concatenate([a, b * (a.sum() / b.sum())]), n)
            np.testing.assert_allclose(
                by_level(r, M, huge), by_level(reference, M, huge), rtol=0, atol=1e-12
            )
        needed += reference.status[0] == 0 and by_level(reference, M, huge)[0] > 1e-3
    assert needed > COUNT / 10


def test_codes_of_several_sizes() -> None:
    """Integer masses and costs in 64ths: lexicographic to the unit, all in exact integers."""
    for k in range(COUNT):
        rng = np.random.default_rng([22, k])
        n, m = (int(x) for x in rng.integers(2, 10, 2))
        plan = rng.integers(0, 9, (n, m))
        plan[0, 0] += 1
        a, b = plan.sum(1).astype(float), plan.sum(0).astype(float)
        level = rng.choice(3, (n, m), p=[0.3, 0.4, 0.3])
        M = rng.integers(0, 65, (n, m)) / 64
        reference = solve(np.where(level == 0, M, np.array([0, 1e4, 1e8])[level]), a, b)
        r = solve(np.where(level == 0, M, np.array([0, 1e12, 1e25])[level]), a, b)
        assert r.status[0] == 0
        for size in (2, 1):
            on = [x.flow[level[x.rows, x.cols] == size].sum() for x in (r, reference)]
            assert abs(on[0] - on[1]) < 1e-9
        assert abs(by_level(r, M, level > 0)[1] - by_level(reference, M, level > 0)[1]) < 1e-9


def test_coincident_points_stay_fast() -> None:
    """Costs of 1e-17 on the diagonal are a gap too, but not a reason to start over."""
    rng = np.random.default_rng(23)
    X = rng.normal(size=(120, 2))
    M = ((X[:, None] - X) ** 2).sum(-1) + 1e-17 * rng.random((120, 120))
    a, b = weights("random", 120, rng), weights("random", 120, rng)
    r = solve(M, a, b)
    again = solve(M, a, b, r.basis)
    assert again.iterations <= 2
    assert abs(again.value - again.dual) <= 1e-12 * again.value
    same = solve(M, a, a)
    assert 0 < same.value < 1e-16


def test_the_last_resort_has_a_message() -> None:
    assert "no progress" in K.message(14, -1, -1)
