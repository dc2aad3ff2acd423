"""Rules per argument: only what is differentiated is computed, and None says that nothing is.

`interpolate(table, x, order)` reads a table of samples on [0, 1]. The derivative in the table and
the derivative in x have nothing in common; there is none through the integer `order`.
"""

import jax
import jax.numpy as jnp
import numpy as np

from ot_backends import host_function


@host_function(out=lambda table, x, order: x)
def interpolate(table, x, order):
    grid = np.linspace(0, 1, len(table))
    if order == 0:  # the nearest sample to the left
        return table[np.clip(np.searchsorted(grid, x, side="right") - 1, 0, len(table) - 1)]
    return np.interp(x, grid, table)


@host_function(out=lambda table, x: (x, x))
def cell(table, x):
    """The cell that x lies in, and where in it."""
    position = np.clip(x, 0, 1) * (len(table) - 1)
    left = np.minimum(position.astype(int), len(table) - 2)
    return left.astype(x.dtype), position - left


cell.def_vjp(None, argnum=0)  # None instead of a rule: no derivative through this argument
cell.def_vjp(None, argnum=1)


@interpolate.def_jvp(argnum=1)
def _(nx, dx, out, table, x, order):
    left = nx.pycall(cell, table, x)[0].astype("int32")
    slope = (table[left + 1] - table[left]) * (len(table) - 1)
    return dx * nx.xp.where(order == 0, 0.0, slope)


@interpolate.def_jvp(argnum=0)
def _(nx, dtable, out, table, x, order):
    return nx.pycall(interpolate, dtable, x, order)  # linear in the table


@interpolate.def_vjp(argnum=0)
def _(nx, ct, out, table, x, order):
    left, inside = nx.pycall(cell, table, x)
    left, inside = left.astype("int32"), inside * (order != 0)
    zeros = nx.xp.zeros_like(table)
    return zeros.at[left].add(ct * (1 - inside)).at[left + 1].add(ct * inside)


jax.config.update("jax_enable_x64", True)
table, x = jnp.array([0.0, 1.0, 4.0, 9.0]), jnp.array([0.1, 0.5, 0.9])
print("values", interpolate(table, x, 1))
# In x there is only a jvp: reverse mode transposes it, since it is array code where it is linear.
print("in x", jax.grad(lambda x: interpolate(table, x, 1).sum())(x))
print("in the table", jax.grad(lambda table: interpolate(table, x, 1).sum())(table))
