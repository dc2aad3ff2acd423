"""What a host call promises: specs, the call itself over a batch, and checks on its result.

Shared by the three backends; knows NumPy only.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import HostFunctionError

__all__ = [
    "ArraySpec",
    "Outputs",
    "check_host_function",
    "dtype_name",
    "host_dtype",
    "host_name",
    "resolve_out",
    "run_host",
]


@dataclass(frozen=True)
class ArraySpec:
    """Shape and dtype of an array, without the array.

    Parameters
    ----------
    shape : tuple of int
    dtype : str or dtype
        A name such as ``"float32"`` or ``"bfloat16"``; a framework's dtype is turned into one.
    """

    shape: tuple[int, ...]
    dtype: str

    def __post_init__(self) -> None:
        """Accept any sequence for the shape and any framework's dtype."""
        object.__setattr__(self, "shape", tuple(self.shape))
        object.__setattr__(self, "dtype", dtype_name(self.dtype))

    def __str__(self) -> str:
        """Return ``float32[2, 3]``."""
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Outputs:
    """The declared outputs of a host function; `single` means one array instead of a tuple."""

    specs: tuple[ArraySpec, ...]
    single: bool

    def __str__(self) -> str:
        """Return one spec, or a tuple of them."""
        if self.single:
            return str(self.specs[0])
        return f"({', '.join(map(str, self.specs))}{',' if len(self.specs) == 1 else ''})"


def dtype_name(dtype: Any) -> str:
    """Return the common name of a NumPy, JAX or Torch dtype: ``"float32"``, ``"bfloat16"``..."""
    if isinstance(dtype, str):
        if dtype in _USUAL_NAMES:
            return dtype
        # 'f4', 'double': NumPy's spellings; 'bfloat16' is a name that NumPy does not know.
        return _canonical_name(dtype)
    if isinstance(dtype, np.dtype):
        return dtype.name
    text = str(dtype)
    if text.startswith("torch."):
        return _canonical_name(text.removeprefix("torch."))
    return str(np.dtype(dtype).name)


#: Known without a look into the cache below, which Dynamo warns of where it traces an ArraySpec.
_USUAL_NAMES = frozenset(
    ["bool", "bfloat16", "float16", "float32", "float64", "complex64", "complex128"]
    + [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
)


@functools.lru_cache(maxsize=256)
def _canonical_name(name: str) -> str:
    try:
        return np.dtype(name).name
    except TypeError:
        return name


@functools.lru_cache(maxsize=256)
def host_dtype(name: str) -> np.dtype[Any]:
    """Return the dtype in which the host sees `name`: float32 for floats unknown to NumPy."""
    if name.startswith(("bfloat", "float8", "float6_", "float4")):
        return np.dtype(np.float32)
    return np.dtype(name)


def host_name(fn: Callable[..., Any]) -> str:
    """Return a name for `fn` that its author recognises."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    name = getattr(fn, "__host_name__", None) or getattr(fn, "__qualname__", None)
    name = name or type(fn).__qualname__
    return str(name)


def check_host_function(fn: Any) -> None:
    """Raise unless `fn` can be called and compared: equal functions share one compiled program.

    A host function may have a method ``prepare()``. It is called here, in the caller's own thread:
    an import inside a callback of a running program, say, may never end. One of this package's own
    may be ``trusted``: its results are then new arrays of the declared shapes, and unchecked.
    """
    if not callable(fn):
        raise TypeError(f"pycall: fn must be a function of NumPy arrays, but is {fn!r}")
    try:
        hash(fn)
    except TypeError as error:
        raise TypeError(
            f"pycall: the host function {host_name(fn)!r} is not hashable ({error}); use a plain "
            "function, or a frozen dataclass with __call__ whose fields are hashable"
        ) from error
    prepare = getattr(fn, "prepare", None)
    if callable(prepare):
        prepare()


def resolve_out(out: Any, args: Sequence[ArraySpec] = ()) -> Outputs:
    """Normalise the `out` of ``pycall``.

    Parameters
    ----------
    out : spec, or tuple or list of specs, or callable
        A spec is anything with ``shape`` and ``dtype``. A callable gets the specs of the arguments
        (of one problem, without batch dimensions) and returns one of the former.
    args : sequence of ArraySpec
    """
    if isinstance(out, Outputs):
        return out
    if callable(out) and not hasattr(out, "shape"):
        return resolve_out(out(*args), args)
    if isinstance(out, (tuple, list)) and not hasattr(out, "shape"):
        return Outputs(tuple(_one_spec(s) for s in out), single=False)
    return Outputs((_one_spec(out),), single=True)


def _one_spec(spec: Any) -> ArraySpec:
    if isinstance(spec, ArraySpec):
        return spec
    try:
        return ArraySpec(tuple(spec.shape), spec.dtype)
    except AttributeError:
        raise TypeError(
            "pycall: out must be an ArraySpec, anything with .shape and .dtype, a tuple of those, "
            f"or a function of the arguments' specs that returns one of these; it contains {spec!r}"
        ) from None


def run_host(
    fn: Callable[..., Any],
    arrays: Sequence[np.ndarray[Any, Any]],
    outs: Outputs,
    *,
    batch_ndim: int = 0,
    vectorized: bool = False,
    copy: bool = True,
) -> tuple[np.ndarray[Any, Any], ...]:
    """Call `fn` on NumPy arrays, over a batch where there is one, and check what it returns.

    Parameters
    ----------
    fn : callable
        ``fn(*arrays)`` returns an array (``outs.single``) or a tuple of arrays.
    arrays : sequence of ndarray
        They reach `fn` as read-only views (floats that NumPy has no type for as float32).
    outs : Outputs
        What one problem returns, without batch dimensions.
    batch_ndim : int
        Number of leading batch dimensions that *every* array has; they broadcast (size 1 or B).
    vectorized : bool
        Whether `fn` takes the batch as it is; otherwise it is called once per element.
    copy : bool
        Whether to return memory that nobody else holds. False where the caller copies anyway: the
        result may then be an argument, or a buffer that `fn` uses again.

    Returns
    -------
    tuple of ndarray
        Shape ``batch + spec.shape`` and dtype ``host_dtype(spec.dtype)`` for each spec.

    Raises
    ------
    HostFunctionError
        Where the result differs from `outs` in number, shape or kind of dtype, or holds integers
        that the declared dtype cannot.
    """
    views = [_read_only(x) for x in arrays]
    batch = np.broadcast_shapes(*(x.shape[:batch_ndim] for x in views)) if batch_ndim else ()
    if batch_ndim == 0 or (vectorized and 0 not in batch):
        return tuple(
            _convert(fn, outs, k, value, batch, copy)
            for k, value in enumerate(_as_tuple(fn, outs, fn(*views)))
        )
    views = [np.broadcast_to(x, batch + x.shape[batch_ndim:]) for x in views]
    results = tuple(np.empty(batch + s.shape, host_dtype(s.dtype)) for s in outs.specs)
    for index in np.ndindex(*batch):
        try:
            values = _as_tuple(fn, outs, fn(*(x[index] for x in views)))
            for k, value in enumerate(values):
                results[k][index] = _convert(fn, outs, k, value, (), False)
        except Exception as error:
            error.add_note(f"(batch element {index} of {batch} of {host_name(fn)!r})")
            raise
    return results


def _read_only(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    view = _native(np.asarray(x)).view()
    view.flags.writeable = False
    return view


def _native(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return `x` itself, or as float32 where its dtype is a float that NumPy only has as bytes."""
    return x.astype(host_dtype(x.dtype.name)) if x.dtype.kind == "V" else x


def _as_tuple(fn: Callable[..., Any], outs: Outputs, value: Any) -> Sequence[Any]:
    if outs.single:
        if isinstance(value, tuple):
            raise _violation(fn, outs, f"returned a tuple of {len(value)}")
        return (value,)
    if not isinstance(value, (tuple, list)):
        raise _violation(fn, outs, f"returned {_describe(value)}")
    if len(value) != len(outs.specs):
        raise _violation(fn, outs, f"returned {len(value)} outputs")
    return value


def _convert(
    fn: Callable[..., Any], outs: Outputs, k: int, value: Any, batch: tuple[int, ...], copy: bool
) -> np.ndarray[Any, Any]:
    spec, dtype = outs.specs[k], host_dtype(outs.specs[k].dtype)
    where = "" if outs.single else f" as output {k}"
    try:
        array = _native(np.asarray(value))
    except Exception as error:  # ragged lists, objects with a failing __array__, records
        raise _violation(fn, outs, f"returned {_describe(value)}{where}") from error
    if array.dtype.kind not in "biufc":  # None, text, objects
        raise _violation(fn, outs, f"returned {_describe(value)}{where}")
    if array.shape != batch + spec.shape:
        beside = f" for the batch {batch}" if batch else ""
        raise _violation(fn, outs, f"returned the shape {array.shape}{where}{beside}")
    if array.dtype == dtype:
        return np.array(array, order="C") if copy else array
    if np.can_cast(array.dtype, dtype):  # to a wider type: nothing to check
        return array.astype(dtype)
    if not np.can_cast(array.dtype, dtype, "same_kind"):
        raise _violation(fn, outs, f"returned {_describe(value)}{where}")
    with np.errstate(over="ignore"):  # a float too large for a narrower one is inf: a cast
        result = array.astype(dtype)
    if dtype.kind in "iu" and not np.array_equal(result, array):
        raise _violation(fn, outs, f"returned integers that do not fit into {dtype}{where}")
    return result


def _describe(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of dtype {value.dtype}"
    return f"{type(value).__name__} ({value!r:.60})" if value is not None else "None"


def _violation(fn: Callable[..., Any], outs: Outputs, what: str) -> HostFunctionError:
    return HostFunctionError(
        f"pycall: the host function {host_name(fn)!r} {what}; declared was out={outs}. Return "
        "arrays of exactly these shapes, in dtypes that cast to these within their kind"
    )
