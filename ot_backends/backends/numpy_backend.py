"""NumPy: nothing to trace and nothing to differentiate, the same interface."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import array_api_compat.numpy as xp
import numpy as np

from ..errors import NotDifferentiableError, UnsupportedTransformError
from .gradients import contraction, gradient_pairs
from .host_call import call_host_function
from .host_function import HostFunction
from .rules import Rules
from .spec import ArraySpec, check_host_function, resolve_out, run_host

__all__ = ["BACKEND", "NumpyBackend"]


_NAMES = {np.dtype(name): name for name in ("bool", "int32", "int64", "float32", "float64")}


class NumpyBackend:
    """The `Backend` of NumPy arrays, and of lists and scalars alone."""

    name = "numpy"
    xp: Any = xp
    index_dtype = "int32"

    def registered(self, x: Any) -> tuple[list[Any], Any]:
        """Return ``[x], None``: there is no registry of containers."""
        return [x], None

    def tracks(self, *arrays: Any) -> bool:
        """Return False: NumPy differentiates nothing."""
        return False

    def deferred(self, value: Any, inputs: Sequence[Any], rule: Any) -> Any:
        """Return `value`: nothing differentiates it."""
        return value

    def scatter_add(self, shape: tuple[int, ...], index: tuple[Any, ...], values: Any) -> Any:
        """Add `values` into zeros at `index`; see `Backend.scatter_add`."""
        result = np.zeros(shape, values.dtype)
        np.add.at(result, index, values)
        return result

    def asarray(self, x: Any, like: Any = None, dtype: str | None = None) -> np.ndarray[Any, Any]:
        """Return `x` as a NumPy array; `like` has nothing to say here."""
        return x if dtype is None and type(x) is np.ndarray else np.asarray(x, dtype=dtype)

    def dtype_name(self, x: Any) -> str:
        """Return the name of the dtype of `x`: ``"float32"``, ``"int64"``..."""
        dtype = x.dtype if isinstance(x, (np.ndarray, np.generic)) else np.asarray(x).dtype
        name = _NAMES.get(dtype)  # NumPy itself composes the name anew each time
        return str(dtype.name) if name is None else name

    def stop_gradient(self, x: Any) -> Any:
        """Return `x`."""
        return x

    def pycall(
        self, fn: Callable[..., Any], *args: Any, out: Any = None, vectorized: bool = False
    ) -> Any:
        """Call `fn` and check its result; see `Backend.pycall`."""
        if isinstance(fn, HostFunction):
            return call_host_function(self, fn, args, out)
        check_host_function(fn)
        arrays = [self.asarray(x) for x in args]
        if getattr(fn, "trusted", False):
            return tuple([x[()] for x in fn(*arrays)])
        outs = resolve_out(out, [ArraySpec(x.shape, x.dtype.name) for x in arrays])
        results = run_host(fn, arrays, outs, vectorized=vectorized)
        results = tuple(x[()] for x in results)  # a 0-d result is a number, as in NumPy itself
        return results[0] if outs.single else results

    def set_gradients(self, value: Any, inputs: Any, grads: Any) -> Any:
        """Return `value` (after the same checks as elsewhere); see `Backend.set_gradients`."""
        for x, g, where in gradient_pairs(inputs, grads):
            contraction(np.shape(value), np.shape(x), np.shape(g), where)
        return value

    def jvp(self, f: Callable[..., Any], primals: Any, tangents: Any) -> tuple[Any, Any]:
        """Raise: NumPy differentiates nothing."""
        raise NotDifferentiableError("NumPy has no derivatives: pass JAX arrays or Torch tensors")

    def vjp(self, f: Callable[..., Any], *primals: Any) -> tuple[Any, Any]:
        """Raise: NumPy differentiates nothing."""
        raise NotDifferentiableError("NumPy has no derivatives: pass JAX arrays or Torch tensors")

    def vmap(self, f: Callable[..., Any], in_axes: Any = 0) -> Callable[..., Any]:
        """Raise: NumPy maps nothing."""
        raise UnsupportedTransformError("NumPy has no vmap: pass JAX arrays or Torch tensors")

    def close_over(self, f: Callable[..., Any], examples: Sequence[Any]) -> tuple[Any, list[Any]]:
        """Return `f` as a function of nothing captured; see `Backend.close_over`."""
        return lambda captured, *args: f(*args), []

    def set_rules(self, values: Sequence[Any], args: Sequence[Any], rules: Rules) -> list[Any]:
        """Return the outputs among `values`."""
        return list(values[: rules.count])


#: The only one.
BACKEND = NumpyBackend()
