"""Which kernel solves."""

from __future__ import annotations


def kernel_name() -> str:
    """Return the name of the kernel that solves, for people to read."""
    return "POT's emd_c"
