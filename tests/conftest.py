"""Fixtures: one framework at a time, with its backend, and no state left behind."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
from frameworks import ALL, DIFFERENTIABLE, use

from ot_backends.backends import load_backend


@pytest.fixture(params=list(ALL))
def framework(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Each framework, in float64, with its backend as ``.nx``."""
    with use(request.param) as framework:
        framework.nx = load_backend(request.param)
        yield framework
    _forget_compiled(request.param)


@pytest.fixture(params=DIFFERENTIABLE)
def differentiable(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Each framework that differentiates, in float64, with its backend as ``.nx``."""
    with use(request.param) as framework:
        framework.nx = load_backend(request.param)
        yield framework
    _forget_compiled(request.param)


@pytest.fixture
def jax64() -> Iterator[Any]:
    """JAX with 64-bit types, in this test only."""
    with use("jax") as framework:
        yield framework.jax


def _forget_compiled(name: str) -> None:
    # torch.compile counts recompilations per line of code, over all tests that share it.
    if name == "torch":
        sys.modules["torch"].compiler.reset()
