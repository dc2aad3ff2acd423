"""Host functions with rules that several test files use, each written once for every framework."""

from __future__ import annotations

from typing import Any

import numpy as np

from ot_backends import host_function

CALLS: list[tuple[tuple[int, ...], ...]] = []  # shapes of the arguments of `solve`, call by call


@host_function(out=lambda A, b: b, vectorized=True)
def solve(A: np.ndarray, b: np.ndarray) -> np.ndarray:
    """x = A^-1 b by an external solver that takes batches."""
    CALLS.append((A.shape, b.shape))
    return np.linalg.solve(A, b[..., None])[..., 0]


@solve.def_vjp
def _(nx: Any, ct: Any, x: Any, A: Any, b: Any) -> Any:
    y = nx.pycall(solve, A.mT, ct)
    return -y[:, None] * x, y


@solve.def_jvp
def _(nx: Any, tangents: Any, x: Any, A: Any, b: Any) -> Any:
    dA, db = tangents
    return nx.pycall(solve, A, db - dA @ x)


@host_function(out=lambda inverse, A, b: b, vectorized=True)
def multiply(inverse: np.ndarray, A: np.ndarray, b: np.ndarray) -> np.ndarray:
    """x = A^-1 b with the inverse known: differentiated in A and b, not in what only serves."""
    return (inverse @ b[..., None])[..., 0]


@multiply.def_vjp
def _(nx: Any, ct: Any, x: Any, inverse: Any, A: Any, b: Any) -> Any:
    y = nx.pycall(multiply, inverse.mT, A.mT, ct)
    return None, -y[:, None] * x, y


@multiply.def_jvp
def _(nx: Any, tangents: Any, x: Any, inverse: Any, A: Any, b: Any) -> Any:
    _, dA, db = tangents
    return nx.pycall(multiply, inverse, A, db - dA @ x)


multiply.def_vjp(None, argnum=0)


def factored(by_array_code: bool) -> Any:
    """x = A^-1 b with the inverse as a residual, used by array code or by another host function."""

    @host_function(out=lambda A, b: b, residuals=lambda A, b: (A, b), vectorized=True)
    def solve_once(A: np.ndarray, b: np.ndarray) -> Any:
        inverse = np.linalg.inv(A + np.zeros((*b.shape[:-1], 1, 1)))
        return (inverse @ b[..., None])[..., 0], (inverse, np.zeros(inverse.shape[:-1]))

    @solve_once.def_vjp
    def _(nx: Any, ct: Any, result: Any, A: Any, b: Any) -> Any:
        x, (inverse, _) = result
        y = inverse.mT @ ct if by_array_code else nx.pycall(multiply, inverse.mT, A.mT, ct)
        return -y[:, None] * x, y

    @solve_once.def_jvp
    def _(nx: Any, tangents: Any, result: Any, A: Any, b: Any) -> Any:
        x, (inverse, _) = result
        r = tangents[1] - tangents[0] @ x
        return inverse @ r if by_array_code else nx.pycall(multiply, inverse, A, r)

    return solve_once


def problem(n: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.random((n, n)) + n * np.eye(n), rng.random(n)
