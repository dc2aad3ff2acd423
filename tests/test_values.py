"""Values, plans, potentials and bases: right on every problem, backend, precision and batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import frameworks
import judge
import numpy as np
import pytest
from problems import PROBLEMS, Problem, by_name, fits_float32, names, prob, sample

import ot_backends

table = pytest.mark.parametrize("p", PROBLEMS, ids=names(PROBLEMS))
SINGLE = [p for p in PROBLEMS if fits_float32(p)]


@pytest.fixture
def fw(framework: Any) -> Any:
    return framework


@cache
def expected(name: str) -> judge.Reference:
    p = by_name(name)
    return judge.reference(*p.args, p.huge)


@cache
def solver(name: str) -> Callable[..., Any]:
    """`solve`, compiled once per shape and not once per problem."""
    return frameworks.ALL[name]().fast(ot_backends.solve)


def same(x: Any, y: Any) -> None:
    """Assert that two results are equal to the last bit."""
    for s, t in zip(
        (x.value, x.plan, *x.potentials), (y.value, y.plan, *y.potentials), strict=True
    ):
        np.testing.assert_array_equal(judge.to_numpy(s), judge.to_numpy(t))


# ---- one problem


@table
def test_float64(fw: Any, p: Problem) -> None:
    a, b, M = fw.arrays(*p.args)
    result = solver(fw.name)(M, a, b)
    judge.check_result(result, *p.args, huge=p.huge, expected=expected(p.name))
    judge.check_basis(result.basis, p.a, p.b)
    for x in (result.value, result.plan, *result.potentials, result.flow):
        assert type(x) is type(M) or fw.name == "numpy"
        assert judge.to_numpy(x).dtype == np.float64


@pytest.mark.parametrize("p", SINGLE, ids=names(SINGLE))
def test_float32(fw: Any, p: Problem) -> None:
    cast = [x.astype(np.float32) for x in p.args]
    a, b, M = fw.arrays(*cast, dtype="float32")
    single = solver(fw.name)(M, a, b)
    # The weights keep their type, which says how far rounding may have unbalanced them.
    double = ot_backends.solve(np.float64(cast[2]), cast[0], cast[1])
    if p.name.startswith("two b"):  # casting has unbalanced the blocks, by rounding
        true = expected(p.name).value
        assert float(double.value) == pytest.approx(true, rel=1e-6)
    else:
        judge.check_result(double, *cast, huge=p.huge)
    judge.check_float32(single, double, *cast)
    judge.check_basis(single.basis, *cast[:2])


@pytest.mark.parametrize("seed", range(90))
def test_random_kinds(seed: int) -> None:
    p = sample(seed)
    result = ot_backends.solve(p.M, p.a, p.b)
    judge.check_result(result, *p.args)
    judge.check_basis(result.basis, p.a, p.b)


@pytest.mark.parametrize("p", PROBLEMS[:8], ids=names(PROBLEMS[:8]))
def test_emd_and_emd2_are_the_same_solve(fw: Any, p: Problem) -> None:
    a, b, M = fw.arrays(*p.args)
    result = ot_backends.solve(M, a, b)
    np.testing.assert_array_equal(fw.numpy(ot_backends.emd2(a, b, M)), fw.numpy(result.value))
    np.testing.assert_array_equal(fw.numpy(ot_backends.emd(a, b, M)), fw.numpy(result.plan))


def test_sparse_plan(fw: Any) -> None:
    p = prob(5, 7, 3)
    a, b, M = fw.arrays(*p.args)
    result = ot_backends.solve(M, a, b)
    rows, cols, flow = (fw.numpy(x) for x in result.sparse_plan)
    assert rows.shape == cols.shape == flow.shape == (11,)
    dense = np.zeros((5, 7))
    np.add.at(dense, (rows, cols), flow)
    np.testing.assert_array_equal(dense, fw.numpy(result.plan))
    for field, x in (("rows", rows), ("cols", cols), ("flow", flow)):
        np.testing.assert_array_equal(fw.numpy(getattr(result, field)), x)


def test_sums_of_tiny_weights_hold_relatively() -> None:
    p = by_name("weights from 1e-17 to 1")
    plan = ot_backends.solve(p.M, p.a, p.b).plan
    np.testing.assert_allclose(plan.sum(1), p.a, rtol=1e-14)
    np.testing.assert_allclose(plan.sum(0), p.b, rtol=1e-14)


def test_compiled(fw: Any) -> None:
    p = prob()
    a, b, M = fw.arrays(*p.args)
    result = fw.jit(lambda a, b, M: ot_backends.solve(M, a, b))(a, b, M)
    judge.check_result(result, *p.args)
    same(result, ot_backends.solve(M, a, b))


# ---- bases


@table
def test_a_returned_basis_is_taken_back(p: Problem) -> None:
    cold = ot_backends.solve(p.M, p.a, p.b)
    warm = ot_backends.solve(p.M, p.a, p.b, basis=cold.basis)
    judge.check_result(warm, *p.args, huge=p.huge, expected=expected(p.name))
    judge.check_basis(warm.basis, p.a, p.b)


def test_a_basis_of_a_near_problem(fw: Any) -> None:
    p, near = prob(8, 8, 1), prob(8, 8, 1)
    near.M[:] += 0.1 * prob(8, 8, 2).M
    a, b, M = fw.arrays(*p.args)
    basis = ot_backends.solve(M, a, b).basis
    warm = ot_backends.solve(fw.array(near.M), a, b, basis=basis)
    judge.check_result(warm, *near.args)
    value = ot_backends.emd2(a, b, fw.array(near.M), basis=basis)
    assert float(value) == pytest.approx(judge.reference_value(*near.args), rel=1e-12)


GARBAGE = {
    "zeros": np.zeros(11),
    "minus ones": np.full(11, -1),
    "out of range": np.full(11, 1000),
    "far negative": np.full(11, np.iinfo(np.int32).min),
    "a cycle": np.roll(np.arange(11), 1),
    "two roots": np.array([-1, 6, 6, 6, 6, 6, -1, 0, 0, 0, 0]),
    "row to row": np.array([-1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
    "random": np.random.default_rng(0).integers(-2, 13, 11),
}


@pytest.mark.parametrize("kind", GARBAGE)
def test_garbage_for_a_basis_is_a_cold_start(fw: Any, kind: str) -> None:
    p = prob()
    a, b, M = fw.arrays(*p.args)
    basis = fw.array(GARBAGE[kind], "int32")
    same(ot_backends.solve(M, a, b, basis=basis), ot_backends.solve(M, a, b))


def test_a_tree_that_is_not_optimal_is_only_a_start() -> None:
    p = prob()
    star = np.array([-1, 6, 6, 6, 6, 6, 0, 0, 0, 0, 0], np.int32)
    judge.check_result(ot_backends.solve(p.M, p.a, p.b, basis=star), *p.args)


# ---- batches


def stacked(*seeds: int) -> tuple[np.ndarray, ...]:
    ps = [prob(6, 5, s) for s in seeds]
    return tuple(np.stack([getattr(p, x) for p in ps]) for x in "abM")


def pick(result: Any, k: Any) -> Any:
    """Problem k of a batch, as a result of its own."""
    return type(result)(
        *(type(x)(*(y[k] for y in x)) if isinstance(x, tuple) else x[k] for x in result)
    )


@pytest.mark.parametrize("batched", ["M", "a", "b", "ab", "aM", "abM"])
def test_batches_with_shared_arguments(fw: Any, batched: str) -> None:
    full = dict(zip("abM", stacked(1, 2, 3, 4), strict=True))
    given = {k: x if k in batched else x[0] for k, x in full.items()}
    result = ot_backends.solve(*(fw.array(given[k]) for k in "Mab"))
    assert tuple(result.value.shape) == (4,)
    assert tuple(result.plan.shape) == (4, 6, 5)
    assert tuple(result.basis.shape) == (4, 11)
    for k in range(4):
        one = [given[x][k] if x in batched else given[x] for x in "abM"]
        judge.check_result(pick(result, k), *one)
        judge.check_basis(pick(result, k).basis, *one[:2])


def test_batch_of_one_nested_and_empty(fw: Any) -> None:
    a, b, M = stacked(1, 2, 3, 4)
    nested = ot_backends.solve(
        fw.array(M.reshape(2, 2, 6, 5)), fw.array(a.reshape(2, 2, 6)), fw.array(b.reshape(2, 2, 5))
    )
    flat = ot_backends.solve(*fw.arrays(M, a, b))
    np.testing.assert_array_equal(fw.numpy(nested.value).ravel(), fw.numpy(flat.value))
    outer = ot_backends.solve(*fw.arrays(M[:, None], a[:, None], b))  # (4, 1) with (4,)
    assert tuple(outer.value.shape) == (4, 4)
    judge.check_result(pick(outer, (3, 1)), a[3], b[1], M[3])
    one = ot_backends.solve(*fw.arrays(M[:1], a[:1], b[:1]))
    np.testing.assert_array_equal(fw.numpy(one.plan), fw.numpy(flat.plan)[:1])
    none = ot_backends.solve(*fw.arrays(M[:0], a[:0], b[:0]))
    assert tuple(none.value.shape) == (0,)
    assert tuple(none.plan.shape) == (0, 6, 5)


def test_batch_of_many_is_one_problem_at_a_time(fw: Any) -> None:
    rng = np.random.default_rng(3)
    a, b, M = rng.random((64, 4)) + 0.1, rng.random((64, 3)) + 0.1, rng.random((64, 4, 3))
    a, b = a / a.sum(1, keepdims=True), b / b.sum(1, keepdims=True)
    result = ot_backends.solve(*fw.arrays(M, a, b))
    values = [ot_backends.solve(*x).value for x in zip(M, a, b, strict=True)]
    np.testing.assert_array_equal(fw.numpy(result.value), values)
    np.testing.assert_array_equal(fw.numpy(ot_backends.emd2(*fw.arrays(a, b, M))), values)
    np.testing.assert_array_equal(
        fw.numpy(ot_backends.emd(*fw.arrays(a, b, M))), fw.numpy(result.plan)
    )


def test_batch_takes_bases_and_uniform_weights(fw: Any) -> None:
    a, b, M = stacked(1, 2, 3)
    cold = ot_backends.solve(*fw.arrays(M, a, b))
    warm = ot_backends.solve(*fw.arrays(M, a, b), basis=cold.basis)
    np.testing.assert_allclose(fw.numpy(warm.value), fw.numpy(cold.value), rtol=1e-14)
    plain = ot_backends.solve(fw.array(M))
    for k in range(3):
        judge.check_result(pick(plain, k), np.full(6, 1 / 6), np.full(5, 1 / 5), M[k])
