"""The native kernel: exact, certified, whatever the start; and it survives anything.

The long form: ``OT_BACKENDS_KERNEL_PROBLEMS=20000 OT_BACKENDS_KERNEL_EXAMPLES=100000 pytest ...``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_problems import (
    COSTS,
    WEIGHTS,
    Array,
    K,
    Solved,
    check,
    costs,
    linear_program,
    magnitude,
    problem,
    solve,
    spanning_tree,
    weights,
)

COUNT = int(os.environ.get("OT_BACKENDS_KERNEL_PROBLEMS", "500"))
CHUNK = 100

NAN, MINUS_INF = 1, 2
INFEASIBLE, ITERATIONS, TIME, MISMATCH = 8, 9, 10, 13


def same_value(r: Solved, other: Solved, M: Array) -> bool:
    return bool(abs(r.value - other.value) <= 1e-12 * magnitude(other, M) + 1e-16 * np.abs(M).max())


@pytest.mark.parametrize("chunk", range(-(-COUNT // CHUNK)))
def test_random_problems(chunk: int) -> None:
    """Cold, warm from its own basis, warm after every kind of change, warm from any tree."""
    from ot.lp.emd_wrap import emd_c

    for k in range(chunk * CHUNK, min(COUNT, (chunk + 1) * CHUNK)):
        rng = np.random.default_rng([1, k])
        M, a, b = problem(rng, 60 if k % 10 == 0 else 20)
        n, m = M.shape
        r = solve(M, a, b)
        check(r, M, a, b)
        low, spread = M.min(), np.ptp(M) or 1.0
        ref = emd_c(a, b, np.ascontiguousarray((M - low) / spread), 10**7, 1)[1]
        # POT's kernel itself keeps marginals to about 1e-9 of the mass where weights are tiny
        assert abs((r.value - low) / spread - ref) <= 1e-9
        again = solve(M, a, b, r.basis)
        check(again, M, a, b)
        assert same_value(again, r, M)
        assert again.iterations <= r.iterations
        M2 = M + 0.1 * np.abs(M).max() * rng.normal(size=M.shape)
        a2, b2 = a * (1 + 0.3 * rng.random(n)), b * (1 + 0.3 * rng.random(m))
        for cost, p, q in ((M2, a, b), (M, a2, b2), (M2, a2, b2)):
            cold = solve(cost, p, q)
            for basis in (r.basis, spanning_tree(n, m, rng)):
                warm = solve(cost, p, q, basis)
                check(warm, cost, p, q)
                assert same_value(warm, cold, cost)


@pytest.mark.parametrize("seed", range(40))
def test_against_highs(seed: int) -> None:
    rng = np.random.default_rng([2, seed])
    n, m = (int(x) for x in rng.integers(1, 10, 2))
    M, a, b = rng.random((n, m)), weights("random", n, rng), weights("random", m, rng)
    value = linear_program(M, a, b)
    assert value is not None
    assert abs(solve(M, a, b).value - value) < 1e-9


@pytest.mark.parametrize("kind", COSTS)
@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1), (40, 40), (30, 50), (130, 130)])
def test_degenerate_classes(kind: str, weight: str, shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(3)
    M = costs(kind, *shape, rng)
    a, b = weights(weight, shape[0], rng), weights(weight, shape[1], rng)
    r = solve(M, a, b)
    check(r, M, a, b)
    check(solve(M, a, b, r.basis), M, a, b)


def test_uniform_resolve_is_one_round() -> None:
    """The root moves back to where the tree is strongly feasible: no pivots to get there."""
    rng = np.random.default_rng(4)
    M, a = rng.random((80, 80)), np.full(80, 1 / 80)
    r = solve(M, a, a)
    again = solve(M, a, a, r.basis)
    assert again.iterations <= 2


@settings(max_examples=int(os.environ.get("OT_BACKENDS_KERNEL_EXAMPLES", "200")), deadline=None)
@given(st.data())
def test_garbage(data: st.DataObject) -> None:
    """Any basis, any costs, any weights: a result that checks, or a status; no crash, no hang."""
    n, m = data.draw(st.integers(1, 7)), data.draw(st.integers(1, 7))
    cell = st.one_of(
        st.floats(-10, 10),
        st.sampled_from([0.0, 1.0, np.inf, -np.inf, np.nan, 1e300, 1e-300, 1e30]),
    )
    weight = st.one_of(
        st.floats(0, 1), st.sampled_from([0.0, 1.0, 1e-17, 1e300, -1.0, np.nan, np.inf])
    )
    index = st.one_of(st.integers(-3, n + m + 2), st.sampled_from([-(2**31), 2**31 - 1]))
    M = np.array(data.draw(st.lists(cell, min_size=n * m, max_size=n * m))).reshape(n, m)
    a = np.array(data.draw(st.lists(weight, min_size=n, max_size=n)))
    b = np.array(data.draw(st.lists(weight, min_size=m, max_size=m)))
    basis = np.array(data.draw(st.lists(index, min_size=n + m, max_size=n + m)), np.int32)
    r = solve(M, a, b, basis)
    mass = np.concatenate([a, b])
    ok = bool(np.isfinite(M).all() and (mass > 1e-200).all() and (mass <= 1).all())
    if ok and np.abs(M).max() <= 10:
        check(r, M, a, b)
    if (np.isnan(a) | np.isinf(a) | (a < 0)).any():
        assert r.status[0] in (3, 4)


@pytest.mark.parametrize("seed", range(60))
def test_forbidden_cells_and_padding(seed: int) -> None:
    """+inf cells, balanced blocks, and empty rows and columns that hold anything."""
    rng = np.random.default_rng([5, seed])
    n, m = (int(x) for x in rng.integers(1, 11, 2))
    M, a, b = rng.random((n, m)), weights("random", n, rng), weights("random", m, rng)
    if seed % 2:
        M[rng.random((n, m)) < rng.choice([0.2, 0.5, 0.8])] = np.inf
    else:
        M[rng.integers(0, 3, n)[:, None] != rng.integers(0, 3, m)] = np.inf
        plan = rng.random((n, m)) * np.isfinite(M)
        a, b = plan.sum(1), plan.sum(0)
        if a.sum() == 0:
            return
        a, b = a / a.sum(), b / a.sum()
    rows, cols = np.flatnonzero(a > 0), np.flatnonzero(b > 0)
    value = linear_program(M[np.ix_(rows, cols)], a[rows], b[cols])
    M[a == 0] = rng.choice([np.nan, np.inf, -np.inf, 1.0, 2.0], ((a == 0).sum(), m))
    M[:, b == 0] = rng.choice([np.nan, np.inf, -np.inf, 1.0, 2.0], (n, (b == 0).sum()))
    basis = None
    for _ in range(2):
        r = solve(M, a, b, basis)
        if value is None:
            assert r.status[0] == INFEASIBLE
            basis = spanning_tree(n, m, rng)
            continue
        assert r.status[0] == 0
        basis = r.basis
        assert abs(r.value - value) < 1e-8
        assert np.isfinite(r.u).all()
        assert np.isfinite(r.v).all()
        np.testing.assert_array_equal(r.virtual, ~np.isfinite(M[r.rows, r.cols]))
        assert r.flow[r.virtual].max(initial=0) == 0
        slack = (M - r.u[:, None] - r.v)[np.ix_(rows, cols)]
        assert slack.min() > -1e-13
        for i in np.flatnonzero(a == 0):
            x = M[i, cols] - r.v[cols]
            assert abs(r.u[i] - min(x[np.isfinite(x)], default=0.0)) < 1e-13
        for j in np.flatnonzero(b == 0):
            x = M[rows, j] - r.u[rows]
            assert abs(r.v[j] - min(x[np.isfinite(x)], default=0.0)) < 1e-13


def test_virtual_edges_carry_nothing() -> None:
    """Two blocks that balance up to rounding, an empty row without a cell, an empty column."""
    M = np.array([[1.0, np.inf, 3.0], [np.inf, 2.0, np.nan], [np.nan, np.inf, 1.0]])
    a, b = np.array([0.25 + 1e-12, 0.75 - 1e-12, 0.0]), np.array([0.25, 0.75, 0.0])
    r = solve(M, a, b)
    assert r.status[0] == 0
    assert r.virtual.dtype == bool
    assert r.virtual.sum() == 2
    np.testing.assert_array_equal(r.virtual, ~np.isfinite(M[r.rows, r.cols]))
    np.testing.assert_array_equal(r.flow[r.virtual], 0)
    assert r.value == pytest.approx(1.75, abs=1e-11)
    assert solve(M, a, b, balance=1e-13).status[0] == INFEASIBLE


def test_types_and_shapes() -> None:
    r = solve(np.ones((5, 2, 3)), np.ones(2), np.ones(3))
    kinds = "iffffiiiibiffif"
    cores = ((3,), (), (2,), (3,), (4,), (4,), (4,), (5,), (5,), (4,), (5,), (), (), (), (2,))
    for x, kind, core in zip(r, kinds, cores, strict=True):
        assert x.dtype == {"i": np.int32, "f": np.float64, "b": np.bool_}[kind]
        assert x.shape == (5, *core)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_xla_gives_the_same_in_its_own_order(dtype: type) -> None:
    jax = pytest.importorskip("jax")
    ffi = pytest.importorskip("ot_backends.host._kernel_ffi")
    name = "test_ot_backends_kernel"
    enable_x64 = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64
    with enable_x64(True):
        jax.ffi.register_ffi_target(name, ffi.handler, platform="cpu")
        rng = np.random.default_rng(17)
        M, a, b = (rng.random(s).astype(dtype) for s in ((3, 4, 5), 4, 5))
        M[:, 2:, 2:] = M[:, :2, :2] = np.inf
        a[:2], a[2:], b[:] = 3, 2, 2
        ref = solve(M, a, b)
        assert (ref.status[:, 0] == 0).all()
        names = Solved._fields[1:-1]
        fields = [getattr(ref, x) for x in names]
        out = [
            jax.ShapeDtypeStruct(x.shape, dtype if x.dtype == np.float64 else x.dtype)
            for x in fields
        ]
        got = jax.ffi.ffi_call(name, out)(
            M, a[None], b[None], np.full((1, 9), -1, np.int32), threads=1, max_pivots=0,
            time_limit=0.0, balance=1e-9, mass_tolerance=-1.0, rounding=1e-12,
        )  # fmt: skip
        for field, x, y in zip(names, fields, got, strict=True):
            np.testing.assert_array_equal(np.asarray(y), x.astype(y.dtype), err_msg=field)


def test_forbidden_at_size() -> None:
    rng = np.random.default_rng(6)
    n = 300
    M, a, b = rng.random((n, n)), weights("random", n, rng), weights("random", n, rng)
    forbidden = rng.random((n, n)) < 0.9
    r = solve(np.where(forbidden, np.inf, M), a, b)
    assert r.status[0] == 0
    # the same problem with a price that no forbidden cell can be worth
    check(solve(np.where(forbidden, 1e3, M), a, b), np.where(forbidden, 1e3, M), a, b)
    assert abs(r.value - solve(np.where(forbidden, 1e3, M), a, b).value) < 1e-11
    warm = solve(np.where(forbidden, np.inf, M + 0.01 * rng.random((n, n))), b, a, r.basis)
    assert warm.status[0] == 0


def test_bad_input_names_the_cell() -> None:
    rng = np.random.default_rng(7)
    M, a = rng.random((5, 4)), np.full(5, 0.2)
    b = np.full(4, 0.25)

    def status(M: Array = M, a: Array = a, b: Array = b, **kw: Any) -> list[int]:
        return [int(x) for x in solve(M, a, b, **kw).status]

    for basis in (None, solve(M, a, b).basis):
        bad = M.copy()
        bad[2, 3] = np.nan
        assert status(bad, basis=basis) == [NAN, 2, 3]
        bad[2, 3] = -np.inf
        assert status(bad, basis=basis) == [MINUS_INF, 2, 3]
    assert status(a=np.array([0.2, -0.1, 0.2, 0.2, 0.5])) == [3, 1, -1]
    assert status(a=np.array([0.2, 0.1, np.nan, 0.2, 0.5])) == [4, 2, -1]
    assert status(b=np.array([0.2, 0.1, 0.2, -1e-300])) == [5, -1, 3]
    assert status(b=np.array([np.inf, 0.1, 0.2, 1])) == [6, -1, 0]
    assert status(a=np.zeros(5))[0] == 7
    assert status(np.full((5, 4), np.inf))[0] == INFEASIBLE
    assert status(a=a * (1 + 1e-6), mass_tolerance=1e-9)[0] == MISMATCH
    assert status(a=a * (1 + 1e-6))[0] == 0
    assert "M[2, 3] is NaN" in K.message(NAN, 2, 3)
    for wrong in ((M, a, b[:3]), (M, a[:4], b), (M[0], a, b), (M[:, :0], a, b[:0])):
        with pytest.raises(ValueError, match=r"length|dimensions|empty"):
            K.solve(*wrong)


def test_limits() -> None:
    rng = np.random.default_rng(8)
    M, a = rng.random((200, 200)), np.full(200, 1 / 200)
    assert solve(M, a, a, max_pivots=5).status[0] == ITERATIONS
    assert solve(M, a, a, time_limit=1e-9).status[0] == TIME


@pytest.mark.parametrize("exponent", [-300, -150, 150, 290])
def test_scale(exponent: int) -> None:
    """The same tree and the same relative accuracy from 1e-300 to 1e290, in costs and in masses."""
    rng = np.random.default_rng(9)
    M, a, b = rng.random((20, 15)), weights("random", 20, rng), weights("random", 15, rng)
    r, scale = solve(M, a, b), 2.0 ** round(exponent / np.log10(2))
    np.testing.assert_allclose(solve(M * scale, a, b).value, r.value * scale, rtol=1e-14)
    np.testing.assert_allclose(solve(M, a * scale, b * scale).value, r.value * scale, rtol=1e-14)


def test_huge_cells_beside_small_ones() -> None:
    """Forbidden cells coded as 1e30 don't blur the others."""
    rng = np.random.default_rng(10)
    M, a, b = rng.random((30, 30)), weights("random", 30, rng), weights("random", 30, rng)
    forbidden = rng.random((30, 30)) < 0.5
    r = solve(np.where(forbidden, np.inf, M), a, b)
    coded = solve(np.where(forbidden, 1e30, M), a, b)
    assert abs(r.value - coded.value) <= 1e-13


def bits(r: Solved) -> bytes:
    return b"".join(x.tobytes() for x in r)


def test_float32_is_priced_in_float64() -> None:
    rng = np.random.default_rng(11)
    for n, m in ((5, 7), (64, 50), (200, 300)):
        M = rng.random((n, m)).astype(np.float32)
        a, b = weights("random", n, rng), weights("random", m, rng)
        assert bits(solve(M, a, b)) == bits(solve(M.astype(float), a, b))


def test_every_instruction_set_gives_the_same_bits() -> None:
    rng = np.random.default_rng(12)
    best = K.isa()
    try:
        for dtype in (np.float64, np.float32):
            for n, m in ((6, 9), (90, 131), (150, 64)):
                M = rng.integers(0, 50, (n, m)).astype(dtype) * dtype(0.1)
                a, b = weights("random", n, rng), weights("random", m, rng)
                results = set()
                for name in ("portable", "avx2", "avx512"):
                    try:
                        K.isa(name)
                    except ValueError:
                        continue
                    results.add(bits(solve(M, a, b)))
                assert len(results) == 1
    finally:
        K.isa(best)


@pytest.mark.parametrize(
    ("metric", "name"), list(enumerate(("sqeuclidean", "euclidean", "cityblock")))
)
def test_points(metric: int, name: str) -> None:
    """Coordinates give what their distance matrix gives, cell by cell the same sums."""
    rng = np.random.default_rng(13)
    for d in (1, 2, 5):
        X, Y = rng.normal(size=(2, 40, d)), rng.normal(size=(70, d))
        a, b = weights("random", 40, rng), weights("random", 70, rng)
        T = X[:, :, None] - Y
        M = (np.abs(T) if name == "cityblock" else T * T).sum(-1)
        M = np.sqrt(M) if name == "euclidean" else M
        r, ref = Solved(*K.solve_points(X, Y, a, b, metric)), solve(M, a, b)
        np.testing.assert_allclose(r.value, ref.value, rtol=1e-13)
        again = Solved(*K.solve_points(X, Y, a, b, metric, r.basis))
        np.testing.assert_allclose(again.value, ref.value, rtol=1e-13)


def test_batches_broadcast() -> None:
    rng = np.random.default_rng(14)
    M, a, b = rng.random((4, 1, 6, 5)), rng.random((3, 6)), rng.random(5)
    r = solve(M, a, b)
    assert r.value.shape == (4, 3)
    assert r.flow.shape == (4, 3, 10)
    warm = solve(M, a, b, r.basis)
    for i in range(4):
        for j in range(3):
            one = solve(M[i, 0], a[j], b)
            assert bits(one) == bits(Solved(*(x[i, j] for x in r)))
            np.testing.assert_array_equal(warm.value[i, j], one.value)
    shared = solve(M, a, b, r.basis[0, 0])
    np.testing.assert_allclose(shared.value, r.value, rtol=1e-14)
    with pytest.raises(ValueError, match="broadcast"):
        K.solve(M, a, np.ones((2, 5)))


def test_threads_and_concurrent_calls_change_nothing() -> None:
    rng = np.random.default_rng(15)
    M, a, b = rng.random((64, 20, 25)), rng.random((64, 20)), rng.random((64, 25))
    ref = bits(solve(M, a, b))
    for threads in (1, 2, 3, 8, 200):
        assert bits(solve(M, a, b, threads=threads)) == ref
    one = bits(solve(M[0], a[0], b[0]))
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: bits(solve(M[0], a[0], b[0])), range(1000))) == {one}


def test_marginals_need_no_exact_balance() -> None:
    """b is rescaled to the mass of a."""
    rng = np.random.default_rng(16)
    M, a, b = rng.random((6, 5)), rng.random(6), rng.random(5)
    r = solve(M, a, b)
    check(r, M, a, b)
    np.testing.assert_allclose(r.mass, [a.sum(), b.sum()], rtol=1e-15)


INTERRUPTED = """
import numpy as np, os, signal, threading, time
from ot_backends.host import _kernel as K
rng = np.random.default_rng(0)
X = rng.normal(size=(12000, 3))
a = np.full(12000, 1 / 12000)
threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
begin = time.perf_counter()
try:
    K.solve_points(X, X[::-1] + 1, a, a, 1, threads={threads})
except KeyboardInterrupt:
    print("stopped", time.perf_counter() - begin)
"""


@pytest.mark.skipif(
    not hasattr(signal, "SIGINT") or sys.platform == "win32", reason="POSIX signals"
)
def test_ctrl_c_stops_a_long_solve() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED.format(threads=1)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    word, seconds = done.stdout.split()
    assert word == "stopped"
    assert float(seconds) < 3
