"""The only place that uses names outside JAX's public API, each with what replaces it.

Tested with JAX 0.6.2 and 0.10.2. Three groups of names:

- ``jax.extend.core.Primitive`` and ``.jaxpr_as_fun``, ``jax.interpreters.ad`` and ``.batching``,
  and ``jax.core.ShapedArray``: how a primitive gets its rules. There is no substitute: without them
  the import fails, by name.
- ``jax.interpreters.mlir.emit_python_callback``: a host callback that hands NumPy arrays to Python.
  ``jax.pure_callback`` puts its arguments on a device first, and that waits for a thread pool whose
  threads may all be waiting for this very callback. Where the name is missing or its signature
  changed, ``jax.pure_callback`` is used after all.
- the type of an array inside ``jax.shard_map``, and its sharding under Explicit mesh axes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from ..errors import MissingBackendError, UnsupportedTransformError

try:
    from jax.core import ShapedArray
    from jax.extend.core import Primitive, jaxpr_as_fun
    from jax.interpreters import ad, batching, mlir
except ImportError as error:
    raise MissingBackendError(
        f"ot_backends cannot extend JAX {jax.__version__} ({error}); it is tested with JAX 0.6.2 "
        'to 0.10.2: pip install "ot_backends[jax]"'
    ) from error

__all__ = [
    "Primitive",
    "ad",
    "batching",
    "explicit_spec",
    "has_tangent",
    "jaxpr_as_fun",
    "mlir",
    "output_types",
    "register_host_lowering",
    "replicate",
    "same_varying",
    "zero_tangent",
]

Avals = Sequence[Any]
_jax: Any = jax  # for names that not every version has


def has_tangent(primal: Any, tangent: Any) -> bool:
    """Whether `tangent` is anything but a symbolic zero (integers never have one)."""
    return not isinstance(tangent, ad.Zero) and bool(
        jax.numpy.issubdtype(primal.dtype, jax.numpy.inexact)
    )


def zero_tangent(primal: Any) -> Any:
    """Return the symbolic zero tangent of `primal`."""
    return ad.Zero(jax.typeof(primal).to_tangent_aval())


def _varying(aval: Any) -> frozenset[Any]:
    # The mesh axes of an enclosing shard_map over which this value differs from device to device:
    # `vma` up to JAX 0.9, `mat.varying` since 0.10.
    manual = getattr(aval, "mat", None)
    return frozenset(getattr(manual, "varying", None) or getattr(aval, "vma", None) or ())


def same_varying(arrays: Sequence[Any]) -> list[Any]:
    """Give all arrays the union of their varying mesh axes, as every JAX operation does first.

    Under ``jax.shard_map(check_vma=True)`` an output of a primitive has the type that its rule
    says. Typed as equal on all devices while it isn't, it loses the ``psum`` over the devices from
    its gradient, silently.
    """
    axes = [_varying(jax.typeof(x)) for x in arrays]
    union = frozenset().union(*axes)
    return [_cast(x, tuple(union - has)) for x, has in zip(arrays, axes, strict=True)]


def _cast(x: Any, axes: tuple[Any, ...]) -> Any:
    if not axes:
        return x
    if hasattr(jax.lax, "pcast"):
        return jax.lax.pcast(x, axes, to="varying")
    return _jax.lax.pvary(x, axes)


def explicit_spec(x: Any) -> tuple[Any, ...]:
    """Return the *Explicit* mesh axes that split each dimension of `x`; None where none do."""
    sharding = getattr(jax.typeof(x), "sharding", None)
    return (None,) * x.ndim if sharding is None else tuple(sharding.spec)


def replicate(x: Any) -> Any:
    """Return `x` whole on every device where *Explicit* mesh axes split it, else `x` itself."""
    if not any(explicit_spec(x)):
        return x
    if not hasattr(jax.sharding, "reshard"):
        raise UnsupportedTransformError(
            f"an array is split over Explicit mesh axes, which JAX {jax.__version__} cannot undo; "
            "make the axes Auto, use jax.shard_map, or a newer JAX"
        )
    sharding = jax.typeof(x).sharding
    whole = jax.sharding.NamedSharding(sharding.mesh, jax.sharding.PartitionSpec(*[None] * x.ndim))
    return jax.sharding.reshard(x, whole)


def output_types(
    shapes: Sequence[tuple[tuple[int, ...], Any]], avals: Avals, batch_ndim: int
) -> list[Any]:
    """Return the types of outputs that are computed from all of `avals`.

    They vary over the mesh axes that any input varies over. Under Explicit mesh axes the leading
    `batch_ndim` dimensions are split as the inputs' are, the others whole.
    """
    if not avals:
        return [ShapedArray(shape, dtype) for shape, dtype in shapes]
    like = max(avals, key=lambda a: (len(_varying(a)), not a.sharding.mesh.empty))
    split = [
        next((a.sharding.spec[d] for a in avals if a.sharding.spec[d] is not None), None)
        for d in range(batch_ndim)
    ]
    spec: Any = jax.sharding.PartitionSpec
    return [
        like.update(
            shape=shape,
            dtype=np.dtype(dtype),
            weak_type=False,
            sharding=jax.sharding.NamedSharding(
                like.sharding.mesh, spec(*split, *[None] * (len(shape) - batch_ndim))
            ),
        )
        for shape, dtype in shapes
    ]


def register_host_lowering(
    primitive: Any,
    callback_of: Callable[..., Callable[..., Sequence[Any]]],
    twin_of: Callable[..., Callable[..., Sequence[Any]] | None],
) -> None:
    """Lower `primitive` to one call of ``callback_of(avals_in, **params)`` on NumPy arrays.

    On the CPU, ``twin_of(avals_in, **params)`` may give a function of JAX arrays to use instead.
    """

    def by_public_callback(*args: Any, **params: Any) -> list[Any]:
        avals = [jax.typeof(x) for x in args]
        outs = primitive.abstract_eval(*avals, **params)[0]
        shapes = tuple(jax.ShapeDtypeStruct(o.shape, o.dtype) for o in outs)
        callback = callback_of([(a.shape, a.dtype) for a in avals], **params)
        return list(jax.pure_callback(callback, shapes, *args))

    fallback = mlir.lower_fun(by_public_callback, multiple_results=True)

    def lowering(ctx: Any, *args: Any, **params: Any) -> Any:
        if not CAN_EMIT:
            return fallback(ctx, *args, **params)
        _check_manual_axes(ctx.module_context.axis_context)
        callback = callback_of([(a.shape, a.dtype) for a in ctx.avals_in], **params)
        results, *_ = mlir.emit_python_callback(
            ctx,
            _ReturnsExactTypes(callback, bool(_jax.config.jax_enable_x64)),
            None,
            list(args),
            ctx.avals_in,
            ctx.avals_out,
            has_side_effect=False,
            **_NO_TOKEN,
        )
        if getattr(ctx.module_context.axis_context, "num_devices", 1) > 1 and results:
            _run_on_first_device(results)
        return results

    def cpu_lowering(ctx: Any, *args: Any, **params: Any) -> Any:
        # Over the global arrays of several devices a custom call would run whole on each of them.
        shared = getattr(ctx.module_context.axis_context, "num_devices", 1) > 1
        twin = None if shared else twin_of(ctx.avals_in, **params)
        if twin is None:
            return lowering(ctx, *args, **params)
        return mlir.lower_fun(twin, multiple_results=True)(ctx, *args)

    # Each lowering registers its own callback with the program; JAX may not reuse an earlier one.
    once: dict[str, Any] = (
        {"cacheable": False} if _takes(mlir.register_lowering, "cacheable") else {}
    )
    mlir.register_lowering(primitive, lowering, **once)
    mlir.register_lowering(primitive, cpu_lowering, platform="cpu", **once)


def _takes(function: Any, *names: str) -> bool:
    return set(names) <= set(inspect.signature(function).parameters)


CAN_EMIT = hasattr(mlir, "emit_python_callback") and _takes(
    mlir.emit_python_callback, "operands", "operand_avals", "result_avals", "has_side_effect"
)
_NO_TOKEN: dict[str, Any] = (
    {"returns_token": False}
    if CAN_EMIT and _takes(mlir.emit_python_callback, "returns_token")
    else {}
)


def _check_manual_axes(context: Any) -> None:
    # XLA's older partitioner ends the process at a callback that some mesh axes split by hand (in
    # jax.shard_map) and others by themselves; Shardy, the default since JAX 0.7, takes it.
    manual = getattr(context, "manual_axes", ())
    axes = context.mesh.axis_names if manual else ()
    if set(manual) != set(axes) and not _jax.config.jax_use_shardy_partitioner:
        raise UnsupportedTransformError(
            f"jax.shard_map over some axes of a mesh ({', '.join(map(str, manual))} of "
            f"{', '.join(map(str, axes))}) cannot hold a host call in JAX {jax.__version__}: leave "
            "out axis_names, or set jax_use_shardy_partitioner"
        )


def _run_on_first_device(results: Sequence[Any]) -> None:
    # In a jit over several devices, arrays are global. Without a note on the operation every device
    # would run the host function on the whole input; this one gathers to device 0 and runs it once.
    operation = results[0].owner
    if _jax.config.jax_use_shardy_partitioner:
        one = "<mesh<[], device_ids=[0]>, []>"
        text = f"#sdy.sharding_per_value<[{', '.join([one] * len(results))}]>"
        operation.attributes["sdy.sharding"] = mlir.ir.Attribute.parse(text)
    else:
        text = "{maximal device=0}"
        operation.attributes["mhlo.sharding"] = mlir.ir.StringAttr.get(text)


class _ReturnsExactTypes:
    """Callback whose 64-bit results survive in a thread that does not know of ``jax_enable_x64``.

    JAX casts what a callback returns to the types that are allowed in the current thread. In one of
    XLA's threads a ``with jax.enable_x64(True):`` around the call is unknown, and the cast makes
    float32 of float64. So the context is entered again while JAX iterates over the results.
    """

    def __init__(self, callback: Callable[..., Sequence[Any]], x64: bool) -> None:
        self.callback, self.x64 = callback, x64

    def __call__(self, *args: Any) -> Any:
        results = self.callback(*args)
        return _Within64(results) if self.x64 else results


class _Within64(Sequence[Any]):
    def __init__(self, results: Sequence[Any]) -> None:
        self.results = results

    def __len__(self) -> int:
        return len(self.results)

    def __getitem__(self, index: Any) -> Any:
        return self.results[index]

    def __iter__(self) -> Iterator[Any]:
        with _enable_x64(True):
            yield from self.results


def _enable_x64(value: bool) -> Any:
    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(value)
    return _jax.experimental.enable_x64(value)
