"""Calling a host function that has rules: one opaque call, and the rules on what it returned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .host_function import HostFunction, as_spec
from .host_rules import BoundHost
from .spec import ArraySpec, Outputs
from .trees import Registered, Tree, flatten

__all__ = ["call_host_function", "declare"]


def call_host_function(nx: Any, host: HostFunction, args: Sequence[Any], out: Any = None) -> Any:
    """Call `host` on trees of arrays; what ``nx.pycall(host, *args)`` does on every backend."""
    if out is not None:
        raise TypeError(
            f"pycall: out must not be given for {host!r}, which declares its outputs itself"
        )
    leaves, in_tree = flatten(tuple(args), nx.registered)
    like = next((x for x in leaves if hasattr(x, "shape")), None)
    arrays = [nx.asarray(x, like) for x in leaves]
    specs = tuple(ArraySpec(tuple(x.shape), nx.dtype_name(x)) for x in arrays)
    bound, outs = declare(host, in_tree, specs, nx.registered)
    # Without any rule the call stays opaque, and says so where it is differentiated.
    carried = bool(host.rules or host.constants) and nx.tracks(*arrays)
    inputs = [nx.stop_gradient(x) for x in arrays] if carried else arrays
    values = nx.pycall(bound, *inputs, out=outs, vectorized=host.vectorized)
    if carried:
        values = nx.set_rules(values, arrays, bound)
    return bound.out_tree.unflatten(values[: bound.count])


def declare(
    host: HostFunction, in_tree: Tree, specs: tuple[ArraySpec, ...], registered: Registered | None
) -> tuple[BoundHost, Outputs]:
    """Return the call for arguments of this structure, and what it returns as flat specs."""
    # Remembered with the host function, so that one which is made in a loop can be forgotten.
    key = in_tree, specs, registered
    try:
        known: tuple[BoundHost, Outputs] | None = host.declared.get(key)
    except TypeError:  # sizes that are symbols, of a compiler, are not remembered
        return _declare(host, in_tree, specs, registered)
    if known is None:
        known = _declare(host, in_tree, specs, registered)
        if len(host.declared) >= 256:
            host.declared.clear()
        host.declared[key] = known
    return known


def _declare(
    host: HostFunction, in_tree: Tree, specs: tuple[ArraySpec, ...], registered: Registered | None
) -> tuple[BoundHost, Outputs]:
    args = in_tree.unflatten(specs)
    for argnum in (*host.constants, *(k for _, k in host.rules if k is not None)):
        if argnum >= len(args):
            raise TypeError(
                f"pycall: the host function {host.__host_name__!r} has a derivative rule for "
                f"argument {argnum}, but was called with {len(args)}"
            )
    out, out_tree = flatten(host.out(*args) if callable(host.out) else host.out, registered)
    residuals, residual_tree = host.residuals, None
    if residuals is not None:
        residuals = residuals(*args) if callable(residuals) else residuals
        residuals, residual_tree = flatten(residuals, registered)
    flat = tuple(as_spec(x) for x in (*out, *(residuals or ())))
    return BoundHost(host, in_tree, out_tree, residual_tree), Outputs(flat, single=False)
