"""Programs in which a host callback could wait for threads that wait for it; run as a script.

``pending``: the inputs of a compiled call are still being computed (run it on one CPU). ``psum``:
several devices call the host, and then all of them wait for each other. With ``--python`` a kernel
that was built is called through Python all the same, with ``--public-callback`` through
jax.pure_callback, and then both can hang.
"""

from __future__ import annotations

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

import ot_backends
from ot_backends.backends import jax_extend, jax_hostcall

jax.config.update("jax_enable_x64", True)


def report(**line: object) -> None:
    print(json.dumps(line), flush=True)


def pending(n: int = 1000) -> None:
    weights = jnp.ones(n) / n
    costs = lambda x: ((((x @ x) / n) @ x) / n) @ x / n  # noqa: E731  op by op, each waits for the last
    step = jax.jit(jax.value_and_grad(ot_backends.emd2, 2))
    x = jnp.asarray(np.random.default_rng(0).random((n, n)))
    want = float(ot_backends.emd2(weights, weights, np.asarray(costs(x))))
    step.lower(weights, weights, x).compile()
    for k in range(3):
        value, plan = step(weights, weights, costs(x))  # costs(x) has not been waited for
        assert abs(float(value) - want) < 1e-12
        assert abs(float(plan.sum()) - 1) < 1e-12
        report(done=k)


def psum() -> None:
    devices = jax.device_count()
    mesh = jax.make_mesh((devices,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    nx = ot_backends.get_backend(jnp.ones(1))
    size = 16 * 2**20 // 8  # 16 MB of float64 on each device

    def body(x: jax.Array) -> jax.Array:
        y = nx.pycall(lambda x: 2 * x, nx.stop_gradient(x), out=x)
        return jax.lax.psum(y, "x")

    f = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P()))
    x = jnp.ones((devices * size,))
    for k in range(5):
        assert float(f(x + k)[0]) == 2 * devices * (1 + k)
        report(shard_map=k)

    g = jax.jit(lambda x: (x * nx.pycall(lambda x: 2 * x, nx.stop_gradient(x), out=x)).sum())
    split = jax.sharding.NamedSharding(mesh, P("x"))
    for k in range(5):
        assert float(g(jax.device_put(x, split) + k)) == 2 * x.size * (1 + k) ** 2
        report(jit=k)

    n, m = 1024, 2048  # 16 MB again, in the gradient that is summed

    def step(a: jax.Array, b: jax.Array, M: jax.Array) -> tuple[jax.Array, jax.Array]:
        value, plan = jax.value_and_grad(ot_backends.emd2, 2)(a, b, M[0])
        return jax.lax.psum(value, "x"), jax.lax.psum(plan, "x")

    specs = {"in_specs": (P(), P(), P("x")), "out_specs": P()}
    h = jax.jit(jax.shard_map(step, mesh=mesh, **specs))
    points = np.random.default_rng(0).random((n + m, 1))
    M = jnp.asarray(np.stack([np.abs(points[:n] - points[n:].T)] * devices))
    a, b = jnp.ones(n) / n, jnp.ones(m) / m
    for k in range(2):
        _, plan = h(a, b, M * (1 + k))
        assert abs(float(plan.sum()) - devices) < 1e-10
        report(emd2=k)


def main() -> None:
    if "--python" in sys.argv or "--public-callback" in sys.argv:
        jax_hostcall.compiled_twin = lambda *_: None
    jax_extend.CAN_EMIT &= "--public-callback" not in sys.argv
    ot_backends.emd2(np.ones(2) / 2, np.ones(2) / 2, np.eye(2))  # imports what the solver needs
    report(started=True)
    {"pending": pending, "psum": psum}[sys.argv[1]]()


if __name__ == "__main__":
    main()
