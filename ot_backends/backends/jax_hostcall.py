"""A host function as one JAX primitive: eager, traced, batched, and without a derivative."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from ..errors import HostFunctionError, UnsupportedTransformError
from .jax_extend import (
    Primitive,
    ad,
    batching,
    explicit_spec,
    has_tangent,
    output_types,
    register_host_lowering,
    same_varying,
    zero_tangent,
)
from .jax_ffi import compiled_twin
from .rules import no_derivative
from .spec import ArraySpec, Outputs, host_name, run_host

__all__ = ["host_call"]


def host_call(
    fn: Callable[..., Any], args: Sequence[jax.Array], outs: Outputs, vectorized: bool
) -> tuple[jax.Array, ...]:
    """Call ``fn(*numpy_arrays)`` from JAX code; see ``JaxBackend.pycall``.

    Outputs are cast to what JAX allows now: without ``jax_enable_x64``, float64 becomes float32.
    """
    specs = tuple(ArraySpec(s.shape, _allowed(s.dtype).name) for s in outs.specs)
    return tuple(
        host_call_p.bind(
            *same_varying(args),
            fn=fn,
            outs=Outputs(specs, outs.single),
            batch_ndim=0,
            vectorized=vectorized,
        )
    )


def _allowed(name: str) -> np.dtype[Any]:
    return np.dtype(jax.dtypes.canonicalize_dtype(jnp.dtype(name)))


# Parameters: fn, outs (specs of one problem), batch_ndim (leading dimensions that vmap added, on
# every argument, of size 1 or B) and vectorized. All compare by value: equal calls, equal programs.
host_call_p = Primitive("ot_backends_host_call")
host_call_p.multiple_results = True


def _call(
    arrays: Sequence[np.ndarray[Any, Any]],
    *,
    fn: Callable[..., Any],
    outs: Outputs,
    batch_ndim: int,
    vectorized: bool,
    copy: bool,
) -> list[np.ndarray[Any, Any]]:
    results = run_host(fn, arrays, outs, batch_ndim=batch_ndim, vectorized=vectorized, copy=copy)
    # NumPy computes in float32 for bfloat16 and its kin.
    return [
        r.astype(jnp.dtype(s.dtype), copy=False) for r, s in zip(results, outs.specs, strict=True)
    ]


def _impl(*args: jax.Array, **params: Any) -> list[jax.Array]:
    # Concrete arrays: no program to compile, and an exception of fn is the one that the user sees.
    # The memory is ours alone (copy=True), so that JAX may use it without copying again.
    results = _call([np.asarray(x) for x in args], copy=True, **params)
    # A constant in a program that runs eagerly (a jaxpr, disable_jit) is no jax.Array.
    args = tuple(x if isinstance(x, jax.Array) else jnp.asarray(x) for x in args)
    mesh = next((x.sharding.mesh for x in args if isinstance(x.sharding, NamedSharding)), None)
    if mesh is not None:  # spread over several devices: as a traced call types its outputs
        types = _abstract_eval(*map(jax.typeof, args), **params)
        places = [NamedSharding(mesh, t.sharding.spec) for t in types]
        return [jax.device_put(r, place) for r, place in zip(results, places, strict=True)]
    pinned = next((x.sharding for x in args if x.committed), None)
    return [jnp.asarray(r) if pinned is None else jax.device_put(r, pinned) for r in results]


host_call_p.def_impl(_impl)


def _abstract_eval(*avals: Any, outs: Outputs, batch_ndim: int, **_: Any) -> list[Any]:
    batch = np.broadcast_shapes(*(a.shape[:batch_ndim] for a in avals))
    return output_types(
        [(batch + s.shape, jnp.dtype(s.dtype)) for s in outs.specs], avals, batch_ndim
    )


host_call_p.def_abstract_eval(_abstract_eval)


def _batch(args: Sequence[Any], dims: Sequence[int | None], **params: Any) -> tuple[Any, Any]:
    # One more leading dimension on every argument; of size 1 where the argument is shared.
    _check_explicit_axes(args, dims, params["fn"])
    front = [
        jnp.expand_dims(x, 0) if d is None else jnp.moveaxis(x, d, 0)
        for x, d in zip(args, dims, strict=True)
    ]
    params["batch_ndim"] += 1
    outs = host_call_p.bind(*front, **params)
    return outs, [0] * len(outs)


batching.primitive_batchers[host_call_p] = _batch


def _check_explicit_axes(
    args: Sequence[Any], dims: Sequence[int | None], fn: Callable[..., Any]
) -> None:
    # JAX cannot index a shared array by indices that are split over Explicit axes, as every use of
    # a basis does; said here, where the reason is known.
    split = [
        d is not None and explicit_spec(x)[d] is not None for x, d in zip(args, dims, strict=True)
    ]
    if any(split) and not all(split):
        raise UnsupportedTransformError(
            f"{host_name(fn)}: jax.vmap over a dimension that Explicit mesh axes split needs every "
            f"argument split like that, but only {sum(split)} of {len(split)} are. Use "
            "jax.shard_map over the mesh (each device then solves its own problems), pass the "
            "batch to ot_backends.solve without vmap, or make the mesh axes Auto"
        )


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    for position, (x, dx) in enumerate(zip(primals, tangents, strict=True)):
        if has_tangent(x, dx):
            raise no_derivative(
                params["fn"],
                f"pycall: the host function {host_name(params['fn'])!r} has no derivative, but its "
                f"argument {position} ({jax.typeof(x)}) is being differentiated. If it is meant "
                "as a constant, pass stop_gradient(x); otherwise give it derivative rules with "
                "ot_backends.host_function, or its result gradients with set_gradients",
            )
    outs = host_call_p.bind(*primals, **params)
    return outs, [zero_tangent(y) for y in outs]


ad.primitive_jvps[host_call_p] = _jvp


def _transpose(cotangents: Any, *args: Any, **params: Any) -> Any:
    raise no_derivative(
        params["fn"],
        f"pycall: the host function {host_name(params['fn'])!r} cannot be transposed: it is opaque",
    )


ad.primitive_transposes[host_call_p] = _transpose


def _callback(avals_in: Sequence[tuple[Any, Any]], **params: Any) -> Callable[..., Any]:
    def callback(*args: Any) -> list[np.ndarray[Any, Any]]:
        arrays = [np.asarray(x) for x in args]
        for position, (x, (_, dtype)) in enumerate(zip(arrays, avals_in, strict=True)):
            if x.dtype != dtype:  # jax.pure_callback in a thread that doesn't know of enable_x64
                raise HostFunctionError(
                    f"pycall: JAX handed argument {position} of {host_name(params['fn'])!r} over "
                    f"as {x.dtype} instead of {dtype}; set jax_enable_x64 for the whole program "
                    "with jax.config.update, not by a context manager"
                )
        # XLA copies the results into its own buffers.
        return _call(arrays, copy=False, **params)

    return callback


def _twin(
    avals_in: Sequence[Any], *, fn: Any, outs: Outputs, batch_ndim: int, vectorized: bool
) -> Callable[..., list[jax.Array]] | None:
    return compiled_twin(fn, avals_in, outs, batch_ndim) if vectorized else None


register_host_lowering(host_call_p, _callback, _twin)
