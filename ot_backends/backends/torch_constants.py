"""Host functions as constants of a traced Torch program: told by their fields, and rebuilt.

Dynamo runs a function that is marked ``assume_constant_result`` while it traces, and keeps what it
returned. What that depends on has to be guarded, or a compiled program would go on calling a former
host function: objects passed as arguments are guarded by identity, but a function only by its
code, so that two closures of one function look the same.
"""

from __future__ import annotations

import dataclasses
import types
from typing import Any

import numpy as np

from .spec import ArraySpec

__all__ = ["constant", "rebuild"]

# Functions by their types, since Dynamo does not let NumPy's be asked for attributes.
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, np.ufunc, type(np.cumsum))


def constant(x: Any) -> tuple[Any, Any, Any]:
    """Return what Dynamo needs to rebuild `x` as a constant: (object, its parts, a guard)."""
    if isinstance(x, types.FunctionType):
        return x, None, id(x)
    if isinstance(x, (int, float, str)):
        # As a key of a dictionary a number is specialised: Dynamo makes no symbol of it.
        return next(iter({x: None})), None, None
    if isinstance(x, (tuple, list)) and not hasattr(x, "_fields"):
        return tuple, tuple([constant(part) for part in x]), None
    if _is_value(x):
        # It may have been made in traced code, where the object does not exist.
        parts = [(name, *constant(getattr(x, name))) for name in _field_names(x)]
        return type(x), tuple(parts), None
    if not isinstance(x, _FUNCTIONS) and hasattr(x, "shape") and hasattr(x, "dtype"):
        shape = tuple([constant(size) for size in x.shape])
        dtype = str(x.dtype).removeprefix("torch.")
        return ArraySpec, (("shape", tuple, shape, None), ("dtype", dtype, None, None)), None
    return x, None, None


def _is_value(x: Any) -> bool:
    """Whether `x` is a dataclass or NamedTuple of constants, which its fields tell and rebuild."""
    if isinstance(x, tuple):
        return hasattr(x, "_fields") and all(_is_constant(part) for part in x)
    if isinstance(x, (type, *_FUNCTIONS)) or not dataclasses.is_dataclass(x):
        return False
    if not all(field.compare or not field.init for field in dataclasses.fields(x)):
        return False  # it holds something that its equality does not speak of
    return all(_is_constant(getattr(x, name)) for name in _field_names(x))


def _is_constant(x: Any) -> bool:
    if isinstance(x, tuple) and not hasattr(x, "_fields"):
        return all(_is_constant(part) for part in x)
    return x is None or isinstance(x, (int, float, str, types.FunctionType)) or _is_value(x)


def _field_names(x: Any) -> list[str]:
    if isinstance(x, tuple):
        return list(x._fields)  # type: ignore[attr-defined]
    return [field.name for field in dataclasses.fields(x) if field.init]


def rebuild(x: Any, parts: Any) -> Any:
    """Return the object that `constant` told of."""
    if parts is None:
        return x
    if x is tuple:
        return tuple(rebuild(*part[:2]) for part in parts)
    return x(**{name: rebuild(value, inner) for name, value, inner, _ in parts})
