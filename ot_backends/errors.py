"""The exceptions of this package: one family; each names the argument, what it was, what to do."""

from __future__ import annotations

__all__ = [
    "HostFunctionError",
    "InfeasibleError",
    "IterationLimitError",
    "MassMismatchError",
    "MissingBackendError",
    "MixedBackendsError",
    "NotDifferentiableError",
    "OTError",
    "ProblemError",
    "UnsupportedTransformError",
]


class OTError(Exception):
    """Everything that this package raises on its own account."""


class ProblemError(OTError, ValueError):
    """The transport problem cannot be solved as it was given: a bad value, shape or type."""


class MassMismatchError(ProblemError, AssertionError):
    """``sum(a)`` and ``sum(b)`` differ by more than rounding.

    Also an ``AssertionError``, which is what POT raises here and its users catch.
    """


class InfeasibleError(ProblemError):
    """The allowed (finite) cells of ``M`` cannot carry the masses."""


class IterationLimitError(ProblemError):
    """The solver stopped at its iteration or time limit: there is no result to hand out."""


class HostFunctionError(OTError, RuntimeError):
    """A host function returned something other than what was declared for it."""


class NotDifferentiableError(OTError, TypeError):
    """A derivative was asked of something that has none, or none of this order."""


class UnsupportedTransformError(OTError, NotImplementedError):
    """A transformation cannot carry a host call in this form; the message says which can."""


class MixedBackendsError(OTError, TypeError):
    """Arrays of different frameworks were passed in one call."""


class MissingBackendError(OTError, ImportError):
    """A framework was asked for that is not installed."""
