"""One object per framework: host calls, gradients set by hand, and the array namespace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from .host_function import HostFunction, host_function
from .rules import Rules
from .select import get_backend, load_backend
from .spec import ArraySpec

__all__ = [
    "ArraySpec",
    "Backend",
    "HostFunction",
    "Rules",
    "get_backend",
    "host_function",
    "load_backend",
]


class Backend(Protocol):
    """What each framework provides, and all that the layers above use of it."""

    name: str
    xp: Any
    index_dtype: str  # of the integers that the framework indexes with

    def registered(self, x: Any) -> tuple[list[Any], Any]:
        """Return the leaves and the structure of a container that only the framework knows.

        The structure has ``unflatten`` and ``flatten_up_to``. For anything else: ``[x]``, and
        whatever.
        """
        ...

    def tracks(self, *arrays: Any) -> bool:
        """Return whether anything may differentiate the arrays; if not, nothing need be attached.

        True is always right, False saves work.
        """
        ...

    def deferred(self, value: Any, inputs: Sequence[Any], rule: Any) -> Any:
        """Return ``rule(*inputs)``, whose value is known to be `value`.

        The first derivative in input k is ``rule.gradient(k, *inputs)``, for each element of the
        value. Where only these can be asked for, a backend may leave out the rest.
        """
        ...

    def scatter_add(self, shape: tuple[int, ...], index: tuple[Any, ...], values: Any) -> Any:
        """Add `values` into zeros of the given shape at `index`, one integer array per dimension.

        The index arrays broadcast against each other. Differentiable in `values`.
        """
        ...

    def asarray(self, x: Any, like: Any = None, dtype: str | None = None) -> Any:
        """Return `x` (a list, scalar or NumPy array) as the framework's array.

        Parameters
        ----------
        x : array_like
        like : array, optional
            Its device is used.
        dtype : str, optional
            A name such as ``"float32"``. Default: what `x` has.
        """
        ...

    def dtype_name(self, x: Any) -> str:
        """Return the name of the dtype of `x`: ``"float32"``, ``"bfloat16"``, ``"int64"``..."""
        ...

    def stop_gradient(self, x: Any) -> Any:
        """Return `x` (an array or a pytree) as a constant for all derivatives."""
        ...

    def pycall(
        self, fn: Callable[..., Any], *args: Any, out: Any = None, vectorized: bool = False
    ) -> Any:
        """Call a NumPy function from the framework's code, traced or not.

        Parameters
        ----------
        fn : callable
            ``fn(*numpy_arrays)`` returns an array or a tuple of arrays; a pure function. It is
            compared by equality: equal functions share compiled programs, so use a plain function
            or a frozen dataclass with ``__call__``. Its arguments are read-only; bfloat16 arrives
            as float32. A `HostFunction` declares its outputs and derivatives itself, and takes and
            returns nested tuples, lists and dicts; then the rest here does not apply.
        *args : array
        out : ArraySpec, or tuple of them, or callable
            The shape and dtype of what `fn` returns: anything with ``shape`` and ``dtype``, a tuple
            of those, or a function of the arguments' specs that returns either.
        vectorized : bool
            Under ``vmap`` the host is called once for the whole batch. True: `fn` gets the batch as
            leading dimensions, the same number on every argument, each of size 1 or B, and returns
            them broadcast. False: it is called in a loop over the batch inside that one call.

        Returns
        -------
        array or tuple of arrays
            As `out` declares them, on the device of `args`. They have no derivative.

        Raises
        ------
        NotDifferentiableError
            Where an argument carries a derivative. Pass ``stop_gradient(x)`` for a constant.
        HostFunctionError
            Where `fn` returns something other than `out`.
        """
        ...

    def set_gradients(self, value: Any, inputs: Any, grads: Any) -> Any:
        """Return `value` with exactly these gradients: ``d value = sum_k <grads_k, d inputs_k>``.

        Parameters
        ----------
        value : array
            Detached from everything that it was computed from.
        inputs : array, or nested tuple, list or dict of arrays
            Integer arrays have no gradient.
        grads : the same structure
            None for no gradient. Each broadcasts to the shape of its input; for a value of shape S
            the inputs have shape S + T and the sum is over T (or a gradient is a Jacobian of shape
            ``value.shape + input.shape``). Gradients that depend on the inputs stay differentiable:
            x**3 with 3 x**2 has second derivative 6 x.

        Returns
        -------
        array
        """
        ...

    def jvp(self, f: Callable[..., Any], primals: Any, tangents: Any) -> tuple[Any, Any]:
        """Return ``f(*primals)`` and its derivative along `tangents`: the framework's own."""
        ...

    def vjp(self, f: Callable[..., Any], *primals: Any) -> tuple[Any, Any]:
        """Return ``f(*primals)`` and a function: cotangent -> tuple of those of `primals`."""
        ...

    def vmap(self, f: Callable[..., Any], in_axes: Any = 0) -> Callable[..., Any]:
        """Return `f` mapped over a dimension: the framework's own."""
        ...

    def close_over(self, f: Callable[..., Any], examples: Sequence[Any]) -> tuple[Any, list[Any]]:
        """Return g and the traced arrays that `f`, of flat arrays, captures.

        ``g(captured, *args) = f(*args)``, so that they can be arguments of `set_rules`. Where the
        framework cannot tell what a function captures, nothing is.
        """
        ...

    def set_rules(self, values: Sequence[Any], args: Sequence[Any], rules: Rules) -> list[Any]:
        """Return the first ``rules.count`` of `values`, with derivatives in `args` by `rules`.

        `values` are detached; those after the outputs are residuals, which only the rules see. This
        is what carries a `HostFunction`; see `Rules`.
        """
        ...
