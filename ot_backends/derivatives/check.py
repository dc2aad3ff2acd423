"""Are these derivatives right? Finite differences, by the frameworks' own checkers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..backends import get_backend
from ..backends.trees import array_leaves
from ..errors import NotDifferentiableError

__all__ = ["check_grads"]


def check_grads(
    f: Callable[..., Any],
    args: Sequence[Any],
    order: int = 2,
    modes: Sequence[str] = ("fwd", "rev"),
    *,
    atol: float | None = None,
    rtol: float | None = None,
    eps: float | None = None,
) -> None:
    """Compare the derivatives of `f` at `args` with finite differences; raise where they differ.

    Parameters
    ----------
    f : callable
        From arrays to an array or a tuple of arrays.
    args : sequence of arrays
        JAX arrays or Torch tensors; float64 is advisable on JAX and required on Torch.
    order : int
        Every order up to this is checked: each as the derivative of the one below.
    modes : sequence of {"fwd", "rev"}
        For orders above one, each is checked over each.
    atol, rtol, eps : float, optional
        Tolerances and the step. Default: the framework's (on JAX by dtype).

    Raises
    ------
    AssertionError
        Where a derivative is wrong.

    Notes
    -----
    Uses ``jax.test_util.check_grads`` and ``torch.autograd.gradcheck``.
    """
    bad = [m for m in modes if m not in ("fwd", "rev")]
    if bad or not modes:
        raise ValueError(f"check_grads: modes must be of 'fwd' and 'rev', but is {modes!r}")
    if order < 1:
        raise ValueError(f"check_grads: order must be at least 1, but is {order}")
    name = get_backend(*array_leaves(tuple(args))).name
    given = {"atol": atol, "rtol": rtol, "eps": eps}
    options: dict[str, Any] = {key: x for key, x in given.items() if x is not None}
    if name == "numpy":
        raise NotDifferentiableError(
            "check_grads: NumPy has no derivatives; pass JAX arrays or Torch tensors"
        )
    if name == "jax":
        from jax.test_util import check_grads as check_jax

        check_jax(f, tuple(args), order, modes=list(modes), **options)
    else:
        _check_torch(f, list(args), order, modes, options)


def _check_torch(
    f: Callable[..., Any],
    args: list[Any],
    order: int,
    modes: Sequence[str],
    options: dict[str, Any],
) -> None:
    import torch
    from torch.autograd.gradcheck import GradcheckError

    args = [x.detach().clone() if isinstance(x, torch.Tensor) else x for x in args]
    moving = [
        k for k, x in enumerate(args) if isinstance(x, torch.Tensor) and x.is_floating_point()
    ]
    if any(args[k].dtype != torch.float64 for k in moving):
        raise TypeError("check_grads: Torch's checker needs float64 tensors")

    def of_moving(*some: Any) -> Any:
        whole = list(args)
        for k, x in zip(moving, some, strict=True):
            whole[k] = x
        return f(*whole)

    points = [args[k].requires_grad_() for k in moving]
    functions = [(of_moving, False)]
    for _ in range(order):
        for g, forward in functions:
            # gradcheck's own forward mode does not nest with torch.func.jvp in what it checks.
            nested = forward and "fwd" in modes
            if nested:
                _check_forward(g, points, **options)
            if nested and "rev" not in modes:
                continue
            try:
                torch.autograd.gradcheck(
                    g,
                    points,
                    check_forward_ad="fwd" in modes and not nested,
                    check_backward_ad="rev" in modes,
                    **options,
                )
            except GradcheckError as error:
                raise AssertionError(str(error)) from error
        functions = [
            (_derivative(g, points, mode), forward or mode == "fwd")
            for g, forward in functions
            for mode in modes
        ]


def _check_forward(
    f: Callable[..., Any],
    points: list[Any],
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
) -> None:
    """Compare torch.func.jvp, column by column, with central differences."""
    import torch

    def outputs(value: Any) -> list[Any]:
        parts = value if isinstance(value, tuple) else (value,)
        return [y.detach() for y in parts if y.is_floating_point()]

    points = [x.detach() for x in points]
    for k, x in enumerate(points):
        for i in range(x.numel()):
            step = [torch.zeros_like(y) for y in points]
            step[k].view(-1)[i] = 1
            dots = outputs(torch.func.jvp(f, tuple(points), tuple(step))[1])
            ahead, behind = (
                outputs(f(*[y + sign * eps * t for y, t in zip(points, step, strict=True)]))
                for sign in (1, -1)
            )
            for dot, plus, minus in zip(dots, ahead, behind, strict=True):
                numerical = (plus - minus) / (2 * eps)
                if not torch.allclose(dot, numerical, rtol=rtol, atol=atol):
                    raise AssertionError(
                        f"check_grads: the forward derivative in element {i} of argument {k} is "
                        f"{dot}, and finite differences give {numerical}"
                    )


def _derivative(f: Callable[..., Any], points: list[Any], mode: str) -> Callable[..., Any]:
    """Return a random directional derivative of `f`, as a function of the same points."""
    import torch

    generator = torch.Generator().manual_seed(0)

    def like(x: Any) -> Any:
        return torch.rand(x.shape, dtype=x.dtype, generator=generator).to(x.device)

    if mode == "fwd":
        directions = tuple([like(x) for x in points])
        return lambda *xs: torch.func.jvp(f, xs, directions)[1]
    with torch.no_grad():
        values = f(*points)
    weights = tuple([like(y) for y in values]) if isinstance(values, tuple) else like(values)
    return lambda *xs: torch.func.vjp(f, *xs)[1](weights)
