"""``emd`` and ``emd2``: POT's names, arguments and return types, on every framework."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

from ..basis import dense_plan
from ..errors import ProblemError
from . import attach
from .problem import Optimum, Problem, prepare

Array = Any

__all__ = ["emd", "emd2"]

#: POT's result code for an optimal plan; anything else raises here.
_OPTIMAL = 1


def emd(
    a: Array,
    b: Array,
    M: Array,
    numItermax: int | None = None,
    log: bool = False,
    center_dual: bool = True,
    numThreads: int | str = 1,
    check_marginals: bool = True,
    potentials_init: tuple[Array, Array] | None = None,
    *,
    basis: Array | None = None,
    kernel: str | None = None,
) -> Any:
    r"""Compute an exact optimal transport plan.

    The arguments are those of ``ot.emd``; the plan is differentiable in a and b.

    Parameters
    ----------
    a, b : array, shapes (n,) and (m,)
        Weights with the same sum; empty or None means uniform.
    M : array, shape (n, m)
        Costs; ``+inf`` forbids a cell. A batch (B, n, m) gives a batch of plans.
    numItermax : int, optional
        Pivots after which to give up, with an error. By default there is no limit (POT's default
        of 100,000 stops large problems before their optimum).
    log : bool
        Whether to return a dictionary beside the plan.
    center_dual : bool
        Whether the potentials in the log are centred as POT does (<u, a> = <v, b>); if not,
        <v, b> = 0.
    numThreads : int or "max"
        Deprecated by POT, and without effect.
    check_marginals : bool
        Whether to refuse sums of a and b that differ by more than rounding.
    potentials_init : pair of arrays (n,) and (m,), optional
        Potentials to start from. They change the speed, not the optimum.
    basis : array of int32, shape (n + m,), optional
        ``log["basis"]`` of an earlier, similar problem: a better warm start than potentials.
    kernel : {"native", "pot"}, optional
        As in ``solve``.

    Returns
    -------
    plan : array, shape (n, m)
        In the floating type of M (of the weights, if M holds integers).
    log : dict
        Only if asked for: cost, u, v, warning (None), result_code (1) and basis.

    Raises
    ------
    ProblemError
        As in ``solve``.

    Examples
    --------
    >>> import ot_backends
    >>> ot_backends.emd([0.5, 0.5], [0.5, 0.5], [[0.0, 1.0], [1.0, 0.0]])
    array([[0.5, 0. ],
           [0. , 0.5]])
    """
    _deprecated(numThreads=numThreads)
    problem = prepare(a, b, M)
    start = _start(problem, basis, potentials_init)
    x = attach.Attached(problem, _optimum(problem, start, check_marginals, numItermax, kernel))
    plan = problem.finish(_plan(x))
    if not log:
        return plan
    entries = _log(x, center_dual)
    return plan, {"cost": problem.finish(attach.value(x)), **entries}


def emd2(
    a: Array,
    b: Array,
    M: Array,
    processes: int = 1,
    numItermax: int | None = None,
    log: bool = False,
    return_matrix: bool = False,
    center_dual: bool = True,
    numThreads: int | str = 1,
    check_marginals: bool = True,
    potentials_init: tuple[Array, Array] | None = None,
    *,
    basis: Array | None = None,
    kernel: str | None = None,
) -> Any:
    r"""Compute the exact optimal transport loss.

    .. math::
        \min_{P \ge 0} \langle P, M \rangle \quad \text{with row sums } a
        \text{ and column sums } b \, \tfrac{\sum a}{\sum b}

    The arguments are those of ``ot.emd2``. The loss is differentiable in a, b and M, to every
    order and in every mode of the framework; the solver runs once, on the host.

    Parameters
    ----------
    a : array, shape (n,)
        Weights; empty or None means uniform.
    b : array, shape (m,) or (m, k)
        Weights with the same sum. A matrix holds k of them, one per column.
    M : array, shape (n, m)
        Costs; ``+inf`` forbids a cell. With costs (B, n, m), and weights (n,) or (B, n) and (m,) or
        (B, m), the losses are a batch (B,), solved in one host call.
    processes, numThreads
        Deprecated by POT, and without effect.
    numItermax : int, optional
        Pivots after which to give up, with an error; no limit by default.
    log, return_matrix : bool
        Whether to return a dictionary beside the loss, and whether the plan is in it.
    center_dual, check_marginals, potentials_init, basis, kernel
        As in ``emd``.

    Returns
    -------
    loss : array, shape ()
        In the floating type of M (of the weights, if M holds integers). For a matrix ``b`` a list
        of k losses, as in POT.
    log : dict
        Only if asked for: cost, u, v, warning (None), result_code (1), basis, and G, the plan.

    Raises
    ------
    ProblemError
        As in ``solve``.

    Notes
    -----
    The gradients are those of the function above, the rescaling of b included:
    d/da_i = u_i + <v, b'> / sum(a) and d/db_j = (v_j - <v, b'> / sum(a)) * sum(a) / sum(b). They
    equal finite differences in every direction, and differ from POT's by one constant per side.

    Examples
    --------
    >>> import ot_backends
    >>> loss = ot_backends.emd2([0.5, 0.5], [0.25, 0.75], [[0.0, 1.0], [1.0, 0.0]])
    >>> float(loss)
    0.25
    """
    _deprecated(processes=processes, numThreads=numThreads)
    problem = prepare(a, b, M)
    columns = len(problem.b.shape) == 2 and len(problem.M.shape) == 2
    if columns:
        problem = _by_columns(problem)
    start = _start(problem, basis, potentials_init)
    x = attach.Attached(problem, _optimum(problem, start, check_marginals, numItermax, kernel))
    loss = problem.finish(attach.value(x))
    entries: dict[str, Any] = {}
    if log or return_matrix:
        entries = {"cost": loss, **_log(x, center_dual)}
        if return_matrix:
            entries["G"] = problem.finish(_plan(x))
    if columns:
        return [
            [loss[k], {name: _pick(value, k) for name, value in entries.items()}]
            if entries
            else loss[k]
            for k in range(loss.shape[0])
        ]
    return [loss, entries] if entries else loss  # a list, as in POT


def _optimum(
    problem: Problem,
    start: Array | None,
    check_marginals: bool,
    numItermax: int | None,
    kernel: str | None,
) -> Optimum:
    return problem.optimum(
        start, check_marginals=check_marginals, max_iterations=numItermax, kernel=kernel
    )


def _by_columns(problem: Problem) -> Problem:
    """Make a batch of the columns of ``b``."""
    n, m = problem.shape
    if len(problem.a.shape) != 1 or problem.b.shape[0] != m:
        raise ProblemError(
            f"Dimension mismatch: with M of shape {(n, m)} a matrix b holds one set of weights per "
            f"column, (m, k), beside a of shape (n,); but a has the shape {tuple(problem.a.shape)} "
            f"and b {tuple(problem.b.shape)}. For a batch of weights use ot_backends.solve, or "
            "give M a batch dimension"
        )
    b = problem.nx.xp.permute_dims(problem.b, (1, 0))
    return replace(problem, b=b)


def _pick(value: Any, k: int) -> Any:
    return value[k] if hasattr(value, "shape") else value


def _plan(x: attach.Attached) -> Array:
    n, m = x.problem.shape
    return dense_plan(x.problem.nx, x.host.rows, x.host.cols, attach.flow(x), n, m)


def _log(x: attach.Attached, center_dual: bool) -> dict[str, Any]:
    """Everything that POT logs, and the basis."""
    u, v = attach.potentials(x)
    if center_dual:
        u, v = _centred(x, u, v)
    done = x.problem.finish
    return {
        "u": done(u), "v": done(v), "warning": None, "result_code": _OPTIMAL, "basis": x.host.basis,
    }  # fmt: skip


def _centred(x: attach.Attached, u: Array, v: Array) -> tuple[Array, Array]:
    """Shift the potentials so that <u, a> = <v, b'>, POT's choice of the free constant."""
    xp = x.problem.nx.xp
    difference = xp.sum(v * x.b, axis=-1, keepdims=True) - xp.sum(u * x.a, axis=-1, keepdims=True)
    mass = xp.sum(x.a, axis=-1, keepdims=True) + xp.sum(x.b, axis=-1, keepdims=True)
    return u + difference / mass, v - difference / mass


def _start(
    problem: Problem, basis: Array | None, potentials: tuple[Array, Array] | None
) -> Array | None:
    """Return what the solver starts from: a basis, else potentials (u, v) side by side."""
    if basis is not None or potentials is None:
        return basis
    n, m = problem.shape
    nx, xp = problem.nx, problem.nx.xp
    u, v = (problem.carry(nx.asarray(p, like=problem.M)) for p in potentials)
    if tuple(u.shape) != (n,) or tuple(v.shape) != (m,):
        raise ProblemError(
            f"potentials_init must be a pair of arrays of shapes ({n},) and ({m},), but the shapes "
            f"are {tuple(u.shape)} and {tuple(v.shape)}"
        )
    return xp.concat([u, v], axis=-1)


def _deprecated(processes: int = 1, numThreads: int | str = 1) -> None:
    """Warn as POT does about arguments that have no effect any more."""
    if processes != 1:
        warnings.warn(
            "The 'processes' parameter has been deprecated and has no effect: use a batch.",
            DeprecationWarning,
            stacklevel=3,
        )
    if numThreads != 1:
        warnings.warn(
            "The 'numThreads' parameter is deprecated and has no effect on a single problem.",
            DeprecationWarning,
            stacklevel=3,
        )
