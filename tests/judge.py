"""One judge: HiGHS solves the same problem on its own, and a result is held against it.

HiGHS is only right on problems scaled to about 1 (it fails at 1e-14 and 1e200), so masses and
costs are scaled before it sees them. Feasibility and duality are checked besides: they need no
solver, and hold to more digits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.optimize import linprog

__all__ = [
    "Reference",
    "central",
    "check_basis",
    "check_float32",
    "check_result",
    "gradients",
    "one_sided",
    "reference",
    "reference_value",
    "to_numpy",
]


class Reference(NamedTuple):
    """What HiGHS found: value, an optimal plan, and potentials in the gauge <v, b'> = 0."""

    value: float
    plan: np.ndarray
    u: np.ndarray
    v: np.ndarray


def _exponent(x: np.ndarray) -> int:
    top = np.max(np.abs(x), initial=0.0)
    return int(np.frexp(top)[1]) if top > 0 else 0


def _linprog(
    cost: np.ndarray,
    where: np.ndarray,
    p: np.ndarray,
    q: np.ndarray,
    extra: tuple[np.ndarray, float] | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Plan and duals of min <P, cost> over plans on ``where`` with sums p, q (and <P, extra>)."""
    n, m = where.shape
    i, j = np.nonzero(where)
    k = np.arange(len(i))
    ones = np.ones(len(i))
    row_sums = sp.csr_array((ones, (i, k)), (n, len(i)))
    column_sums = sp.csr_array((ones, (j, k)), (m, len(i)))
    A = sp.vstack([row_sums, column_sums])
    rhs = np.concatenate([p, q])
    if extra is not None:
        A, rhs = sp.vstack([A, extra[0][i, j][None]]), np.append(rhs, extra[1])
    tight = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
    found = linprog(cost[i, j], A_eq=A, b_eq=rhs, method="highs", options=tight)
    if found.status != 0:
        raise ArithmeticError(f"HiGHS did not solve this problem: {found.message}")
    plan = np.zeros((n, m))
    plan[i, j] = np.maximum(found.x, 0.0)
    dual = found.eqlin.marginals
    return plan, dual[:n], dual[n : n + m]


def reference(a: Any, b: Any, M: Any, huge: float | None = None) -> Reference:
    """Solve (a, b, M) by HiGHS.

    With ``huge``, the cost in cells of that size and more is minimised first, the rest second.
    """
    a, b, M = (np.asarray(x, dtype=np.float64) for x in (a, b, M))
    scale = _exponent(a)
    a, b = np.ldexp(a, -scale), np.ldexp(b, -_exponent(b))
    p, q = a / a.sum(), b / b.sum()
    allowed = np.isfinite(M)
    small = allowed & (np.abs(np.where(allowed, M, 0.0)) < (huge or np.inf))
    extra = None
    if huge is not None:
        code = np.ldexp(np.where(allowed & ~small, M, 0.0), -_exponent(M[allowed]))
        plan, _, _ = _linprog(code, allowed, p, q)
        needed = float(np.sum(plan * code))
        if needed > 1e-12:
            extra = (code, needed)
        else:
            allowed = small
    e = _exponent(M[small])
    cost = np.ldexp(np.where(small, M, 0.0), -e)
    low = np.min(cost[small], initial=0.0)  # shifting moves no optimum; an offset costs digits
    plan, u, v = _linprog(np.where(small, cost - low, 0.0), allowed, p, q, extra)
    total = np.ldexp(a.sum(), scale)
    with np.errstate(over="ignore"):
        value = float(np.sum(plan * total * np.where(allowed, M, 0.0)))
        if not np.isfinite(value):  # the sum would do, the order of the factors did not
            value = float(np.ldexp(np.sum(plan * cost), e) * total)
    shift = v @ q
    return Reference(value, plan * total, np.ldexp(u + shift + low, e), np.ldexp(v - shift, e))


def reference_value(a: Any, b: Any, M: Any) -> float:
    return reference(a, b, M).value


def to_numpy(x: Any) -> np.ndarray:
    """Any framework's array as a NumPy array, bfloat16 as float32."""
    if hasattr(x, "detach"):
        x = x.detach().cpu()
        x = x.float() if str(x.dtype) == "torch.bfloat16" else x
    x = np.asarray(x)
    return x.astype(np.float32) if x.dtype.name == "bfloat16" else x


# ---- results


def check_result(
    result: Any,
    a: Any,
    b: Any,
    M: Any,
    *,
    rtol: float = 1e-12,
    huge: float | None = None,
    expected: Reference | None = None,
) -> None:
    """Assert that ``result`` (one problem, no batch) solves (a, b, M).

    Feasible, optimal by duality, with HiGHS's value. ``rtol`` is relative to the total mass for
    marginals, to the largest cost on the tree for potentials, to <plan, |M|> for the value.
    """
    a, b, M = (to_numpy(x).astype(np.float64) for x in (a, b, M))
    value, plan, u, v = (
        to_numpy(x).astype(np.float64) for x in (result.value, result.plan, *result.potentials)
    )
    n, m = M.shape
    assert (value.shape, plan.shape, u.shape, v.shape) == ((), (n, m), (n,), (m,))
    for name, x in (("value", value), ("plan", plan), ("u", u), ("v", v)):
        assert np.isfinite(x).all(), f"{name} is not finite: {x}"
    total = a.sum()
    p, q = a / total, b / b.sum()
    share = plan / total
    allowed = np.isfinite(M)
    cost = np.where(allowed, M, 0.0)

    assert (share >= 0).all(), f"the plan is negative: {share.min()}"
    np.testing.assert_allclose(share.sum(1), p, rtol=0, atol=rtol, err_msg="row sums")
    np.testing.assert_allclose(share.sum(0), q, rtol=0, atol=rtol, err_msg="column sums")
    assert (share[~allowed] <= rtol).all(), "the plan uses a forbidden cell"
    share = np.where(allowed, share, 0.0)

    # From here on costs are relative to the largest: nothing overflows.
    size = np.max(np.abs(cost), initial=0.0) or 1.0
    rel, ru, rv, rvalue = cost / size, u / size, v / size, value / total / size
    moved = np.sum(share * np.abs(rel))
    tiny = np.finfo(np.float64).tiny
    assert abs(rvalue - np.sum(share * rel)) <= rtol * moved + tiny, "value is not <plan, M>"

    # Dual feasibility outside empty x empty cells; potentials are sums of tree costs: their scale.
    rows, cols = to_numpy(result.rows), to_numpy(result.cols)
    reach = np.max(np.abs(rel[rows, cols]), initial=0.0)
    tol = 4 * rtol * reach + tiny
    slack = rel - ru[:, None] - rv[None, :]
    known = allowed & ((a > 0)[:, None] | (b > 0)[None, :])
    assert (slack[known] >= -tol).all(), f"dual infeasible by {-slack[known].min()}"
    carries = share > 0
    assert (np.abs(slack[carries]) <= tol).all(), "complementary slackness"
    np.testing.assert_allclose(ru @ p + rv @ q, rvalue, rtol=0, atol=tol, err_msg="dual value")
    assert abs(rv @ q) <= tol, f"gauge: <v, b'> is {rv @ q}, not 0"

    # Empty rows: u_i = min over the columns with mass of M_ij - v_j; columns alike.
    for empty, full, net, w in (
        (a == 0, b > 0, np.where(allowed, rel, np.inf) - rv, ru),
        (b == 0, a > 0, (np.where(allowed, rel, np.inf) - ru[:, None]).T, rv),
    ):
        best = net[np.ix_(empty, full)].min(1, initial=np.inf)
        ok = np.isfinite(best)
        np.testing.assert_allclose(w[empty][ok], best[ok], rtol=0, atol=tol, err_msg="empty nodes")

    # The certificate in the status is true.
    dual, violation = float(to_numpy(result.status.dual)), float(to_numpy(result.status.violation))
    assert abs(dual / total / size - rvalue) <= tol, "status.dual is not the dual value"
    actual = max(0.0, float(-slack[known].min(initial=0.0)))
    assert abs(violation / size - actual) <= tol, f"violation {violation / size}, found {actual}"
    assert int(to_numpy(result.status.iterations)) >= -1  # -1: the kernel does not count

    expected = expected or reference(a, b, M, huge)
    error = abs(rvalue - expected.value / total / size)
    # What HiGHS drops of weights under its tolerance, and the rounding of masses moved for nothing.
    missed = np.sum(np.abs(expected.plan.sum(1) / total - p)) + 1e-15
    bound = max(1e-9, rtol) * moved + missed * reach + tiny
    assert error <= bound, f"value {value}, HiGHS {expected.value}"
    if huge is not None:  # beside 1e32 the value says nothing of the costs that are meant
        meant = np.where(np.abs(cost) < huge, cost, 0.0)
        for of in (meant, cost - meant):
            got, want = np.sum(share * of), np.sum(expected.plan / total * of)
            assert abs(got - want) <= 1e-9 * abs(want) + tiny, "small costs after the huge ones"


def check_basis(basis: Any, a: Any, b: Any) -> None:
    """Assert that ``basis`` is a spanning tree of rows and columns, rooted at a heaviest node."""
    parent = to_numpy(basis)
    a, b = to_numpy(a).astype(np.float64), to_numpy(b).astype(np.float64)
    n, N = len(a), len(a) + len(b)
    assert parent.dtype == np.int32
    assert parent.shape == (N,)
    roots = np.flatnonzero(parent == -1)
    assert len(roots) == 1, f"{len(roots)} roots"
    weight = np.concatenate([a / a.sum(), b / b.sum()])
    np.testing.assert_allclose(
        weight[roots[0]], weight.max(), rtol=1e-12, err_msg="root: not the heaviest"
    )
    child = np.flatnonzero(parent >= 0)
    assert len(child) == N - 1
    assert ((child < n) != (parent[child] < n)).all(), "an edge joins two rows or two columns"
    node = np.arange(N)
    for _ in range(N):  # every node climbs to the root: no cycle
        node = np.where(parent[node] >= 0, parent[node], node)
    assert (node == roots[0]).all(), "a cycle"


def check_float32(single: Any, double: Any, a: Any, b: Any, M: Any, eps: float = 2.0**-23) -> None:
    """Assert that a float32 result is the float64 result of the same inputs to a few eps."""
    a, b, M = (to_numpy(x).astype(np.float64) for x in (a, b, M))
    for x in (single.value, single.plan, *single.potentials):
        assert to_numpy(x).dtype == np.float32
    plan = to_numpy(double.plan)
    cost = np.where(np.isfinite(M), M, 0.0)
    moved = np.sum(plan * np.abs(cost))
    assert abs(float(to_numpy(single.value)) - float(to_numpy(double.value))) <= 4 * eps * moved
    np.testing.assert_allclose(
        to_numpy(single.plan), plan, rtol=4 * eps, atol=4 * eps * 1e-6 * a.sum()
    )
    reach = np.max(np.abs(cost[to_numpy(double.rows), to_numpy(double.cols)]), initial=0.0)
    for x, y in zip(single.potentials, double.potentials, strict=True):
        np.testing.assert_allclose(to_numpy(x), to_numpy(y), rtol=4 * eps, atol=4 * eps * reach)


# ---- derivatives: differences of the independent solver


def central(f: Callable[[float], Any], h: float = 1e-3) -> Any:
    """f'(0) by a fourth-order central difference; raises where f has a kink within the stencil."""
    values = [np.asarray(f(h * t), dtype=np.float64) for t in (-2, -1, 0, 1, 2)]
    ll, l, mid, r, rr = values
    # a smooth f has wide = near and bend = 0 up to O(h^2) and O(h^3); a change of basis leaves O(1)
    wide, near = (rr - ll) / (4 * h), (r - l) / (2 * h)
    bend = ((rr + ll - 2 * mid) - 4 * (r + l - 2 * mid)) / h
    size = max(np.max(np.abs(x), initial=0.0) for x in (near, mid)) + 1e-10
    if np.any(np.abs(wide - near) > 1e-4 * size) or np.any(np.abs(bend) > 1e-6 * size):
        raise ArithmeticError("the basis changes within the stencil: take another problem or step")
    return (ll - 8 * l + 8 * r - rr) / (12 * h)


def one_sided(f: Callable[[float], float], h: float = 1e-4) -> float:
    """f'(0+) by a second-order forward difference."""
    return (-3.0 * f(0.0) + 4.0 * f(h) - f(2 * h)) / (2 * h)


def gradients(*problem: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """d value / d(a, b, M) by differences of HiGHS, by entry; 0 where an entry is 0 or inf."""
    args = [np.asarray(x, dtype=np.float64) for x in problem]
    found = []
    for k, x in enumerate(args):
        g = np.zeros_like(x)
        for index in zip(*np.nonzero(np.isfinite(x) & (x != 0)), strict=True):

            def f(t: float, k: int = k, index: tuple[int, ...] = index) -> float:
                moved = [y.copy() for y in args]
                moved[k][index] += t
                return reference_value(*moved)

            g[index] = central(f)
        found.append(g)
    return found[0], found[1], found[2]
