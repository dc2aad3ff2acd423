"""Every Python block of the README runs as it stands."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", README.read_text(), flags=re.M | re.S)


def test_readme_has_a_block_per_framework() -> None:
    text = "".join(BLOCKS)
    assert all(f"import {name}" in text for name in ("jax", "torch", "numpy"))


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.split("\n", 1)[0])
def test_block(block: str) -> None:
    exec(compile(block, str(README), "exec"), {"__name__": "readme"})
