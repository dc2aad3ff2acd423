"""No gradient, zero gradient, or the gradient of your own formula."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..backends import get_backend
from ..backends.trees import array_leaves, flatten

__all__ = ["custom_gradient", "stop_gradient", "zero_grad"]


def stop_gradient(x: Any) -> Any:
    """Return `x`, an array or a tree of arrays, as a constant for all derivatives.

    Examples
    --------
    >>> import jax
    >>> from ot_backends import stop_gradient
    >>> print(jax.grad(lambda x: x * stop_gradient(x))(3.0))
    3.0
    """
    return get_backend(*array_leaves(x)).stop_gradient(x)


def zero_grad(x: Any) -> Any:
    """Return `x`, an array or a tree of arrays, with the derivative zero.

    Unlike `stop_gradient` the result still depends on `x` in the framework's eyes: in Torch a loss
    of it has a ``backward``, which leaves zeros instead of None.

    Examples
    --------
    >>> import torch
    >>> from ot_backends import zero_grad
    >>> x = torch.ones(2, requires_grad=True)
    >>> zero_grad(x).sum().backward()
    >>> x.grad
    tensor([0., 0.])
    """
    nx = get_backend(*array_leaves(x))
    leaves, tree = flatten(x, nx.registered)
    return tree.unflatten([nx.set_gradients(y, (y,), (0.0,)) for y in leaves])


def custom_gradient(value: Callable[..., Any], grad: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function ``value(*args)`` with the gradient ``grad(*args)``.

    Parameters
    ----------
    value : callable
        Array code; it is not differentiated, and may call host functions. Its arguments are arrays
        or trees of arrays.
    grad : callable
        The gradient for one argument, a tuple of them for several, None for no gradient; see
        `Backend.set_gradients` for shapes. It is array code that is differentiated for the next
        order. It gets the arguments as ``value`` does.

    Returns
    -------
    callable
        With derivatives of every order in both modes.

    Examples
    --------
    The textbook derivative of log(1 + e^x) is nan where e^x overflows:

    >>> import jax, jax.numpy as jnp
    >>> from ot_backends import custom_gradient
    >>> log1pexp = custom_gradient(
    ...     lambda x: jnp.logaddexp(x, 0.0), lambda x: 1 / (1 + jnp.exp(-x))
    ... )
    >>> print(jax.grad(log1pexp)(1000.0))
    1.0
    """

    @functools.wraps(value)
    def f(*args: Any) -> Any:
        nx = get_backend(*array_leaves(args))
        grads = grad(*args)
        if len(args) == 1:
            grads = (grads,)
        # set_gradients drops derivatives of the value; this saves computing them.
        return nx.set_gradients(value(*nx.stop_gradient(args)), args, grads)

    return f
