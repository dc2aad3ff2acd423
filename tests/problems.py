"""One table of transport problems: every test that goes over problems goes over these."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

__all__ = ["PROBLEMS", "SMOOTH", "Problem", "by_name", "fits_float32", "names", "prob", "sample"]


@dataclass(frozen=True)
class Problem:
    """A transport problem (a, b, M) and what the tests may expect of it."""

    name: str
    a: np.ndarray
    b: np.ndarray
    M: np.ndarray
    smooth: bool = False  # one optimal basis with a margin: every derivative is unique
    huge: float | None = None  # cells at or above this are codes for "not allowed"

    @property
    def args(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.a, self.b, self.M


def normalised(w: np.ndarray) -> np.ndarray:
    return w / w.sum()


def prob(n: int = 6, m: int = 5, seed: int = 0) -> Problem:
    """The random problem that the public reports are written with."""
    rng = np.random.default_rng(seed)
    a = normalised(rng.random(n) + 0.2)
    b = normalised(rng.random(m) + 0.2)
    return Problem(f"prob({n}, {m}, {seed})", a, b, rng.random((n, m)), smooth=True)


def uniform(n: int) -> np.ndarray:
    return np.full(n, 1.0 / n)


def with_zeros(w: np.ndarray, *where: int) -> np.ndarray:
    w = w.copy()
    w[list(where)] = 0.0
    return normalised(w)


def _basic() -> list[Problem]:
    rng = np.random.default_rng(7)
    p = prob()
    line_x, line_y = np.sort(rng.random(6)), np.sort(rng.random(5))
    return [
        Problem("random", p.a, p.b, p.M, smooth=True),
        Problem("wide", *prob(4, 9, 1).args, smooth=True),
        Problem("tall", *prob(9, 4, 2).args, smooth=True),
        Problem("larger", *prob(30, 23, 3).args),
        Problem("1 x 1", np.ones(1), np.ones(1), np.array([[0.7]])),
        Problem("1 x m", np.ones(1), p.b, p.M[:1], smooth=True),
        Problem("n x 1", p.a, np.ones(1), p.M[:, :1], smooth=True),
        Problem("squared distances on a line", p.a, p.b, (line_x[:, None] - line_y) ** 2),
        Problem("masses of 1e12", p.a * 1e12, p.b * 1e12, p.M),
        Problem("counts", np.array([3.0, 7, 2, 8, 5, 1]), np.array([7.0, 3, 6, 4, 6]), p.M),
        Problem("float32 sums", np.float64(np.float32(p.a)), np.float64(np.float32(p.b)), p.M),
    ]


def _degenerate() -> list[Problem]:
    rng = np.random.default_rng(11)
    p = prob()
    dyadic_a = np.array([0.25, 0.25, 0.125, 0.125, 0.125, 0.125])
    dyadic_b = np.array([0.5, 0.25, 0.125, 0.0625, 0.0625])
    twins = p.M.copy()
    twins[:, 1] = twins[:, 0]
    return [
        Problem("uniform", uniform(6), uniform(6), rng.random((6, 6))),
        Problem("uniform, 24 points", uniform(24), uniform(24), rng.random((24, 24))),
        Problem("uniform, n = 2 m", uniform(6), uniform(3), rng.random((6, 3))),
        Problem("uniform, integer costs", uniform(6), uniform(6), rng.integers(0, 4, (6, 6)) * 1.0),
        Problem("integer costs", p.a, p.b, rng.integers(0, 4, (6, 5)) * 1.0),
        Problem("partial sums that meet", dyadic_a, dyadic_b, rng.random((6, 5))),
        Problem("all costs equal", p.a, p.b, np.full((6, 5), 0.3)),
        Problem("all costs zero", p.a, p.b, np.zeros((6, 5))),
        Problem("two equal columns", p.a, p.b, twins),
        Problem("zero on the diagonal", uniform(6), uniform(6), 1.0 - np.eye(6)),
        Problem(
            "optimal identity",
            uniform(6),
            uniform(6),
            np.abs(np.subtract.outer(np.arange(6.0), np.arange(6.0))),
        ),
    ]


def _empty() -> list[Problem]:
    p = prob(6, 5, 4)
    one_hot = np.eye(6)[2]
    return [
        Problem("empty rows", with_zeros(p.a, 1, 4), p.b, p.M),
        Problem("empty columns", p.a, with_zeros(p.b, 0, 3), p.M),
        Problem("empty rows and columns", with_zeros(p.a, 0, 5), with_zeros(p.b, 2, 4), p.M),
        Problem("one full row", one_hot, p.b, p.M),
        Problem("one full row, one full column", one_hot, np.eye(5)[4], p.M),
        Problem(
            "weights from 1e-17 to 1",
            normalised(10.0 ** np.array([-17, -12, -8, -4, -1, 0])),
            normalised(10.0 ** np.array([0, -3, -17, -9, -15])),
            p.M,
        ),
    ]


def _scaled() -> list[Problem]:
    p = prob(6, 5, 5)
    wide = prob(6, 5, 6)
    return [
        Problem("costs of 1e-300", p.a, p.b, p.M * 1e-300),
        Problem("costs of 1e-15", p.a, p.b, p.M * 1e-15),
        Problem("costs of 1e300", p.a, p.b, p.M * 1e300),
        Problem("masses of 1e-300", p.a * 1e-300, p.b * 1e-300, p.M),
        Problem("masses of 1e300", p.a * 1e300, p.b * 1e300, p.M),
        Problem("costs of 1e300, masses of 1e-300", p.a * 1e-300, p.b * 1e-300, p.M * 1e300),
        Problem("costs of 1e-300, masses of 1e300", p.a * 1e300, p.b * 1e300, p.M * 1e-300),
        Problem("negative costs", p.a, p.b, -5.0 - p.M),
        Problem("costs of both signs", p.a, p.b, p.M - 0.5, smooth=True),
        Problem("costs of -1e300 to 1e300", p.a, p.b, (p.M - 0.5) * 2e300),
        Problem("costs beside an offset of 1e6", p.a, p.b, p.M + 1e6),
        Problem("costs over 6 decades", wide.a, wide.b, 10.0 ** (6 * wide.M - 3)),
    ]


def _forbidden() -> list[Problem]:
    p = prob(6, 5, 8)
    some = np.zeros((6, 5), bool)
    some[[0, 0, 1, 2, 3, 4, 5, 5], [0, 3, 1, 2, 4, 0, 1, 3]] = True
    blocks = np.ones((6, 5), bool)
    blocks[:3, :2] = blocks[3:, 2:] = False
    share = np.where(np.arange(5) < 2, p.b, 0.0)
    b = np.where(
        np.arange(5) < 2,
        p.b * p.a[:3].sum() / share.sum(),
        p.b * p.a[3:].sum() / (p.b - share).sum(),
    )
    needed = np.zeros((6, 5), bool)
    needed[0] = needed[4, 1:] = True  # row 0 can go nowhere else
    levels = np.array([1e14, 1e16, 1e20, 1e26, 1e32, 1e14, 1e20, 1e32])
    mixed = p.M.copy()
    mixed[some] = levels

    def coded(where: np.ndarray, code: float) -> np.ndarray:
        return np.where(where, code * (1.0 + p.M), p.M)

    return [
        Problem("forbidden cells", p.a, p.b, np.where(some, np.inf, p.M), smooth=True),
        Problem(
            "forbidden cells, only one plan",
            uniform(5),
            uniform(5),
            np.where(np.tri(5, dtype=bool), prob(5, 5, 9).M, np.inf),
        ),
        Problem("two balanced blocks", p.a, b, np.where(blocks, np.inf, p.M)),
        Problem(
            "five balanced blocks",
            uniform(5),
            uniform(5),
            np.where(np.eye(5, dtype=bool), prob(5, 5, 9).M, np.inf),
        ),
        Problem("cells coded 1e14", p.a, p.b, np.where(some, 1e14, p.M), huge=1e13),
        Problem("cells coded 1e32", p.a, p.b, np.where(some, 1e32, p.M), huge=1e13),
        Problem("cells coded 1e14 to 1e32", p.a, p.b, mixed, huge=1e13),
        Problem("two blocks coded 1e20", p.a, b, np.where(blocks, 1e20, p.M), huge=1e13),
        Problem("needed cells coded 1e14", p.a, p.b, coded(needed, 1e14), huge=1e13),
        Problem("needed cells coded 1e32", p.a, p.b, coded(needed, 1e32), huge=1e13),
        Problem("needed cells coded alike", p.a, p.b, np.where(needed, 1e32, p.M), huge=1e13),
    ]


PROBLEMS: list[Problem] = [*_basic(), *_degenerate(), *_empty(), *_scaled(), *_forbidden()]
SMOOTH: list[Problem] = [p for p in PROBLEMS if p.smooth]


def by_name(name: str) -> Problem:
    return next(p for p in PROBLEMS if p.name == name)


def names(problems: list[Problem]) -> list[str]:
    """Test ids without blanks."""
    return [p.name.replace(" ", "_").replace(",", "") for p in problems]


def fits_float32(p: Problem) -> bool:
    """Whether casting keeps the problem: nothing overflows, or falls to zero, in a, b or M."""
    values = np.abs(np.concatenate([p.a, p.b, p.M.ravel()]))
    values = values[np.isfinite(values) & (values > 0)]
    return bool(values.min() > 1e-30 and values.max() * values[values < 1e13].max() < 1e37)


# Kinds of random problems, for tests that go over many of them.
_KINDS: list[Callable[[np.random.Generator, int, int], tuple[np.ndarray, ...]]] = [
    lambda r, n, m: (r.random(n) + 0.01, r.random(m) + 0.01, r.random((n, m))),
    lambda r, n, m: (np.ones(n), np.ones(m), r.random((n, m))),
    lambda r, n, m: (np.ones(n), np.ones(n), r.integers(0, 3, (n, n)) * 1.0),
    lambda r, n, m: (
        r.random(n) * (r.random(n) < 0.6) + np.eye(n)[0],
        r.random(m),
        r.random((n, m)),
    ),
    lambda r, n, m: (
        r.random(n),
        r.random(m) * (r.random(m) < 0.6) + np.eye(m)[0],
        r.random((n, m)),
    ),
    lambda r, n, m: (
        r.integers(0, 3, n) + np.eye(n)[0],
        np.ones(m),
        r.integers(0, 9, (n, m)) * 1.0,
    ),
    lambda r, n, m: (10.0 ** r.uniform(-17, 0, n), 10.0 ** r.uniform(-17, 0, m), r.random((n, m))),
    lambda r, n, m: (
        r.random(n),
        r.random(m),
        np.where(r.random((n, m)) < 0.3, np.inf, r.random((n, m))),
    ),
    lambda r, n, m: (
        np.ones(n),
        np.ones(n),
        np.where(r.random((n, n)) < 0.4, np.inf, r.random((n, n))),
    ),
]


def sample(seed: int) -> Problem:
    """A small random problem of the kind ``seed % 9``; row 0 and column 0 are always allowed."""
    rng = np.random.default_rng(seed)
    n, m = rng.integers(1, 9, 2)
    a, b, M = _KINDS[seed % len(_KINDS)](rng, int(n), int(m))
    if np.isinf(M).any():  # keep it feasible: one row and one column reach everything
        M[0] = np.where(np.isinf(M[0]), 1.5, M[0])
        M[:, 0] = np.where(np.isinf(M[:, 0]), 1.5, M[:, 0])
        a, b = a + a.sum() * np.eye(len(a))[0], b + b.sum() * np.eye(len(b))[0]
    return Problem(f"sample({seed})", normalised(a * 1.0), normalised(b * 1.0), M)
