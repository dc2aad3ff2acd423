"""``set_gradients`` for JAX: a primitive whose value and derivative are what it is told.

The usual attachment, value + <g, x - stop_gradient(x)>, is right to first order only: with g = g(x)
it is differentiated in g *and* in x, so the second derivative comes out as 2 g'. Here the rule

    d value = sum_k <g_k, d x_k>

is applied as it stands at every order, with g_k as live as the caller left it: the second
derivative is <g', dx dx'>, once. Nor does an infinite x make inf - inf of the value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..errors import ProblemError
from .gradients import contraction, gradient_pairs
from .jax_extend import (
    Primitive,
    ad,
    batching,
    has_tangent,
    mlir,
    same_varying,
    zero_tangent,
)

__all__ = ["set_gradients"]


def set_gradients(value: Any, inputs: Any, grads: Any) -> Any:
    """Return `value` with exactly these gradients; see ``JaxBackend.set_gradients``."""
    value = jax.lax.stop_gradient(jnp.asarray(value))
    xs, gs = [], []
    for x, g, where in _pairs(inputs, grads):
        x, g = jnp.asarray(x), jnp.asarray(g)
        if not jnp.issubdtype(x.dtype, jnp.inexact):
            continue
        shape = contraction(value.shape, x.shape, g.shape, where)
        # All of one rank: S + T, with S the shape of the value and the sum over T.
        xs.append(_to_rank(x, len(shape)))
        gs.append(_to_rank(g, len(shape)))
    if not xs:
        return value
    if not jnp.issubdtype(value.dtype, jnp.inexact):
        raise ProblemError(
            f"set_gradients: value has dtype {value.dtype.name}, and only a floating value can "
            "carry gradients; convert it first"
        )
    return attach_p.bind(*same_varying([value, *xs, *gs]))


def _pairs(inputs: Any, grads: Any) -> list[tuple[Any, Any, str]]:
    # gradient_pairs allows None for any part; the rest of a registered pytree is JAX's own.
    pairs = []
    for x, g, where in gradient_pairs(inputs, grads):
        leaves: list[Any]
        tree: Any
        leaves, tree = jax.tree_util.tree_flatten(x)
        pairs += [
            (leaf, grad, where)
            for leaf, grad in zip(leaves, tree.flatten_up_to(g), strict=True)
            if grad is not None
        ]
    return pairs


def _to_rank(x: jax.Array, rank: int) -> jax.Array:
    return jnp.reshape(x, (1,) * (rank - x.ndim) + x.shape)


# attach_p(value, x_1..x_n, g_1..g_n): shapes S and S + T_k; any dimension of x and g may be 1.
attach_p = Primitive("ot_backends_set_gradients")
attach_p.def_impl(lambda value, *_: value)
attach_p.def_abstract_eval(lambda value, *_: value)
mlir.register_lowering(attach_p, lambda ctx, value, *_: [value])


def _jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    value = attach_p.bind(*primals)
    n = (len(primals) - 1) // 2
    xs, gs, dxs = primals[1 : n + 1], primals[n + 1 :], tangents[1 : n + 1]
    terms = []
    for x, g, dx in zip(xs, gs, dxs, strict=True):
        if has_tangent(x, dx):
            t = g * dx  # <g, dx> over the axes after the value's
            terms.append(jnp.sum(t, axis=tuple(range(value.ndim, t.ndim))))
    if not terms:  # tangents of value and of g themselves don't count: value is what it is
        return value, zero_tangent(value)
    total = sum(terms[1:], terms[0])
    return value, jnp.broadcast_to(total, value.shape).astype(value.dtype)


ad.primitive_jvps[attach_p] = _jvp


def _batch(args: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, int]:
    size = next(x.shape[d] for x, d in zip(args, dims, strict=True) if d is not None)
    value, *rest = (
        jnp.expand_dims(x, 0) if d is None else jnp.moveaxis(x, d, 0)
        for x, d in zip(args, dims, strict=True)
    )
    # The gradient differs over the batch even where the value doesn't.
    value = jnp.broadcast_to(value, (size, *value.shape[1:]))
    return attach_p.bind(value, *rest), 0


batching.primitive_batchers[attach_p] = _batch
