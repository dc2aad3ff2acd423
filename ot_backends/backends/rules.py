"""Derivative rules as a backend sees them: flat lists of arrays, one problem, any order.

A backend carries them with one primitive, ``nx.set_rules(values, args, rules)``: its value is
`values`, and its derivative in `args` is what `rules` say, at every order, in both modes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

from ..errors import NotDifferentiableError

__all__ = ["Mode", "Rules", "active_groups", "is_inexact", "no_derivative"]

Mode = Literal["jvp", "vjp"]
Arrays = Sequence[Any]


class Rules(Protocol):
    """The derivatives of ``values = F(*args)``. Hashable, and equal by value: equal programs.

    `values` are the outputs, followed by residuals that only the rules see. The rules are array
    code: what they return is differentiated for the next order, in `values` too, since the outputs
    that they get are differentiable again. They are written for one problem; a backend maps them
    over a batch as it maps any code.
    """

    @property
    def name(self) -> str:
        """What the function is called in messages."""
        ...

    @property
    def count(self) -> int:
        """The number of outputs: ``values[count:]`` are residuals."""
        ...

    def constant(self, position: int) -> bool:
        """Whether the author said that there is no derivative through ``args[position]``."""
        ...

    def has(self, mode: Mode, position: int) -> bool:
        """Whether there is a rule of this mode for ``args[position]``."""
        ...

    def jvp(
        self, nx: Any, active: Sequence[int], tangents: Arrays, values: Arrays, args: Arrays
    ) -> list[Any]:
        """Return the tangents of the outputs: sum_k (dF / d args[k]) tangents_k, k in `active`.

        A None in the result is a zero (integer outputs always).
        """
        ...

    def vjp(
        self, nx: Any, active: Sequence[int], cotangents: Arrays, values: Arrays, args: Arrays
    ) -> list[Any]:
        """Return the cotangents of ``args[k]``, k in `active`; `cotangents` are of the outputs.

        A None in `cotangents` belongs to an integer output; a None in the result is a zero.
        """
        ...

    def residual_error(self) -> NotDifferentiableError:
        """Return the error for a derivative of a rule that depends on a floating residual."""
        ...

    def missing(self, position: int) -> NotDifferentiableError:
        """Return the error for a derivative through ``args[position]``, which has no rule."""
        ...

    def cannot_transpose(self, mode: Mode) -> NotDifferentiableError:
        """Return the error where the other rule, in place of this `mode`, calls the host."""
        ...


def active_groups(rules: Rules, positions: Sequence[int]) -> list[list[int]]:
    """Return the positions that carry a derivative, in groups with the same kinds of rules.

    Raises where one has no rule at all. Constants are left out.
    """
    groups: dict[tuple[bool, bool], list[int]] = {}
    for k in positions:
        if not rules.constant(k):
            kinds = rules.has("jvp", k), rules.has("vjp", k)
            if not any(kinds):
                raise rules.missing(k)
            groups.setdefault(kinds, []).append(k)
    return list(groups.values())


def is_inexact(dtype: str) -> bool:
    """Whether an array of this dtype can carry a derivative."""
    return dtype.startswith(("float", "bfloat", "complex"))


def no_derivative(fn: Any, usual: str) -> NotDifferentiableError:
    """Return the error for differentiating the opaque `fn`; it may have a message of its own."""
    return NotDifferentiableError(getattr(fn, "__no_derivative__", usual))
