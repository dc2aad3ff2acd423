"""A JAX program that calls the host finishes, also on one CPU and between collectives."""

from __future__ import annotations

import os
import shutil

import pytest
from subprocesses import python, run_script

pytest.importorskip("jax")

LIMIT = 150  # seconds per step, from after the imports; each takes a few


@pytest.mark.parametrize("way", [[], ["--python"]], ids=["default", "through Python"])
def test_inputs_still_pending_on_one_cpu(way: list[str]) -> None:
    taskset = shutil.which("taskset")
    if taskset is None:
        pytest.skip("needs taskset")
    one_cpu = [taskset, "-c", str(min(os.sched_getaffinity(0)))]
    lines = run_script(*one_cpu, *python("no_deadlock.py", "pending", *way), limit=LIMIT)
    assert lines == [{"done": k} for k in range(3)]


@pytest.mark.parametrize("way", [[], ["--python"]], ids=["default", "through Python"])
@pytest.mark.parametrize("devices", [2, 4])
def test_collectives_between_devices(devices: int, way: list[str]) -> None:
    lines = run_script(*python("no_deadlock.py", "psum", *way), devices=devices, limit=LIMIT)
    steps = {"shard_map": 5, "jit": 5, "emd2": 2}
    assert lines == [{name: k} for name, count in steps.items() for k in range(count)]
