"""Residuals in JAX: constants to the rules, unless a rule depends on them by array code.

Residuals come from the host and have no derivative, but they change with the arguments. A rule that
only hands them on to another host function, as an argument without derivative, is differentiated
rightly all the same; one that computes with them is not, and raises at the next order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from .jax_extend import Primitive, ad, batching, has_tangent, mlir, zero_tangent
from .rules import Rules

__all__ = ["depends", "guard"]

# residuals_p(residuals.., args..; count) -> residuals, which may not move with the args.
residuals_p = Primitive("ot_backends_residuals")
residuals_p.multiple_results = True
residuals_p.def_impl(lambda *xs, count, rules: list(xs[:count]))
residuals_p.def_abstract_eval(lambda *xs, count, rules: list(xs[:count]))
mlir.register_lowering(residuals_p, lambda ctx, *xs, count, rules: list(xs[:count]))


def guard(rules: Rules, residuals: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    """Return the residuals so that a derivative in `args` raises."""
    results: list[Any] = residuals_p.bind(*residuals, *args, count=len(residuals), rules=rules)
    return results


def _batch(args: Any, dims: Any, **params: Any) -> tuple[Any, Any]:
    return residuals_p.bind(*args, **params), list(dims[: params["count"]])


batching.primitive_batchers[residuals_p] = _batch


def _jvp(primals: Any, tangents: Any, *, count: int, rules: Rules) -> tuple[Any, Any]:
    if any(has_tangent(x, dx) for x, dx in zip(primals[count:], tangents[count:], strict=True)):
        raise rules.residual_error()
    outs = residuals_p.bind(*primals, count=count, rules=rules)
    return outs, [zero_tangent(y) for y in outs]


ad.primitive_jvps[residuals_p] = _jvp


def depends(f: Callable[..., Sequence[Any]], residuals: Sequence[Any]) -> bool:
    """Whether `f` has a derivative in the residuals, by its structure: nothing is run."""
    found = []

    @jax.custom_jvp
    def seen(y: Any) -> Any:
        return y

    def seen_jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
        (y,), (dy,) = primals, tangents
        if not isinstance(dy, jax.custom_derivatives.SymbolicZero):
            found.append(y)
        return y, jnp.zeros_like(y)

    seen.defjvp(seen_jvp, symbolic_zeros=True)

    def derivative(*point: Any) -> Any:
        return jax.jvp(lambda *x: [seen(y) for y in f(*x) if y is not None], point, point)

    jax.eval_shape(derivative, *residuals)
    return bool(found)
