"""emd, emd2 and solve under everything that PyTorch does to a function."""

from __future__ import annotations

import copy
import functools
import gc
import multiprocessing
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from judge import central, reference
from problems import prob
from subprocesses import PACKAGE

torch = pytest.importorskip("torch")

from torch.autograd import forward_ad  # noqa: E402
from torch.func import grad, grad_and_value, hessian, jacfwd, jacrev, jvp, vjp, vmap  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402

import ot_backends  # noqa: E402
from ot_backends.host import HostSolve  # noqa: E402

P = prob(4, 3)
N, M_ = P.M.shape
SIZES = (N, M_, N * M_)


@pytest.fixture(autouse=True)
def _empty_compile_cache() -> None:
    torch.compiler.reset()


@pytest.fixture
def host_calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The batch shape of M in each call that reached the host."""
    calls: list[tuple[Any, ...]] = []
    solve = HostSolve.__call__

    def counted(self: HostSolve, a: Any, b: Any, M: Any, *start: Any) -> Any:
        calls.append(M.shape[:-2])
        return solve(self, a, b, M, *start)

    monkeypatch.setattr(HostSolve, "__call__", counted)
    return calls


def tensors(p: Any = P, dtype: Any = torch.float64, requires_grad: bool = False) -> list[Any]:
    return [torch.tensor(x, dtype=dtype, requires_grad=requires_grad) for x in p.args]


def pack(a: Any, b: Any, M: Any) -> Any:
    return torch.cat([a, b, M.flatten()])


def unpack(theta: Any) -> tuple[Any, Any, Any]:
    a, b, M = theta.split(SIZES)
    return a, b, M.reshape(N, M_)


def compiled(f: Callable[..., Any], **kwargs: Any) -> Callable[..., Any]:
    return torch.compile(f, fullgraph=True, **{"backend": "aot_eager", **kwargs})


# ---- what the derivatives are, by HiGHS alone


def gradient_by_highs(theta: np.ndarray) -> np.ndarray:
    a, b, M = np.split(theta, np.cumsum(SIZES)[:-1])
    r = reference(a, b, M.reshape(N, M_))
    return np.concatenate([r.u, r.v * a.sum() / b.sum(), r.plan.ravel()])


THETA = np.concatenate([x.ravel() for x in P.args])


@functools.cache
def gradient() -> Any:
    return torch.tensor(gradient_by_highs(THETA))


@functools.cache
def second() -> Any:
    """The Hessian of the value in (a, b, M), column by column."""
    basis = np.eye(len(THETA))
    return torch.tensor(
        np.stack([central(lambda t, e=e: gradient_by_highs(THETA + t * e)) for e in basis], 1)
    )


def close(got: Any, want: Any, rtol: float = 1e-8) -> None:
    torch.testing.assert_close(got, want, rtol=rtol, atol=rtol * want.detach().abs().max().item())


def loss(theta: Any) -> Any:
    return ot_backends.emd2(*unpack(theta))


def plan(theta: Any) -> Any:
    return ot_backends.emd(*unpack(theta))


def potentials(theta: Any) -> Any:
    a, b, M = unpack(theta)
    return torch.cat(ot_backends.solve(M, a, b).potentials)


def value_of_solve(theta: Any) -> Any:
    a, b, M = unpack(theta)
    return ot_backends.solve(M, a, b).value


theta0 = functools.partial(torch.tensor, THETA)
VALUES = pytest.mark.parametrize("f", [loss, value_of_solve])
DIRECTION = torch.tensor(np.random.default_rng(3).standard_normal(len(THETA)))


def along(f: Callable[..., Any], v: Any = DIRECTION) -> Callable[..., Any]:
    return lambda x: jvp(f, (x,), (v.expand(x.shape),))[1]


# ---- first order


FIRST: dict[str, Callable[..., Any]] = {
    "backward": lambda f, x: (f(y := x.clone().requires_grad_()).backward(), y.grad)[1],
    "autograd.grad": lambda f, x: torch.autograd.grad(f(y := x.clone().requires_grad_()), y)[0],
    "vectorised jacobian": lambda f, x: torch.autograd.functional.jacobian(f, x, vectorize=True),
    "forward jacobian": lambda f, x: torch.autograd.functional.jacobian(
        f, x, vectorize=True, strategy="forward-mode"
    ),
    "grad": lambda f, x: grad(f)(x),
    "grad_and_value": lambda f, x: grad_and_value(f)(x)[0],
    "vjp": lambda f, x: vjp(f, x)[1](torch.ones((), dtype=x.dtype))[0],
    "jacrev": lambda f, x: jacrev(f)(x),
    "jacfwd": lambda f, x: jacfwd(f)(x),
    "vmap of grad": lambda f, x: vmap(grad(f))(torch.stack([x, x]))[1],
    "grad of vmap": lambda f, x: grad(lambda y: vmap(f)(y).sum())(torch.stack([x, x]))[1],
    "vmap of vmap of grad": lambda f, x: vmap(vmap(grad(f)))(x.expand(2, 2, -1))[1, 0],
    "vmap of jacfwd": lambda f, x: vmap(jacfwd(f))(torch.stack([x, x]))[0],
    "checkpoint": lambda f, x: torch.autograd.grad(
        checkpoint(f, y := x.clone().requires_grad_(), use_reentrant=False),
        y,
    )[0],
    "compiled backward": lambda f, x: torch.autograd.grad(
        compiled(f)(y := x.clone().requires_grad_()), y
    )[0],
    "compiled grad": lambda f, x: compiled(grad(f))(x),
    "compiled vmap of grad": lambda f, x: compiled(vmap(grad(f)))(torch.stack([x, x]))[1],
    "grad of compiled vmap": lambda f, x: torch.autograd.grad(
        compiled(vmap(f))(y := x.expand(2, -1).clone().requires_grad_()).sum(), y
    )[0][1],
}


@VALUES
@pytest.mark.parametrize("name", FIRST)
def test_first_derivatives(name: str, f: Any) -> None:
    close(FIRST[name](f, theta0()), gradient())


def in_dual_level(f: Callable[..., Any], x: Any, v: Any) -> Any:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(f(forward_ad.make_dual(x, v))).tangent


def in_nested_dual(f: Callable[..., Any], x: Any, v: Any) -> Any:
    """Reverse mode over the old forward-mode API."""
    x = x.clone().requires_grad_()
    return torch.autograd.grad(in_dual_level(f, x, v), x)[0]


FORWARD: dict[str, Callable[..., Any]] = {
    "jvp": lambda f, x, v: along(f, v)(x),
    "dual level": in_dual_level,
    "vmap of jvp": lambda f, x, v: vmap(along(f, v))(torch.stack([x, x]))[1],
    "jvp of vmap": lambda f, x, v: along(vmap(f), v)(torch.stack([x, x]))[1],
    "compiled jvp": lambda f, x, v: compiled(along(f, v))(x),
}


@VALUES
@pytest.mark.parametrize("name", FORWARD)
def test_directional_derivatives(name: str, f: Any) -> None:
    close(FORWARD[name](f, theta0(), DIRECTION), gradient() @ DIRECTION)


def test_derivatives_of_the_plan_and_of_the_potentials() -> None:
    # rows of the Hessian: the plan is the derivative in M, u and v are those in a and b'
    x, n = theta0(), N + M_
    d_plan = second()[n:].reshape(N, M_, -1)
    for jacobian in (jacrev, jacfwd):
        close(jacobian(plan)(x), d_plan)
        close(vmap(jacobian(plan))(torch.stack([x, x]))[1], d_plan)
        # at fixed masses; in the masses the potentials are constant, and the gauge is not theirs
        close(jacobian(potentials)(x)[:, n:], second()[:n, n:])
    close(along(plan)(x), d_plan @ DIRECTION)
    weights = torch.rand(N, M_, dtype=torch.float64)
    y = x.clone().requires_grad_()
    (plan(y) * weights).sum().backward()
    close(y.grad, torch.einsum("ij,ijk->k", weights, d_plan))


def test_backward_agrees_with_grad_for_unequal_masses_and_batches() -> None:
    # backward has the first derivatives from the host, grad those of the linear attachment
    a, b, M = tensors()
    b, M = 2.5 * b, torch.stack([M, 2 * M, M.flip(0)])
    weights = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)

    def f(a: Any, b: Any, M: Any) -> Any:
        return (ot_backends.solve(M, a, b, check_marginals=False).value * weights).sum()

    want = grad(f, (0, 1, 2))(a, b, M)
    leaves = [x.requires_grad_() for x in (a, b, M)]
    f(*leaves).backward()
    for x, g in zip(leaves, want, strict=True):
        assert x.grad.shape == x.shape
        close(x.grad, g, 1e-12)


# ---- second order


def double_backward(f: Callable[..., Any], x: Any) -> Any:
    x = x.clone().requires_grad_()
    (first,) = torch.autograd.grad(f(x), x, create_graph=True)
    return torch.stack([torch.autograd.grad(g, x, retain_graph=True)[0] for g in first])


def reverse_over_dual(f: Callable[..., Any], x: Any) -> Any:
    return torch.stack([in_nested_dual(f, x, e) for e in torch.eye(len(x), dtype=x.dtype)])


SECOND: dict[str, Callable[..., Any]] = {
    "double backward": double_backward,
    "backward of forward_ad": reverse_over_dual,
    "hessian": lambda f, x: hessian(f)(x),
    "jacfwd of jacrev": lambda f, x: jacfwd(jacrev(f))(x),
    "jacrev of jacfwd": lambda f, x: jacrev(jacfwd(f))(x),
    "jacrev of jacrev": lambda f, x: jacrev(jacrev(f))(x),
    "jacfwd of jacfwd": lambda f, x: jacfwd(jacfwd(f))(x),
    "functional hessian": lambda f, x: torch.autograd.functional.hessian(f, x, vectorize=True),
    "vmap of hessian": lambda f, x: vmap(hessian(f))(torch.stack([x, x]))[1],
    "vmap of jacrev of jacfwd": lambda f, x: vmap(jacrev(jacfwd(f)))(torch.stack([x, x]))[0],
    "hessian of vmap": lambda f, x: hessian(lambda y: vmap(f)(y[None]).sum())(x),
    "compiled hessian": lambda f, x: compiled(hessian(f))(x),
    "compiled jacrev of jacrev": lambda f, x: compiled(jacrev(jacrev(f)))(x),
}


@VALUES
@pytest.mark.parametrize("name", SECOND)
def test_second_derivatives(name: str, f: Any) -> None:
    close(SECOND[name](f, theta0()), second(), 1e-7)


@pytest.mark.parametrize(
    "product",
    [
        lambda x, v: along(grad(loss), v)(x),
        lambda x, v: grad(along(loss, v))(x),
        lambda x, v: vjp(grad(loss), x)[1](v)[0],
        lambda x, v: in_nested_dual(loss, x, v),
        lambda x, v: vmap(lambda v: along(grad(loss), v)(x))(torch.stack([v, v]))[1],
    ],
)
def test_hessian_vector_products(product: Any) -> None:
    close(product(theta0(), DIRECTION), second() @ DIRECTION, 1e-7)


def test_jvp_of_jvp() -> None:
    close(along(along(loss))(theta0()), DIRECTION @ second() @ DIRECTION, 1e-7)


def test_third_order_is_that_of_a_product() -> None:
    # the value is bilinear, apart from the rescaling of b: with b fixed its third derivative is 0
    a, b, M = tensors()

    def f(x: Any) -> Any:
        return (
            ot_backends.emd2(x[0] * a, b, x[1] * M, check_marginals=False) ** 2
        )  # s = (x0 x1 v)^2

    x = torch.ones(2, dtype=torch.float64)
    v = ot_backends.emd2(a, b, M)
    exact = jacfwd(jacrev(jacfwd(lambda x: (x[0] * x[1] * v) ** 2)))(x)
    for third in (jacfwd(jacrev(jacfwd(f))), jacrev(jacrev(jacrev(f))), jacfwd(jacfwd(jacfwd(f)))):
        close(third(x), exact)


def test_torchs_own_checkers() -> None:
    x = theta0().requires_grad_()
    for f in (loss, plan, potentials):
        assert torch.autograd.gradcheck(
            f, x, check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True
        )
    assert torch.autograd.gradgradcheck(
        loss, x, check_fwd_over_rev=True, check_rev_over_rev=True, check_batched_grad=True
    )


def test_the_public_reports() -> None:
    # values of HiGHS for prob(6, 5, 0); see the numbers in the reports
    p = prob()
    a, b, M = tensors(p)
    want = torch.tensor(0.207643735650, dtype=torch.float64)
    both = vmap(ot_backends.emd2, (None, None, 0))(a, b, torch.stack([M, 2 * M]))
    torch.testing.assert_close(both, torch.stack([want, 2 * want]), rtol=1e-10, atol=0)
    G = torch.tensor(reference(*p.args).plan)
    close(grad(ot_backends.emd2, 2)(a, b, M), G)
    torch.testing.assert_close(
        jvp(lambda M: ot_backends.emd2(a, b, M), (M,), (M,))[1], want, rtol=1e-10, atol=0
    )
    H = hessian(lambda M: ot_backends.emd2(a, b, M) ** 2)(M)
    close(H, 2 * torch.einsum("ij,kl->ijkl", G, G))


# ---- how often the host is asked, and what is kept


def test_one_solve_for_value_and_gradient(host_calls: list[Any]) -> None:
    x = theta0().requires_grad_()
    loss(x).backward()
    grad_and_value(loss)(x.detach())
    compiled(grad_and_value(loss))(x.detach())
    assert host_calls == [(), (), ()]


@pytest.mark.parametrize(
    "order", [hessian, lambda f: jacrev(jacrev(f)), lambda f: jacrev(jacfwd(f))]
)
def test_one_solve_for_a_hessian(order: Any, host_calls: list[Any]) -> None:
    order(loss)(theta0())
    assert host_calls == [()]


def test_one_solve_for_double_backward(host_calls: list[Any]) -> None:
    double_backward(loss, theta0())
    assert host_calls == [()]


@pytest.mark.parametrize("f", [loss, plan, potentials, grad(loss), hessian(loss)])
def test_one_call_for_a_batch(f: Any, host_calls: list[Any]) -> None:
    x = theta0() * (1 + 0.01 * torch.rand(64, 1, dtype=torch.float64))
    got = vmap(f)(x)
    assert host_calls == [(64,)]
    close(got[7], f(x[7]))


@pytest.mark.parametrize(
    "in_dims", [(None, None, 0), (0, None, None), (None, 0, 1), (1, 1, 2), (0, 0, 0)]
)
def test_vmap_over_any_of_the_arguments(in_dims: Any, host_calls: list[Any]) -> None:
    args = [
        x if d is None else torch.stack([x, x.flip(0), x.roll(1, 0)], d)
        for x, d in zip(tensors(), in_dims, strict=True)
    ]
    got = vmap(ot_backends.emd2, in_dims)(*args)
    assert len(host_calls) == 1
    for k in range(3):
        one = [x if d is None else x.select(d, k) for x, d in zip(args, in_dims, strict=True)]
        close(got[k], ot_backends.emd2(*one))


def test_nested_vmap_over_different_arguments(host_calls: list[Any]) -> None:
    a, b, M = tensors()
    As, Ms = torch.stack([a, a.flip(0)]), torch.stack([M, 2 * M, 3 * M])
    f = vmap(vmap(ot_backends.emd2, (None, None, 0)), (0, None, None))
    got = f(As, b, Ms)
    assert host_calls == [(1, 3)] or host_calls == [(2, 3)]
    for i in range(2):
        for j in range(3):
            close(got[i, j], ot_backends.emd2(As[i], b, Ms[j]))


def bytes_kept(n: int, m: int, f: Callable[..., Any]) -> int:
    kept: dict[int, int] = {}

    def pack_hook(x: Any) -> Any:
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    p = prob(n, m, 4)
    args = tensors(p, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack_hook, lambda x: x):
        result = f(*args)
    assert result.requires_grad
    given = {x.untyped_storage().data_ptr() for x in args}
    return sum(size for key, size in kept.items() if key not in given)


def test_autograd_keeps_no_more_than_the_tree() -> None:
    for n, m in ((50, 60), (100, 120)):
        # nine vectors of n + m doubles, say; the dense matrix would be 3000 or 12000 of them
        assert bytes_kept(n, m, ot_backends.emd2) <= 30 * 8 * (n + m)
    assert bytes_kept(100, 120, ot_backends.emd2) <= 2.1 * bytes_kept(50, 60, ot_backends.emd2)


def test_autograd_does_not_hold_the_dense_cost() -> None:
    a, b, M = tensors(requires_grad=True)
    cost = 2 * M
    held = weakref.ref(cost)
    value = ot_backends.emd2(a, b, cost)
    del cost
    gc.collect()
    assert held() is None
    value.backward()
    close(M.grad, 2 * unpack(gradient())[2])


# ---- compilation


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("f", [ot_backends.emd2, ot_backends.emd])
def test_compiled_forward_and_backward(f: Any, backend: str) -> None:
    eager, traced = (tensors(requires_grad=True) for _ in range(2))
    want = f(*eager)
    got = compiled(f, backend=backend)(*traced)
    close(got, want)
    (want**2).sum().backward()
    (got**2).sum().backward()
    for x, y in zip(traced, eager, strict=True):
        assert (x.grad is None) == (y.grad is None)
        if y.grad is not None:
            close(x.grad, y.grad)


def test_compiled_solve_returns_the_same_result() -> None:
    a, b, M = tensors()
    want = ot_backends.solve(M, a, b)
    got = compiled(ot_backends.solve)(M, a, b)
    assert isinstance(got, ot_backends.Result)
    assert type(got.status) is type(want.status)
    close(got.plan, want.plan)
    for x, y in zip(
        torch.utils._pytree.tree_leaves(got), torch.utils._pytree.tree_leaves(want), strict=True
    ):
        assert x.dtype == y.dtype
        assert torch.equal(x, y)


@pytest.mark.parametrize("backend", ["counting", "inductor"])
def test_one_program_for_all_sizes(backend: Any) -> None:
    compilations = []

    def counting(module: Any, inputs: Any) -> Any:
        compilations.append(1)
        return module.forward

    f = compiled(
        ot_backends.emd2, backend=counting if backend == "counting" else backend, dynamic=True
    )
    for n, m in ((4, 3), (5, 7), (9, 6)):
        args = tensors(prob(n, m), requires_grad=True)
        value = f(*args)
        value.backward()
        r = reference(*prob(n, m).args)
        assert value.item() == pytest.approx(r.value, rel=1e-9)
        close(args[2].grad, torch.tensor(r.plan))
        close(args[0].grad, torch.tensor(r.u))
    if backend == "counting":
        assert len(compilations) == 1


def test_options_in_compiled_code_do_not_mix() -> None:
    a, b, M = tensors()
    b = 2.5 * b

    def f(a: Any, b: Any, M: Any, check: bool) -> Any:
        return ot_backends.emd2(a, b, M, check_marginals=check)

    g = compiled(f)
    close(g(a, b, M, False), ot_backends.emd2(a, b / 2.5, M))
    with pytest.raises(ValueError, match="sum"):
        g(a, b, M, True)
    close(g(a, b, M, False), ot_backends.emd2(a, b / 2.5, M))


@pytest.mark.parametrize("backend", [None, "aot_eager", "inductor"])
def test_bad_input_says_so_and_the_next_call_works(backend: str | None) -> None:
    a, b, M = tensors()
    f = ot_backends.emd2 if backend is None else compiled(ot_backends.emd2, backend=backend)
    want = f(a, b, M)
    bad = M.clone()
    bad[1, 1] = torch.nan
    for call in (lambda: f(a, b, bad), lambda: f(a, b, bad.requires_grad_())):
        with pytest.raises(ValueError, match="M"):
            call()
    assert torch.equal(f(a, b, M), want)


def test_compiled_with_a_warm_basis() -> None:
    @functools.partial(compiled, dynamic=False)
    def step(M: Any, basis: Any) -> Any:
        result = ot_backends.solve(M, basis=basis)
        return result.value, result.basis

    basis = torch.full((N + M_,), -1, dtype=torch.int32)
    M = tensors()[2]
    for k in range(3):
        value, basis = step(M + 0.01 * k, basis)
        close(value, ot_backends.solve(M + 0.01 * k).value)
    assert basis.dtype == torch.int32


def test_export() -> None:
    class Loss(torch.nn.Module):
        def forward(self, a: Any, b: Any, M: Any) -> Any:
            return ot_backends.emd2(a, b, M)

    args = tuple(tensors())
    for strict in (False, True):
        program = torch.export.export(Loss(), args, strict=strict)
        assert "pycall" in str(program.graph)
        close(program.module()(args[0], args[1], 2 * args[2]), 2 * ot_backends.emd2(*args))


def test_opcheck() -> None:
    from ot_backends.backends import torch_hostcall
    from ot_backends.transport.problem import SolutionSpec

    host = torch_hostcall._Host(HostSolve(), SolutionSpec("float64", "int64"), True)
    torch_hostcall._keep(host)
    a, b, M = tensors()
    op = torch.ops.ot_backends.pycall.default
    torch.library.opcheck(op, ([a, b, M], host.handle, 0))
    torch.library.opcheck(op, ([a[None], b[None], torch.stack([M, M])], host.handle, 1))


# ---- modes


def test_without_gradients() -> None:
    args = tensors(requires_grad=True)
    want = ot_backends.emd2(*args).detach()
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            value = ot_backends.emd2(*args)
            assert torch.equal(value, want)
            assert not value.requires_grad
            assert torch.equal(compiled(ot_backends.emd2)(*args), want)
    with torch.inference_mode():
        inputs = tensors()
        value = ot_backends.emd2(*inputs)
    close(value.clone(), want)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpoint_solves_again(use_reentrant: bool, host_calls: list[Any]) -> None:
    args = tensors(requires_grad=True)
    checkpoint(ot_backends.emd2, *args, use_reentrant=use_reentrant).backward()
    close(pack(*[x.grad for x in args]), gradient())
    assert host_calls == [(), ()]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype: Any) -> None:
    X = torch.rand(5, 3, requires_grad=True)
    Y = torch.rand(4, 3)
    want = ot_backends.emd2([], [], (X.detach()[:, None] - Y).abs().sum(-1))
    with torch.autocast("cpu", dtype=dtype):
        value = ot_backends.emd2([], [], (X[:, None] - Y).abs().sum(-1))
        low = ot_backends.emd2([], [], X @ Y.mT)  # a product: in the low type
    assert value.dtype == torch.float32
    close(value, want, 1e-6)
    assert low.dtype == dtype
    (value + low.float()).backward()
    assert X.grad.dtype == torch.float32
    assert torch.isfinite(X.grad).all()


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "transposed": lambda x: x.mT.contiguous().mT if x.ndim == 2 else x,
    "every second": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "flipped": lambda x: x.flip(-1).flip(-1),
    "an offset": lambda x: torch.cat([x, x])[len(x) :],
}


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("run", [lambda f: f, compiled])
def test_memory_layouts(name: str, run: Any) -> None:
    args = tensors(requires_grad=True)
    run(lambda *xs: ot_backends.emd2(*[LAYOUTS[name](x) for x in xs]))(*args).backward()
    close(pack(*[x.grad for x in args]), gradient())
    args = [LAYOUTS[name](x.detach()).requires_grad_() for x in args]
    run(ot_backends.emd2)(*args).backward()
    close(pack(*[x.grad for x in args]), gradient())


def test_expanded_inputs() -> None:
    w = torch.tensor(1.0 / 4, dtype=torch.float64, requires_grad=True)
    row = torch.rand(4, dtype=torch.float64, requires_grad=True)
    value = ot_backends.emd2(w.expand(4), w.expand(4), row.expand(4, 4))
    value.backward()
    # every plan costs <row, b'>
    close(value.detach(), row.detach().mean())
    close(row.grad, torch.full((4,), 0.25, dtype=torch.float64))
    close(w.grad, row.detach().sum())  # of the total mass


@pytest.mark.parametrize("k", [0, 1, 2])
@pytest.mark.parametrize("run", [lambda f: f, compiled])
def test_only_one_input_requires_grad(k: int, run: Any) -> None:
    args = tensors()
    args[k].requires_grad_()
    run(ot_backends.emd2)(*args).backward()
    close(args[k].grad, unpack(gradient())[k])
    assert [x.grad is None for x in args] == [j != k for j in range(3)]


def test_float32() -> None:
    args = tensors(dtype=torch.float32, requires_grad=True)
    value = ot_backends.emd2(*args)
    value.backward()
    assert value.dtype == torch.float32
    close(pack(*[x.grad for x in args]).double(), gradient(), 1e-6)
    H = hessian(loss)(theta0().float())
    close(H.double(), second(), 1e-5)


def test_the_result_may_be_changed_in_place() -> None:
    args = tensors(requires_grad=True)
    total = ot_backends.emd2(*args)
    total += 1.0
    total *= 2.0
    total.backward()
    close(pack(*[x.grad for x in args]), 2 * gradient())


# ---- modules, threads, processes


class Transport(torch.nn.Module):
    """A learnt cost between fixed weights, with the last basis as its state."""

    def __init__(self) -> None:
        super().__init__()
        a, b, M = tensors()
        self.register_buffer("a", a)
        self.register_buffer("b", b)
        self.register_buffer("basis", torch.full((N + M_,), -1, dtype=torch.int32))
        self.M = torch.nn.Parameter(M)

    def forward(self, scale: Any) -> Any:
        result = ot_backends.solve(self.M * scale, self.a, self.b, basis=self.basis)
        self.basis = result.basis.detach()
        return result.value


def test_deepcopy_and_state_of_a_module() -> None:
    module = Transport()
    scale = torch.tensor(2.0, dtype=torch.float64)
    module(scale).backward()
    other = copy.deepcopy(module)
    fresh = Transport()
    fresh.load_state_dict(module.state_dict())
    for each in (other, fresh):
        each.zero_grad()
        each(scale).backward()
        close(each.M.grad, module.M.grad)
        assert torch.equal(each.basis, module.basis)
        assert each.basis.data_ptr() != module.basis.data_ptr()
    traced = copy.deepcopy(module)
    traced.zero_grad()
    compiled(traced)(scale).backward()
    close(traced.M.grad, module.M.grad)


def test_eight_threads() -> None:
    problems = [prob(5 + k % 3, 4 + k % 2, k) for k in range(8)]
    want = [reference(*p.args) for p in problems]
    wrong: list[Any] = []

    def work(k: int) -> None:
        try:
            for _ in range(10):
                args = tensors(problems[k], requires_grad=True)
                ot_backends.emd2(*args).backward()
                close(args[2].grad, torch.tensor(want[k].plan))
                close(args[0].grad, torch.tensor(want[k].u))
        except BaseException as error:  # a thread's own error would be lost
            wrong.append((k, error))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


class Losses(Dataset[Any]):
    """Solves in the worker, one problem or a batch (which uses threads) at a time."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, k: int) -> Any:
        M = torch.tensor(prob(100, 100, k).M)
        both = ot_backends.solve(torch.stack([M, 2 * M])).value
        x = M.clone().requires_grad_()
        value = ot_backends.emd2([], [], x)
        value.backward()
        return torch.stack([value.detach(), both[0], both[1] / 2, (x.grad * M).sum()])


@pytest.mark.filterwarnings("ignore:.*fork")  # of Python 3.12, and of JAX where it is imported
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_data_loader(method: str) -> None:
    data = Losses()
    want = torch.stack([data[k] for k in range(4)])  # used here first, threads and all
    close(want, want[:, :1].expand(4, 4))
    loader = DataLoader(
        data, batch_size=2, num_workers=2, multiprocessing_context=method, timeout=120
    )
    close(torch.cat(list(loader)), want)


def ddp_worker(rank: int, world: int, port: int, queue: Any) -> None:
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    try:
        module = DistributedDataParallel(Transport(), broadcast_buffers=False)
        module(torch.tensor(float(rank + 1), dtype=torch.float64)).backward()
        queue.put((rank, module.module.M.grad.numpy()))
        dist.barrier()
    finally:
        dist.destroy_process_group()


def test_distributed_data_parallel() -> None:
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    workers = [context.Process(target=ddp_worker, args=(rank, 2, port, queue)) for rank in range(2)]
    for w in workers:
        w.start()
    got = dict(queue.get(timeout=180) for _ in workers)
    for w in workers:
        w.join(timeout=60)
        assert w.exitcode == 0
    want = 1.5 * reference(*P.args).plan  # the mean over scales 1 and 2
    for rank in range(2):
        np.testing.assert_allclose(got[rank], want, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("first", ["compile", "vmap of grad"])
def test_the_first_call_of_a_process_may_be_traced(first: str) -> None:
    script = f"""
import torch, ot_backends
a, M = torch.full((4,), 0.25), torch.rand(4, 4)
if {first == "compile"}:
    value = torch.compile(ot_backends.emd2, fullgraph=True, backend="aot_eager")(a, a, M)
else:
    value = torch.vmap(torch.func.grad(ot_backends.emd2, 2), (None, None, 0))(a, a, M[None]).sum()
assert torch.isfinite(value), value
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=300,
        env={**os.environ, "PYTHONPATH": str(PACKAGE)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
