"""Residuals in Torch: what only the rules see has no derivative, and using one must not lose it.

A floating residual depends on the arguments, but nobody knows how. Where array code of a rule uses
one, the derivative of that rule, which is the next order, would silently miss a term.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch

from .rules import Mode, Rules
from .select import load_backend

__all__ = ["guard", "is_inexact", "raising"]

Arrays = Sequence[torch.Tensor]
_Error = Callable[[bool], Exception | None]


def is_inexact(x: torch.Tensor) -> bool:
    """Whether `x` can carry a derivative."""
    return x.is_floating_point() or x.is_complex()


def guard(
    rules: Rules, mode: Mode, active: Sequence[int], x: Sequence[Any], values: Arrays, args: Arrays
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return `values` and `args`, where a derivative through a residual raises.

    `x` are the tangents or cotangents with which the rule is about to run.
    """
    values = list(values)
    for k in range(rules.count, len(values)):
        if is_inexact(values[k]):
            probe = _Probe(rules, mode, tuple(active), x, values, args)
            values[k] = raising(values[k], probe.error, args)
    return values, list(args)


class _Raising(torch.autograd.Function):
    """The identity on `x`, which says that it depends on the arguments, and has no derivative."""

    @staticmethod
    def forward(x: torch.Tensor, error: _Error, *args: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        ctx.set_materialize_grads(False)
        ctx.error, ctx.type = inputs[1], (output.shape, output.dtype, output.device)

    @staticmethod
    def backward(ctx: Any, cotangent: torch.Tensor | None) -> tuple[Any, ...]:
        # Autograd comes here only where what is differentiated depends on x.
        if cotangent is not None:
            raise ctx.error(False)
        return (None,) * len(ctx.needs_input_grad)

    @staticmethod
    def jvp(ctx: Any, _x: Any, _error: Any, *tangents: Any) -> torch.Tensor:
        # Forward mode comes here in any case.
        error = ctx.error(True) if any(t is not None for t in tangents) else None
        if error is not None:
            raise error
        shape, dtype, device = ctx.type
        return torch.zeros(shape, dtype=dtype, device=device)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], x: torch.Tensor, error: _Error, *args: torch.Tensor
    ) -> tuple[torch.Tensor, Any]:
        # All that counts of the arguments is whether they carry a derivative.
        return raising(x, error, args), in_dims[0]


def raising(x: torch.Tensor, error: _Error, args: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return `x`, where a derivative of it in `args` raises ``error(forward)``.

    In reverse mode it does so only once that derivative is wanted: inside ``torch.func.grad`` all
    is recorded, also what comes of it. None from ``error(True)``: `x` turns out not to be used.
    """
    return cast(torch.Tensor, _Raising.apply(x, error, *args))  # type: ignore[no-untyped-call]


class _Probe:
    """A run of a rule on shapes, to see whether its result depends on floating residuals."""

    def __init__(
        self,
        rules: Rules,
        mode: Mode,
        active: tuple[int, ...],
        x: Sequence[Any],
        values: Arrays,
        args: Arrays,
    ) -> None:
        self.rules, self.mode, self.active = rules, mode, active
        self.types = [
            [None if y is None else (tuple(y.shape), y.dtype) for y in part]
            for part in (x, values, args)
        ]

    def error(self, forward: bool) -> Exception | None:
        """Return the error for a derivative of the rule."""
        return self.rules.residual_error() if not forward or self.depends() else None

    def depends(self) -> bool:
        """Return whether it does; True where the rule cannot run on shapes."""
        answer: list[bool] = [True]
        # In a thread of its own, which no transform, tracer or mode of the caller's reaches.
        thread = threading.Thread(target=self._run, args=(answer,))
        thread.start()
        thread.join()
        return answer[0]

    def _run(self, answer: list[bool]) -> None:
        x, values, args = (
            [None if t is None else torch.empty(t[0], dtype=t[1], device="meta") for t in part]
            for part in self.types
        )
        residuals = [r for r in values[self.rules.count :] if r is not None and is_inexact(r)]
        for r in residuals:
            r.requires_grad_()
        run: Any = self.rules.jvp if self.mode == "jvp" else self.rules.vjp
        try:
            results = run(load_backend("torch"), self.active, x, values, args)
            results = [y for y in results if y is not None and y.requires_grad]
            ones = [torch.ones_like(y) for y in results]
            grads = torch.autograd.grad(results, residuals, ones, allow_unused=True)
        except Exception:  # it needs numbers: then nothing is known
            return
        answer[0] = any(g is not None for g in grads)
