"""What a host call costs: the identity through pycall and through the frameworks' own ways.

    python benchmarks/pycall_overhead.py [--seconds 2] [--output overhead.json]

All candidates of one row are run in turn, many times; a number is the median in microseconds. Not
all of them pass the same transforms: pure_callback has no derivative, custom_vjp no forward mode,
custom_op and autograd.Function fail some of torch.func's; docs/architecture.md says which.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ot_backends import ArraySpec, get_backend, host_function

SIZES = (8, 1_000_000)


def same(x: np.ndarray) -> np.ndarray:
    return x


identity = host_function(out=lambda x: x, vectorized=True)(same)
identity.def_vjp(lambda nx, ct, out, x: ct)
identity.def_jvp(lambda nx, tangents, out, x: tangents[0])


def jax_ways(size: int) -> dict[str, dict[str, Callable[[], Any]]]:
    import jax
    import jax.numpy as jnp

    x = jnp.ones(size, jnp.float32)
    nx = get_backend(x)
    spec = ArraySpec((size,), "float32")
    shape = jax.ShapeDtypeStruct((size,), jnp.float32)

    def callback(x: Any) -> np.ndarray:  # one and the same function: another would be recompiled
        return same(np.asarray(x))

    def pycall(x: Any) -> Any:
        return nx.pycall(same, x, out=spec, vectorized=True)

    def rules(x: Any) -> Any:
        return nx.pycall(identity, x)

    def pure_callback(x: Any) -> Any:
        return jax.pure_callback(callback, shape, x, vmap_method="expand_dims")

    custom = jax.custom_vjp(pure_callback)
    custom.defvjp(lambda x: (custom(x), None), lambda _, ct: (ct,))
    ways = {
        "pycall": pycall,
        "pycall with rules": rules,
        "pure_callback": pure_callback,
        "pure_callback + custom_vjp": custom,
    }
    wait = jax.block_until_ready

    def call(f: Any) -> Callable[[], Any]:
        return lambda: wait(f(x))

    gradient = lambda f: jax.grad(lambda x: (f(x) ** 2).sum())  # noqa: E731
    differentiable = {k: f for k, f in ways.items() if k not in ("pycall", "pure_callback")}
    return {
        "eager": {k: call(f) for k, f in ways.items()},
        "jit": {k: call(jax.jit(f)) for k, f in ways.items()},
        "gradient, eager": {k: call(gradient(f)) for k, f in differentiable.items()},
        "gradient, jit": {k: call(jax.jit(gradient(f))) for k, f in differentiable.items()},
    }


def torch_ways(size: int) -> dict[str, dict[str, Callable[[], Any]]]:
    import torch

    x = torch.ones(size)
    nx = get_backend(x)
    spec = ArraySpec((size,), "float32")

    def pycall(x: Any) -> Any:
        return nx.pycall(same, x.detach(), out=spec, vectorized=True)

    def rules(x: Any) -> Any:
        return nx.pycall(identity, x)

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return torch.from_numpy(same(x.numpy()).copy())

        @staticmethod
        def backward(ctx: Any, ct: Any) -> Any:
            return ct

    @torch.library.custom_op(
        f"ot_backends_benchmark::identity{size}", mutates_args=(), schema="(Tensor x) -> Tensor"
    )
    def operator(x: Any) -> Any:
        return torch.from_numpy(same(x.numpy()).copy())

    operator.register_fake(torch.empty_like)
    operator.register_autograd(lambda ctx, ct: ct)
    ways = {
        "pycall": pycall,
        "pycall with rules": rules,
        "torch.library.custom_op": operator,
        "autograd.Function": Function.apply,
    }

    def gradient(f: Any) -> Callable[[], Any]:
        leaf = x.clone().requires_grad_()
        return lambda: torch.autograd.grad((f(leaf) ** 2).sum(), leaf)

    def call(f: Any) -> Callable[[], Any]:
        return lambda: f(x)

    def compiled(f: Any) -> Any:
        return torch.compile(f, fullgraph=True, backend="aot_eager")

    differentiable = {k: f for k, f in ways.items() if k != "pycall"}
    return {
        "eager": {k: call(f) for k, f in ways.items()},
        "compiled": {k: call(compiled(f)) for k, f in ways.items() if k != "autograd.Function"},
        "gradient, eager": {k: gradient(f) for k, f in differentiable.items()},
        "gradient, compiled": {
            k: gradient(compiled(f)) for k, f in differentiable.items() if k != "autograd.Function"
        },
    }


def medians(candidates: dict[str, Callable[[], Any]], seconds: float) -> dict[str, Any]:
    """Microseconds per call, in turn; or what a candidate raised."""
    results: dict[str, Any] = {}
    times: dict[str, list[float]] = {}
    for name, f in candidates.items():
        try:
            f(), f()
            times[name] = []
        except Exception as error:
            results[name] = f"{type(error).__name__}: {str(error)[:80]}"
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name in times:
            start = time.perf_counter()
            candidates[name]()
            times[name].append(time.perf_counter() - start)
    return results | {k: round(statistics.median(t) * 1e6, 1) for k, t in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=2, help="per row")
    parser.add_argument("--framework", choices=["jax", "torch"], action="append")
    parser.add_argument("--output", help="write JSON there")
    options = parser.parse_args()
    table: dict[str, Any] = {}
    for framework in options.framework or ["jax", "torch"]:
        ways = {"jax": jax_ways, "torch": torch_ways}[framework]
        for size in SIZES:
            for row, candidates in ways(size).items():
                result = medians(candidates, options.seconds)
                table[f"{framework}, {row}, {size}"] = result
                print(f"{framework:6} {row:20} {size:8}", result, flush=True)
    if options.output:
        with open(options.output, "w") as file:
            json.dump({"python": sys.version, "microseconds": table}, file, indent=1)


if __name__ == "__main__":
    main()
