"""A derivative rule that is itself a host function: one order, in its own mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .rules import Mode, is_inexact
from .spec import ArraySpec, Outputs

if TYPE_CHECKING:
    from .host_rules import BoundHost

__all__ = ["HostRule", "run_on_host"]

Arrays = Sequence[Any]


@dataclass(frozen=True)
class HostRule:
    """A rule that is a NumPy function, as an opaque host function of flat arrays.

    It takes those (co)tangents that are not None, the values and the arguments.
    """

    rule: Callable[..., Any]
    bound: BoundHost
    mode: Mode
    key: int | None
    present: tuple[bool, ...]  # which of the (co)tangents
    core_ndims: tuple[int, ...]  # dimensions of one problem, of all that it takes
    targets: tuple[int | None, ...]  # which of those its results look like; None for integers

    @property
    def __host_name__(self) -> str:
        """What messages call it."""
        return f"{self.bound.name} ({self.mode} rule)"

    @property
    def __no_derivative__(self) -> str:
        """The message where it is differentiated."""
        return (
            f"pycall: the {self.mode} rule of the host function {self.bound.name!r} is a host "
            "function itself (host=True), which gives one order of derivatives, in its own mode. "
            "Write it as array code, which may call host functions, for further orders; pass "
            "stop_gradient(x) for what is constant"
        )

    def __call__(self, *arrays: Any) -> tuple[Any, ...]:
        """Run the rule on flat NumPy arrays."""
        given = iter(arrays[: sum(self.present)])
        leading = [next(given) if here else None for here in self.present]
        rest = arrays[sum(self.present) :]
        count = len(rest) - self.bound.in_tree.size
        result = self.bound.apply(
            self.rule, self.mode, self.key, leading, rest[:count], rest[count:]
        )
        batch = np.broadcast_shapes(
            *[x.shape[: x.ndim - n] for x, n in zip(arrays, self.core_ndims, strict=True)]
        )
        return tuple(
            np.zeros(batch + arrays[k].shape[arrays[k].ndim - self.core_ndims[k] :])
            if x is None
            else x
            for x, k in zip(result, self.targets, strict=True)
            if k is not None
        )

    def out(self, *specs: ArraySpec) -> Outputs:
        """Return what the rule returns for arrays of these specs."""
        return Outputs(tuple(specs[k] for k in self.targets if k is not None), single=False)


def run_on_host(
    nx: Any,
    rule: Callable[..., Any],
    bound: BoundHost,
    mode: Mode,
    key: int | None,
    leading: Arrays,
    values: Arrays,
    args: Arrays,
    like: Arrays,
) -> list[Any]:
    """Return what `rule` gives for the (co)tangents `leading`: flat, shaped as `like`."""
    present = tuple(x is not None for x in leading)
    arrays = [*[x for x in leading if x is not None], *values, *args]
    ndims = tuple(len(x.shape) for x in arrays)
    at = {id(x): k for k, x in enumerate(arrays)}  # `like` is a part of values or of args
    targets = tuple(at[id(x)] if is_inexact(nx.dtype_name(x)) else None for x in like)
    fn = HostRule(rule, bound, mode, key, present, ndims, targets)
    specs = [ArraySpec(tuple(x.shape), nx.dtype_name(x)) for x in arrays]
    # Sizes that are symbols of a compiler: as a function of them.
    known = all(isinstance(n, int) for spec in specs for n in spec.shape)
    out = fn.out(*specs) if known else fn.out
    results = iter(nx.pycall(fn, *arrays, out=out, vectorized=bound.host.vectorized))
    return [None if k is None else next(results) for k in targets]
