"""A function that takes batches: one host call for a whole batch, however vmap made it.

With ``vectorized=True`` every argument arrives with the same number of leading dimensions, of size
1 where it is shared, as NumPy broadcasts. Without it the function is called once per problem, in
a loop inside one host call. The rules are written for one problem either way.
"""

import jax
import jax.numpy as jnp
import numpy as np

from ot_backends import ArraySpec, host_function

calls = []


@host_function(out=lambda A: ArraySpec(A.shape[:-1], A.dtype), vectorized=True)
def eigenvalues(A):
    calls.append(A.shape)
    return np.linalg.eigvalsh(A)


@host_function(out=lambda A: A, vectorized=True)
def eigenvectors(A):
    calls.append(A.shape)
    return np.linalg.eigh(A)[1]


# A v_k = w_k v_k:   dw_k = v_k^T dA v_k
@eigenvalues.def_jvp
def _(nx, tangents, w, A):
    V = nx.pycall(eigenvectors, nx.stop_gradient(A))  # first order only is asked for here
    return nx.xp.sum(V * (tangents[0] @ V), axis=0)


jax.config.update("jax_enable_x64", True)
A = np.random.default_rng(0).random((2, 5, 3, 3))
A = jnp.asarray(A + A.swapaxes(-1, -2))

gap = lambda A: eigenvalues(A)[2] - eigenvalues(A)[1]  # noqa: E731
nested = jax.jit(jax.vmap(jax.vmap(jax.grad(gap))))
print("gradients", nested(A).shape)
assert set(calls) == {(2, 5, 3, 3)}, calls
print("host calls", calls)
