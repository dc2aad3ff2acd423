"""Which framework do these arrays belong to? Looks only at frameworks that are already imported."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import MissingBackendError, MixedBackendsError

if TYPE_CHECKING:
    from . import Backend

__all__ = ["get_backend", "load_backend"]

_kinds: dict[type, str] = {}
_NEUTRAL = "neutral"  # lists and scalars: at home beside any array


def get_backend(*arrays: Any) -> Backend:
    """Return the backend of the arrays' framework.

    Parameters
    ----------
    *arrays : array, list, scalar or None
        JAX arrays and tracers, Torch tensors (subclasses and ``torch.func``'s wrappers too), NumPy
        arrays. None is ignored. Python scalars, NumPy scalars, and lists and tuples of them may
        stand beside any array; a NumPy array may stand beside a JAX array, as in ``jax.numpy``
        itself, but not beside a Torch tensor. Without any array the backend is NumPy's.

    Returns
    -------
    Backend
        One object per framework, the same every time.

    Raises
    ------
    MixedBackendsError
        For JAX with Torch, or NumPy with Torch.
    TypeError
        For an argument that is no array.

    Examples
    --------
    >>> import numpy as np
    >>> from ot_backends import get_backend
    >>> get_backend(np.ones(3), [0.5, 0.5], None).name
    'numpy'
    """
    kinds = {_kind(x) for x in arrays if x is not None}
    kinds.discard(_NEUTRAL)
    if "torch" in kinds and len(kinds) > 1:
        raise _mixed(arrays)
    return load_backend("jax" if "jax" in kinds else "torch" if "torch" in kinds else "numpy")


def load_backend(name: str) -> Backend:
    """Return the backend called `name` ("numpy", "jax" or "torch"), importing its framework."""
    # Import statements, which Dynamo executes where a first call is inside torch.compile, and no
    # cache of our own, which would make it compile the second call again.
    try:
        if name == "numpy":
            from .numpy_backend import BACKEND as numpy_backend

            return numpy_backend
        if name == "jax":
            from .jax_backend import BACKEND as jax_backend

            return jax_backend
        if name == "torch":
            from .torch_backend import BACKEND as torch_backend

            return torch_backend
    except ImportError as error:
        raise MissingBackendError(
            f"the {name} backend needs {name}, which cannot be imported ({error}); "
            f'pip install "ot_backends[{name}]"'
        ) from error
    raise ValueError(f"backend: must be one of 'numpy', 'jax', 'torch', but is {name!r}")


def _kind(x: Any) -> str:
    # First and without the cache: a program of torch.compile is bound to all that it looked at.
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return "torch"
    kind = _kinds.get(type(x))
    if kind is None:
        if isinstance(x, (list, tuple)):
            return _kind_of_sequence(x)  # by content, so not cached
        kind = _kinds[type(x)] = _classify(x)
    return kind


def _classify(x: Any) -> str:
    # A framework that is not imported cannot have made x. jax.Array also says yes to tracers.
    jax = sys.modules.get("jax")
    if isinstance(x, (bool, int, float, complex, np.generic)):
        return _NEUTRAL
    if jax is not None and (isinstance(x, jax.Array) or hasattr(x, "__jax_array__")):
        return "jax"
    if isinstance(x, np.ndarray) or hasattr(x, "__array__"):
        return "numpy"
    raise TypeError(
        f"expected a NumPy array, a JAX array, a Torch tensor, or a list or scalar of numbers, but "
        f"got {type(x).__module__}.{type(x).__qualname__}"
    )


def _kind_of_sequence(x: list[Any] | tuple[Any, ...]) -> str:
    # One representative per type is enough, except for nested sequences.
    flat = {type(e): e for e in x if e is not None and not isinstance(e, (list, tuple))}.values()
    nested = [e for e in x if isinstance(e, (list, tuple))]
    kinds = {_kind(e) for e in [*flat, *nested]} - {_NEUTRAL}
    if "torch" in kinds and len(kinds) > 1:
        raise _mixed(x)
    return "jax" if "jax" in kinds else kinds.pop() if kinds else _NEUTRAL


def _mixed(arrays: Any) -> MixedBackendsError:
    types = ", ".join(f"{type(x).__module__}.{type(x).__qualname__}" for x in arrays)
    return MixedBackendsError(
        f"the arrays must belong to one framework, but their types are {types}; convert them to "
        "one (only lists, scalars and None go with Torch tensors)"
    )
