"""The names of Torch that are not public API, each with what happens without it.

Tested with torch 2.13. They are what torch itself uses for the same ends.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.autograd import forward_ad

__all__ = ["below_autograd", "forward_grad_inside_jvp", "transforms_active"]

# Sends a call of an operator on to the kernels below autograd (`torch.library.custom_op` is built
# on it). Without it the ban on derivatives of a host call sees the outermost transform only.
below_autograd: Any = getattr(torch._C, "_AutoDispatchBelowAutograd", None)


def forward_grad_inside_jvp() -> AbstractContextManager[Any] | None:
    """Return a context that turns forward mode on again, or None where torch has none.

    Torch turns it off while it runs the ``jvp`` of an ``autograd.Function``, so that an outer
    level of forward mode would silently lose what depends on it there (pytorch issue 197867).
    """
    switch = getattr(forward_ad, "_set_fwd_grad_enabled", None)
    return None if switch is None else switch(True)


def transforms_active() -> bool:
    """Return whether a transform of torch.func is at work; True where torch does not say."""
    answer = getattr(torch._C, "_are_functorch_transforms_active", None)
    return True if answer is None else bool(answer())
