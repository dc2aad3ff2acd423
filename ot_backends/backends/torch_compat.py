"""The names of Torch that are not public API, each with what happens without it.

Tested with torch 2.13. They are what torch itself uses for the same ends.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.autograd import forward_ad

__all__ = [
    "add_legacy_batch",
    "below_autograd",
    "forward_grad_inside_jvp",
    "knows_legacy_batches",
    "legacy_batch_level",
    "remove_legacy_batch",
    "transforms_active",
]

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


# ``torch.autograd.grad(is_grads_batched=True)`` and ``jacobian(vectorize=True)`` run backward under
# an older vmap than torch.func's, for which an operator has no public rule. Without these names a
# host call there raises torch's error that it has no batching rule.


knows_legacy_batches: bool = all(
    hasattr(owner, name)
    for owner, name in (
        (torch._C, "_vmapmode_increment_nesting"),
        (torch._C, "_vmapmode_decrement_nesting"),
        (torch, "_remove_batch_dim"),
        (torch, "_add_batch_dim"),
    )
)


def legacy_batch_level() -> int:
    """Return how many of them are at work; 0 where torch does not say."""
    if not knows_legacy_batches:
        return 0
    level: int = torch._C._vmapmode_increment_nesting() - 1
    torch._C._vmapmode_decrement_nesting()
    return level


def remove_legacy_batch(x: torch.Tensor, level: int) -> torch.Tensor:
    """Return `x` with the dimension mapped at `level` in front, of size 1 if there is none."""
    front: torch.Tensor = torch._remove_batch_dim(x, level, 1, 0)
    return front


def add_legacy_batch(x: torch.Tensor, level: int) -> torch.Tensor:
    """Return `x` with its first dimension mapped at `level`."""
    mapped: torch.Tensor = torch._add_batch_dim(x, 0, level)
    return mapped
