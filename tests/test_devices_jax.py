"""Several devices in JAX: shard_map, sharded jit, Explicit axes, pmap, on 4 virtual devices."""

from __future__ import annotations

from typing import Any

import pytest
from subprocesses import python, run_script

pytest.importorskip("jax")
import device_checks


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Any]:
    """One process runs all checks: starting it takes longer than most of them."""
    lines = run_script(*python("device_checks.py"), devices=4, limit=120)
    return {line["check"]: line["error"] for line in lines}


@pytest.mark.parametrize("name", list(device_checks.CHECKS))
def test_on_four_devices(outcomes: dict[str, Any], name: str) -> None:
    assert name in outcomes
    assert outcomes[name] is None, outcomes[name]
