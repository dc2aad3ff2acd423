"""The native kernel on costs of very different sizes: it ends, and huge codes act as such.

The long form: ``OT_BACKENDS_KERNEL_PROBLEMS=20000 pytest tests/test_kernel_levels.py``.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
from kernel_problems import Array, K, solve, weights

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


def test_the_last_resort_has_a_message() -> None:
    assert "no progress" in K.message(14, -1, -1)
