"""Wrap an external solver: inside jit, vmap and scan, with derivatives of every order.

The solver knows NumPy only. Say what it returns, and write its derivatives as array code; they
may call the solver again, which is what makes the second and third derivative follow.
"""

import numpy as np

from ot_backends import host_function


@host_function(out=lambda A, b: b)  # x looks like b
def solve(A, b):
    return np.linalg.solve(A, b)  # SuperLU, PETSc, a simulator...


# A x = b:   A dx = db - dA x
@solve.def_jvp
def _(nx, tangents, x, A, b):
    dA, db = tangents
    return nx.pycall(solve, A, db - dA @ x)


# and its transpose:   y = A^-T ct,   b* = y,   A* = -y x^T
@solve.def_vjp
def _(nx, ct, x, A, b):
    y = nx.pycall(solve, A.mT, ct)
    return -y[:, None] * x, y


A, b = np.array([[3.0, 1.0], [0.5, 2.0]]), np.array([1.0, 2.0])
print("NumPy", solve(A, b))


def in_jax():
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)

    @jax.jit
    def loss(A, b):
        def step(x, _):
            return solve(A, x + b), None

        return jax.lax.scan(step, b, length=3)[0].sum()

    print("JAX, gradient", jax.grad(loss)(jnp.array(A), jnp.array(b)))
    hessian = jax.jit(jax.hessian(loss))(jnp.array(A), jnp.array(b))
    print("JAX, Hessian", hessian.shape, float(hessian.sum()))


in_jax()
