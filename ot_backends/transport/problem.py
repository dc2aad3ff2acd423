"""From the caller's arrays to one host call: types, defaults, and what the host returned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from ..backends import ArraySpec, Backend, get_backend
from ..basis import device_of
from ..errors import MixedBackendsError, ProblemError
from ..host import HostSolve, Options, check_shapes

Array = Any

#: Types too narrow to compute in: their own cumulative sums lose everything (0.07 at n = 256).
_CARRIED_AS_FLOAT32 = ("float16", "bfloat16")


class Optimum(NamedTuple):
    """What the host returns, as arrays of the framework: no derivatives yet.

    Fields and shapes are those of ``ot_backends.host.Solution``, cast to the carried type.
    """

    value: Array
    u: Array
    v: Array
    flow: Array
    rows: Array
    cols: Array
    order: Array
    size: Array
    virtual: Array
    basis: Array
    dual: Array
    violation: Array
    iterations: Array


@dataclass(frozen=True)
class SolutionSpec:
    """Shapes and types of the host's outputs, from those of its inputs (``out`` of ``pycall``)."""

    dtype: str
    index: str

    def __call__(self, a: Any, b: Any, M: Any, start: Any = None) -> tuple[ArraySpec, ...]:
        """Return the specs in the order of ``Optimum``."""
        start_shape = None if start is None else start.shape
        batch, n, m = check_shapes(a.shape, b.shape, M.shape, start_shape)
        scalar, edges, nodes = batch, (*batch, n + m - 1), (*batch, n + m)
        u, v = (*batch, n), (*batch, m)
        real, index = self.dtype, self.index
        fields = Optimum(
            value=(scalar, real), u=(u, real), v=(v, real), flow=(edges, real),
            rows=(edges, index), cols=(edges, index), order=(nodes, index), size=(nodes, index),
            virtual=(edges, "bool"), basis=(nodes, "int32"), dual=(scalar, real),
            violation=(scalar, real), iterations=(scalar, "int32"),
        )  # fmt: skip
        return tuple(ArraySpec(*field) for field in fields)


@dataclass(frozen=True)
class Problem:
    """Arrays of one framework, checked for shape and type, weights filled in."""

    nx: Backend
    a: Array
    b: Array
    M: Array
    dtype: str  # of the results
    carried: str  # of the arithmetic on the device
    eps: float  # machine epsilon of the coarser weights

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of rows and columns."""
        return self.M.shape[-2], self.M.shape[-1]

    def carry(self, x: Array) -> Array:
        """Cast to the type of the arithmetic; differentiable."""
        return _cast(self.nx.xp, x, self.carried)

    def finish(self, x: Array) -> Array:
        """Cast to the type of the results; differentiable."""
        return _cast(self.nx.xp, x, self.dtype)

    def optimum(
        self, start: Array | None, *, check_marginals: bool, max_iterations: int | None,
        time_limit: float | None = None, threads: int | None = None, kernel: str | None = None,
    ) -> Optimum:  # fmt: skip
        """Solve on the host, in one call for the whole batch; nothing differentiates it."""
        nx = self.nx
        options = Options(check_marginals, self.eps, max_iterations, time_limit)
        arrays = [nx.stop_gradient(x) for x in (self.a, self.b, self.M)]
        if start is not None:
            arrays.append(nx.stop_gradient(nx.asarray(start, like=self.M)))
        check_shapes(*(tuple(x.shape) for x in arrays))
        arrays = _same_batch_rank(nx.xp, arrays)
        out = SolutionSpec(self.carried, nx.index_dtype)
        host = HostSolve(options, threads, kernel)
        return Optimum(*nx.pycall(host, *arrays, out=out, vectorized=True))


def _cast(xp: Any, x: Array, name: str) -> Array:
    dtype = getattr(xp, name)
    return x if x.dtype == dtype else xp.astype(x, dtype, copy=False)


#: Machine epsilons of the floating types that weights may have.
_EPS = {"bfloat16": 2.0**-7, "float16": 2.0**-10, "float32": 2.0**-23, "float64": 2.0**-52}


def _same_batch_rank(xp: Any, arrays: list[Array]) -> list[Array]:
    """Give the arrays a, b, M and start equally many batch dimensions.

    ``vmap`` puts its dimension in front of those, and the host broadcasts from the right: beside
    costs (3, n, m), weights (n,) of a vmapped batch would arrive as (B, n) and match the 3.
    """
    ranks = [len(x.shape) - core for x, core in zip(arrays, (1, 1, 2, 1), strict=False)]
    most = max(ranks)
    return [
        x if rank == most else xp.reshape(x, (1,) * (most - rank) + tuple(x.shape))
        for x, rank in zip(arrays, ranks, strict=True)
    ]


def prepare(a: Any, b: Any, M: Any) -> Problem:
    """Bring ``a``, ``b`` (None or empty: uniform) and ``M`` into one framework.

    The results have the floating type of ``M``, which the weights never narrow. Where ``M`` holds
    integers or booleans it is the weights' floating type, else the framework's default.
    """
    nx = _backend_of(a, b, M)
    M, type_M = _as_array(nx, "M", M, None, None)
    # Numbers of plain Python take the type of M; arrays keep their own.
    plain = type_M if _is_floating(type_M) else None
    a, type_a = (None, "") if a is None or _is_empty(a) else _as_array(nx, "a", a, M, plain)
    b, type_b = (None, "") if b is None or _is_empty(b) else _as_array(nx, "b", b, M, plain)
    if len(M.shape) < 2:
        raise ProblemError(
            f"M must have the shape (n, m) or (..., n, m), but its shape is {tuple(M.shape)}"
        )
    if plain is not None:
        dtype = plain
    else:
        floating = [name for name in (type_a, type_b) if _is_floating(name)]
        dtype = min(floating, key=_eps) if floating else nx.dtype_name(nx.xp.asarray(1.0))
    carried = "float32" if dtype in _CARRIED_AS_FLOAT32 else dtype
    if a is None:
        a = _uniform(nx, M.shape[-2], carried, M)
    if b is None:
        b = _uniform(nx, M.shape[-1], carried, M)
    return Problem(nx, a, b, M, dtype, carried, max(_eps(type_a), _eps(type_b)))


def _backend_of(a: Any, b: Any, M: Any) -> Backend:
    try:
        return get_backend(a, b, M)
    except MixedBackendsError:
        raise
    except TypeError:
        for name, x in (("M", M), ("a", a), ("b", b)):
            try:
                get_backend(x)
            except TypeError as error:
                raise ProblemError(f"{name} must be an array of numbers: {error}") from error
        raise


def _as_array(
    nx: Backend, name: str, x: Any, like: Array | None, plain: str | None
) -> tuple[Array, str]:
    """Return the framework's array and the name of its type, which must be a real one."""
    try:
        x = nx.asarray(x, like=like, dtype=plain if isinstance(x, (list, tuple)) else None)
    except (TypeError, ValueError) as error:
        raise ProblemError(f"{name} must be an array of numbers: {error}") from error
    dtype = nx.dtype_name(x)
    if not (_is_floating(dtype) or dtype.startswith(("bool", "int", "uint"))):
        raise ProblemError(
            f"{name} must hold real numbers, but its dtype is {dtype}; "
            "convert it to a floating type"
        )
    return x, dtype


def _is_floating(dtype: str) -> bool:
    return dtype in _EPS or dtype.startswith(("float", "bfloat"))


def _eps(dtype: str) -> float:
    return _EPS.get(dtype, 0.0)


def _is_empty(w: Any) -> bool:
    shape = getattr(w, "shape", None)
    return len(w) == 0 if shape is None and hasattr(w, "__len__") else shape == (0,)


def _uniform(nx: Backend, size: int, dtype: str, like: Array) -> Array:
    if size == 0:
        raise ProblemError("M is empty: a transport problem needs rows and columns")
    xp = nx.xp
    return xp.full((size,), 1.0 / size, dtype=getattr(xp, dtype), device=device_of(xp, like))
