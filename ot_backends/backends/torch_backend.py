"""The Torch backend: arrays, host calls, and gradients set by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.autograd import forward_ad

from ..errors import ProblemError, UnsupportedTransformError
from . import xp_torch
from .gradients import contraction, gradient_pairs
from .host_call import call_host_function
from .host_function import HostFunction
from .rule_on_host import HostRule
from .rules import Rules, no_derivative
from .spec import check_host_function
from .torch_attach import attach, defer
from .torch_compat import transforms_active
from .torch_hostcall import call, torch_dtype
from .torch_residuals import raising
from .torch_rules import set_rules
from .torch_traced import call_traced

__all__ = ["BACKEND", "TorchBackend"]

_NAMES: dict[torch.dtype, str] = {
    x: str(x).removeprefix("torch.") for x in vars(torch).values() if isinstance(x, torch.dtype)
}


class TorchBackend:
    """Host calls and gradients for Torch tensors, under autograd, torch.func and torch.compile."""

    name = "torch"
    xp: Any = xp_torch
    index_dtype = "int64"

    def registered(self, x: Any) -> tuple[list[Any], Any]:
        """Return ``[x], None``: torch has no public registry of containers."""
        return [x], None

    def tracks(self, *arrays: Any) -> bool:
        """Return whether anything may differentiate the tensors: autograd, torch.func, tracing."""
        if torch.compiler.is_compiling() or transforms_active():
            return True  # an outer level's derivative does not show on the tensor
        if torch.is_grad_enabled() and any(x.requires_grad for x in arrays):
            return True
        return _has_tangent(arrays)

    def deferred(self, value: torch.Tensor, inputs: Sequence[torch.Tensor], rule: Any) -> Any:
        """Return ``rule(*inputs)``; outside of transforms it is run in a double backward only."""
        if torch.compiler.is_compiling() or transforms_active() or _has_tangent(inputs):
            return rule(*inputs)
        return defer(value, inputs, rule)

    def scatter_add(self, shape: tuple[int, ...], index: tuple[Any, ...], values: Any) -> Any:
        """Add `values` into zeros at `index`; see `Backend.scatter_add`."""
        return values.new_zeros(shape).index_put(index, values, accumulate=True)

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
        self, fn: Callable[..., Any], *args: Any, out: Any = None, vectorized: bool = False
    ) -> Any:
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
        if isinstance(fn, HostFunction):
            if out is None and torch.compiler.is_compiling():
                return call_traced(fn, args)
            return call_host_function(self, fn, args, out)
        if not torch.compiler.is_compiling():
            check_host_function(fn)
        tensors = self._tensors(args)
        if isinstance(fn, HostRule) and self.tracks(*tensors):
            # A rule on the host: that its derivative, the next order, is asked for turns out later.
            results = call(fn, [x.detach() for x in tensors], out, vectorized)
            error = lambda forward: no_derivative(fn, fn.__no_derivative__)  # noqa: E731
            return tuple(raising(y, error, tensors) for y in results)
        return call(fn, tensors, out, vectorized)

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
        Where a compiled function has transforms of torch.func in it, an infinite entry of an input
        gets the gradient 0 there.
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
        return attach(bare, xs, gs)

    def jvp(self, f: Callable[..., Any], primals: Any, tangents: Any) -> tuple[Any, Any]:
        """Return ``f(*primals)`` and its derivative along `tangents`."""
        results: Any = torch.func.jvp(f, tuple(primals), tuple(tangents))
        return results[0], results[1]

    def vjp(self, f: Callable[..., Any], *primals: Any) -> tuple[Any, Any]:
        """Return ``f(*primals)`` and the function from a cotangent to those of `primals`."""
        results: Any = torch.func.vjp(f, *primals)
        value, pull = results

        def pull_back(ct: Any) -> tuple[Any, ...]:
            grads = pull(ct)
            # torch gives a bare tensor where there is one primal
            return grads if isinstance(grads, tuple) else (grads,)

        return value, pull_back

    def vmap(self, f: Callable[..., Any], in_axes: Any = 0) -> Callable[..., Any]:
        """Return `f` mapped over a dimension."""
        mapped: Callable[..., Any] = torch.func.vmap(f, in_axes)
        return mapped

    def close_over(self, f: Callable[..., Any], examples: Sequence[Any]) -> tuple[Any, list[Any]]:
        """Return `f` as a function of nothing captured; see `Backend.close_over`."""
        return lambda captured, *args: f(*args), []

    def set_rules(self, values: Sequence[Any], args: Sequence[Any], rules: Rules) -> list[Any]:
        """Return the outputs among `values`, differentiable by `rules`; see `Backend`."""
        if torch.compiler.is_dynamo_compiling() or torch.compiler.is_exporting():
            # Only a host function, which is made outside, is known to what AOTAutograd runs.
            raise UnsupportedTransformError(
                f"{rules.name}: its derivatives cannot be traced by torch.compile or torch.export "
                "here; wrap the function that calls it in torch.compiler.disable, or pass "
                "stop_gradient(x) for all that it depends on and set_gradients for the result"
            )
        return set_rules([x.detach() for x in values], list(args), rules)


#: The only one.
BACKEND = TorchBackend()


def _has_tangent(xs: Sequence[torch.Tensor]) -> bool:
    return any(forward_ad.unpack_dual(x).tangent is not None for x in xs)


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
