"""Functions of trees as functions of flat arrays, with what they capture as one more argument."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..backends import Backend, get_backend
from ..backends.trees import Tree, array_leaves, flatten
from ..errors import NotDifferentiableError

__all__ = ["Flat", "Point", "nothing_captured", "replaced"]

#: A function of flat arrays: the unknown's leaves, then the parameters', then what is captured.
Flat = Callable[..., tuple[Any, ...]]


class Point:
    """The unknown and its parameters as flat arrays of one framework.

    Functions ``f(x, *params)`` become functions of ``(*x, *theta)``, with `theta` the parameters
    and all that the functions capture.
    """

    def __init__(self, x: Any, params: Sequence[Any]) -> None:
        """Flatten both."""
        leaves = array_leaves((x, *params))
        self.nx: Backend = get_backend(*leaves)
        like = next((y for y in leaves if hasattr(y, "shape")), None)
        x, self.tree = flatten(x, self.nx.registered)
        theta, self.param_tree = flatten(tuple(params), self.nx.registered)
        self.x = [self.nx.asarray(y, like) for y in x]
        self.theta = [self.nx.asarray(y, like) for y in theta]

    def flat(self, f: Callable[..., Any], name: str) -> Flat:
        """Return `f` on leaves; what it captures goes to the end of `theta`."""
        tree, params, n = self.tree, self.param_tree, len(self.x)

        def on_leaves(*leaves: Any) -> tuple[Any, ...]:
            theta = params.unflatten(leaves[n : n + params.size])
            return _leaves(tree, f(tree.unflatten(leaves[:n]), *theta), name)

        given = [*self.x, *self.theta[: params.size]]
        g, captured = self.nx.close_over(on_leaves, [self.nx.stop_gradient(y) for y in given])
        start = n + len(self.theta)
        self.theta += captured
        end = n + len(self.theta)
        return lambda *leaves: g(leaves[start:end], *leaves[: n + params.size])


def _leaves(tree: Tree, value: Any, name: str) -> tuple[Any, ...]:
    try:
        return tuple(tree.flatten_up_to(value))
    except ValueError as error:
        raise TypeError(
            f"{name} must return what its first argument looks like; it returned {error}"
        ) from error


def replaced(xs: Sequence[Any], where: Sequence[int], new: Sequence[Any]) -> list[Any]:
    """Return `xs` with the `new` ones in their places."""
    result = list(xs)
    for k, x in zip(where, new, strict=True):
        result[k] = x
    return result


def nothing_captured(name: str) -> NotDifferentiableError:
    """Return the error where a function captures what is being differentiated."""
    return NotDifferentiableError(
        f"{name}: a function that it was given captures an array that is being differentiated; "
        "pass the array as one of the params"
    )
