"""How gradients pair with inputs in ``set_gradients``: by structure, and by shape."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import ProblemError

__all__ = ["contraction", "gradient_pairs"]


def gradient_pairs(inputs: Any, grads: Any, where: str = "inputs") -> list[tuple[Any, Any, str]]:
    """Pair every array of `inputs` with its gradient: a list of (input, gradient, path).

    `inputs` is an array or a nested tuple, list or dict of arrays; `grads` has the same structure,
    or None in place of any part of it.
    """
    if grads is None:
        return []
    if isinstance(inputs, dict):
        keys: list[Any] = list(inputs)
        same = isinstance(grads, dict) and set(grads) == set(keys)
    elif isinstance(inputs, (tuple, list)):
        keys = list(range(len(inputs)))
        same = isinstance(grads, (tuple, list)) and len(grads) == len(keys)
    else:
        return [(inputs, grads, where)]
    if not same:
        raise ProblemError(
            f"set_gradients: grads must have the structure of inputs (None for no gradient); at "
            f"{where} the inputs are {type(inputs).__name__} of {len(keys)}, the grads "
            f"{type(grads).__name__}{f' of {len(grads)}' if hasattr(grads, '__len__') else ''}"
        )
    return [pair for k in keys for pair in gradient_pairs(inputs[k], grads[k], f"{where}[{k!r}]")]


def contraction(
    value: tuple[int, ...], x: tuple[int, ...], grad: tuple[int, ...], where: str = "inputs"
) -> tuple[int, ...]:
    """Return the common shape W of an input and its gradient.

    With S = `value`, the shape of the value (() for a scalar):

    - an input of shape S + T takes a gradient of that shape, one per element of the value, and
      W = S + T;
    - an input of any other shape T takes one of shape S + T, a Jacobian: W = S + T again, and the
      input is reshaped to ``(1,) * len(S) + T``.

    The gradient may broadcast to W. Then ``d value = sum(grad * dx, all axes from len(S) on)``.
    """
    for shape in (x, value + x):
        try:
            fits = np.broadcast_shapes(grad, shape) == shape and shape[: len(value)] == value
        except ValueError:
            fits = False
        if fits:
            return shape
    raise ProblemError(
        f"set_gradients: the gradient of {where} has shape {grad}, which does not broadcast to the "
        f"input's shape {x}, nor to value.shape + input.shape = {value + x}"
    )
