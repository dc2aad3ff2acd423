"""What a JAX function captures, made explicit: a primitive's rules may not hold on to tracers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from .jax_extend import jaxpr_as_fun

__all__ = ["close_over"]


def close_over(
    f: Callable[..., Any], examples: Sequence[Any]
) -> tuple[Callable[..., Any], list[Any]]:
    """Return g and the traced arrays that `f` captures: ``g(captured, *args) = f(*args)``.

    `f` takes and returns flat arrays. It is traced once, at the shapes of `examples`, and kept as
    it is where it captures nothing that is traced.
    """
    jaxpr = jax.make_jaxpr(f)(*examples)
    where = [k for k, c in enumerate(jaxpr.consts) if isinstance(c, jax.core.Tracer)]
    if not where:
        return lambda captured, *args: f(*args), []

    def g(captured: Sequence[Any], *args: Any) -> tuple[Any, ...]:
        consts = list(jaxpr.consts)
        for k, c in zip(where, captured, strict=True):
            consts[k] = c
        return tuple(jaxpr_as_fun(jaxpr.replace(consts=consts))(*args))

    return g, [jaxpr.consts[k] for k in where]
