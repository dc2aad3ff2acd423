"""An external linear solve in Torch: every derivative to third order, under every transform."""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import weakref
from collections.abc import Callable
from typing import Any

import host_functions
import numpy as np
import pytest
from host_functions import factored, problem, solve
from test_host_function import Pair, cube_on_host, scaled, wave_function

import ot_backends
from ot_backends import host_function
from ot_backends.errors import HostFunctionError, NotDifferentiableError

torch = pytest.importorskip("torch")
func = torch.func
MODES = {"fwd": func.jacfwd, "rev": func.jacrev}
MIXES = [mix for order in (1, 2, 3) for mix in itertools.product(MODES, repeat=order)]


def tensors(n: int = 2) -> list[Any]:
    return [torch.tensor(x) for x in problem(n)]


def reference(A: Any, b: Any) -> Any:
    return torch.linalg.inv(A) @ b  # torch.linalg.solve is wrong in nested forward mode


def compiled(f: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(f, fullgraph=True, backend="aot_eager", **options)


def same(got: Any, want: Any, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


def curved(solve: Callable[..., Any]) -> Callable[..., Any]:
    """Something without a vanishing third derivative in A and b."""
    return lambda A, b: torch.sin(3 * solve(A, b)).sum()


def mixed(f: Any, mix: tuple[str, ...], argnums: Any) -> Any:
    for mode, argnum in zip(mix, argnums, strict=True):
        f = MODES[mode](f, argnum)
    return f


# ---- torch.func


@pytest.mark.parametrize("mix", MIXES, ids="-".join)
def test_every_order_in_every_mix_of_modes(mix: tuple[str, ...]) -> None:
    A, b = tensors()
    for argnums in ([0] * len(mix), [k % 2 for k in range(len(mix))]):
        same(*[mixed(curved(f), mix, argnums)(A, b) for f in (solve, reference)])


# torch's compiler itself fails where forward mode is outside of forward mode, or of reverse over
# reverse, with inv(A) @ b as well.
COMPILED = [
    ("fwd",),
    ("rev",),
    *itertools.product(["fwd", "rev"], ["rev"]),
    ("rev", "fwd"),
    ("rev", "rev", "rev"),
    ("rev", "fwd", "rev"),
    ("rev", "rev", "fwd"),
]


@pytest.mark.parametrize("mix", COMPILED, ids="-".join)
def test_compiled(mix: tuple[str, ...]) -> None:
    A, b = tensors()
    argnums = [k % 2 for k in range(len(mix))]
    got = compiled(mixed(curved(solve), mix, argnums))(A, b)
    same(got, mixed(curved(reference), mix, argnums)(A, b))


def in_vmap(solve: Any) -> Any:
    return lambda A, b: func.vmap(curved(solve), (None, 0))(A, torch.stack([b, 2 * b])).sum()


def in_nested_vmap(solve: Any) -> Any:
    def f(A: Any, b: Any) -> Any:
        As, bs = torch.stack([A, 2 * A]), torch.stack([b, 2 * b, b * b])
        return (func.vmap(func.vmap(curved(solve), (None, 0)), (0, None))(As, bs) ** 2).sum()

    return f


def in_checkpoint(solve: Any) -> Any:
    run = torch.utils.checkpoint.checkpoint
    return lambda A, b: run(curved(solve), A, run(solve, A, b, use_reentrant=False),
                            use_reentrant=False)  # fmt: skip


def of_gradient(solve: Any) -> Any:
    def f(A: Any, b: Any) -> Any:
        grad, value = func.grad_and_value(in_vmap(solve))(A, b)
        return value + (grad**2).sum()

    return f


@pytest.mark.parametrize("place", [in_vmap, in_nested_vmap, of_gradient], ids=lambda f: f.__name__)
def test_inside(place: Any) -> None:
    A, b = tensors()
    f, g = place(solve), place(reference)
    same(f(A, b), g(A, b))
    for d in (func.jacfwd, func.jacrev):
        same(d(f, (0, 1))(A, b), d(g, (0, 1))(A, b))
        for e in (func.jacfwd, func.jacrev):
            same(d(e(f))(A, b), d(e(g))(A, b))
    same(compiled(func.jacrev(f))(A, b), func.jacrev(g)(A, b))


def test_one_host_call_per_batch_in_second_derivatives() -> None:
    (A, b), calls = tensors(), host_functions.CALLS
    f = func.vmap(func.vmap(func.jacrev(func.jacrev(curved(solve))), (None, 0)), (0, None))
    calls.clear()
    f(torch.stack([A, 2 * A]), torch.stack([b, 2 * b, b * b]))
    one, calls[:] = list(calls), []
    func.jacrev(func.jacrev(curved(solve)))(A, b)
    assert 0 < len(one) <= len(calls), (len(one), len(calls))  # as many as for one problem


def test_an_empty_batch() -> None:
    A, b = tensors()
    bs = torch.zeros(0, 2, dtype=b.dtype)
    f = lambda A, bs: torch.func.vmap(solve, (None, 0))(A, bs).sum()  # noqa: E731
    try:
        got = func.grad(f)(A, bs)
    except (RuntimeError, ValueError) as error:
        assert "vmap" in str(error) or "size 0" in str(error)  # noqa: PT017  torch refuses it
    else:
        same(got, torch.zeros_like(A))


# ---- autograd


def leaves() -> list[Any]:
    return [x.requires_grad_() for x in tensors()]


@pytest.mark.parametrize("place", [curved, in_vmap, in_checkpoint], ids=lambda f: f.__name__)
def test_backward_to_third_order(place: Any) -> None:
    def derivatives(f: Any) -> list[Any]:
        xs = leaves()
        grads = [f(*xs)]
        orders = 1 if place is in_checkpoint else 3
        for _ in range(orders):
            total = sum((g**2).sum() for g in grads)
            grads = torch.autograd.grad(total, xs, create_graph=orders == 3)
        return [g.detach() for g in grads]

    same(derivatives(place(solve)), derivatives(place(reference)))


@pytest.mark.parametrize("vectorize", [False, True])
@pytest.mark.parametrize("strategy", ["reverse-mode", "forward-mode"])
def test_jacobians_of_autograd(strategy: str, vectorize: bool) -> None:
    if strategy == "forward-mode" and not vectorize:
        pytest.skip("torch has none")
    run = torch.autograd.functional
    options = {"vectorize": vectorize, "strategy": strategy}
    same(*[run.jacobian(f, tuple(tensors()), **options) for f in (solve, reference)])
    outer = {"vectorize": vectorize, "outer_jacobian_strategy": strategy}
    same(*[run.hessian(curved(f), tuple(tensors()), **outer) for f in (solve, reference)])


def test_batched_gradients() -> None:
    A, b = leaves()
    eye = torch.eye(2, dtype=A.dtype)
    host_functions.CALLS.clear()
    x = solve(A, b)
    got = torch.autograd.grad(x, (A, b), eye, is_grads_batched=True)
    assert [shape for _, shape in host_functions.CALLS] == [(2,), (2, 2)]
    same(got, torch.autograd.grad(reference(A, b), (A, b), eye, is_grads_batched=True))


def test_forward_mode_of_autograd() -> None:
    forward = torch.autograd.forward_ad
    A, b = leaves()
    dots = []
    for f in (solve, reference):
        with forward.dual_level():
            y = curved(f)(forward.make_dual(A, 2 * A), forward.make_dual(b, b * b))
            dot = forward.unpack_dual(y).tangent
        dots.append([dot, *torch.autograd.grad(dot, (A, b))])  # reverse over forward
    same(dots[0], dots[1])


def test_torchs_own_checkers() -> None:
    xs = leaves()
    options = {"check_forward_ad": True, "check_batched_grad": True}
    assert torch.autograd.gradcheck(solve, xs, **options, check_batched_forward_grad=True)
    assert torch.autograd.gradgradcheck(
        solve, xs, check_fwd_over_rev=True, check_rev_over_rev=True, check_batched_grad=True
    )


def test_no_graph_without_need() -> None:
    A, b = leaves()
    with torch.no_grad():
        assert not solve(A, b).requires_grad
    assert solve(A, b).requires_grad
    assert not solve(A.detach(), b.detach()).requires_grad
    with torch.inference_mode():
        same(solve(A, b), reference(A, b))


def test_results_may_be_changed_in_place() -> None:
    A, b = leaves()
    x = solve(A, b)
    with pytest.raises(RuntimeError, match=r"in-?place"):  # the rules need it
        x.mul_(2).sum().backward()


# ---- compiled and exported programs


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_backward_of_every_size(backend: str) -> None:
    torch._dynamo.reset()
    f = torch.compile(curved(solve), fullgraph=True, dynamic=True, backend=backend)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for n in (2, 3, 5):
            xs, ys = ([x.requires_grad_() for x in tensors(n)] for _ in range(2))
            f(*xs).backward()
            curved(reference)(*ys).backward()
            same([x.grad for x in xs], [y.grad for y in ys])


def test_compiled_trees() -> None:
    def f(x: Any, y: Any, s: Any) -> Any:
        out = scaled({"x": x, "y": (y,)}, s)
        assert type(out["rest"][0]) is Pair
        return (out["sum"] ** 2).sum() + out["rest"][0].first * out["rest"][0].second.sum()

    xs = [torch.tensor(x, dtype=torch.float64) for x in ([1.0, 2.0], [3.0, 4.0, 5.0], 2.0)]
    same(compiled(func.grad(f, (0, 1, 2)))(*xs), func.grad(f, (0, 1, 2))(*xs))


@pytest.mark.parametrize("kind", ["vjp alone", "jvp alone", "one of each"])
def test_compiled_transposes(kind: str) -> None:
    wave, x = wave_function(kind, []), torch.tensor([1.5, 0.7], dtype=torch.float64)
    f = lambda x: wave(x[0], x[0] * x[1])  # noqa: E731
    plain = lambda x: x[0] ** 2 * torch.sin(x[0] * x[1])  # noqa: E731
    for d in (func.jacfwd, func.jacrev, func.hessian):
        same(compiled(d(f))(x), d(plain)(x))


def test_what_compiled_code_cannot_differentiate_raises() -> None:
    A, b = tensors()
    by_array_code, by_host = factored(True), factored(False)
    second = lambda f: func.jacfwd(func.jacrev(curved(f)))  # noqa: E731
    same(compiled(second(by_host))(A, b), second(reference)(A, b))
    with pytest.raises(Exception, match=r"solve_once.*residual"):
        compiled(second(by_array_code))(A, b)
    cube = cube_on_host("vjp jvp")
    with pytest.raises(Exception, match=r"cube.*one order"):
        compiled(func.hessian(lambda b: cube(b).sum()))(b)
    A.requires_grad_()
    solver = lambda b, A: solve(A, b)  # noqa: E731
    with pytest.raises(Exception, match="linear_solve"):
        compiled(lambda A, b: ot_backends.linear_solve(lambda x, A: A @ x, b, A, solve=solver))(
            A, b
        )


class Layer(torch.nn.Module):
    def __init__(self, A: Any) -> None:
        super().__init__()
        self.A = torch.nn.Parameter(A)

    def forward(self, b: Any) -> Any:
        return curved(solve)(self.A, b)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch's own, from its pytree
@pytest.mark.parametrize("strict", [False, True])
def test_export(strict: bool) -> None:
    A, b = tensors()
    exported = torch.export.export(Layer(A), (b,), strict=strict)
    module = exported.module()
    value = module(b)
    value.backward()
    same(value.detach(), curved(reference)(A, b))
    (parameter,) = module.parameters()
    same(parameter.grad, func.grad(curved(reference))(A, b))
    lowered = exported.run_decompositions()
    with torch.no_grad():
        same(lowered.module()(b), value.detach())
    with pytest.raises(NotDifferentiableError, match="solve"):  # the rules are gone
        lowered.module()(b)


# ---- errors, memory, processes


def test_errors_in_backward_leave_the_next_call_right() -> None:
    @host_function(out=lambda x: x)
    def wrong(x: Any) -> Any:
        return x

    wrong.def_vjp(lambda nx, ct, out, x: nx.pycall(fails, ct))

    @host_function(out=lambda x: x)
    def fails(x: Any) -> Any:
        return x[:1]

    x = torch.ones(2, requires_grad=True)
    for _ in range(2):
        with pytest.raises(HostFunctionError, match="fails"):
            wrong(x).sum().backward()
    A, b = leaves()
    same(torch.autograd.grad(curved(solve)(A, b), A), torch.autograd.grad(
        curved(reference)(A, b), A))  # fmt: skip


def test_one_kind_that_calls_the_host_on_constants() -> None:
    sine = host_function(out=lambda x: x)(np.sin)
    sine.def_vjp(lambda nx, ct, out, x: ct * nx.pycall(cosine, x))
    cosine = host_function(out=lambda x: x)(np.cos)
    cosine.def_jvp(lambda nx, tangents, out, x: -tangents[0] * nx.pycall(sine, x))
    x = torch.tensor(0.3, dtype=torch.float64)
    for mix in MIXES:  # both can be transposed: what they call the host with is not the unknown
        want = {1: np.cos(0.3), 2: -np.sin(0.3), 3: -np.cos(0.3)}[len(mix)]
        assert abs(float(mixed(sine, mix, [0] * len(mix))(x)) - want) < 1e-14


def test_nothing_is_left_after_each_order() -> None:
    A, b = leaves()
    gc.disable()
    try:
        out = curved(solve)(A, b)
        reference_to = weakref.ref(out)
        grad = torch.autograd.grad(out, A, create_graph=True)[0]
        grad.sum().backward(inputs=[b])
        del out, grad
        assert reference_to() is None
    finally:
        gc.enable()


def in_child(queue: Any) -> None:
    A, b = leaves()
    curved(solve)(A, b).backward()
    queue.put(A.grad.numpy())


@pytest.mark.filterwarnings("ignore:.*fork")  # of Python 3.12, and of JAX where it is imported
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_child_processes(method: str) -> None:
    A, b = leaves()
    curved(solve)(A, b).backward()
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    child = context.Process(target=in_child, args=(queue,))
    child.start()
    got = queue.get(timeout=60)
    child.join(60)
    assert child.exitcode == 0
    np.testing.assert_allclose(got, A.grad.numpy(), rtol=1e-14)


class Batches(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, k: int) -> Any:
        A, b = tensors()
        return func.grad(curved(solve))(A, (k + 1) * b)


@pytest.mark.filterwarnings("ignore:.*fork")  # of Python 3.12, and of JAX where it is imported
def test_workers_of_a_data_loader() -> None:
    want = torch.stack([Batches()[k] for k in range(4)])
    loader = torch.utils.data.DataLoader(Batches(), batch_size=4, num_workers=2)
    same(next(iter(loader)), want)
