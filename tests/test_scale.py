"""Costs and masses of any size: derivatives scale with them, to the same relative accuracy."""

from __future__ import annotations

from functools import cache
from typing import Any

import frameworks
import numpy as np
import pytest
from problems import prob

import ot_backends

P = prob()
SCALES = [(1e-300, 1.0), (1e300, 1.0), (1.0, 1e-300), (1.0, 1e300), (1e-150, 1e-150)]
SCALES += [(1e-300, 1e300), (1e300, 1e-300), (1e150, 1e150), (1e-8, 1e12), (1e12, 1e-15)]


@pytest.fixture
def fw(differentiable: Any) -> Any:
    return differentiable


def emd2(a: Any, b: Any, M: Any) -> Any:
    return ot_backends.emd2(a, b, M, check_marginals=False)


@cache
def derivatives(name: str, mode: str) -> Any:
    """Gradients in a, b and M, and d plan / d(a, b), compiled once."""
    fw = frameworks.ALL[name]()
    d = {"forward": fw.jacfwd, "reverse": fw.jacrev}[mode]
    return fw.fast(d(emd2, (0, 1, 2))), fw.fast(fw.jacfwd(d(emd2, 2), (0, 1)))


@pytest.mark.parametrize("mode", ["forward", "reverse"])
@pytest.mark.parametrize(("mass", "cost"), SCALES)
def test_derivatives_scale(fw: Any, mass: float, cost: float, mode: str) -> None:
    first, second = derivatives(fw.name, mode)
    plain, scaled = fw.arrays(*P.args), fw.arrays(mass * P.a, mass * P.b, cost * P.M)
    units = (cost, cost, mass)
    for g, true, unit in zip(first(*scaled), first(*plain), units, strict=True):
        np.testing.assert_allclose(fw.numpy(g) / unit, fw.numpy(true), rtol=0, atol=1e-13)
    for g, true in zip(second(*scaled), second(*plain), strict=True):
        np.testing.assert_allclose(fw.numpy(g), fw.numpy(true), rtol=0, atol=1e-13)


@pytest.mark.parametrize(("mass_a", "mass_b"), [(1.0, 1e-200), (1e200, 1.0), (1e-200, 1e90)])
def test_masses_of_different_size(fw: Any, mass_a: float, mass_b: float) -> None:
    first, second = derivatives(fw.name, "reverse")
    plain, scaled = fw.arrays(*P.args), fw.arrays(mass_a * P.a, mass_b * P.b, P.M)
    for g, true, unit in zip(
        first(*scaled), first(*plain), (1.0, mass_a / mass_b, mass_a), strict=True
    ):
        np.testing.assert_allclose(fw.numpy(g) / unit, fw.numpy(true), rtol=0, atol=1e-13)
    for g, true, unit in zip(second(*scaled), second(*plain), (1.0, mass_a / mass_b), strict=True):
        np.testing.assert_allclose(fw.numpy(g) / unit, fw.numpy(true), rtol=0, atol=1e-13)


@pytest.mark.parametrize("mass", [1e-30, 1e30])
def test_float32_masses(fw: Any, mass: float) -> None:
    """Squares of these masses leave the range of float32; no formula may need them."""
    first, second = derivatives(fw.name, "reverse")
    args = [np.float32(x) for x in (mass * P.a, mass * P.b, P.M)]
    plain = fw.arrays(*(np.float32(x) for x in P.args), dtype="float32")
    scaled = fw.arrays(*args, dtype="float32")
    for g, true, unit in zip(first(*scaled), first(*plain), (1.0, 1.0, mass), strict=True):
        np.testing.assert_allclose(fw.numpy(g) / unit, fw.numpy(true), rtol=0, atol=1e-6)
    for g, true in zip(second(*scaled), second(*plain), strict=True):
        np.testing.assert_allclose(fw.numpy(g), fw.numpy(true), rtol=0, atol=4e-6)
