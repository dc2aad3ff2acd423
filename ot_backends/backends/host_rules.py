"""A host function bound to the structure of its arguments: flat arrays outside, trees inside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import HostFunctionError, NotDifferentiableError
from .host_function import HostFunction, Rule
from .rule_on_host import run_on_host
from .rules import Mode, is_inexact
from .trees import Tree

__all__ = ["BoundHost"]

Arrays = Sequence[Any]


@dataclass(frozen=True)
class BoundHost:
    """`host` with the structures of its arguments and results; the `Rules` of the call.

    As a function it takes and returns flat NumPy arrays, outputs and then residuals.
    """

    host: HostFunction
    in_tree: Tree
    out_tree: Tree
    residual_tree: Tree | None

    @property
    def __host_name__(self) -> str:
        """What messages call it."""
        return self.host.__host_name__

    name = __host_name__

    @property
    def prepare(self) -> Any:
        """What the function wants called before it is, see `check_host_function`; or None."""
        return getattr(self.host.fn, "prepare", None)

    @property
    def count(self) -> int:
        """The number of outputs."""
        return self.out_tree.size

    def __call__(self, *arrays: Any) -> tuple[Any, ...]:
        """Run the host function on flat NumPy arrays."""
        result = self.host.fn(*self.in_tree.unflatten(arrays))
        residuals: list[Any] = []
        if self.residual_tree is not None:
            if not isinstance(result, (tuple, list)) or len(result) != 2:
                raise self._wrong(
                    f"returned {type(result).__name__} instead of (outputs, residuals)"
                )
            residuals = self._up_to(self.residual_tree, result[1], "as residuals")
            result = result[0]
        return (*self._up_to(self.out_tree, result, "as outputs"), *residuals)

    def _up_to(self, tree: Tree, value: Any, role: str) -> list[Any]:
        try:
            leaves = tree.flatten_up_to(value)
        except ValueError as error:
            raise self._wrong(f"returned {error} {role}, where its declaration differs") from error
        for x in leaves:
            if isinstance(x, tuple):
                raise self._wrong(f"returned a tuple of {len(x)} {role} where an array is declared")
        return leaves

    def _wrong(self, what: str) -> HostFunctionError:
        return HostFunctionError(
            f"pycall: the host function {self.name!r} {what}; declared were out="
            f"{self._declaration(self.out_tree)}"
            + (
                ""
                if self.residual_tree is None
                else f" and residuals={self._declaration(self.residual_tree)}"
            )
        )

    def _declaration(self, tree: Tree) -> Any:
        return tree.unflatten(["array"] * tree.size)

    # ---- the protocol `Rules`

    def constant(self, position: int) -> bool:
        """Whether `position` lies in an argument that was said to be constant."""
        return self.in_tree.positions()[position] in self.host.constants

    def has(self, mode: Mode, position: int) -> bool:
        """Whether there is a rule of this mode."""
        return self.host.rule(mode, self.in_tree.positions()[position])[0] is not None

    def jvp(
        self, nx: Any, active: Sequence[int], tangents: Arrays, values: Arrays, args: Arrays
    ) -> list[Any]:
        """Return the tangents of the outputs: the sum over the rules that serve `active`."""
        given = dict(zip(active, tangents, strict=True))
        total: list[Any] = [None] * self.count
        for (rule, key), positions in self._by_rule("jvp", active).items():
            dots = [given[k] if k in positions else self._zero(nx, x) for k, x in enumerate(args)]
            if key is not None:
                dots = dots[self._slice(key)]
            part = self._run(nx, "jvp", rule, key, dots, values, args)
            total = [
                y if x is None else x if y is None else x + y
                for x, y in zip(total, part, strict=True)
            ]
        return total

    def vjp(
        self, nx: Any, active: Sequence[int], cotangents: Arrays, values: Arrays, args: Arrays
    ) -> list[Any]:
        """Return the cotangents of `active`."""
        result: dict[int, Any] = {}
        for (rule, key), positions in self._by_rule("vjp", active).items():
            part = self._run(nx, "vjp", rule, key, cotangents, values, args)
            first = 0 if key is None else self._slice(key).start
            result |= {k: part[k - first] for k in positions}
        return [result[k] for k in active]

    def _by_rule(
        self, mode: Mode, active: Sequence[int]
    ) -> dict[tuple[Rule, int | None], list[int]]:
        groups: dict[tuple[Rule, int | None], list[int]] = {}
        positions = self.in_tree.positions()
        for k in active:
            rule, key = self.host.rule(mode, positions[k])
            assert rule is not None  # active_groups has asked
            groups.setdefault((rule, key), []).append(k)
        return groups

    def _slice(self, argnum: int) -> slice:
        start = sum(child.size for child in self.in_tree.children[:argnum])
        return slice(start, start + self.in_tree.children[argnum].size)

    def _zero(self, nx: Any, x: Any) -> Any:
        return nx.xp.zeros_like(x) if is_inexact(nx.dtype_name(x)) else None

    def _run(
        self,
        nx: Any,
        mode: Mode,
        rule: Rule,
        key: int | None,
        leading: Arrays,
        values: Arrays,
        args: Arrays,
    ) -> list[Any]:
        """Call one rule with tangents or cotangents; flat results, checked."""
        like = (
            values[: self.count]
            if mode == "jvp"
            else args
            if key is None
            else args[self._slice(key)]
        )
        if rule.host:
            return run_on_host(nx, rule.fn, self, mode, key, leading, values, args, like)
        result = self.apply(rule.fn, mode, key, leading, values, args, nx)
        return [
            self._check(nx, mode, k, x, y)
            for k, (x, y) in enumerate(zip(result, like, strict=True))
        ]

    def apply(
        self,
        rule: Callable[..., Any],
        mode: Mode,
        key: int | None,
        leading: Arrays,
        values: Arrays,
        args: Arrays,
        *nx: Any,
    ) -> list[Any]:
        """Call the author's function with trees, and return flat what it returns."""
        tree = self.in_tree if key is None else self.in_tree.children[key]
        before, after = (tree, self.out_tree) if mode == "jvp" else (self.out_tree, tree)
        result = rule(
            *nx, before.unflatten(leading), self._result(values), *self.in_tree.unflatten(args)
        )
        one = mode == "vjp" and key is None and len(tree.children) == 1
        if one and not (isinstance(result, (tuple, list)) and len(result) == 1):
            result = (result,)  # one argument: its cotangent will do
        try:
            return after.flatten_up_to(result)
        except ValueError as error:
            what = "the tangents of the outputs" if mode == "jvp" else "the cotangents"
            raise self._wrong_rule(
                mode, f"returned {error} as {what}, whose structure is {self._declaration(after)}"
            ) from error

    def _result(self, values: Arrays) -> Any:
        outputs = self.out_tree.unflatten(values[: self.count])
        if self.residual_tree is None:
            return outputs
        return outputs, self.residual_tree.unflatten(values[self.count :])

    def _check(self, nx: Any, mode: Mode, k: int, x: Any, like: Any) -> Any:
        dtype = nx.dtype_name(like)
        if x is None or not is_inexact(dtype):
            return None
        x = nx.asarray(x, like)
        if tuple(x.shape) != tuple(like.shape):
            what = (
                f"the tangent of output {k}" if mode == "jvp" else f"the cotangent of argument {k}"
            )
            raise self._wrong_rule(
                mode,
                f"returned an array of shape {tuple(x.shape)} as {what}, whose shape is "
                f"{tuple(like.shape)}",
            )
        return x if nx.dtype_name(x) == dtype else nx.asarray(x, like, dtype)

    def _wrong_rule(self, mode: Mode, what: str) -> HostFunctionError:
        return HostFunctionError(
            f"pycall: the {mode} rule of the host function {self.name!r} {what}"
        )

    # ---- what cannot be differentiated

    def missing(self, position: int) -> NotDifferentiableError:
        """Return the error for an argument without a rule."""
        argnum = self.in_tree.positions()[position]
        return NotDifferentiableError(
            f"pycall: the host function {self.name!r} has no derivative rule for its argument "
            f"{argnum}, which is being differentiated. Define it with def_vjp or def_jvp(..., "
            f"argnum={argnum}), say def_vjp(None, argnum={argnum}) if there is none through it, or "
            "pass stop_gradient(x)"
        )

    def cannot_transpose(self, mode: Mode) -> NotDifferentiableError:
        """Return the error where the other rule cannot be transposed."""
        other, way = ("vjp", "forward") if mode == "jvp" else ("jvp", "reverse")
        return NotDifferentiableError(
            f"pycall: {way}-mode differentiation of the host function {self.name!r} needs "
            f"def_{mode}: there is only def_{other}, and it cannot be transposed since it calls "
            "the host"
        )

    def residual_error(self) -> NotDifferentiableError:
        """Return the error for a rule that depends on a floating residual."""
        return NotDifferentiableError(
            f"pycall: a derivative rule of the host function {self.name!r} depends on a residual, "
            "which has no derivative, so this order cannot be computed. Return what the rule "
            "needs as an output, or say that it is a constant: nx.stop_gradient(residual), or "
            "def_vjp(None, argnum=...) of the host function that gets it"
        )
