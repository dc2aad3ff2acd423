"""The judge itself: it agrees with a second solver and refuses each kind of wrong answer."""

from __future__ import annotations

from typing import Any, NamedTuple

import judge
import numpy as np
import pytest
from problems import PROBLEMS, SMOOTH, Problem, by_name, names, prob, sample


class Status(NamedTuple):
    dual: float
    violation: float
    iterations: int = 0


class Answer(NamedTuple):
    value: Any
    plan: Any
    u: Any
    v: Any
    rows: Any
    cols: Any
    status: Status

    @property
    def potentials(self) -> tuple[Any, Any]:
        return self.u, self.v


def answer(p: Problem) -> Answer:
    """What HiGHS says of p, as a result of the package would say it."""
    r = judge.reference(*p.args)
    rows, cols = np.nonzero(r.plan)
    dual = r.u @ p.a + r.v @ p.b * (p.a.sum() / p.b.sum())
    return Answer(np.float64(r.value), r.plan, r.u, r.v, rows, cols, Status(dual, 0.0))


@pytest.mark.parametrize(
    "p", [prob(6, 5, s) for s in range(5)] + [prob(12, 17, 5)], ids=lambda p: p.name
)
def test_reference_agrees_with_pot(p: Problem) -> None:
    import ot

    plan = ot.emd(*p.args)
    np.testing.assert_allclose(judge.reference(*p.args).plan, plan, atol=1e-14)
    assert judge.reference_value(*p.args) == pytest.approx(ot.emd2(*p.args), rel=1e-13)


def test_published_value() -> None:
    assert judge.reference_value(*prob().args) == pytest.approx(0.207643735650, abs=1e-12)


def test_reference_solves_every_problem() -> None:
    for p in PROBLEMS:
        r = judge.reference(*p.args, p.huge)
        assert np.isfinite(r.value), p.name
        share = r.plan / p.a.sum()
        atol = 1e-11 if p.name.startswith("weights from") else 1e-14  # under HiGHS's own tolerance
        for axis, w in ((1, p.a), (0, p.b)):
            sums = share.sum(axis)
            np.testing.assert_allclose(sums, w / w.sum(), rtol=0, atol=atol, err_msg=p.name)
    for seed in range(40):
        assert np.isfinite(judge.reference_value(*sample(seed).args)), seed


@pytest.mark.parametrize("p", SMOOTH, ids=names(SMOOTH))
def test_smooth_problems_have_one_basis_with_a_margin(p: Problem) -> None:
    r = judge.reference(*p.args)
    n, m = p.M.shape
    flows = r.plan[r.plan > 1e-14]
    slack = np.where(r.plan > 1e-14, np.inf, p.M - r.u[:, None] - r.v)
    assert len(flows) == n + m - 1
    assert flows.min() > 0.01
    assert slack.min() > 0.01


def test_differences_are_the_duals_and_the_plan() -> None:
    p = prob()
    ga, gb, gM = judge.gradients(*p.args)
    r = judge.reference(*p.args)
    np.testing.assert_allclose(ga, r.u, atol=1e-11)
    np.testing.assert_allclose(gb, r.v, atol=1e-11)
    np.testing.assert_allclose(gM, r.plan, atol=1e-11)


def test_differences_refuse_a_kink() -> None:
    for f in (abs, lambda t: max(t, 0.0), lambda t: max(t - 1.5e-3, 0.0)):
        with pytest.raises(ArithmeticError, match="basis changes"):
            judge.central(f)
    assert judge.central(np.sin) == pytest.approx(1.0, abs=1e-10)
    assert judge.one_sided(lambda t: abs(t) + t**2) == pytest.approx(1.0, abs=1e-10)


@pytest.mark.parametrize(
    "name", ["random", "uniform", "integer costs", "costs of 1e300", "masses of 1e-300"]
)
def test_accepts_right_answers(name: str) -> None:
    p = by_name(name)
    judge.check_result(answer(p), *p.args)


def _shifted(r: Answer, by: float) -> Answer:
    return r._replace(u=r.u + by, v=r.v - by)


def _cycle(r: Answer) -> Answer:
    """A feasible plan that is not optimal, and its value."""
    plan = r.plan.copy()
    i, j = np.unravel_index(plan.argmax(), plan.shape)
    k, l = next((k, l) for k in range(6) for l in range(5) if k != i and l != j and plan[k, l] > 0)
    plan[[i, k], [j, l]] -= 0.01
    plan[[i, k], [l, j]] += 0.01
    return r._replace(plan=plan, value=np.sum(plan * prob().M))


def _moved(r: Answer, amount: float) -> Answer:
    plan = r.plan.copy()
    plan.flat[plan.argmax()] -= amount
    return r._replace(plan=plan)


WRONG = {
    "sign of the value": lambda r: r._replace(value=-r.value),
    "twice the value": lambda r: r._replace(value=2 * r.value),
    "value off by 1e-9": lambda r: r._replace(value=r.value * (1 + 1e-9)),
    "a feasible plan, not optimal": _cycle,
    "a marginal off by 1e-11": lambda r: _moved(r, 1e-11),
    "a negative flow": lambda r: r._replace(plan=r.plan - 1e-13),
    "sign of the potentials": lambda r: r._replace(u=-r.u, v=-r.v),
    "twice u": lambda r: r._replace(u=2 * r.u),
    "the gauge": lambda r: _shifted(r, 1e-9),
    "POT's centred gauge": lambda r: _shifted(r, -np.mean(r.u)),
    "no v": lambda r: r._replace(v=0 * r.v),
    "one potential low": lambda r: r._replace(u=r.u - 1e-9 * np.eye(6)[1]),
    "one potential high": lambda r: r._replace(u=r.u + 1e-9 * np.eye(6)[1]),
    "a false certificate": lambda r: r._replace(status=Status(r.status.dual, 1e-3)),
    "a false dual value": lambda r: r._replace(status=Status(r.status.dual * 1.001, 0.0)),
    "not a number": lambda r: r._replace(u=r.u * np.nan),
    "a shape": lambda r: r._replace(value=np.array([r.value])),
}


@pytest.mark.parametrize("kind", WRONG)
def test_refuses_wrong_answers(kind: str) -> None:
    p = prob()
    wrong = WRONG[kind](answer(p))
    with pytest.raises(AssertionError):
        judge.check_result(wrong, *p.args)


@pytest.mark.parametrize(
    "parent",
    [
        [-1, -1, 0, 0],
        [2, 2, 0, 1],
        [-1, 0, 0, 0],
        [-1, 2, 1, 0],
        [2, 2, 3, -1],
    ],
    ids=["two roots", "no root", "row to row", "cycle", "column to column"],
)
def test_refuses_what_is_no_tree(parent: list[int]) -> None:
    a = b = np.array([0.7, 0.3])
    judge.check_basis(np.array([-1, 2, 0, 0], np.int32), a, b)
    with pytest.raises(AssertionError):
        judge.check_basis(np.array(parent, np.int32), a, b)


def test_refuses_a_light_root() -> None:
    with pytest.raises(AssertionError, match="heaviest"):
        judge.check_basis(np.array([2, -1, 1, 0], np.int32), [0.7, 0.3], [0.4, 0.6])
