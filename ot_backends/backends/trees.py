"""Nested tuples, lists, dicts and NamedTuples of arrays: to a flat list and back."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

__all__ = ["LEAF", "Tree", "array_leaves", "flatten"]


class Tree(NamedTuple):
    """The structure of a nested container: hashable, equal by value.

    `kind` is the type of the container, None for a leaf, or what the framework knows of a container
    of its own (JAX: a PyTreeDef); `keys` are those of a dict.
    """

    kind: Any
    keys: tuple[Any, ...] = ()
    children: tuple[Tree, ...] = ()
    size: int = 1  # the number of leaves

    def unflatten(self, leaves: Sequence[Any]) -> Any:
        """Return the container with these leaves in it."""
        if self.kind is None:
            return leaves[0]
        if self.kind is type(None):
            return None
        if not isinstance(self.kind, type):
            return self.kind.unflatten(leaves)
        parts, start = [], 0
        for child in self.children:
            parts.append(child.unflatten(leaves[start : start + child.size]))
            start += child.size
        if self.kind is dict:
            return dict(zip(self.keys, parts, strict=True))
        if hasattr(self.kind, "_fields"):
            return self.kind(*parts)
        return self.kind(parts)

    def flatten_up_to(self, value: Any, where: str = "") -> list[Any]:
        """Return the parts of `value` that stand where this structure has leaves.

        A list will do for a tuple and the other way round, and None stands for None everywhere
        below. ValueError says where the structures differ.
        """
        if self.kind is None:
            return [value]
        if value is None:
            return [None] * self.size
        if self.kind is not type(None) and not isinstance(self.kind, type):
            return list(self.kind.flatten_up_to(value))
        if self.kind is dict:
            same = isinstance(value, dict) and set(value) == set(self.keys)
            parts = [value[key] for key in self.keys] if same else []
        else:
            same = isinstance(value, (tuple, list)) and len(value) == len(self.children)
            parts = list(value) if same else []
        if not same:
            raise ValueError(f"{_describe(value)}{f' at {where}' if where else ''}")
        keys = self.keys or range(len(parts))
        return [
            leaf
            for key, child, part in zip(keys, self.children, parts, strict=True)
            for leaf in child.flatten_up_to(part, f"{where}[{key!r}]")
        ]

    def positions(self) -> list[int]:
        """Return, for each leaf, the number of the child that it is in."""
        return [k for k, child in enumerate(self.children) for _ in range(child.size)]


LEAF = Tree(None)

#: How a framework flattens containers that are registered with it alone.
Registered = Callable[[Any], tuple[list[Any], Any]]


def flatten(x: Any, registered: Registered | None = None) -> tuple[list[Any], Tree]:
    """Return the leaves of `x` and its structure. None is a container without leaves."""
    kind = type(x)
    if isinstance(x, (tuple, list)):
        keys, parts = (), list(x)
    elif isinstance(x, dict):
        kind, keys, parts = dict, tuple(x), list(x.values())
    elif x is None:
        return [], Tree(kind, size=0)
    elif registered is not None and not hasattr(x, "shape"):
        leaves, structure = registered(x)
        if len(leaves) == 1 and leaves[0] is x:
            return leaves, LEAF
        return leaves, Tree(structure, size=len(leaves))
    else:
        return [x], LEAF
    flat = [flatten(part, registered) for part in parts]
    leaves = [leaf for part, _ in flat for leaf in part]
    return leaves, Tree(kind, keys, tuple(tree for _, tree in flat), len(leaves))


def array_leaves(x: Any) -> list[Any]:
    """Return the leaves of `x`, by which to ask for its backend: containers of JAX's are opened."""
    jax = sys.modules.get("jax")  # what is not imported has registered nothing
    return flatten(x, None if jax is None else jax.tree_util.tree_flatten)[0]


def _describe(value: Any) -> str:
    if isinstance(value, dict):
        return f"a dict with the keys {list(value)}"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    return f"{type(value).__name__}"
