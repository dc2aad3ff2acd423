"""Residuals: what the forward call computed anyway, for the derivative rules.

The function returns ``(outputs, residuals)``: callers get the outputs, rules get both. Here the
Cholesky factor is computed once, and the derivatives only substitute.

Residuals have no derivative of their own. A rule that hands them to a host function, as an argument
that was said to be constant, still has every order; one that computes with a floating residual in
array code raises at the second.
"""

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import cho_solve

from ot_backends import check_grads, host_function


@host_function(out=lambda A, b: b, residuals=lambda A, b: A)
def solve(A, b):
    factor = np.linalg.cholesky(A)
    return cho_solve((factor, True), b), factor


@host_function(out=lambda factor, A, b: b)
def substitute(factor, A, b):
    return cho_solve((factor, True), b)  # A^-1 b, with the factor of A known


substitute.def_vjp(None, argnum=0)  # the derivative goes through A, which the factor belongs to


@solve.def_vjp
def _(nx, ct, result, A, b):
    x, factor = result
    y = nx.pycall(substitute, factor, A, ct)
    return -y[:, None] * x, y


@solve.def_jvp
def _(nx, tangents, result, A, b):
    x, factor = result
    return nx.pycall(substitute, factor, A, tangents[1] - tangents[0] @ x)


@substitute.def_vjp
def _(nx, ct, x, factor, A, b):
    y = nx.pycall(substitute, factor, A, ct)
    return None, -y[:, None] * x, y


@substitute.def_jvp
def _(nx, tangents, x, factor, A, b):
    return nx.pycall(substitute, factor, A, tangents[2] - tangents[1] @ x)


jax.config.update("jax_enable_x64", True)
R, b = jnp.array([[2.0, 0.0], [1.0, 3.0]]), jnp.array([1.0, 2.0])
check_grads(lambda R, b: solve(R @ R.T, b), (R, b), order=3)
print("three orders agree with finite differences")
