"""Host functions with rules in compiled code: an operator that Dynamo does not look into.

Dynamo refuses an ``autograd.Function`` with forward mode, and gets one inside nested torch.func
transforms wrong. So it sees one operator, and AOTAutograd, which runs what Dynamo recorded, level
by level of transforms, finds behind it the code that runs in eager mode, with the rules in it.
Neither the operator nor the rules are left in the compiled program, only opaque host calls and
array code. An exported program keeps the operator, until it is decomposed or run.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .host_call import declare
from .host_function import HostFunction
from .host_rules import BoundHost
from .select import load_backend
from .spec import ArraySpec, Outputs
from .torch_hostcall import LIBRARY, call, lost_handle
from .torch_rules import set_rules
from .trees import Tree, flatten

__all__ = ["call_traced"]


def call_traced(host: HostFunction, args: Sequence[Any]) -> Any:
    """Call `host` on trees of tensors while something is being compiled."""
    nx = load_backend("torch")
    leaves, in_tree = flatten(tuple(args))
    like = next((x for x in leaves if isinstance(x, torch.Tensor)), None)
    arrays = [nx.asarray(x, like) for x in leaves]
    if not (torch.compiler.is_dynamo_compiling() or torch.compiler.is_exporting()):
        # Inside of a rule that AOTAutograd runs.
        outputs, out_tree = _Out(host, in_tree).call(arrays)
        return out_tree.unflatten(outputs)
    handle = _constant_handle(host, _encode(in_tree))
    outputs = _CALL(arrays, handle)
    return _with_types(_constant_out_tree(handle)).unflatten(outputs)


@dataclass(frozen=True)
class _Out:
    """What the host function returns, as a function of its arguments' specs: of any sizes."""

    host: HostFunction
    in_tree: Tree

    def __call__(self, *specs: ArraySpec) -> Outputs:
        """Return the flat specs of outputs and residuals."""
        return self._declare(specs)[1]

    def _declare(self, specs: tuple[ArraySpec, ...]) -> tuple[BoundHost, Outputs]:
        return declare(self.host, self.in_tree, specs, load_backend("torch").registered)

    def call(self, args: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], Tree]:
        """Call the host function as eager code does, and return what it returns, flat."""
        nx, host = load_backend("torch"), self.host
        bound, _ = self._declare(tuple([ArraySpec(tuple(x.shape), nx.dtype_name(x)) for x in args]))
        # Without any rule the call stays opaque, and says so where it is differentiated.
        carried = bool(host.rules or host.constants)
        inputs = [x.detach() for x in args] if carried else list(args)
        # Declared by a function of the sizes, which may be symbols here.
        values = list(call(bound, inputs, self, host.vectorized))
        outputs = set_rules(values, args, bound) if carried else values[: bound.count]
        return outputs, bound.out_tree


# ---------------------------------------------------------------------------- the operator

# By handles that are random, since graphs outlive a process, and for the life of this one.
_CALLS: dict[str, _Out] = {}
_OUT_TREES: dict[str, Tree] = {}

LIBRARY.define(
    "host_function(Tensor[] args, str handle) -> Tensor[]", tags=(torch.Tag.pt2_compliant_tag,)
)
_CALL = torch.ops.ot_backends.host_function.default


def _run(args: list[torch.Tensor], handle: str) -> list[torch.Tensor]:
    """Run the call as eager code, in whatever mode or at whatever level of transforms."""
    try:
        out = _CALLS[handle]
    except KeyError:
        raise lost_handle(handle) from None
    outputs, _OUT_TREES[handle] = out.call(args)
    return outputs


LIBRARY.impl("host_function", _run, "CompositeImplicitAutograd")
# Above the levels of torch.func, of which each would otherwise take the call for itself: the
# autograd.Function inside has to meet them all, from the innermost on.
LIBRARY.impl("host_function", _run, "FuncTorchDynamicLayerFrontMode")


# Dynamo runs the decorated functions while it traces, and keeps what they return as constants.
# `host` comes from outside of what is traced, and is guarded by its identity. Trees are made inside
# and go through plain tuples, and on the way back without types, which cannot be constants.

_BUILTIN: dict[str, Any] = {
    "leaf": None,
    "none": type(None),
    "tuple": tuple,
    "list": list,
    "dict": dict,
}


class _Named:
    """NamedTuples as attributes, which Dynamo looks up when it comes to them."""


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _constant_handle(host: HostFunction, in_tree: tuple[Any, ...]) -> str:
    handle = secrets.token_hex(8)
    _CALLS[handle] = _Out(host, _decode(in_tree))
    return handle


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _constant_out_tree(handle: str) -> tuple[Any, ...]:
    return _without_types(_OUT_TREES[handle])  # known: the operator has just run on fake tensors


def _encode(tree: Tree) -> tuple[Any, ...]:
    return tree.kind, tree.keys, tuple([_encode(child) for child in tree.children]), tree.size


def _decode(parts: tuple[Any, ...]) -> Tree:
    kind, keys, children, size = parts
    return Tree(kind, keys, tuple([_decode(child) for child in children]), size)


def _without_types(tree: Tree) -> tuple[Any, ...]:
    name = next((name for name, kind in _BUILTIN.items() if kind is tree.kind), None)
    if name is None:
        name = f"{tree.kind.__name__}_{id(tree.kind)}"
        setattr(_Named, name, tree.kind)
    return name, tree.keys, tuple([_without_types(child) for child in tree.children]), tree.size


def _with_types(parts: tuple[Any, ...]) -> Tree:
    name, keys, children, size = parts
    kind = _BUILTIN[name] if name in _BUILTIN else getattr(_Named, name)
    return Tree(kind, keys, tuple([_with_types(child) for child in children]), size)
