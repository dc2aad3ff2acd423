"""Host functions with a compiled twin: on the CPU, XLA calls it without Python (``jax.ffi``).

A host function may have a method ``xla_call(args)``, with the (shape, dtype name) of one problem's
arguments, that returns None or an object with ``target``, ``handler``, ``attributes`` and
``operands(xp, *args)``. The twin takes leading batch dimensions, each of size 1 or B, as a
vectorized host function does, and gives the same results. With it a program can be exported, kept
in the persistent compilation cache, and waits for no Python thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .spec import Outputs

__all__ = ["compiled_twin", "register"]

_registered: dict[str, bool] = {}


def compiled_twin(
    fn: Any, avals: Sequence[Any], outs: Outputs, batch_ndim: int
) -> Callable[..., list[jax.Array]] | None:
    """Return a function of the arguments that calls the twin of `fn`, or None without one."""
    describe = getattr(fn, "xla_call", None)
    call = describe and describe([(x.shape[batch_ndim:], x.dtype.name) for x in avals])
    if call is None or not register(call.target, call.handler):
        return None
    batch = np.broadcast_shapes(*(x.shape[:batch_ndim] for x in avals))
    results = [
        jax.ShapeDtypeStruct(
            batch + s.shape, call.real if s.dtype.startswith("float") else jnp.dtype(s.dtype)
        )
        for s in outs.specs
    ]

    def twin(*args: jax.Array) -> list[jax.Array]:
        values = jax.ffi.ffi_call(call.target, results)(
            *call.operands(jnp, *args), **call.attributes
        )
        return [x.astype(s.dtype) for x, s in zip(values, outs.specs, strict=True)]

    return twin


def register(target: str, handler: Any) -> bool:
    """Make a handler known to XLA; False where it was built for a newer XLA than is running."""
    if target not in _registered:
        try:
            jax.ffi.register_ffi_target(target, handler, platform="cpu")
            _registered[target] = True
        except jax.errors.JaxRuntimeError:  # "API version ... is incompatible"
            _registered[target] = False
    return _registered[target]
