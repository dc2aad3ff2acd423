"""Column generation over POT's sparse kernel: the optimum of the dense kernel, whatever the start.

A result is compared with a cold solve by the dense kernel, and proves itself by its duals.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from ot_backends.errors import IterationLimitError
from ot_backends.host import column_generation, levels
from ot_backends.host.batch import HostSolve
from ot_backends.host.column_generation import SMALLEST
from ot_backends.host.solution import Options, Solution
from ot_backends.host.tree import duals_of_parents

Array = NDArray[np.float64]
SOLVE = HostSolve(kernel="pot", threads=1)
N = SMALLEST


@pytest.fixture
def outcomes(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether column generation solved it, for each problem that it was given with a start."""
    seen: list[bool] = []
    generate = column_generation.generate_columns

    def watched(a: Array, b: Array, M: Array, start: Any, limit: int | None) -> Any:
        edges = generate(a, b, M, start, limit)
        if start is not None:
            seen.append(edges is not None)
        return edges

    monkeypatch.setattr(levels, "generate_columns", watched)
    return seen


def clouds(rng: np.random.Generator, n: int, m: int, d: int) -> tuple[Array, Array]:
    return rng.normal(size=(n, d)), rng.normal(size=(m, d)) + 0.5


def costs(X: Array, Y: Array) -> Array:
    M: Array = ((X[:, None] - Y) ** 2).sum(-1)
    return M


def weights(kind: str, n: int, rng: np.random.Generator) -> Array:
    w = {
        "uniform": np.ones(n),
        "random": rng.random(n) + 0.1,
        "integer": rng.integers(1, 4, n).astype(float),
        "wide": 10.0 ** rng.uniform(-17, 0, n),
    }[kind]
    return w / w.sum()


def check(r: Solution, M: Array, a: Array, b: Array) -> None:
    """The plan is feasible, the duals too, and the values agree: together the optimum."""
    plan = np.zeros(M.shape)
    plan[r.rows, r.cols] = r.flow
    scale = np.abs(M).max()
    assert r.flow.min() >= 0
    assert np.abs(plan.sum(1) - a).max() <= 1e-14
    assert np.abs(plan.sum(0) - b * (a.sum() / b.sum())).max() <= 1e-14
    assert (r.u[:, None] + r.v - M).max() <= 1e-13 * scale
    assert abs(r.value - r.dual) <= 1e-13 * scale
    assert r.value == pytest.approx(float(SOLVE(a, b, M).value), rel=1e-11, abs=1e-14 * scale)


@pytest.mark.parametrize("kind", ["uniform", "random", "integer", "wide"])
@pytest.mark.parametrize(("d", "noise"), [(2, 0.01), (2, 0.1), (32, 0.1)])
def test_sequence(kind: str, d: int, noise: float, outcomes: list[bool]) -> None:
    rng = np.random.default_rng(d)
    X, Y = clouds(rng, N, N + 44, d)
    a, b = weights(kind, N, rng), weights(kind, N + 44, rng)
    basis = SOLVE(a, b, costs(X, Y)).basis
    for _ in range(3):
        X = X + noise * rng.normal(size=X.shape)
        r = SOLVE(a, b, costs(X, Y), basis)
        check(r, costs(X, Y), a, b)
        basis = r.basis
    # weights under 1e-15 are more than the sparse kernel can tell from none
    assert outcomes == [kind != "wide"] * 3


@pytest.mark.parametrize("drift", [0.02, 1.0])
def test_changed_weights(drift: float, outcomes: list[bool]) -> None:
    rng = np.random.default_rng(5)
    M = costs(*clouds(rng, N + 20, N, 2))
    a, b = weights("random", N + 20, rng), weights("random", N, rng)
    basis = SOLVE(a, b, M).basis
    a *= np.exp(drift * rng.normal(size=len(a)))
    a /= a.sum()
    check(SOLVE(a, b, M, basis), M, a, b)
    a[rng.random(len(a)) < 0.03] = 0.0  # these take no part in the solve
    a /= a.sum()
    check(SOLVE(a, b, M, basis), M, a, b)
    assert outcomes == [True, True]


@pytest.mark.parametrize("M", ["equal", "ties", "grid"])
def test_degenerate_costs(M: str) -> None:
    """Many optimal trees: still one of them, with uniform weights and with random ones."""
    rng = np.random.default_rng(6)
    line = np.arange(N, dtype=float)
    cost = {
        "equal": np.full((N, N), 3.0),
        "ties": rng.integers(0, 4, (N, N)).astype(float),
        "grid": (line[:, None] - line) ** 2,
    }[M]
    for kind in ("uniform", "random"):
        a, b = weights(kind, N, rng), weights(kind, N, rng)
        r = SOLVE(a, b, cost)
        check(SOLVE(a, b, cost, r.basis), cost, a, b)
        moved = cost + (rng.random((N, N)) < 0.01)
        check(SOLVE(a, b, moved, r.basis), moved, a, b)


def test_uniform_is_an_assignment(outcomes: list[bool]) -> None:
    rng = np.random.default_rng(7)
    M, a = rng.random((N, N)), np.full(N, 1 / N)
    basis = SOLVE(a, a, M).basis
    M += 0.001 * rng.random((N, N))
    value = M[linear_sum_assignment(M)].mean()
    assert SOLVE(a, a, M, basis).value == pytest.approx(value, rel=1e-13)
    assert outcomes == [True]


def test_useless_starts(outcomes: list[bool]) -> None:
    """Any basis, any potentials: what is far from the optimum goes to the dense kernel."""
    rng = np.random.default_rng(8)
    M = costs(*clouds(rng, N, N, 2))
    a = weights("random", N, rng)
    star = np.concatenate([[-1], np.full(N - 1, N), np.zeros(N)]).astype(np.int32)
    loop = star.copy()
    loop[[1, 2, N + 1, N + 2]] = [N + 1, N + 2, 2, 1]
    other = SOLVE(a, a, rng.random((N, N))).basis
    starts = [star, loop, other, np.zeros(2 * N, np.int64), rng.integers(-9, 999, 2 * N),
              np.zeros(2 * N), 1e300 * rng.normal(size=2 * N), np.full(2 * N, np.nan)]  # fmt: skip
    for start in starts:
        check(SOLVE(a, a, M, start), M, a, a)
    assert len(outcomes) < len(starts)  # no tree, or not finite: no start


@pytest.mark.parametrize("what", ["no sparse kernel", "fails", "drops", "no rounds"])
def test_falls_back(what: str, outcomes: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(9)
    X, Y = clouds(rng, N, N, 2)
    a = weights("random", N, rng)
    basis = SOLVE(a, a, costs(X, Y)).basis
    M = costs(X + 0.1 * rng.normal(size=X.shape), Y)
    kernel = column_generation.load_sparse_kernel()
    assert kernel is not None

    def broken(*args: Any) -> Any:
        *result, code = kernel(*args)
        if what == "fails":
            return *result, 0
        result[:3] = (x[1:] for x in result[:3])
        return *result, code

    if what == "no rounds":
        monkeypatch.setattr(column_generation, "_ROUNDS", 1)
    else:
        found = None if what == "no sparse kernel" else broken
        monkeypatch.setattr(column_generation, "load_sparse_kernel", lambda: found)
    check(SOLVE(a, a, M, basis), M, a, a)
    assert outcomes == [False]


def test_forbidden_and_small_problems_go_elsewhere(outcomes: list[bool]) -> None:
    rng = np.random.default_rng(10)
    M, a = rng.random((N, N)), np.full(N, 1 / N)
    M[0, 1:] = np.inf
    r = SOLVE(a, a, M)
    assert SOLVE(a, a, M, r.basis).value == pytest.approx(float(r.value), rel=1e-12)
    small, p = rng.random((N - 1, N - 1)), np.full(N - 1, 1 / (N - 1))
    r = SOLVE(p, p, small)
    assert SOLVE(p, p, small, r.basis).value == r.value  # the same solve: no start
    assert outcomes == []


def test_iteration_limit() -> None:
    rng = np.random.default_rng(11)
    M, a = rng.random((N, N)), np.full(N, 1 / N)
    basis = SOLVE(a, a, M).basis
    limited = HostSolve(Options(max_iterations=1), kernel="pot")
    with pytest.raises(IterationLimitError):
        limited(a, a, rng.random((N, N)), basis)


def test_duals_of_parents() -> None:
    """Along each edge u_i + v_j is its cost; a virtual edge costs 0; no tree: None."""
    rng = np.random.default_rng(12)
    M = rng.random((3, 2))
    M[2, 1] = np.inf
    for parent in ([3, -1, 4, 1, 1], [-1, 4, 4, 0, 0], [3, 4, 4, -1, 2]):
        duals = duals_of_parents(np.array(parent), M)
        if parent == [3, 4, 4, -1, 2]:  # 2 and 4 hang on each other
            assert duals is None
            continue
        assert duals is not None
        for k, p in enumerate(parent):
            if p >= 0:
                i, j = (k, p - 3) if k < 3 else (p, k - 3)
                cost = M[i, j] if np.isfinite(M[i, j]) else 0.0
                assert duals[0][i] + duals[1][j] == pytest.approx(cost)
    for parent in ([-1, 3, 3, -1, 2], [-1, 3, 3, 0, 9], [-1, 0, 4, 0, 0]):
        assert duals_of_parents(np.array(parent), M) is None
