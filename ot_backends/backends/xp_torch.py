"""The array namespace of Torch: array-api-compat's, fit for ``torch.compile``."""

from __future__ import annotations

from typing import Any

import torch
from array_api_compat.torch import *  # noqa: F403


def cumulative_sum(
    x: torch.Tensor, /, *, axis: int, dtype: Any = None, include_initial: bool = False
) -> torch.Tensor:
    """Return the running sums along `axis`; the first is 0 if `include_initial`.

    array-api-compat's own looks up the namespace of `x` in caches, which Dynamo warns of.
    """
    if include_initial:
        first = torch.zeros_like(x.narrow(axis, 0, 1))
        x = torch.cat([first, x], dim=axis)
    return torch.cumsum(x, dim=axis, dtype=dtype)


def take_along_axis(x: torch.Tensor, indices: torch.Tensor, /, *, axis: int = -1) -> torch.Tensor:
    """Return the elements of `x` at `indices` along `axis`; the other dimensions broadcast.

    torch.take_along_dim would bind a compiled program to one size.
    """
    x, indices = x.movedim(axis, -1), indices.movedim(axis, -1)
    if x.shape[:-1] != indices.shape[:-1]:
        batch = torch.broadcast_shapes(x.shape[:-1], indices.shape[:-1])
        x, indices = x.expand(*batch, -1), indices.expand(*batch, -1)
    return torch.gather(x, -1, indices).movedim(-1, axis)
