"""JAX: host calls and gradients by primitives of our own, under every transformation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import jax_rules
from .host_call import call_host_function
from .host_function import HostFunction
from .jax_attach import set_gradients
from .jax_closure import close_over
from .jax_extend import replicate, same_varying
from .jax_hostcall import host_call
from .rules import Rules
from .spec import ArraySpec, check_host_function, resolve_out

__all__ = ["BACKEND", "JaxBackend"]


class JaxBackend:
    """The `Backend` of JAX arrays and tracers."""

    name = "jax"
    xp: Any = jnp
    index_dtype = "int32"

    def registered(self, x: Any) -> tuple[list[Any], Any]:
        """Return the leaves of a container that is registered with JAX, and its PyTreeDef."""
        return jax.tree_util.tree_flatten(x)

    def tracks(self, *arrays: Any) -> bool:
        """Return whether any of the arrays is traced: concrete arrays are constants."""
        return any(isinstance(x, jax.core.Tracer) for x in arrays)

    def deferred(self, value: Any, inputs: Sequence[Any], rule: Any) -> Any:
        """Return ``rule(*inputs)``; of what it computes a compiler keeps what is used."""
        return rule(*inputs)

    def scatter_add(self, shape: tuple[int, ...], index: tuple[Any, ...], values: Any) -> Any:
        """Add `values` into zeros at `index`; see `Backend.scatter_add`."""
        return jnp.zeros(shape, values.dtype).at[index].add(values)

    def asarray(self, x: Any, like: Any = None, dtype: str | None = None) -> jax.Array:
        """Return `x` as a JAX array, copied where it was not one.

        Without ``jax_enable_x64`` a 64-bit `dtype` means its 32-bit kin, as everywhere in JAX. An
        array from elsewhere follows the others of a computation to their device by itself, so
        `like` is not needed here. An array that is split over *Explicit* mesh axes comes back whole
        on every device: a problem is solved as one.
        """
        wanted = None if dtype is None else jax.dtypes.canonicalize_dtype(jnp.dtype(dtype))
        if isinstance(x, jax.Array):
            whole: jax.Array = replicate(x)
            return whole if wanted is None or x.dtype == wanted else whole.astype(wanted)
        if isinstance(x, (np.ndarray, np.generic)) and wanted is None:
            # said explicitly: JAX warns where it has to narrow float64
            wanted = jax.dtypes.canonicalize_dtype(x.dtype)
        return jnp.array(x, dtype=wanted, copy=True)

    def dtype_name(self, x: Any) -> str:
        """Return the name of the dtype of `x`: ``"float32"``, ``"bfloat16"``, ``"int32"``..."""
        return str(jnp.result_type(x).name)

    def stop_gradient(self, x: Any) -> Any:
        """Return `x` (an array or a pytree) as a constant for all derivatives."""
        return jax.lax.stop_gradient(x)

    def replicated(self, x: jax.Array) -> Any:
        """Return `x` whole on every device where Explicit mesh axes split it, else `x` itself."""
        return replicate(x)

    def pycall(
        self, fn: Callable[..., Any], *args: Any, out: Any = None, vectorized: bool = False
    ) -> Any:
        """Call the NumPy function `fn`; see `Backend.pycall`.

        With concrete arrays (also under eager ``grad`` or ``vmap``) `fn` is called at once and its
        exceptions reach the caller. In a traced program it is called when the program runs, never
        for arrays that nobody uses, possibly in another thread; an exception then arrives as
        ``jax.errors.JaxRuntimeError`` with the message in it. `fn` must not call JAX.

        Where the program runs decides what one call sees: under ``jax.shard_map`` each device calls
        `fn` with its own shard; in a ``jit`` over sharded arrays there is one call with the whole.
        """
        if isinstance(fn, HostFunction):
            return call_host_function(self, fn, args, out)
        check_host_function(fn)
        arrays = [self.asarray(x) for x in args]
        specs = [ArraySpec(x.shape, x.dtype.name) for x in arrays]
        outs = resolve_out(out, specs)
        results = host_call(fn, arrays, outs, vectorized)
        return results[0] if outs.single else results

    def set_gradients(self, value: Any, inputs: Any, grads: Any) -> Any:
        """Return `value` with d value = sum <grads, d inputs> at every order; see `Backend`."""
        return set_gradients(value, inputs, grads)

    def jvp(self, f: Callable[..., Any], primals: Any, tangents: Any) -> tuple[Any, Any]:
        """Return ``f(*primals)`` and its derivative along `tangents`."""
        return jax.jvp(f, tuple(primals), _varying_like(tuple(tangents), tuple(primals)))

    def vjp(self, f: Callable[..., Any], *primals: Any) -> tuple[Any, Any]:
        """Return ``f(*primals)`` and the function from a cotangent to those of `primals`."""
        value, pull = jax.vjp(f, *primals)
        return value, lambda ct: pull(_varying_like(ct, value))

    def vmap(self, f: Callable[..., Any], in_axes: Any = 0) -> Callable[..., Any]:
        """Return `f` mapped over a dimension."""
        mapped: Callable[..., Any] = jax.vmap(f, in_axes)
        return mapped

    def close_over(self, f: Callable[..., Any], examples: Sequence[Any]) -> tuple[Any, list[Any]]:
        """Return g with ``g(captured, *args) = f(*args)``, and captured; see `Backend`."""
        return close_over(f, examples)

    def set_rules(self, values: Sequence[Any], args: Sequence[Any], rules: Rules) -> list[Any]:
        """Return the outputs among `values`, differentiable by `rules`; see `Backend`."""
        return jax_rules.set_rules(values, args, rules)


#: The only one.
BACKEND = JaxBackend()


def _varying_like(x: Any, like: Any) -> Any:
    # Inside jax.shard_map a constant is the same on all devices by its type, a value is not.
    return jax.tree_util.tree_map(lambda x, y: same_varying([x, y])[0], x, like)
