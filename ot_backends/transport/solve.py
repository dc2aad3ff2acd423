"""``solve``: one call that returns value, plan, potentials and basis, in any framework."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..backends import get_backend
from ..basis import dense_plan
from . import attach
from .problem import prepare

Array = Any

__all__ = ["Result", "Status", "solve"]


class Status(NamedTuple):
    """The certificate of optimality, from the same tree as the value.

    Attributes
    ----------
    dual : array, shape (...)
        <u, a> + <v, b'>, equal to the value up to rounding.
    violation : array, shape (...)
        The most by which u_i + v_j exceeds M_ij, in units of cost; 0 or rounding.
    iterations : array of int32, shape (...)
        Pivots of the solver, -1 where it does not count them.
    """

    dual: Array
    violation: Array
    iterations: Array


class Result(NamedTuple):
    """An optimal transport between ``a`` and ``b``: a NamedTuple, hence a pytree.

    Attributes
    ----------
    value : array, shape (...)
        min <P, M>; differentiable in a, b and M to every order.
    u, v : array, shapes (..., n) and (..., m)
        Potentials with the gauge <v, b'> = 0, in which d value / da = u and
        d value / db = v * sum(a) / sum(b). Differentiable in M.
    flow : array, shape (..., n + m - 1)
        Masses on the edges of the optimal tree; differentiable in a and b.
    rows, cols : integer arrays, shape (..., n + m - 1)
        The cells of those edges. All other cells of the plan are zero.
    basis : array of int32, shape (..., n + m)
        The optimal tree, to pass to the next call as ``basis``: the parent of each node (rows
        first, then columns), -1 at the root.
    status : Status
    """

    value: Array
    u: Array
    v: Array
    flow: Array
    rows: Array
    cols: Array
    basis: Array
    status: Status

    @property
    def plan(self) -> Array:
        """The plan as a dense array (..., n, m); differentiable in a and b."""
        nx = get_backend(self.flow)
        n, m = self.u.shape[-1], self.v.shape[-1]
        return dense_plan(nx, self.rows, self.cols, self.flow, n, m)

    @property
    def sparse_plan(self) -> tuple[Array, Array, Array]:
        """The plan as (rows, cols, flow), each (..., n + m - 1); every cell occurs once."""
        return self.rows, self.cols, self.flow

    @property
    def potentials(self) -> tuple[Array, Array]:
        """The potentials (u, v)."""
        return self.u, self.v


def solve(
    M: Array,
    a: Array | None = None,
    b: Array | None = None,
    *,
    basis: Array | None = None,
    check_marginals: bool = True,
    max_iterations: int | None = None,
    time_limit: float | None = None,
    threads: int | None = None,
    kernel: str | None = None,
) -> Result:
    r"""Solve optimal transport problems exactly.

    .. math::
        \min_{P \ge 0} \langle P, M \rangle \quad \text{with row sums } a
        \text{ and column sums } b' = b \, \tfrac{\sum a}{\sum b}

    The solver runs on the host, once per call, whatever is differentiated and however many
    problems the batch holds. The arrays stay in their framework, under every transform of it.

    Parameters
    ----------
    M : array, shape (..., n, m)
        Costs. ``+inf`` forbids a cell. NumPy, JAX or Torch; lists are NumPy.
    a, b : array, shapes (..., n) and (..., m), optional
        Weights, not negative, with the same sum. None or empty: uniform, of total 1. Leading
        dimensions of all arguments broadcast and make a batch.
    basis : array of int32, shape (..., n + m), optional
        ``Result.basis`` of an earlier, similar problem: a warm start. It changes the speed and,
        where several bases are optimal, which one is found. Anything that is not a spanning tree
        (all -1, say) means a cold start.
    check_marginals : bool
        Whether to refuse sums of a and b that differ by more than rounding; if not, b is rescaled.
    max_iterations : int, optional
        Pivots after which to give up, with an error.
    time_limit : float, optional
        Seconds after which to give up, with an error (native kernel only). Inside a compiled JAX
        program, where Ctrl-C does not reach the solver, this ends a solve that takes too long.
    threads : int, optional
        Threads for a batch; by default as many as the process may use.
    kernel : {"native", "pot"}, optional
        The solver. By default what the environment variable OT_BACKENDS_KERNEL says, else the
        native one where it was built, else POT's.

    Returns
    -------
    Result
        In the floating type of M (if M holds integers: of the weights).

    Raises
    ------
    ProblemError
        For NaN, -inf, negative or empty input, or shapes that do not fit; its subclasses
        MassMismatchError, InfeasibleError and IterationLimitError for what they say. Inside a
        compiled JAX program the same text arrives in JAX's runtime error.

    Notes
    -----
    The value is bilinear in the marginals and the costs on a fixed optimal basis, so derivatives of
    every order are exact where the basis is unique. Where several are optimal (uniform weights,
    tied costs) the gradients are an element of the subdifferential. For an empty row or column they
    are the one-sided derivatives for mass moving into it.

    Examples
    --------
    >>> import ot_backends
    >>> result = ot_backends.solve([[0.0, 2.0], [2.0, 1.0]], a=[0.75, 0.25], b=[0.5, 0.5])
    >>> float(result.value)
    0.75
    >>> result.plan
    array([[0.5 , 0.25],
           [0.  , 0.25]])
    """
    problem = prepare(a, b, M)
    host = problem.optimum(
        basis,
        check_marginals=check_marginals,
        max_iterations=max_iterations,
        time_limit=time_limit,
        threads=threads,
        kernel=kernel,
    )
    x = attach.Attached(problem, host)
    u, v = attach.potentials(x)
    done = problem.finish
    status = Status(done(host.dual), done(host.violation), host.iterations)
    return Result(
        done(attach.value(x)), done(u), done(v), done(attach.flow(x)),
        host.rows, host.cols, host.basis, status,
    )  # fmt: skip
