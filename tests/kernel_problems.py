"""Random problems for the kernel's own tests, and what must hold of its results."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import linprog

K: Any = pytest.importorskip("ot_backends.host._kernel")

Array = NDArray[Any]
COSTS = ("random", "line", "grid", "ties", "equal", "signed", "cloud")
WEIGHTS = ("uniform", "random", "wide", "integer")


class Solved(NamedTuple):
    """The kernel's tuple, by name."""

    status: Array
    value: Array
    u: Array
    v: Array
    flow: Array
    rows: Array
    cols: Array
    order: Array
    size: Array
    virtual: Array
    basis: Array
    dual: Array
    violation: Array
    iterations: Array
    mass: Array


def solve(M: Array, a: Array, b: Array, basis: Array | None = None, **options: Any) -> Solved:
    return Solved(*K.solve(M, a, b, basis, **options))


def costs(kind: str, n: int, m: int, rng: np.random.Generator) -> Array:
    if kind == "random":
        return rng.random((n, m))
    if kind == "line":
        return (rng.random(n)[:, None] - rng.random(m)) ** 2
    if kind == "grid":
        return (np.arange(n)[:, None] - np.arange(m)) ** 2.0
    if kind == "ties":
        return rng.integers(0, 4, (n, m)).astype(float)
    if kind == "equal":
        return np.full((n, m), 3.0)
    if kind == "signed":
        return rng.normal(size=(n, m)) * 10.0 ** rng.uniform(-5, 5)
    X, Y = rng.normal(size=(n, 3)), rng.normal(size=(m, 3))
    return ((X[:, None] - Y) ** 2).sum(-1)


def weights(kind: str, n: int, rng: np.random.Generator) -> Array:
    if kind == "uniform":
        x = np.ones(n)
    elif kind == "random":
        x = rng.random(n) + 0.1
    elif kind == "wide":
        x = 10.0 ** rng.uniform(-17, 0, n)
    else:
        x = rng.integers(1, 5, n).astype(float)
    return x / x.sum()


def problem(rng: np.random.Generator, largest: int = 30) -> tuple[Array, Array, Array]:
    n, m = (int(x) for x in rng.integers(1, largest, 2))
    if rng.random() < 0.4:
        m = n
    kind, weight = rng.choice(COSTS), rng.choice(WEIGHTS)
    return costs(kind, n, m, rng), weights(weight, n, rng), weights(weight, m, rng)


def check(r: Solved, M: Array, a: Array, b: Array) -> None:
    """The result proves its own optimality: feasible on both sides, and the values agree."""
    assert r.status[0] == 0, r.status
    M = M.astype(float)
    n, m = M.shape
    total, target = a.sum(), b * (a.sum() / b.sum())
    plan = np.zeros((n, m))
    plan[r.rows, r.cols] = r.flow
    assert r.flow.min() >= 0
    assert not r.virtual.any()
    assert np.abs(plan.sum(1) - a).max() <= 2e-15 * total
    assert np.abs(plan.sum(0) - target).max() <= 2e-15 * total
    scale = np.abs(M).max()
    assert (r.u[:, None] + r.v - M).max() <= 1e-13 * scale
    assert np.abs(r.u[r.rows] + r.v[r.cols] - M[r.rows, r.cols]).max() <= 1e-13 * scale
    assert r.violation <= 1e-13 * scale
    size = (plan * np.abs(M)).sum()
    assert abs(r.value - r.dual) <= 1e-12 * size + 1e-15 * scale * total
    assert abs(r.v @ target) <= 1e-14 * scale * total
    check_tree(r, np.concatenate([a, target]), n)


def check_tree(r: Solved, mass: Array, n: int) -> None:
    N = len(mass)
    root = r.order[0]
    assert r.basis[root] == -1
    assert mass[root] >= mass.max() * (1 - 1e-15)
    assert sorted(r.order) == list(range(N))
    position = np.empty(N, int)
    position[r.order] = np.arange(N)
    for k in range(1, N):
        x = r.order[k]
        p = r.basis[x]
        assert (p < n) != (x < n)
        assert (r.rows[k - 1], r.cols[k - 1] + n) == ((x, p) if x < n else (p, x))
        assert position[p] < k < k + r.size[k] <= position[p] + r.size[position[p]]


def magnitude(r: Solved, M: Array) -> float:
    """<plan, |M|>, the scale of errors in the value."""
    return float(r.flow @ np.abs(M[r.rows, r.cols].astype(float)))


def linear_program(M: Array, a: Array, b: Array) -> float | None:
    """The value by HiGHS, costs about 1; None where it is infeasible."""
    n, m = M.shape
    cells = np.argwhere(np.isfinite(M))
    if len(cells) == 0:
        return None
    A = np.zeros((n + m, len(cells)))
    A[cells[:, 0], np.arange(len(cells))] = 1
    A[n + cells[:, 1], np.arange(len(cells))] = 1
    res = linprog(M[np.isfinite(M)], A_eq=A, b_eq=np.concatenate([a, b]), bounds=(0, None))
    return float(res.fun) if res.status == 0 else None


def spanning_tree(n: int, m: int, rng: np.random.Generator) -> Array:
    """Parents of a random spanning tree of rows and columns."""
    parent = np.full(n + m, -1, np.int32)
    rows: list[int] = [0]
    columns: list[int] = []
    todo = [int(x) for x in rng.permutation(np.arange(1, n + m))]
    while todo:
        x = todo.pop(0)
        others = columns if x < n else rows
        if others:
            parent[x] = rng.choice(others)
            (rows if x < n else columns).append(x)
        else:
            todo.append(x)
    return parent
