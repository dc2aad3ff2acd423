"""Derivative rules in JAX: a primitive that has them, and a linear one that can be transposed.

    set_rules(values, args)   value: values;   tangent: linear(args, values; dargs)
    linear(res; x) = J x      transpose: J^T ct

The tangent stays one opaque linear operation J = dF/dargs through partial evaluation (scan, remat,
linearize), where ``jax.custom_jvp`` opens up and loses it, until it is run (the jvp rule) or
transposed (the vjp rule). J depends on `args` and, through `set_rules` again, on the outputs: both
rules are array code, so the next order differentiates them.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from ..errors import NotDifferentiableError
from .jax_batching import leading, mapped
from .jax_extend import (
    Primitive,
    ad,
    batching,
    has_tangent,
    mlir,
    output_types,
    same_varying,
    zero_tangent,
)
from .jax_residuals import depends, guard
from .rules import Mode, Rules, active_groups
from .select import load_backend

__all__ = ["set_rules"]


def set_rules(
    values: Sequence[jax.Array], args: Sequence[jax.Array], rules: Rules
) -> list[jax.Array]:
    """Return the outputs among `values`, with the derivatives in `args` that `rules` say."""
    values = [jax.lax.stop_gradient(x) for x in values]
    arrays = same_varying([*values, *args])
    results: list[jax.Array] = rules_p.bind(*arrays, rules=rules, count=len(values), batch_ndim=0)
    return results


def _inexact(x: Any) -> bool:
    return bool(jnp.issubdtype(x.dtype, jnp.inexact))


# ---- rules_p(values.., args..; count = number of values, batch_ndim = leading batch dimensions)

rules_p = Primitive("ot_backends_rules")
rules_p.multiple_results = True


def _outputs(*arrays: Any, rules: Rules, **_: Any) -> list[Any]:
    return list(arrays[: rules.count])


rules_p.def_impl(_outputs)
rules_p.def_abstract_eval(_outputs)
mlir.register_lowering(rules_p, lambda ctx, *xs, rules, **_: list(xs[: rules.count]))


def _rules_batch(args: Sequence[Any], dims: Sequence[int | None], **params: Any) -> tuple[Any, Any]:
    # The derivative differs over the batch even where the outputs don't.
    size = next(x.shape[d] for x, d in zip(args, dims, strict=True) if d is not None)
    front = leading(args, dims)
    outputs = [jnp.broadcast_to(x, (size, *x.shape[1:])) for x in front[: params["rules"].count]]
    params["batch_ndim"] += 1
    outs = rules_p.bind(*outputs, *front[len(outputs) :], **params)
    return outs, [0] * len(outs)


batching.primitive_batchers[rules_p] = _rules_batch


def _rules_jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, rules: Rules, count: int, batch_ndim: int
) -> tuple[Any, Any]:
    # A number that is differentiated eagerly comes as it is.
    primals = [x if hasattr(x, "shape") else jnp.asarray(x) for x in primals]
    # The outputs again, differentiable at the outer levels: the rules depend on them.
    outs = rules_p.bind(*primals, rules=rules, count=count, batch_ndim=batch_ndim)
    residuals, args = primals[rules.count : count], primals[count:]
    moving = [
        k
        for k, (x, dx) in enumerate(zip(args, tangents[count:], strict=True))
        if has_tangent(x, dx)
    ]
    live = tuple(k for k, y in enumerate(outs) if _inexact(y))
    dots: dict[int, Any] = {}
    for group in active_groups(rules, moving) if live else []:
        linear = Linear(rules, tuple(group), len(args), live)
        terms = linear.bind(
            [*args, *outs, *residuals], [tangents[count + k] for k in group], batch_ndim
        )
        dots = {k: t if k not in dots else dots[k] + t for k, t in zip(live, terms, strict=True)}
    return outs, [dots[k] if k in dots else zero_tangent(y) for k, y in enumerate(outs)]


ad.primitive_jvps[rules_p] = _rules_jvp


def _rules_transpose(cotangents: Any, *args: Any, rules: Rules, **_: Any) -> Any:
    raise NotDifferentiableError(
        f"pycall: the host function {rules.name!r} cannot be transposed: it is not known as linear"
    )


ad.primitive_transposes[rules_p] = _rules_transpose


# ---- linear_p(res.., x..; linear, batch_ndim): the tangents of the live outputs


@dataclass(frozen=True)
class Linear:
    """J = dF/dargs[active] at one point: ``res`` = (args, outputs, residuals) of one problem."""

    rules: Rules
    active: tuple[int, ...]
    n_args: int
    live: tuple[int, ...]  # outputs that can have a tangent

    def bind(self, res: Sequence[Any], x: Sequence[Any], batch_ndim: int) -> list[Any]:
        """Return J x as one operation. A shared x is broadcast: its cotangents will be summed."""
        batch = jnp.broadcast_shapes(*[a.shape[:batch_ndim] for a in (*res, *x)])
        x = [jnp.broadcast_to(a, (*batch, *a.shape[batch_ndim:])) for a in x]
        arrays = same_varying([*res, *x])
        outs: list[Any] = linear_p.bind(*arrays, linear=self, batch_ndim=batch_ndim)
        return outs

    def apply(self, res: Sequence[Any], x: Sequence[Any]) -> list[Any]:
        """Return J x by the jvp rule, or by the transpose of the vjp rule."""
        if not self._has("jvp"):
            return self._transpose("jvp", self.apply_transpose, res, self._outputs(res), x)
        dots = self._run("jvp", x, res)
        return [_or_zeros(dots[k], y) for k, y in zip(self.live, self._outputs(res), strict=True)]

    def apply_transpose(self, res: Sequence[Any], ct: Sequence[Any]) -> list[Any]:
        """Return J^T ct by the vjp rule, or by the transpose of the jvp rule."""
        inputs = [res[k] for k in self.active]
        if not self._has("vjp"):
            return self._transpose("vjp", self.apply, res, inputs, ct)
        whole = dict(zip(self.live, ct, strict=True))
        grads = self._run("vjp", [whole.get(k) for k in range(self.rules.count)], res)
        return [_or_zeros(g, a) for g, a in zip(grads, inputs, strict=True)]

    def _has(self, mode: Mode) -> bool:
        return all(self.rules.has(mode, k) for k in self.active)

    def _outputs(self, res: Sequence[Any]) -> list[Any]:
        return [res[self.n_args + k] for k in self.live]

    def _transpose(
        self, mode: Mode, other: Any, res: Sequence[Any], like: Sequence[Any], y: Sequence[Any]
    ) -> list[Any]:
        def function(*x: Any) -> tuple[Any, ...]:
            return tuple(other(res, x))

        shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in like]
        try:
            return list(jax.linear_transpose(function, *shapes)(tuple(y)))
        except NotDifferentiableError as error:
            raise self.rules.cannot_transpose(mode) from error

    def _run(self, mode: Mode, x: Sequence[Any], res: Sequence[Any]) -> list[Any]:
        """Run a rule on tangents or cotangents `x`."""
        args, values = res[: self.n_args], list(res[self.n_args :])
        floating = [k for k in range(self.rules.count, len(values)) if _inexact(values[k])]

        def rule(*residuals: Any) -> list[Any]:
            for k, r in zip(floating, residuals, strict=True):
                values[k] = r
            run = self.rules.jvp if mode == "jvp" else self.rules.vjp
            return run(load_backend("jax"), self.active, x, values, args)

        residuals = [values[k] for k in floating]
        if residuals and depends(rule, residuals):
            residuals = guard(self.rules, residuals, args)
        return rule(*residuals)


def _or_zeros(x: Any, like: Any) -> Any:
    return jnp.zeros_like(like) if x is None else x


linear_p = Primitive("ot_backends_linear")
linear_p.multiple_results = True


def _linear(*arrays: Any, linear: Linear, batch_ndim: int) -> list[Any]:
    res, x = _split(linear, arrays)
    return mapped(linear.apply, res, x, batch_ndim)


def _split(linear: Linear, arrays: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    n = len(arrays) - len(linear.active)
    return list(arrays[:n]), list(arrays[n:])


linear_p.def_impl(_linear)
mlir.register_lowering(linear_p, mlir.lower_fun(_linear, multiple_results=True))


def _linear_types(*avals: Any, linear: Linear, batch_ndim: int) -> list[Any]:
    batch = jnp.broadcast_shapes(*[a.shape[:batch_ndim] for a in avals])
    outs = [avals[linear.n_args + k] for k in linear.live]
    return output_types(
        [((*batch, *y.shape[batch_ndim:]), y.dtype) for y in outs], avals, batch_ndim
    )


linear_p.def_abstract_eval(_linear_types)


def _linear_batch(
    args: Sequence[Any], dims: Sequence[int | None], *, linear: Linear, batch_ndim: int
) -> tuple[Any, Any]:
    outs = linear.bind(*_split(linear, leading(args, dims)), batch_ndim + 1)
    return outs, [0] * len(outs)


batching.primitive_batchers[linear_p] = _linear_batch


def _linear_jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, linear: Linear, batch_ndim: int
) -> tuple[Any, Any]:
    # d (J x) = J dx + (dJ) x
    outs = linear_p.bind(*primals, linear=linear, batch_ndim=batch_ndim)
    res, x = _split(linear, primals)
    dres, dx = _split(linear, tangents)
    terms: list[list[Any]] = []
    if any(has_tangent(p, t) for p, t in zip(x, dx, strict=True)):
        dots = [t if has_tangent(p, t) else jnp.zeros_like(p) for p, t in zip(x, dx, strict=True)]
        terms.append(linear.bind(res, dots, batch_ndim))
    moving = [k for k, (p, t) in enumerate(zip(res, dres, strict=True)) if has_tangent(p, t)]
    if moving:

        def at(*some: Any) -> list[Any]:
            point = list(res)
            for k, p in zip(moving, some, strict=True):
                point[k] = p
            return mapped(linear.apply, point, x, batch_ndim)

        _, dots = jax.jvp(at, [res[k] for k in moving], [dres[k] for k in moving])
        terms.append(same_varying([*dots, *primals])[: len(dots)])
    if not terms:
        return outs, [zero_tangent(y) for y in outs]
    return outs, [functools.reduce(jnp.add, parts) for parts in zip(*terms, strict=True)]


ad.primitive_jvps[linear_p] = _linear_jvp


def _linear_transpose(
    cotangents: Sequence[Any], *args: Any, linear: Linear, batch_ndim: int
) -> list[Any]:
    res, x = _split(linear, args)
    types = _linear_types(
        *[a.aval if ad.is_undefined_primal(a) else jax.typeof(a) for a in args],
        linear=linear,
        batch_ndim=batch_ndim,
    )
    cts = [
        jnp.zeros(t.shape, t.dtype) if isinstance(ct, ad.Zero) else ct
        for ct, t in zip(cotangents, types, strict=True)
    ]
    # Plain code, not linear_p again: without a jvp rule its transpose would be asked for.
    grads = mapped(linear.apply_transpose, res, cts, batch_ndim)
    return [None] * len(res) + same_varying([*grads, *res])[: len(x)]


ad.primitive_transposes[linear_p] = _linear_transpose
