"""The Torch backend: arrays, host calls, and gradients set by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.autograd import forward_ad

from ..errors import NotDifferentiableError, ProblemError
from . import xp_torch
from .gradients import contraction, gradient_pairs
from .spec import check_host_function
from .torch_compat import forward_grad_inside_jvp
from .torch_hostcall import call, require_constant, torch_dtype

__all__ = ["TorchBackend"]

_NAMES: dict[torch.dtype, str] = {
    x: str(x).removeprefix("torch.") for x in vars(torch).values() if isinstance(x, torch.dtype)
}


class TorchBackend:
    """Host calls and gradients for Torch tensors, under autograd, torch.func and torch.compile."""

    name = "torch"
    xp: Any = xp_torch
    index_dtype = "int64"
    differentiates = True

    def asarray(self, x: Any, like: Any = None, dtype: str | None = None) -> torch.Tensor:
        """Return `x` as a tensor; what was none yet goes to the device of `like`."""
        wanted = None if dtype is None else torch_dtype(dtype)
        if isinstance(x, torch.Tensor):
            tensor: torch.Tensor = x if wanted is None else x.to(wanted)
            return tensor
        device = like.device if isinstance(like, torch.Tensor) else None
        if isinstance(x, (list, tuple)) and any(isinstance(part, torch.Tensor) for part in x):
            tensor = torch.stack([self.asarray(part, like) for part in x])  # keeps derivatives
            return tensor.to(device=device, dtype=wanted)
        if isinstance(x, np.ndarray) and not _shareable(x):
            x = x.astype(x.dtype.newbyteorder("="), order="C")
        return torch.as_tensor(x, dtype=wanted, device=device)

    def dtype_name(self, x: Any) -> str:
        """Return the name of the dtype of `x`, such as ``"float32"``."""
        return _NAMES[x.dtype]

    def stop_gradient(self, x: Any) -> Any:
        """Return `x`, a tensor or a nested tuple, list or dict of them, without derivatives."""
        if isinstance(x, torch.Tensor):
            return x.detach()
        if isinstance(x, dict):
            return {key: self.stop_gradient(part) for key, part in x.items()}
        if isinstance(x, tuple) and hasattr(x, "_fields"):  # a NamedTuple
            return type(x)(*[self.stop_gradient(part) for part in x])
        if isinstance(x, (tuple, list)):
            return type(x)([self.stop_gradient(part) for part in x])
        return x

    def pycall(
        self, fn: Callable[..., Any], *args: Any, out: Any, vectorized: bool = False
    ) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Run a NumPy function on tensors; one call on the host for a whole batch.

        Parameters
        ----------
        fn : callable
            ``fn(*arrays)`` gets read-only NumPy arrays and returns an array or a tuple of arrays.
            Hashable: functions that are equal share one compiled program.
        *args : tensor or array-like
            bfloat16 reaches `fn` as float32. None may carry a derivative.
        out : spec, tuple of specs, or callable
            Shape and dtype of what `fn` returns for one problem: anything with ``shape`` and
            ``dtype``, or a function from the arguments' `ArraySpec` to that. Under
            ``torch.compile`` with dynamic shapes it has to be a function.
        vectorized : bool
            Whether `fn` takes leading batch dimensions, each of size 1 or B. Otherwise it is
            called once per element of the batch.

        Returns
        -------
        tensor or tuple of tensors
            On the arguments' device, without derivatives.

        Raises
        ------
        NotDifferentiableError
            Where an argument requires grad (outside of ``no_grad``) or has a forward-mode tangent,
            at any level of torch.func transforms: pass ``stop_gradient(x)``.
        HostFunctionError
            Where `fn` returned something else than `out` declares.
        """
        if not torch.compiler.is_compiling():
            check_host_function(fn)
        return call(fn, self._tensors(args), out, vectorized)

    def _tensors(self, args: tuple[Any, ...]) -> list[torch.Tensor]:
        like = next((x for x in args if isinstance(x, torch.Tensor)), None)
        return [self.asarray(x, like) for x in args]

    def set_gradients(self, value: Any, inputs: Any, grads: Any) -> torch.Tensor:
        """Return `value` with exactly these derivatives: d value = sum_k <grads_k, d inputs_k>.

        Parameters
        ----------
        value : tensor
            Derivatives that it has are dropped.
        inputs : tensor, or nested tuple, list or dict of tensors
            Integers have no derivative. Infinite entries are fine.
        grads : the same structure, None for no gradient
            Of the shape ``value.shape + input.shape`` (or, where the input has the value's shape
            in front, of the input's shape), or broadcastable to it. A gradient that depends on
            the inputs stays differentiable, in reverse and forward mode and to every order: x**3
            with 3 * x**2 has the second derivative 6 * x.

        Notes
        -----
        Under ``torch.compile``: gradients that depend on the inputs work in reverse mode to first
        order (what the compiler can do) and raise elsewhere; constant ones (after `stop_gradient`)
        pass every transform, where an infinite entry of an input gets the gradient 0.
        """
        pairs = gradient_pairs(inputs, grads)
        bare = self.asarray(value, like=next((x for x, _, _ in pairs), None)).detach()
        xs: list[torch.Tensor] = []
        gs: list[torch.Tensor] = []
        for x, g, where in pairs:
            x = self.asarray(x, like=bare)
            if _is_inexact(x):
                x, g = _align(bare, x, self.asarray(g, like=x), where)
                xs.append(x)
                gs.append(g)
        if not xs:
            return bare
        if not _is_inexact(bare):
            raise ProblemError(
                f"set_gradients: value has dtype {self.dtype_name(bare)}, and only a floating "
                "value can carry gradients; convert it first"
            )
        if not torch.compiler.is_compiling():
            return _attach(_Attach, bare, xs, gs)
        if any(g.requires_grad for g in gs):
            return _attach(_AttachReverse, bare, xs, gs)
        require_constant(gs)
        return _attach_constants(bare, xs, gs)


def _is_inexact(x: torch.Tensor) -> bool:
    return x.is_floating_point() or x.is_complex()


def _shareable(x: np.ndarray[Any, Any]) -> bool:
    """Whether torch can take the memory of `x` as it is."""
    return x.flags.writeable and x.dtype.isnative and all(s >= 0 for s in x.strides)


def _align(
    value: torch.Tensor, x: torch.Tensor, g: torch.Tensor, where: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Give `x` and `g` equal numbers of dimensions, the value's in front."""
    if g.shape == x.shape and x.shape[: value.ndim] == value.shape:
        return x, g
    ndim = len(contraction(tuple(value.shape), tuple(x.shape), tuple(g.shape), where))
    x = x.reshape((1,) * (ndim - x.ndim) + tuple(x.shape))
    return x, g.reshape((1,) * (ndim - g.ndim) + tuple(g.shape))


def _attach(
    rule: type[torch.autograd.Function],
    value: torch.Tensor,
    xs: list[torch.Tensor],
    gs: list[torch.Tensor],
) -> torch.Tensor:
    result: torch.Tensor = rule.apply(value, len(xs), *xs, *gs)
    return result


class _AttachReverse(torch.autograd.Function):
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
        ctx.input_types = [(x.shape, x.dtype) for x in xs]
        ctx.save_for_backward(*gs)
        ctx.save_for_forward(*gs)

    @staticmethod
    def backward(ctx: Any, cotangent: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        results: list[torch.Tensor | None] = []
        for k, g in enumerate(ctx.saved_tensors):
            if not ctx.needs_input_grad[2 + k]:
                results.append(None)
                continue
            shape, dtype = ctx.input_types[k]
            ct = cotangent.reshape(cotangent.shape + (1,) * (g.ndim - ctx.value_ndim))
            full = torch.broadcast_shapes(ct.shape, g.shape, shape)
            results.append((ct * g).expand(full).sum_to_size(shape).to(dtype))
        return None, None, *results, *[None] * len(results)


class _Attach(_AttachReverse):
    """The same in forward mode too (Dynamo refuses a Function that has a jvp)."""

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
        value, *moved = [
            x.unsqueeze(0) if dim is None else x.movedim(dim, 0)
            for x, dim in zip((value, *tensors), (in_dims[0], *in_dims[2:]), strict=True)
        ]
        value = value.expand((info.batch_size, *value.shape[1:]))
        return _attach(_Attach, value, moved[:count], moved[count:]), 0


def _contract(x: torch.Tensor, value_ndim: int) -> torch.Tensor:
    """Sum over all dimensions after those of the value."""
    return x.flatten(value_ndim).sum(-1) if x.ndim > value_ndim else x


def _attach_constants(
    value: torch.Tensor, xs: list[torch.Tensor], gs: list[torch.Tensor]
) -> torch.Tensor:
    """Return value + <g, x - stop_gradient(x)>: right to every order where g is constant."""
    for x, g in zip(xs, gs, strict=True):
        # At an infinite entry the difference would be inf - inf.
        dx = torch.where(torch.isfinite(x), x - x.detach(), 0)
        value = value + _contract(g * dx, value.ndim).to(value.dtype)
    return value
