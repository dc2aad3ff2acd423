"""Batches in JAX primitives: leading dimensions, of size 1 where an argument is shared."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

__all__ = ["leading", "mapped"]


def leading(args: Sequence[Any], dims: Sequence[int | None]) -> list[Any]:
    """Make the mapped dimension one more leading dimension; of size 1 where shared."""
    return [
        jnp.expand_dims(x, 0) if d is None else jnp.moveaxis(x, d, 0)
        for x, d in zip(args, dims, strict=True)
    ]


def mapped(
    f: Callable[..., Sequence[Any]], res: Sequence[Any], x: Sequence[Any], batch_ndim: int
) -> list[Any]:
    """Apply f(res, x), which is for one problem, over leading batch dimensions of size 1 or B."""
    if batch_ndim == 0:
        return list(f(res, x))
    size = max(a.shape[0] for a in (*res, *x)) if all(a.shape[0] for a in (*res, *x)) else 0

    def axes(arrays: Sequence[Any]) -> list[int | None]:
        return [0 if a.shape[0] == size else None for a in arrays]

    def one(arrays: Sequence[Any]) -> list[Any]:
        return [
            a if d == 0 else jnp.squeeze(a, 0) for a, d in zip(arrays, axes(arrays), strict=True)
        ]

    inner = functools.partial(mapped, f, batch_ndim=batch_ndim - 1)
    return list(jax.vmap(inner, (axes(res), axes(x)), 0, axis_size=size)(one(res), one(x)))
