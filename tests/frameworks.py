"""What the tests need of a framework beside the package: arrays, derivatives, compilation."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from judge import to_numpy

__all__ = ["ALL", "DIFFERENTIABLE", "Framework", "JaxFramework", "TorchFramework", "use"]


class Framework:
    """NumPy: arrays and functions, no derivatives."""

    name = "numpy"
    traced = False

    def __init__(self) -> None:
        self.xp: Any = np

    def array(self, x: Any, dtype: str = "float64") -> Any:
        return np.asarray(x, dtype=dtype)

    def arrays(self, *xs: Any, dtype: str = "float64") -> list[Any]:
        return [self.array(x, dtype) for x in xs]

    def fast(self, f: Callable[..., Any]) -> Callable[..., Any]:
        """f as one program where it would otherwise be compiled operation by operation (JAX)."""
        return f

    def numpy(self, x: Any) -> np.ndarray:
        return to_numpy(x)

    def jit(self, f: Callable[..., Any]) -> Callable[..., Any]:
        """f compiled as users compile it; f itself where there is no compiler."""
        return f


class JaxFramework(Framework):
    name = "jax"
    traced = True

    def __init__(self) -> None:
        self.jax = pytest.importorskip("jax")
        self.xp = self.jax.numpy

    def array(self, x: Any, dtype: str = "float64") -> Any:
        return self.xp.asarray(np.asarray(x)).astype(dtype)

    def jit(self, f: Callable[..., Any]) -> Callable[..., Any]:
        return self.jax.jit(f)

    fast = jit

    def vmap(self, f: Callable[..., Any], in_axes: Any = 0) -> Callable[..., Any]:
        return self.jax.vmap(f, in_axes)

    def grad(self, f: Callable[..., Any], argnums: Any = 0) -> Callable[..., Any]:
        return self.jax.grad(f, argnums)

    def jvp(self, f: Callable[..., Any], x: Any, t: Any) -> Any:
        """The value and the derivative of f at the tuple x along the tuple t, in forward mode."""
        return self.jax.jvp(f, tuple(x), tuple(t))

    def jacrev(self, f: Callable[..., Any], argnums: Any = 0) -> Callable[..., Any]:
        return self.jax.jacrev(f, argnums)

    def jacfwd(self, f: Callable[..., Any], argnums: Any = 0) -> Callable[..., Any]:
        return self.jax.jacfwd(f, argnums)


class TorchFramework(Framework):
    name = "torch"
    traced = True

    def __init__(self) -> None:
        self.torch = pytest.importorskip("torch")
        self.xp = self.torch

    def array(self, x: Any, dtype: str = "float64") -> Any:
        return self.torch.as_tensor(np.array(x)).to(getattr(self.torch, dtype))

    def jit(self, f: Callable[..., Any]) -> Callable[..., Any]:
        return self.torch.compile(f, fullgraph=True, backend="aot_eager")

    def vmap(self, f: Callable[..., Any], in_axes: Any = 0) -> Callable[..., Any]:
        return self.torch.func.vmap(f, in_axes)

    def grad(self, f: Callable[..., Any], argnums: Any = 0) -> Callable[..., Any]:
        return self.torch.func.grad(f, argnums)

    def jvp(self, f: Callable[..., Any], x: Any, t: Any) -> Any:
        return self.torch.func.jvp(f, tuple(x), tuple(t))

    def jacrev(self, f: Callable[..., Any], argnums: Any = 0) -> Callable[..., Any]:
        return self.torch.func.jacrev(f, argnums)

    def jacfwd(self, f: Callable[..., Any], argnums: Any = 0) -> Callable[..., Any]:
        return self.torch.func.jacfwd(f, argnums)

    def backward(self, f: Callable[..., Any], *args: Any) -> list[Any]:
        """The gradients that ``loss.backward()`` leaves on the arguments."""
        leaves = [x.detach().clone().requires_grad_() for x in args]
        f(*leaves).backward()
        return [x.grad for x in leaves]


ALL = {"numpy": Framework, "jax": JaxFramework, "torch": TorchFramework}
DIFFERENTIABLE = ["jax", "torch"]


@contextlib.contextmanager
def use(name: str, x64: bool = True) -> Iterator[Any]:
    """The framework `name`, on JAX with 64-bit types inside this context only."""
    framework = ALL[name]()
    if name != "jax":
        yield framework
        return
    jax = framework.jax
    context = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64
    with context(x64):
        yield framework
