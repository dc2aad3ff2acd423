"""The pages of docs/examples are scripts; each runs."""

from __future__ import annotations

import doctest
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from subprocesses import PACKAGE

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs" / "examples").glob("*.py"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page_runs(page: Path) -> None:
    pytest.importorskip("jax")
    env = {key: x for key, x in os.environ.items() if not key.startswith(("XLA_", "JAX_"))}
    env |= {"PYTHONPATH": str(PACKAGE), "JAX_PLATFORMS": "cpu", "MPLBACKEND": "Agg"}
    command = [sys.executable, "-W", "error::UserWarning", str(page)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout


def test_there_are_pages() -> None:
    assert len(PAGES) >= 6


@pytest.mark.parametrize(
    "name",
    [
        "backends.host_function",
        "derivatives.gradients",
        "derivatives.linear_solve",
        "derivatives.root",
    ],
)
def test_docstrings_run(name: str) -> None:
    pytest.importorskip("jax")
    pytest.importorskip("torch")
    module = importlib.import_module(f"ot_backends.{name}")
    results = doctest.testmod(module, verbose=False)
    assert results.attempted > 0
    assert results.failed == 0
