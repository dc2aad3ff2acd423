"""What runs where on several devices, and with which arrays.

- ``jax.shard_map``: each device calls the host function with its own shard, at the same time. A
  replicated argument arrives whole on each; its gradient is summed over the devices, with
  check_vma on (the default) by JAX, with it off by your own ``psum``.
- ``jax.jit`` over sharded arrays: one call, with the whole.

A host function runs in the process of its device. With several processes each calls its own copy.
"""

import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from ot_backends import host_function

shapes = []


@host_function(out=lambda A, b: b, vectorized=True)
def solve(A, b):
    shapes.append((A.shape, b.shape))
    return np.linalg.solve(A, b[..., None])[..., 0]


@solve.def_vjp
def _(nx, ct, x, A, b):
    y = nx.pycall(solve, A.mT, ct)
    return -y[:, None] * x, y


jax.config.update("jax_enable_x64", True)
mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
A, b = jnp.array([[3.0, 1.0], [0.5, 2.0]]), jnp.arange(16.0).reshape(8, 2)


def total(A, b):
    return jnp.sum(jax.vmap(solve, (None, 0))(A, b) ** 2)


def part(A, b):
    return jax.lax.psum(total(A, b), "x")


sharded = jax.shard_map(part, mesh=mesh, in_specs=(P(), P("x")), out_specs=P())
value, gradient = jax.block_until_ready(jax.jit(jax.value_and_grad(sharded))(A, b))
print("shard_map:", shapes)
assert shapes[:4] == [((1, 2, 2), (2, 2))] * 4  # A on every device, two of the eight b each
assert len(shapes) == 8  # forward and backward

shapes.clear()
split = jax.device_put(b, NamedSharding(mesh, P("x")))
again, same = jax.block_until_ready(jax.jit(jax.value_and_grad(total))(A, split))
print("jit:", shapes)
assert [b for _, b in shapes] == [(8, 2)] * 2
np.testing.assert_allclose(value, again)
np.testing.assert_allclose(gradient, same)
