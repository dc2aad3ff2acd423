"""The native kernel as a custom call of XLA: no Python, GIL or callback thread in the program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .solution import Options

try:
    from . import _kernel_ffi
except ImportError:  # no compiler, or no headers of XLA, at installation
    _kernel_ffi = None  # type: ignore[assignment]

__all__ = ["TARGET", "XlaCall", "available", "handler", "xla_call"]

TARGET = "ot_backends_solve"

#: Floats that the handler's one type may hold without loss, by that type.
_NARROWER = {
    "float32": ("float32", "float16", "bfloat16"),
    "float64": ("float64", "float32", "float16", "bfloat16"),
}


class XlaCall(NamedTuple):
    """What a framework on XLA needs to call a host function's compiled twin on the CPU.

    The results are those of the host function, in its order.
    """

    target: str
    handler: Any  # a capsule, to be registered under the name of the target
    attributes: dict[str, Any]
    real: str  # type of the operands and of the real results

    def operands(self, xp: Any, a: Any, b: Any, M: Any, start: Any = None) -> list[Any]:
        """Return the operands of the custom call for the arguments of the host function."""
        dtype = getattr(xp, self.real)
        if start is None or not xp.isdtype(start.dtype, "integral"):
            start = xp.full((*[1] * (M.ndim - 2), sum(M.shape[-2:])), -1, dtype=xp.int32)  # cold
        return [*(xp.astype(x, dtype) for x in (M, a, b)), xp.astype(start, xp.int32)]


def available() -> bool:
    """Return whether the custom call was built."""
    return _kernel_ffi is not None


def handler() -> Any:
    """Return the capsule to register under the name TARGET, or None where it was not built."""
    return None if _kernel_ffi is None else _kernel_ffi.handler


def xla_call(
    args: Sequence[tuple[tuple[int, ...], str]], options: Options, threads: int
) -> XlaCall | None:
    """Describe the call for arguments (shape, dtype name), or None where it cannot take them."""
    if _kernel_ffi is None:
        return None
    (_, a), (_, b), (shape, M) = args[:3]
    real = "float32" if M in ("float16", "bfloat16") else M
    if not {a, b} <= set(_NARROWER.get(real, ())):
        return None
    size = sum(shape[-2:])
    tolerance = options.mass_tolerance(size)
    attributes = {
        "threads": np.int64(threads),
        "max_pivots": np.int64(options.max_iterations or 0),
        "time_limit": np.float64(options.time_limit or 0.0),
        "balance": np.float64(tolerance),
        "mass_tolerance": np.float64(tolerance if options.check_marginals else -1.0),
        "rounding": np.float64(options.rounding(size)),
    }
    return XlaCall(TARGET, _kernel_ffi.handler, attributes, real)
