"""Types in, types out: floating results, never narrowed by the weights, rounded once."""

from __future__ import annotations

from itertools import product
from typing import Any

import frameworks
import judge
import numpy as np
import pytest
from problems import prob

import ot_backends

FLOATS = ["float64", "float32", "float16", "bfloat16"]
EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


@pytest.fixture
def fw(framework: Any) -> Any:
    return framework


def dtype_name(x: Any) -> str:
    return str(x.dtype).removeprefix("torch.")


def floats(fw: Any) -> list[str]:
    return FLOATS[:3] if fw.name == "numpy" else FLOATS


def test_results_have_the_type_of_the_costs(fw: Any) -> None:
    p = prob()
    for of_weights, of_costs in product(floats(fw), repeat=2):
        a, b = fw.arrays(p.a, p.b, dtype=of_weights)
        M = fw.array(p.M, of_costs)
        result = ot_backends.solve(M, a, b)
        for x in (result.value, result.u, result.v, result.flow, result.plan):
            assert dtype_name(x) == of_costs, (of_weights, of_costs)
        assert dtype_name(ot_backends.emd2(a, b, M)) == of_costs
        assert dtype_name(ot_backends.emd(a, b, M)) == of_costs
        # the value is the exact one of the arrays as they were given, rounded once
        exact = judge.reference_value(*(fw.numpy(x).astype(np.float64) for x in (a, b, M)))
        assert float(result.value) == pytest.approx(exact, rel=max(1e-12, EPS[of_costs]))


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8", "bool"])
def test_integer_weights_and_floating_costs(fw: Any, dtype: str) -> None:
    counts = np.array([1, 0, 1, 1]) if dtype == "bool" else np.array([3, 0, 7, 2])
    b = counts[[2, 0, 3, 1]]
    M0 = prob(4, 4).M
    value = ot_backends.emd2(fw.array(counts, dtype), fw.array(b, dtype), fw.array(M0))
    assert dtype_name(value) == "float64"
    assert float(value) == pytest.approx(judge.reference_value(counts, b, M0), rel=1e-12)
    plan = ot_backends.emd(fw.array(counts, dtype), fw.array(b, dtype), fw.array(M0))
    np.testing.assert_allclose(fw.numpy(plan).sum(1), counts, atol=1e-12)


@pytest.mark.parametrize("dtype", ["int64", "int32", "int8", "bool"])
def test_integer_costs_take_the_type_of_the_weights(fw: Any, dtype: str) -> None:
    p = prob()
    M = (np.arange(30).reshape(6, 5) * 7) % (2 if dtype == "bool" else 11)
    for of_weights in ("float64", "float32"):
        a, b = fw.arrays(p.a, p.b, dtype=of_weights)
        value = ot_backends.emd2(a, b, fw.array(M, dtype))
        assert dtype_name(value) == of_weights
        exact = judge.reference_value(p.a, p.b, M)
        assert float(value) == pytest.approx(exact, rel=8 * EPS[of_weights] + 1e-12)


def test_integers_only(fw: Any) -> None:
    default = {"numpy": "float64", "jax": "float64", "torch": "float32"}[fw.name]
    a, b, M = fw.arrays([3, 7], [7, 3], [[0, 1], [1, 0]], dtype="int64")
    value = ot_backends.emd2(a, b, M)
    assert dtype_name(value) == default
    assert float(value) == 4.0
    uniform = ot_backends.emd2(None, None, M)
    assert dtype_name(uniform) == default


def test_default_type_of_jax_without_x64() -> None:
    with frameworks.use("jax", x64=False) as fw:
        p = prob()
        a, b, M = fw.arrays(*p.args, dtype="float32")
        result = ot_backends.solve(M, a, b)
        double = ot_backends.solve(*(np.float64(np.float32(x)) for x in (p.M, p.a, p.b)))
        judge.check_float32(result, double, *(np.float32(x) for x in p.args))
        assert dtype_name(result.rows) == "int32"
        assert float(ot_backends.emd2(None, None, fw.array([[0, 1], [1, 0]], "int32"))) == 0.0
        g = fw.grad(ot_backends.emd2, (0, 1, 2))(a, b, M)
        assert [dtype_name(x) for x in g] == ["float32"] * 3


@pytest.mark.parametrize("name", frameworks.DIFFERENTIABLE)
def test_gradients_have_the_type_of_their_argument(name: str) -> None:
    with frameworks.use(name) as fw:
        p = prob()
        for kinds in (
            ("float32", "float32", "float64"),
            ("float64", "float32", "bfloat16"),
            ("bfloat16", "float16", "float32"),
            ("bfloat16",) * 3,
        ):
            args = [fw.array(x, k) for x, k in zip(p.args, kinds, strict=True)]
            found = fw.grad(ot_backends.emd2, (0, 1, 2))(*args)
            assert [dtype_name(g) for g in found] == list(kinds)
            r = judge.reference(*(fw.numpy(x).astype(np.float64) for x in args))
            worst = 4 * max(EPS[k] for k in kinds)
            for g, true in zip(found, (r.u, r.v, r.plan), strict=True):
                np.testing.assert_allclose(
                    fw.numpy(g), true, rtol=0, atol=worst * np.abs(true).max()
                )


@pytest.mark.parametrize("name", frameworks.DIFFERENTIABLE)
def test_low_precision_keeps_no_low_precision_sums(name: str) -> None:
    """At n = 256 the plan and its derivative in bfloat16 are those of float32, rounded once."""
    with frameworks.use(name) as fw:
        p = prob(256, 256, 0)
        low = fw.arrays(*p.args, dtype="bfloat16")
        wide = [fw.array(fw.numpy(x), "float32") for x in low]
        d = np.sin(np.arange(256.0))
        for f in (ot_backends.emd2, ot_backends.emd):

            def of_a(a: Any, f: Any = f, rest: Any = low[1:]) -> Any:
                return f(a, *rest, check_marginals=False)

            value, slope = fw.jvp(of_a, low[:1], fw.arrays(d, dtype="bfloat16"))
            wide_d = fw.array(fw.numpy(fw.array(d, "bfloat16")), "float32")
            true, true_slope = fw.jvp(lambda a, g=of_a: g(a, rest=wide[1:]), wide[:1], [wide_d])
            for x, y in ((value, true), (slope, true_slope)):
                x, y = fw.numpy(x), fw.numpy(y)
                atol = 2.0**-20 * np.abs(y).max()
                np.testing.assert_allclose(x, y, rtol=2 * EPS["bfloat16"], atol=atol)


@pytest.mark.parametrize(("dtype", "n"), [("float16", 64), ("bfloat16", 64)])
@pytest.mark.parametrize("name", frameworks.DIFFERENTIABLE)
def test_softmax_weights_of_low_precision(name: str, dtype: str, n: int) -> None:
    with frameworks.use(name) as fw:
        xp = fw.xp
        logits = np.random.default_rng(1).standard_normal((2, n))
        e = xp.exp(fw.array(logits, dtype))
        a, b = (x / x.sum() for x in (e[0], e[1]))
        M0 = np.random.default_rng(2).random((n, n))
        value = ot_backends.emd2(a, b, fw.array(M0, dtype))
        exact = judge.reference_value(*(fw.numpy(x) for x in (a, b, fw.array(M0, dtype))))
        assert float(value) == pytest.approx(exact, rel=EPS[dtype])


@pytest.mark.parametrize("name", list(frameworks.ALL))
def test_float32_softmax_of_200000_entries(name: str) -> None:
    """Its sum is off by 5e-5: rounding, no mismatch of the masses."""
    with frameworks.use(name) as fw:
        # terms just above 1 are all rounded down once the sum is large
        logits = 5e-5 + 1e-5 * np.random.default_rng(0).standard_normal(200_000)
        e = np.exp(logits).astype(np.float32)
        a = e / np.add.accumulate(e)[-1]  # a naive sum, as a framework may have it
        assert 2e-5 < abs(a.astype(np.float64).sum() - 1) < 8e-5
        M0 = np.random.default_rng(1).random((200_000, 1)).astype(np.float32)
        value = ot_backends.emd2(*fw.arrays(a, [1.0], M0, dtype="float32"))
        exact = a.astype(np.float64) @ M0[:, 0].astype(np.float64)
        assert float(value) == pytest.approx(exact, rel=2.0**-23)
