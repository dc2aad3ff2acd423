"""POT's names: the arguments of ot.emd and ot.emd2, their return types, and POT's own numbers."""

from __future__ import annotations

import contextlib
import inspect
from typing import Any

import frameworks
import judge
import numpy as np
import ot
import pytest
from problems import by_name, prob

import ot_backends
from ot_backends.errors import IterationLimitError, ProblemError

SAME = [prob(6, 5, 0), prob(5, 9, 1), by_name("counts")]


@pytest.fixture
def fw(framework: Any) -> Any:
    return framework


@pytest.mark.parametrize("name", ["emd", "emd2"])
def test_signature(name: str) -> None:
    theirs = inspect.signature(getattr(ot, name)).parameters
    ours = inspect.signature(getattr(ot_backends, name)).parameters
    assert list(ours)[: len(theirs)] == list(theirs)
    for k, p in theirs.items():
        assert ours[k].kind == p.kind
        if k != "numItermax":  # POT's default stops large problems before their optimum
            assert ours[k].default == p.default
    assert all(p.kind is p.KEYWORD_ONLY for k, p in ours.items() if k not in theirs)


@pytest.mark.parametrize("p", SAME, ids=lambda p: p.name)
def test_values_and_logs_are_those_of_pot(fw: Any, p: Any) -> None:
    a, b, M = fw.arrays(*p.args)
    plan, log = ot_backends.emd(a, b, M, log=True)
    true, true_log = ot.emd(*p.args, log=True)
    np.testing.assert_allclose(fw.numpy(plan), true, rtol=0, atol=1e-13 * p.a.sum())
    assert set(true_log) <= set(log)
    assert float(log["cost"]) == pytest.approx(true_log["cost"], rel=1e-12)
    assert log["warning"] is None
    assert log["result_code"] == true_log["result_code"]
    if p.smooth:  # else the potentials are not unique
        for k in "uv":
            np.testing.assert_allclose(fw.numpy(log[k]), true_log[k], rtol=0, atol=1e-12)
    result, theirs = ot_backends.emd2(a, b, M, log=True), ot.emd2(*p.args, log=True)
    assert type(result) is type(theirs)
    value, log2 = result
    assert float(value) == pytest.approx(theirs[0], rel=1e-12)
    assert set(theirs[1]) <= set(log2)
    assert "G" not in log2
    np.testing.assert_array_equal(fw.numpy(log2["u"]), fw.numpy(log["u"]))


def test_return_matrix(fw: Any) -> None:
    p = prob()
    a, b, M = fw.arrays(*p.args)
    for extra in ({}, {"log": True}):
        value, log = ot_backends.emd2(a, b, M, return_matrix=True, **extra)
        np.testing.assert_array_equal(fw.numpy(log["G"]), fw.numpy(ot_backends.emd(a, b, M)))
        np.testing.assert_array_equal(fw.numpy(log["cost"]), fw.numpy(value))


def test_center_dual(fw: Any) -> None:
    p = by_name("counts")
    a, b, M = fw.arrays(*p.args)
    value = judge.reference_value(*p.args)
    centred = ot_backends.emd2(a, b, M, log=True)[1]
    u, v = fw.numpy(centred["u"]), fw.numpy(centred["v"])
    assert u @ p.a == pytest.approx(v @ p.b, rel=1e-12)
    assert u @ p.a == pytest.approx(value / 2, rel=1e-12)
    plain = ot_backends.emd2(a, b, M, center_dual=False, log=True)[1]
    shift = fw.numpy(plain["u"]) - u
    np.testing.assert_allclose(shift, shift[0], rtol=0, atol=1e-13)
    np.testing.assert_allclose(fw.numpy(plain["v"]) + shift[0], v, rtol=0, atol=1e-13)


def test_empty_none_and_list_weights(fw: Any) -> None:
    p = prob()
    M = fw.array(p.M)
    uniform = judge.reference_value(np.full(6, 1 / 6), np.full(5, 0.2), p.M)
    for none in ([], None, fw.array(np.zeros(0)), ()):
        assert float(ot_backends.emd2(none, none, M)) == pytest.approx(uniform, rel=1e-12)
        plan = fw.numpy(ot_backends.emd(none, none, M))
        np.testing.assert_allclose(plan.sum(1), 1 / 6, rtol=1e-12)
    half = judge.reference_value(p.a, np.full(5, 0.2), p.M)
    assert float(ot_backends.emd2(fw.array(p.a), [], M)) == pytest.approx(half, rel=1e-12)
    true = judge.reference_value(*p.args)
    value = ot_backends.emd2(p.a.tolist(), p.b.tolist(), M)
    if fw.name != "numpy":
        assert type(value) is type(M)
    assert float(value) == pytest.approx(true, rel=1e-12)


def test_lists_only() -> None:
    plan = ot_backends.emd([0.5, 0.5], [0.5, 0.5], [[0.0, 1.0], [1.0, 0.0]])
    np.testing.assert_array_equal(plan, [[0.5, 0.0], [0.0, 0.5]])
    assert ot_backends.emd2([3, 7], [7, 3], [[0, 1], [1, 0]]) == 4.0
    assert float(ot_backends.solve([[1, 2], [3, 1]]).value) == 1.0


def test_numpy_losses_are_numbers() -> None:
    """As from ot.emd2: fit for json, sets and format strings, which arrays are not."""
    value = ot_backends.emd2(*prob().args)
    assert isinstance(value, float)
    assert f"{value:.4f}" == "0.2076"
    assert value in {value}


def test_matrix_of_weights_gives_a_list(fw: Any) -> None:
    p = prob()
    columns = np.stack([prob(6, 5, s).b for s in (1, 2, 3)], 1)
    a, b, M = fw.arrays(p.a, columns, p.M)
    values = ot_backends.emd2(a, b, M)
    assert isinstance(values, list)
    true = [judge.reference_value(p.a, columns[:, k], p.M) for k in range(3)]
    np.testing.assert_allclose([float(x) for x in values], true, rtol=1e-12)
    logged = ot_backends.emd2(a, b, M, log=True, return_matrix=True)
    theirs = ot.emd2(p.a, columns, p.M, log=True, return_matrix=True)
    assert isinstance(logged, list)
    for k, (mine, other) in enumerate(zip(logged, theirs, strict=True)):
        assert type(mine) is type(other)
        value, log = mine
        assert float(value) == pytest.approx(true[k], rel=1e-12)
        np.testing.assert_allclose(fw.numpy(log["G"]), other[1]["G"], rtol=0, atol=1e-13)
        np.testing.assert_allclose(fw.numpy(log["v"]), other[1]["v"], rtol=0, atol=1e-12)
    assert len(ot_backends.emd2(a, b[:, :1], M)) == 1


@pytest.mark.parametrize("name", frameworks.DIFFERENTIABLE)
def test_matrix_of_weights_is_differentiable(name: str) -> None:
    with frameworks.use(name) as fw:
        p = prob()
        columns = np.stack([prob(6, 5, s).b for s in (1, 2)], 1)

        def loss(a: Any, b: Any, M: Any) -> Any:
            first, second = ot_backends.emd2(a, b, M)
            return first + 3 * second

        found = fw.grad(loss, (0, 1, 2))(*fw.arrays(p.a, columns, p.M))
        r = [judge.reference(p.a, columns[:, k], p.M) for k in (0, 1)]
        true = (r[0].u + 3 * r[1].u, np.stack([r[0].v, 3 * r[1].v], 1), r[0].plan + 3 * r[1].plan)
        for g, t in zip(found, true, strict=True):
            np.testing.assert_allclose(fw.numpy(g), t, rtol=0, atol=1e-12)


def test_potentials_to_start_from(fw: Any) -> None:
    p = prob(8, 7, 2)
    a, b, M = fw.arrays(*p.args)
    true = judge.reference_value(*p.args)
    _, log = ot_backends.emd2(a, b, M, log=True)
    rng = np.random.default_rng(0)
    for u, v in (
        (log["u"], log["v"]),
        fw.arrays(rng.standard_normal(8), rng.standard_normal(7)),
        fw.arrays(np.zeros(8), np.zeros(7)),
        fw.arrays(np.full(8, np.nan), np.ones(7)),
        fw.arrays(np.full(8, 1e300), np.full(7, -1e300)),
        (np.zeros(8).tolist(), np.zeros(7).tolist()),
    ):
        value = ot_backends.emd2(a, b, M, potentials_init=(u, v))
        assert float(value) == pytest.approx(true, rel=1e-12)
        plan = fw.numpy(ot_backends.emd(a, b, M, potentials_init=(u, v)))
        np.testing.assert_allclose(plan.sum(1), p.a, rtol=0, atol=1e-13)
    with pytest.raises(ProblemError, match="potentials_init"):
        ot_backends.emd2(a, b, M, potentials_init=fw.arrays(np.zeros(7), np.zeros(7)))


def test_basis_in_the_log(fw: Any) -> None:
    p = prob()
    a, b, M = fw.arrays(*p.args)
    basis = ot_backends.emd2(a, b, M, log=True)[1]["basis"]
    judge.check_basis(basis, p.a, p.b)
    _, log = ot_backends.emd(a, b, M, log=True, basis=basis)
    judge.check_basis(log["basis"], p.a, p.b)


def test_deprecated_arguments_warn_and_change_nothing(fw: Any) -> None:
    p = prob()
    a, b, M = fw.arrays(*p.args)
    value = float(ot_backends.emd2(a, b, M))
    with pytest.warns(Warning, match="numThreads"):
        assert float(ot_backends.emd2(a, b, M, numThreads="max")) == value
    with pytest.warns(Warning, match="numThreads"):
        ot_backends.emd(a, b, M, numThreads=2)
    with pytest.warns(Warning, match="processes"):
        assert float(ot_backends.emd2(a, b, M, 2)) == value


def test_check_marginals(fw: Any) -> None:
    p = prob()
    a, b, M = fw.arrays(p.a, 2.5 * p.b, p.M)
    true = judge.reference_value(*p.args)
    value = ot_backends.emd2(a, b, M, check_marginals=False)
    assert float(value) == pytest.approx(true, rel=1e-12)
    with pytest.raises(AssertionError):
        ot_backends.emd2(a, b, M)


@pytest.mark.parametrize("limit", [1, 5, 20, 100])
def test_iteration_limit(fw: Any, limit: int) -> None:
    p = prob(60, 60, 5)
    a, b, M = fw.arrays(*p.args)
    value = None
    with contextlib.suppress(IterationLimitError):
        value = ot_backends.emd2(a, b, M, numItermax=limit)
    if value is not None:
        assert float(value) == pytest.approx(judge.reference_value(*p.args), rel=1e-12)
    if limit == 1:  # no solver finds 119 edges in one pivot
        with pytest.raises(IterationLimitError, match="numItermax"):
            ot_backends.emd2(a, b, M, numItermax=limit)
    assert float(ot_backends.emd2(a, b, M, numItermax=10**6)) == pytest.approx(0.030865, abs=1e-6)
