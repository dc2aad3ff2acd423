"""A host function with derivatives: its outputs and rules, written once for all backends."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from .rules import Mode
from .select import get_backend
from .spec import ArraySpec, check_host_function, host_name
from .trees import array_leaves, flatten

__all__ = ["HostFunction", "Rule", "host_function"]

_HERE = object()  # `def_vjp` as a decorator, not called with a rule


class Rule(NamedTuple):
    """A derivative rule: array code, or a NumPy function (`host`)."""

    fn: Callable[..., Any]
    host: bool


def host_function(
    *, out: Any, vectorized: bool = False, residuals: Any = None
) -> Callable[[Callable[..., Any]], HostFunction]:
    """Declare a NumPy function to be called from NumPy, JAX and Torch code, with derivatives.

    Parameters
    ----------
    out : ArraySpec, or tree of them, or callable
        What the function returns for one problem. A callable gets the specs of the arguments
        (`ArraySpec` with ``shape`` and ``dtype``, in the containers that the arguments have) and
        returns the spec or specs. Anything with ``shape`` and ``dtype`` is a spec, so
        ``out=lambda A, b: b`` says "like b".
    vectorized : bool
        Whether the function takes a batch as leading dimensions, of size 1 or B on every argument.
        Otherwise ``vmap`` calls it in a loop, inside one host call.
    residuals : the same as `out`, optional
        The function returns ``(outputs, residuals)``; callers get the outputs, rules see both.

    Returns
    -------
    callable
        Turns the function into a `HostFunction`. Call that with arrays of any framework, which is
        ``get_backend(*arrays).pycall(f, *arrays)``.

    Notes
    -----
    Rules are functions of arrays in the framework of the caller, written for one problem::

        @f.def_vjp
        def _(nx, ct, out, *args):        # one cotangent per argument, None for zero
        @f.def_jvp
        def _(nx, tangents, out, *args):  # the tangent of out; one tangent per argument comes in

    ``nx`` is the backend (``nx.xp`` its array namespace, ``nx.pycall``); ``out`` is what the
    function returned, ``(outputs, residuals)`` where it has residuals. Integers have None for a
    tangent or cotangent. With ``argnum=k`` a rule is for that argument alone: it returns one
    cotangent, or gets one tangent. ``f.def_vjp(None, argnum=k)`` says: no derivative through
    argument k, in either mode. With ``host=True`` a rule is a NumPy function without ``nx``, and
    good for one order.

    With only one of the two kinds the other mode transposes it. That works for array code; where
    the rule calls the host again it raises `NotDifferentiableError`.

    A rule may call host functions, itself too, and is differentiated for the next order. Floating
    residuals have no derivatives: where a rule depends on one other than through an argument
    that was said to be constant, or ``nx.stop_gradient``, the next order raises. Return them as
    outputs if they are to have derivatives.

    Examples
    --------
    >>> import numpy as np
    >>> from ot_backends import host_function
    >>> @host_function(out=lambda A, b: b)
    ... def solve(A, b):
    ...     return np.linalg.solve(A, b)
    >>> @solve.def_vjp
    ... def _(nx, ct, x, A, b):
    ...     y = nx.pycall(solve, A.T, ct)
    ...     return -y[:, None] * x, y
    >>> solve(np.diag([2.0, 4.0]), np.ones(2))
    array([0.5 , 0.25])
    """
    return lambda fn: HostFunction(fn, out, vectorized, residuals)


class HostFunction:
    """What `host_function` returns.

    Equal where the functions, what they declare and their rules are equal: equal host functions
    share compiled programs.
    """

    def __init__(self, fn: Callable[..., Any], out: Any, vectorized: bool, residuals: Any) -> None:
        """See `host_function`."""
        check_host_function(fn)
        self.fn, self.vectorized = fn, vectorized
        self.out, self.residuals = _declared(out), _declared(residuals)
        #: By mode and argument; None for all arguments at once.
        self.rules: dict[tuple[Mode, int | None], Rule] = {}
        self.constants: frozenset[int] = frozenset()
        self.declared: dict[Any, Any] = {}  # what the calls so far came to, see host_rules.declare
        self._hash = hash((type(self), fn, vectorized))
        if hasattr(fn, "__name__"):
            functools.update_wrapper(self, fn, updated=())

    @property
    def __host_name__(self) -> str:
        """What messages call it."""
        return host_name(self.fn)

    def __repr__(self) -> str:
        """Return ``<host function solve>``."""
        return f"<host function {self.__host_name__}>"

    def __eq__(self, other: object) -> bool:
        """Compare by value."""
        return self is other or (
            isinstance(other, HostFunction) and self._value() == other._value()
        )

    def __hash__(self) -> int:
        """Return the hash of the function, which rules that are added later don't change."""
        return self._hash

    def _value(self) -> tuple[Any, ...]:
        return self.fn, self.out, self.vectorized, self.residuals, self.rules, self.constants

    def __call__(self, *args: Any) -> Any:
        """Call the function on arrays of any framework."""
        return get_backend(*array_leaves(args)).pycall(self, *args)

    def def_vjp(self, rule: Any = _HERE, *, argnum: int | None = None, host: bool = False) -> Any:
        """Define the derivative in reverse mode; see `host_function`. Also a decorator."""
        return self._define("vjp", rule, argnum, host)

    def def_jvp(self, rule: Any = _HERE, *, argnum: int | None = None, host: bool = False) -> Any:
        """Define the derivative in forward mode; see `host_function`. Also a decorator."""
        return self._define("jvp", rule, argnum, host)

    def _define(self, mode: Mode, rule: Any, argnum: int | None, host: bool) -> Any:
        if rule is _HERE:
            return lambda rule: self._define(mode, rule, argnum, host)
        self.declared.clear()
        where = f"def_{mode} of the host function {self.__host_name__!r}"
        if argnum is not None and (not isinstance(argnum, int) or argnum < 0):
            raise TypeError(f"{where}: argnum must be the number of an argument, but is {argnum!r}")
        if rule is None:
            if argnum is None:
                raise TypeError(f"{where}: None means a constant argument, so say argnum=...")
            self.constants |= {argnum}
        elif callable(rule):
            self.rules[mode, argnum] = Rule(rule, host)
        else:
            raise TypeError(f"{where}: a rule must be a function or None, but is {rule!r}")
        return rule

    def rule(self, mode: Mode, argnum: int) -> tuple[Rule | None, int | None]:
        """Return the rule for an argument, and its key: `argnum`, or None where it serves all."""
        for key in (argnum, None):
            if (mode, key) in self.rules:
                return self.rules[mode, key], key
        return None, None


def _declared(out: Any) -> Any:
    # Specs compare by value; arrays, which may stand for specs, don't.
    if out is None or (callable(out) and not hasattr(out, "shape")):
        return out
    leaves, tree = flatten(out)
    return tree.unflatten([as_spec(x) for x in leaves])


def as_spec(x: Any) -> ArraySpec:
    """Return the `ArraySpec` of anything with ``shape`` and ``dtype``."""
    if isinstance(x, ArraySpec):
        return x
    try:
        return ArraySpec(tuple(x.shape), x.dtype)
    except AttributeError:
        raise TypeError(
            "host_function: out and residuals must be an ArraySpec, anything with .shape and "
            ".dtype, nested tuples, lists or dicts of those, or a function of the arguments' specs "
            f"that returns one of these; there is {x!r} in it"
        ) from None
