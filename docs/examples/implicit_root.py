"""Differentiate a root, not the solver that found it.

`root` takes the residual f(x, parameters), array code, and any solver. The implicit function
theorem says the rest, at every order: df/dx dx = -df/dp dp. `linear_solve` is the same for A x = b.
"""

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import fsolve

from ot_backends import check_grads, host_function, linear_solve, root


def kepler(E, M, e):
    """Kepler's equation: the eccentric anomaly E of an orbit, at the mean anomaly M."""
    return E - e * jnp.sin(E) - M


@host_function(out=lambda E, M, e: E)
def find(E, M, e):
    return fsolve(lambda E: E - e * np.sin(E) - M, E, xtol=1e-15)


def anomaly(M, e):
    return root(kepler, M, M, e, solve=find)


jax.config.update("jax_enable_x64", True)
M, e = jnp.array([0.5, 1.0, 2.0]), jnp.array(0.3)
E = jax.jit(anomaly)(M, e)
print("dE/de     ", jax.jacfwd(anomaly, 1)(M, e))
print("by hand   ", jnp.sin(E) / (1 - e * jnp.cos(E)))
check_grads(anomaly, (M, e), order=2)


@host_function(out=lambda b, d: b)
def thomas(b, d):
    return np.linalg.solve(np.diag(d) - np.eye(len(d), k=1) - np.eye(len(d), k=-1), b)


def laplace(d, b):
    def matvec(x, d):
        return d * x - jnp.roll(x, 1).at[0].set(0) - jnp.roll(x, -1).at[-1].set(0)

    return linear_solve(matvec, b, d, solve=thomas, transpose_solve=thomas)  # symmetric


check_grads(laplace, (3 + M, M), order=3)
print("finite differences agree")
