"""Host functions in Torch: one opaque operator that runs any of them, and its registry."""

from __future__ import annotations

import functools
import secrets
import weakref
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch.autograd import forward_ad

from ..errors import HostFunctionError, NotDifferentiableError
from .spec import (
    ArraySpec,
    Outputs,
    check_host_function,
    dtype_name,
    host_name,
    resolve_out,
    run_host,
)
from .torch_compat import (
    add_legacy_batch,
    below_autograd,
    knows_legacy_batches,
    legacy_batch_level,
    remove_legacy_batch,
)
from .torch_constants import constant, rebuild

__all__ = ["LIBRARY", "call", "lost_handle", "torch_dtype"]

# ---------------------------------------------------------------------------- the registry


class _Host:
    """A host function under the handle by which the operator, and a graph, refers to it."""

    def __init__(self, fn: Callable[..., Any], out: Any, vectorized: bool) -> None:
        self.fn, self.out, self.vectorized = fn, out, vectorized
        self.single = False  # whether `out` declares one array instead of a tuple
        # Random, since a compiled graph outlives this process in torch's cache on disk: a small
        # number there would name another function in the next process. A string, since Dynamo
        # would make a symbol of an integer.
        self.handle = secrets.token_hex(8)
        _HOSTS[self.handle] = self


# A handle lives as long as its host function: for one call in eager mode (a loop that makes
# functions must not fill the memory), and for ever once a graph was traced that refers to it.
_HOSTS: weakref.WeakValueDictionary[str, _Host] = weakref.WeakValueDictionary()
_TRACED: dict[str, _Host] = {}


@functools.lru_cache(maxsize=1024)
def _shared_host(fn: Callable[..., Any], out: Any, vectorized: bool) -> _Host:
    """Return one and the same for equal functions: to a compiler a new handle is a new program."""
    return _Host(fn, out, vectorized)


_Specs = tuple[tuple[tuple[int, ...], torch.dtype], ...]


def _declare(out: Any, args: _Specs) -> Outputs:
    """Return the outputs declared for arguments of these (shape, dtype), of one problem."""
    return resolve_out(out, [ArraySpec(shape, dtype_name(dtype)) for shape, dtype in args])


_declare_once = functools.lru_cache(maxsize=1024)(_declare)


def _find(handle: str) -> _Host:
    try:
        return _HOSTS[handle]
    except KeyError:
        raise lost_handle(handle) from None


def lost_handle(handle: str) -> HostFunctionError:
    """Return the error for a handle that this process does not know."""
    return HostFunctionError(
        f"pycall: no host function has the handle {handle!r} in this process; a graph that was "
        "compiled or exported with a host function in it runs only in the process that made it "
        "and in its forks: compile or export it again here"
    )


def _keep(host: _Host) -> _Host:
    """Keep a host function for the life of the process: a graph refers to it."""
    _TRACED[host.handle] = host
    return host


# ---------------------------------------------------------------------------- the operator

# CUDA graphs replay device work only, without the host function (the tag exists since torch 2.8).
_TAGS = [
    getattr(torch.Tag, name)
    for name in ("pt2_compliant_tag", "cudagraph_unsafe")
    if hasattr(torch.Tag, name)
]
LIBRARY = torch.library.Library("ot_backends", "FRAGMENT")
LIBRARY.define(
    # `batch_ndim` leading dimensions of every argument are batch dimensions, of size 1 or B.
    "pycall(Tensor[] args, str handle, int batch_ndim) -> Tensor[]",
    tags=_TAGS,
)
_PYCALL = torch.ops.ot_backends.pycall.default


def _run(args: list[torch.Tensor], handle: str, batch_ndim: int) -> list[torch.Tensor]:
    host, device = _find(handle), _device(args)
    outs = _declare_once(host.out, tuple([(x.shape[batch_ndim:], x.dtype) for x in args]))
    host.single = outs.single
    arrays = _to_host(args, device)
    if getattr(host.fn, "trusted", False):
        results = host.fn(*arrays)
    else:
        results = run_host(host.fn, arrays, outs, batch_ndim=batch_ndim, vectorized=host.vectorized)
    return [_to_device(x, s.dtype, device) for x, s in zip(results, outs.specs, strict=True)]


def _fake(args: list[torch.Tensor], handle: str, batch_ndim: int) -> list[torch.Tensor]:
    host = _keep(_find(handle))
    # Not from the cache: sizes may be symbols.
    outs = _declare(host.out, tuple([(tuple(x.shape[batch_ndim:]), x.dtype) for x in args]))
    host.single = outs.single
    batch = torch.broadcast_shapes(*[x.shape[:batch_ndim] for x in args]) if batch_ndim else ()
    device = _device(args)
    return [
        torch.empty((*batch, *s.shape), dtype=torch_dtype(s.dtype), device=device)
        for s in outs.specs
    ]


def _batch(
    info: Any, in_dims: tuple[Any, ...], args: list[torch.Tensor], handle: str, batch_ndim: int
) -> tuple[list[torch.Tensor], list[int]]:
    """Make the mapped dimension one more leading dimension: the batch reaches the host whole."""
    moved = [
        x.unsqueeze(0) if dim is None else x.movedim(dim, 0)
        for x, dim in zip(args, in_dims[0], strict=True)
    ]
    outs = _PYCALL(moved, handle, batch_ndim + 1)
    return outs, [0] * len(outs)


def _legacy_batch(args: list[torch.Tensor], handle: str, batch_ndim: int) -> list[torch.Tensor]:
    """Do the same for the older vmap of ``torch.autograd``."""
    level = legacy_batch_level()
    outs = _PYCALL([remove_legacy_batch(x, level) for x in args], handle, batch_ndim + 1)
    return [add_legacy_batch(y, level) for y in outs]


def _forbid_derivatives(args: Sequence[torch.Tensor], fn: Callable[..., Any]) -> None:
    """Raise where an argument carries a derivative at the current level of transforms."""
    recording = torch.is_grad_enabled()
    for k, x in enumerate(args):
        if recording and x.requires_grad:
            what = "requires grad"
        elif forward_ad.unpack_dual(x).tangent is not None:
            what = "has a forward-mode tangent"
        else:
            continue
        raise NotDifferentiableError(
            f"pycall: argument {k} of the host function {host_name(fn)!r} {what}, and a host "
            "function has no derivative. Pass stop_gradient(x), which is x.detach(), if none is "
            "wanted; set_gradients gives the result gradients"
        )


def _autograd(args: list[torch.Tensor], handle: str, batch_ndim: int) -> list[torch.Tensor]:
    # functorch comes through here once per level of grad and jvp, with the arguments as that
    # level sees them: so an outer level is checked too where an inner one hides it.
    _forbid_derivatives(args, _find(handle).fn)
    with below_autograd():
        return cast(list[torch.Tensor], _PYCALL(args, handle, batch_ndim))


LIBRARY.impl("pycall", _run, "CompositeExplicitAutograd")
torch.library.register_fake("ot_backends::pycall", _fake, lib=LIBRARY)
torch.library.register_vmap("ot_backends::pycall", _batch, lib=LIBRARY)
if knows_legacy_batches:
    LIBRARY.impl("pycall", _legacy_batch, "Batched")
if below_autograd is not None:
    LIBRARY.impl("pycall", _autograd, "Autograd")


# ---------------------------------------------------------------------------- the call


def call(
    fn: Callable[..., Any], args: list[torch.Tensor], out: Any, vectorized: bool
) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """Run `fn` on `args` through the operator, in eager mode and under every tracer."""
    if below_autograd is None:
        _forbid_derivatives(args, fn)
    if torch.compiler.is_compiling():
        handle = _constant_handle(*constant(fn), *constant(out), vectorized)
        results = _PYCALL(args, handle, 0)
        single = _constant_single(handle)
    else:
        out = out if callable(out) else resolve_out(out)
        # Of our own functions equal ones are the same; others may note or hold something.
        make = _shared_host if getattr(fn, "trusted", False) else _Host
        host = make(fn, out, vectorized)
        results = _PYCALL(args, host.handle, 0)
        single = host.single
    return cast(torch.Tensor, results[0]) if single else tuple(results)


# Dynamo runs the two functions below while it traces, and keeps their results: torch_constants.py.


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _constant_handle(
    fn: Any,
    fn_parts: Any,
    fn_guard: Any,
    out: Any,
    out_parts: Any,
    out_guard: Any,
    vectorized: bool,
) -> str:
    fn, out = rebuild(fn, fn_parts), rebuild(out, out_parts)
    check_host_function(fn)
    out = out if callable(out) else resolve_out(out)
    if fn_parts is None:  # by identity: equal objects may still differ in what they note or hold
        return _keep(_Host(fn, out, vectorized)).handle
    return _keep(_shared_host(fn, out, vectorized)).handle


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _constant_single(handle: str) -> bool:
    return _find(handle).single  # known: the fake kernel has just run


# ---------------------------------------------------------------------------- to NumPy and back

_DTYPES: dict[str, torch.dtype] = {
    str(x).removeprefix("torch."): x for x in vars(torch).values() if isinstance(x, torch.dtype)
}


def torch_dtype(name: str) -> torch.dtype:
    """Return the dtype with this name, such as ``"float32"``."""
    try:
        return _DTYPES[name]
    except KeyError:
        raise TypeError(f"Torch has no dtype {name!r}") from None


@functools.lru_cache(maxsize=64)
def _has_numpy_type(dtype: torch.dtype) -> bool:
    try:
        return torch.empty(0, dtype=dtype).numpy() is not None
    except TypeError:
        return False


_CPU = torch.device("cpu")


def _device(args: Sequence[torch.Tensor]) -> torch.device:
    """Return the device of the arguments; CPU tensors may stand beside those of one other."""
    devices = {x.device for x in args if not x.is_cpu}
    if len(devices) > 1:
        names = sorted(map(str, devices))
        raise ValueError(f"pycall: the arguments are on several devices: {names}")
    return devices.pop() if devices else _CPU


def _to_host(args: list[torch.Tensor], device: torch.device) -> list[np.ndarray[Any, Any]]:
    # Under no_grad an argument may still require grad. bfloat16 has no NumPy type.
    args = [x.detach() if x.requires_grad else x for x in args]
    args = [x if _has_numpy_type(x.dtype) else x.to(torch.float32) for x in args]
    if device.type == "cuda":
        with torch.cuda.device(device):
            args = [
                x
                if x.is_cpu
                else torch.empty(x.shape, dtype=x.dtype, pin_memory=True).copy_(
                    x, non_blocking=True
                )
                for x in args
            ]
            # Wait for these copies and what they depend on, not for other streams.
            torch.cuda.current_stream().record_event().synchronize()
    return [(x if x.is_cpu else x.cpu()).numpy() for x in args]


def _to_device(x: np.ndarray[Any, Any], dtype: str, device: torch.device) -> torch.Tensor:
    if x.dtype.kind in "iu":
        x = x.astype(dtype, copy=False)  # several times faster than Torch's cast
    tensor = torch.from_numpy(x)
    if device.type == "cuda":
        # The caching allocator keeps pinned memory until the copy from it has run.
        tensor = tensor.pin_memory().to(device, non_blocking=True)
    wanted = torch_dtype(dtype)
    if tensor.dtype is wanted and device is _CPU:
        return tensor
    return tensor.to(device=device, dtype=wanted)
