"""``set_gradients`` for Torch: the rule d value = sum_k <g_k, d x_k>, as it stands at every order.

The usual attachment, value + <g, x - stop_gradient(x)>, is right to first order only: with g = g(x)
it is differentiated in g *and* in x, so the second derivative comes out as 2 g'. Here g is
something that the rule only reads, as live as the caller left it: the second derivative is g'.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch.autograd import forward_ad

from ..errors import NotDifferentiableError
from .torch_compat import below_autograd, forward_grad_inside_jvp, transforms_active
from .torch_hostcall import LIBRARY

__all__ = ["attach", "defer"]


def attach(value: torch.Tensor, xs: list[torch.Tensor], gs: list[torch.Tensor]) -> torch.Tensor:
    """Return `value` with d value = sum_k <gs_k, d xs_k>.

    With S = ``value.shape``, each x and its g have dimensions S + T, equal in number, each of full
    size or 1; the sum is over T.
    """
    if torch.compiler.is_compiling() and below_autograd is not None:
        return cast(torch.Tensor, _ATTACH(value, xs, gs))
    return _apply(value, xs, gs)


def _apply(value: torch.Tensor, xs: list[torch.Tensor], gs: list[torch.Tensor]) -> torch.Tensor:
    return cast(torch.Tensor, _Rule.apply(value, len(xs), *xs, *gs))  # type: ignore[no-untyped-call]


class _Rule(torch.autograd.Function):
    """value -> value, with dvalue/dx = g for each (x, g). The derivative in g is 0.

    With a plain value + <g, x - stop_gradient(x)> a live g would count twice in the second
    derivative, once through g and once through x: 2 g'. Here g is an input that the rules only
    read: they are linear in what comes in and live in g, which makes the second derivative g'.
    """

    @staticmethod
    def forward(value: torch.Tensor, count: int, *tensors: torch.Tensor) -> torch.Tensor:
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        value, count, *tensors = inputs
        xs, gs = tensors[:count], tensors[count:]
        ctx.value_ndim = value.ndim
        ctx.value_type = value.shape, value.dtype, value.device
        ctx.input_shapes = [x.shape for x in xs]
        ctx.save_for_backward(*gs)
        ctx.save_for_forward(*gs)

    @staticmethod
    def backward(ctx: Any, cotangent: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        results: list[torch.Tensor | None] = []
        for k, (g, shape) in enumerate(zip(ctx.saved_tensors, ctx.input_shapes, strict=True)):
            if not ctx.needs_input_grad[2 + k]:
                results.append(None)
                continue
            ct = cotangent.reshape(cotangent.shape + (1,) * (g.ndim - ctx.value_ndim))
            full = torch.broadcast_shapes(ct.shape, g.shape, shape)
            results.append((ct * g).expand(full).sum_to_size(shape))
        return None, None, *results, *[None] * len(results)

    @staticmethod
    def jvp(ctx: Any, _value: Any, _count: Any, *tangents: torch.Tensor | None) -> torch.Tensor:
        forward_mode = forward_grad_inside_jvp()
        if forward_mode is None:
            raise NotDifferentiableError(
                "set_gradients: this version of torch has no forward mode for gradients set by "
                f"hand (torch {torch.__version__}; tested with 2.13): use reverse mode"
            )
        with forward_mode:
            shape, dtype, device = ctx.value_type
            result: torch.Tensor = torch.zeros(shape, dtype=dtype, device=device)
            for g, dx in zip(ctx.saved_tensors, tangents[: len(ctx.saved_tensors)], strict=True):
                if dx is not None:
                    # Without g's tangent of this level, which is not part of <g, dx>; those of
                    # outer levels stay.
                    g = forward_ad.unpack_dual(g).primal
                    result = result + _contract(g * dx, ctx.value_ndim).to(dtype)
            return result

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], value: torch.Tensor, count: int, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, int]:
        dims = (in_dims[0], *in_dims[2:])
        value, *moved = _lead(info.batch_size, dims, (value, *tensors))
        return _apply(value, moved[:count], moved[count:]), 0


def _contract(x: torch.Tensor, value_ndim: int) -> torch.Tensor:
    """Sum over all dimensions after those of the value."""
    return x.flatten(value_ndim).sum(-1) if x.ndim > value_ndim else x


def _lead(
    size: int, dims: Sequence[int | None], tensors: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Bring the mapped dimensions to the front; the first tensor, the value, in full size."""
    first, *rest = [
        x.unsqueeze(0) if dim is None else x.movedim(dim, 0)
        for x, dim in zip(tensors, dims, strict=True)
    ]
    return [first.expand((size, *first.shape[1:])), *rest]


def defer(value: torch.Tensor, inputs: Sequence[torch.Tensor], rule: Any) -> torch.Tensor:
    """Return ``rule(*inputs)``, known to be `value`, for reverse mode outside of transforms.

    The first derivative in input k is ``rule.gradient(k, *inputs)``, for each element of the value.
    The rule itself runs where a derivative of it is asked for (``create_graph=True``).
    """
    return cast(torch.Tensor, _Deferred.apply(value, rule, *inputs))  # type: ignore[no-untyped-call]


class _Deferred(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, rule: Any, *inputs: torch.Tensor) -> torch.Tensor:
        ctx.rule, ctx.value_ndim = rule, value.ndim
        ctx.save_for_backward(*inputs)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, cotangent: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        inputs, wanted = ctx.saved_tensors, ctx.needs_input_grad[2:]
        if torch.is_grad_enabled():
            live = [x for x, w in zip(inputs, wanted, strict=True) if w]
            found = iter(torch.autograd.grad(ctx.rule(*inputs), live, cotangent, create_graph=True))
            return None, None, *[next(found) if w else None for w in wanted]
        results: list[torch.Tensor | None] = [None] * len(inputs)
        for k in range(len(inputs)):
            if wanted[k]:
                g = ctx.rule.gradient(k, *inputs)
                ct = cotangent
                if ctx.value_ndim:
                    ct = ct.reshape(ct.shape + (1,) * (g.ndim - ctx.value_ndim))
                results[k] = ct * g  # autograd sums it to the shape of an input that was broadcast
        return None, None, *results


# Dynamo refuses an autograd.Function with forward mode, and gets the derivatives of one inside
# nested torch.func transforms wrong (zeros). In compiled code the rule is an operator, which
# Dynamo leaves alone and AOTAutograd traces through, level by level.

LIBRARY.define(
    "set_gradients(Tensor value, Tensor[] xs, Tensor[] gs) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_ATTACH = torch.ops.ot_backends.set_gradients.default


def _value(value: torch.Tensor, xs: list[torch.Tensor], gs: list[torch.Tensor]) -> torch.Tensor:
    return value.clone()


def _batch(
    info: Any,
    in_dims: tuple[Any, ...],
    value: torch.Tensor,
    xs: list[torch.Tensor],
    gs: list[torch.Tensor],
) -> tuple[torch.Tensor, int]:
    dims = (in_dims[0], *in_dims[1], *in_dims[2])
    value, *moved = _lead(info.batch_size, dims, (value, *xs, *gs))
    return _ATTACH(value, moved[: len(xs)], moved[len(xs) :]), 0


def _autograd(value: torch.Tensor, xs: list[torch.Tensor], gs: list[torch.Tensor]) -> torch.Tensor:
    if not transforms_active():  # no level of torch.func is left
        return _apply(value, xs, gs)
    # At this level, one of several, value + <g, x - x0>, where x0 is x without its derivative at
    # this level only. x - x0 is zero to the levels below, with all its derivatives, so that g(x)
    # is not counted there; and each level is differentiated once, so not here either.
    with below_autograd():
        value = _ATTACH(value, xs, gs)
        x0s = [x.clone() for x in xs]  # a view would keep the tangent of its base
    for x, x0, g in zip(xs, x0s, gs, strict=True):
        dx = torch.where(torch.isfinite(x0), x - x0, 0)  # not inf - inf
        value = value + _contract(g * dx, value.ndim).to(value.dtype)
    return value


LIBRARY.impl("set_gradients", _value, "CompositeExplicitAutograd")
torch.library.register_fake("ot_backends::set_gradients", _value, lib=LIBRARY)
torch.library.register_vmap("ot_backends::set_gradients", _batch, lib=LIBRARY)
if below_autograd is not None:
    LIBRARY.impl("set_gradients", _autograd, "Autograd")
