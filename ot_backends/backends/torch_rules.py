"""Derivative rules in Torch: an ``autograd.Function`` whose derivatives are the rules' own code.

    set_rules(values, args)    value: values;    d value = J dargs,    J = dF/dargs

The jvp rule gives J dx, the vjp rule J^T ct; where there is only one, it is transposed. Both are
array code that reads `args` and the outputs, live at every level but the one being differentiated,
so that autograd, torch.func and further levels of either differentiate them for the next order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.autograd import forward_ad

from ..errors import NotDifferentiableError
from .rules import Mode, Rules, active_groups
from .select import load_backend
from .torch_compat import (
    add_legacy_batch,
    forward_grad_inside_jvp,
    legacy_batch_level,
    remove_legacy_batch,
)
from .torch_residuals import guard, is_inexact

__all__ = ["set_rules"]

Arrays = Sequence[torch.Tensor]


def set_rules(values: Arrays, args: Arrays, rules: Rules) -> list[Any]:
    """Return the outputs among `values`, with the derivatives in `args` that `rules` say."""
    return apply_rules(values, args, rules)


def apply_rules(values: Arrays, args: Arrays, rules: Rules, batch_ndim: int = 0) -> list[Any]:
    """Return the outputs among `values`, with the derivatives in `args` that `rules` say.

    All have `batch_ndim` leading batch dimensions, of size 1 or B; the outputs full size.
    """
    call = _Call(rules, len(values), batch_ndim, _TRANSPOSITION.current)
    return list(_Rules.apply(call, *values, *args))  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class _Call:
    """What goes with the tensors of one application."""

    rules: Rules
    count: int  # of values
    batch_ndim: int
    transposition: list[bool] | None  # in which it was made

    def linear(self, active: Sequence[int], tensors: Sequence[Any]) -> _Linear:
        """Return J for the `active` arguments at the point `tensors`: values and arguments."""
        values, args = tensors[: self.count], tensors[self.count :]
        return _Linear(self, tuple(active), list(values), list(args))


class _Rules(torch.autograd.Function):
    """The identity on the outputs, with J as its derivative."""

    @staticmethod
    def forward(call: _Call, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        # New tensors, since autograd would take results that are the inputs for something else.
        return tuple(x.clone() for x in tensors[: call.rules.count])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        call, *tensors = inputs
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*[y for y in output if not is_inexact(y)])
        ctx.call = call
        # The outputs as they are returned, so that they have their derivatives in the rules.
        tensors[: len(output)] = output
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor | None) -> tuple[Any, ...]:
        call, tensors = ctx.call, ctx.saved_tensors
        if call.transposition is not None and call.transposition[0]:
            raise _CallsTheHost(
                f"pycall: the host function {call.rules.name!r} cannot be transposed: it is not "
                "known as linear"
            )
        grads: list[Any] = [None] * (1 + len(tensors))
        if any(ct is not None for ct in cotangents):
            args = tensors[call.count :]
            moving = [
                k for k, x in enumerate(args)
                if ctx.needs_input_grad[1 + call.count + k] and is_inexact(x)
            ]  # fmt: skip
            for group in active_groups(call.rules, moving):
                parts = call.linear(group, tensors).transposed(cotangents)
                for k, g in zip(group, parts, strict=True):
                    grads[1 + call.count + k] = g.sum_to_size(args[k].shape)
        return tuple(grads)

    @staticmethod
    def jvp(ctx: Any, _call: Any, *tangents: torch.Tensor | None) -> tuple[Any, ...]:
        call, rules = ctx.call, ctx.call.rules
        forward_mode = forward_grad_inside_jvp()
        if forward_mode is None:
            raise NotDifferentiableError(
                f"pycall: this version of torch has no forward mode for the rules of the host "
                f"function {rules.name!r} (torch {torch.__version__}; tested with 2.13): use "
                "reverse mode"
            )
        with forward_mode:
            # Without their tangents of this level: J is differentiated by outer levels only.
            tensors = [forward_ad.unpack_dual(x, level=0).primal for x in ctx.saved_tensors]
            dots = _tangents(call, tensors, tangents[call.count :])
            return tuple(
                None if not is_inexact(y) else torch.zeros_like(y) if dot is None else dot
                for y, dot in zip(tensors, dots, strict=False)
            )

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], call: _Call, *tensors: torch.Tensor
    ) -> tuple[Any, ...]:
        # The derivative differs over the batch even where the outputs don't.
        front = [
            x.unsqueeze(0) if dim is None else x.movedim(dim, 0)
            for x, dim in zip(tensors, in_dims[1:], strict=True)
        ]
        n, count = call.rules.count, call.count
        front[:n] = [y.expand((info.batch_size, *y.shape[1:])) for y in front[:n]]
        outs = apply_rules(front[:count], front[count:], call.rules, call.batch_ndim + 1)
        return tuple(outs), (0,) * len(outs)


def _tangents(call: _Call, tensors: list[Any], tangents: Sequence[Any]) -> list[Any]:
    """Return J dx; None where it is zero."""
    level, n = legacy_batch_level(), call.rules.count
    if level:  # one more leading dimension
        call = replace(call, batch_ndim=call.batch_ndim + 1)
        tangents = [None if t is None else remove_legacy_batch(t, level) for t in tangents]
        tensors = [remove_legacy_batch(x, level) for x in tensors]
        size = max(len(x) for x in (*tensors, *tangents) if x is not None)
        tensors[:n] = [y.expand((size, *y.shape[1:])) for y in tensors[:n]]
    dots: list[Any] = [None] * n
    moving = [k for k, dx in enumerate(tangents) if dx is not None]
    for group in active_groups(call.rules, moving):
        terms = call.linear(group, tensors)([tangents[k] for k in group])
        dots = [t if y is None else y + t for y, t in zip(dots, terms, strict=True)]
    return [add_legacy_batch(y, level) if level and y is not None else y for y in dots]


# ---------------------------------------------------------------------------- J and its transpose


class _CallsTheHost(NotDifferentiableError):
    """A host function was met that would have to be transposed."""


class _Transposition(threading.local):
    """The transposition at work in this thread: a list that says whether it pulls back yet."""

    current: list[bool] | None = None


_TRANSPOSITION = _Transposition()


@dataclass(frozen=True)
class _Linear:
    """J = dF/dargs[active] at one point, over the leading batch dimensions."""

    call: _Call
    active: tuple[int, ...]
    values: list[torch.Tensor]
    args: list[torch.Tensor]

    def __call__(self, tangents: Arrays) -> list[Any]:
        """Return J x; None for integer outputs."""
        live = self._live()
        res = [*self.values, *self.args]
        dots = _mapped(self._apply, res, list(tangents), self.call.batch_ndim, self._shapes(live))
        whole = dict(zip(live, dots, strict=True))
        return [whole.get(k) for k in range(self.call.rules.count)]

    def transposed(self, cotangents: Sequence[Any]) -> list[torch.Tensor]:
        """Return J^T ct, of the full batch."""
        cts = [
            torch.zeros_like(y) if ct is None else ct
            for y, ct in zip(self.values, cotangents, strict=False)
            if is_inexact(y)
        ]
        res, n = [*self.values, *self.args], self.call.batch_ndim
        batch = self.values[0].shape[:n] if self.call.rules.count else ()
        shapes = [(*batch, *self.args[k].shape[n:]) for k in self.active]
        return _mapped(self._apply_transpose, res, cts, n, shapes)

    def _live(self) -> list[int]:
        return [k for k, y in enumerate(self.values[: self.call.rules.count]) if is_inexact(y)]

    def _shapes(self, live: Sequence[int]) -> list[tuple[int, ...]]:
        return [tuple(self.values[k].shape) for k in live]

    def _has(self, mode: Mode) -> bool:
        return all(self.call.rules.has(mode, k) for k in self.active)

    # ---- of one problem: `res` is (values, args)

    def _apply(self, res: Arrays, x: Arrays) -> list[torch.Tensor]:
        outputs = [res[k] for k in self._live()]
        if not self._has("jvp"):
            return self._transpose("jvp", self._apply_transpose, res, outputs, x)
        dots = self._run("jvp", x, res)
        return [_or_zeros(dots[k], res[k]) for k in self._live()]

    def _apply_transpose(self, res: Arrays, ct: Arrays) -> list[torch.Tensor]:
        inputs = [res[self.call.count + k] for k in self.active]
        if not self._has("vjp"):
            return self._transpose("vjp", self._apply, res, inputs, ct)
        whole = dict(zip(self._live(), ct, strict=True))
        grads = self._run("vjp", [whole.get(k) for k in range(self.call.rules.count)], res)
        return [_or_zeros(g, a) for g, a in zip(grads, inputs, strict=True)]

    def _run(self, mode: Mode, x: Sequence[Any], res: Arrays) -> list[Any]:
        rules, count = self.call.rules, self.call.count
        values, args = guard(rules, mode, self.active, x, res[:count], res[count:])
        run = rules.jvp if mode == "jvp" else rules.vjp
        return run(load_backend("torch"), self.active, x, values, args)

    def _transpose(
        self, mode: Mode, other: Callable[..., Any], res: Arrays, like: Arrays, y: Arrays
    ) -> list[torch.Tensor]:
        """Apply the transpose of ``x -> other(res, x)``, which is linear, to `y`."""
        before, here = _TRANSPOSITION.current, [False]
        _TRANSPOSITION.current = here
        try:
            # At zero: a linear function has the same derivative everywhere.
            zeros = [torch.zeros_like(x) for x in like]
            pull: Any = torch.func.vjp(lambda *x: tuple(other(res, x)), *zeros)[1]
            here[0] = True  # a host function that is met on the way back depends on x
            return list(pull(tuple(y)))
        except NotDifferentiableError as error:
            if isinstance(error, _CallsTheHost) or "host function" in str(error):
                raise self.call.rules.cannot_transpose(mode) from error
            raise
        finally:
            here[0] = False
            _TRANSPOSITION.current = before


def _or_zeros(x: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(like) if x is None else x


def _mapped(
    f: Callable[..., list[torch.Tensor]],
    res: Arrays,
    x: Arrays,
    batch_ndim: int,
    shapes: Sequence[Sequence[int]],
) -> list[torch.Tensor]:
    """Apply f(res, x), which is for one problem, over leading batch dimensions of size 1 or B.

    `shapes` are those of the results.
    """
    if batch_ndim == 0:
        return f(res, x)
    if any(s[0] == 0 for s in shapes):  # torch.vmap refuses an empty batch
        like = x[0]
        return [like.new_zeros(tuple(s)) for s in shapes]
    size = max([s[0] for s in shapes], default=1)

    def axes(arrays: Arrays) -> list[int | None]:
        return [0 if a.shape[0] == size else None for a in arrays]

    def one(arrays: Arrays) -> list[torch.Tensor]:
        pairs = zip(arrays, axes(arrays), strict=True)
        return [a if dim == 0 else a.squeeze(0) for a, dim in pairs]

    inner = [s[1:] for s in shapes]

    def of_one(res: Arrays, x: Arrays) -> list[torch.Tensor]:
        return _mapped(f, res, x, batch_ndim - 1, inner)

    return torch.func.vmap(of_one, (axes(res), axes(x)))(one(res), one(x))
