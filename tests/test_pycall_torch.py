"""pycall and set_gradients on Torch: the operator, its handles, and what Dynamo makes of them."""

from __future__ import annotations

import functools
import gc
import json
import math
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from subprocesses import PACKAGE

torch = pytest.importorskip("torch")

from torch.autograd import forward_ad  # noqa: E402
from torch.func import grad, grad_and_value, jacfwd, jacrev, jvp, vjp, vmap  # noqa: E402

from ot_backends.backends import ArraySpec, load_backend, torch_hostcall  # noqa: E402
from ot_backends.errors import (  # noqa: E402
    HostFunctionError,
    NotDifferentiableError,
    ProblemError,
)

nx = load_backend("torch")
f64 = functools.partial(torch.tensor, dtype=torch.float64)


@pytest.fixture(autouse=True)
def _empty_compile_cache() -> None:
    torch.compiler.reset()


def compiled(f: Callable[..., Any], **kwargs: Any) -> Callable[..., Any]:
    return torch.compile(f, fullgraph=True, **{"backend": "aot_eager", **kwargs})


def counting() -> tuple[list[int], Callable[..., Any]]:
    """A list that grows with each compilation, and the backend that does it."""
    compilations: list[int] = []

    def backend(module: Any, inputs: Any) -> Any:
        compilations.append(1)
        return module.forward

    return compilations, backend


def same(spec: Any) -> Any:
    return spec


def twice(x: np.ndarray) -> np.ndarray:
    return 2 * x


def scaled_by(k: float) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: k * x


@dataclass(frozen=True)
class Scaled:
    factor: float

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return self.factor * x


class Settings(NamedTuple):
    factor: float
    limit: int | None


@dataclass(frozen=True)
class Nested:
    settings: Settings
    inner: Scaled

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return self.inner(x) + self.settings.factor


# ---- the operators, as torch itself judges them


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int64, torch.bool])
def test_opcheck_of_the_call(dtype: Any) -> None:
    host = torch_hostcall._keep(torch_hostcall._Host(lambda x, y: (x, y.sum()), pair, False))
    x, y = torch.ones(2, 3).to(dtype), torch.ones(2, 4)
    op = torch.ops.ot_backends.pycall.default
    torch.library.opcheck(op, ([x, y], host.handle, 0))
    torch.library.opcheck(op, ([x, y], host.handle, 1))
    torch.library.opcheck(op, ([x.expand(5, 2, 3)[::2].mT, y[:, ::3]], host.handle, 0))


def pair(x: Any, y: Any) -> tuple[ArraySpec, ArraySpec]:
    return ArraySpec(x.shape, x.dtype), ArraySpec((), y.dtype)


def test_opcheck_of_set_gradients() -> None:
    value, x, g = torch.rand(2), torch.rand(2, 3, requires_grad=True), torch.rand(2, 3)
    op = torch.ops.ot_backends.set_gradients.default
    torch.library.opcheck(op, (value, [x, x], [g, g.requires_grad_()]))


# ---- Dynamo: the host function that was meant is the one that is called


def test_closures_of_one_code_are_told_apart() -> None:
    # Dynamo guards a function by its code object only.
    f = compiled(lambda x, fn: nx.pycall(fn, x, out=same))
    for k in (2.0, 3.0, 4.0):
        assert f(f64(1.0), scaled_by(k)).item() == k


def test_functions_of_the_specs_are_told_apart_too() -> None:
    def sized(n: int) -> Callable[[Any], Any]:
        return lambda spec: ArraySpec((n,), spec.dtype)

    f = compiled(lambda x, fn, out: nx.pycall(fn, x, out=out))
    for n in (2, 3, 4):
        assert f(f64(1.0), lambda x, n=n: np.full(n, float(x)), sized(n)).shape == (n,)


def test_equal_host_functions_do_not_compile_again() -> None:
    compilations, backend = counting()
    f = compiled(lambda x, fn: nx.pycall(fn, x, out=same), backend=backend)
    for _ in range(4):
        assert f(f64(1.0), Scaled(2.0)).item() == 2
    assert len(compilations) == 1
    assert f(f64(1.0), Scaled(3.0)).item() == 3
    assert f(f64(1.0), Scaled(2.0)).item() == 2
    assert len(compilations) == 2


def test_host_functions_made_in_traced_code() -> None:
    def f(x: Any, factor: float, limit: int) -> Any:
        settings = Settings(factor, limit if limit > 3 else None)
        return nx.pycall(Nested(settings, Scaled(10.0)), x, out=same)

    g = compiled(f)
    for factor, limit in ((1.0, 3), (2.0, 4), (3.0, 5), (4.0, 6)):  # numbers become symbols
        assert g(f64(1.0), factor, limit).item() == 10 + factor


def test_a_host_function_with_state_keeps_its_identity() -> None:
    @dataclass(frozen=True)
    class Noting:
        name: str
        calls: list[float] = field(default_factory=list, compare=False)

        def __call__(self, x: np.ndarray) -> np.ndarray:
            self.calls.append(float(x))
            return x

    f = compiled(lambda x, fn: nx.pycall(fn, x, out=same))
    one, other = Noting("a"), Noting("a")
    for host in (one, other, one):
        f(f64(1.0), host)
    assert (one.calls, other.calls) == ([1.0, 1.0], [1.0])


def test_equal_host_functions_that_differ_keep_their_identity() -> None:
    @dataclass(frozen=True)
    class Careless:
        factor: float = field(compare=False)

        def __call__(self, x: np.ndarray) -> np.ndarray:
            return self.factor * x

    f = compiled(lambda x, fn: nx.pycall(fn, x, out=same))
    for host in (Careless(2.0), Careless(3.0)):
        assert f(f64(1.0), host).item() == host.factor


@pytest.mark.parametrize(
    "fn", [twice, lambda x: 2 * x, functools.partial(np.multiply, 2.0), np.exp2, Scaled(2.0)]
)
def test_every_kind_of_host_function_compiles(fn: Any) -> None:
    assert compiled(lambda x: nx.pycall(fn, x, out=same))(f64(1.0)).item() == 2


@pytest.mark.parametrize(
    "out",
    [
        ArraySpec((2,), "float32"),
        [ArraySpec((2,), "float32"), ArraySpec((), "int32")],
        (torch.ones(2), ArraySpec((), torch.int32)),
        torch.ones(2),
        lambda spec: (spec, ArraySpec((), "bool")),
    ],
)
def test_every_kind_of_out_compiles(out: Any) -> None:
    def fn(x: np.ndarray) -> Any:
        return x if isinstance(out, (ArraySpec, torch.Tensor)) else (x, x.ndim)

    def truthful(x: np.ndarray) -> Any:
        return (x, True) if callable(out) else fn(x)

    def call(x: Any) -> Any:
        return nx.pycall(truthful, x, out=out)

    eager, traced = call(torch.ones(2)), compiled(call)(torch.ones(2))
    assert (
        isinstance(traced, tuple) == isinstance(eager, tuple) == isinstance(fn(np.ones(2)), tuple)
    )
    for x, y in zip(eager, traced, strict=True):
        assert x.dtype == y.dtype
        assert torch.equal(x, y)


def test_dynamic_shapes_compile_once() -> None:
    compilations, backend = counting()

    def f(x: Any) -> Any:
        return nx.pycall(lambda x: x.T @ x, x, out=lambda s: ArraySpec(s.shape[-1:] * 2, s.dtype))

    g = compiled(f, backend=backend, dynamic=True)
    for n, m in ((3, 4), (5, 6), (8, 7)):
        x = torch.rand(n, m)
        torch.testing.assert_close(g(x), x.T @ x)
    assert len(compilations) == 1


def test_dynamic_shapes_with_inductor() -> None:
    f = compiled(
        lambda x: nx.pycall(twice, x.detach() + 1, out=same) * x, backend="inductor", dynamic=True
    )
    for n in (3, 5, 8):
        x = torch.rand(n, requires_grad=True)
        f(x).sum().backward()
        torch.testing.assert_close(x.grad, 2 * (x.detach() + 1))


def test_an_exception_in_compiled_code_is_the_host_functions_own() -> None:
    def fails_below_zero(x: np.ndarray) -> np.ndarray:
        if x < 0:
            raise LookupError("what the host said")
        return x

    f = compiled(lambda x: nx.pycall(fails_below_zero, x, out=same) + 1, backend="inductor")
    assert f(f64(1.0)).item() == 2
    with pytest.raises(LookupError, match="what the host said"):
        f(f64(-1.0))
    assert f(f64(2.0)).item() == 3


def test_make_fx_and_fake_tensors_see_the_call() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    calls = []

    def noting(x: np.ndarray) -> np.ndarray:
        calls.append(1)
        return 2 * x

    f = lambda x: nx.pycall(noting, x, out=same) + 1  # noqa: E731
    graph = make_fx(f, tracing_mode="fake")(f64([1.0]))
    assert calls == []
    assert "pycall" in graph.code
    assert graph(f64([5.0])).item() == 11
    assert f(torch.empty(3, device="meta")).shape == (3,)
    assert calls == [1]


# ---- handles


def test_a_loop_of_new_functions_leaves_nothing_behind() -> None:
    gc.collect()
    before = len(torch_hostcall._HOSTS)
    for k in range(2000):
        big = np.full(1000, float(k))
        assert nx.pycall(lambda x, big=big: x + big[0], f64(1.0), out=same).item() == k + 1
    gc.collect()
    assert len(torch_hostcall._HOSTS) <= before


def test_a_compiled_program_keeps_its_host_function() -> None:
    def program() -> Callable[..., Any]:
        host = scaled_by(7.0)
        f = compiled(lambda x: nx.pycall(host, x, out=same))
        f(f64(1.0))
        return f

    f = program()
    torch_hostcall._shared_host.cache_clear()
    gc.collect()
    assert f(f64(2.0)).item() == 14


def test_an_unknown_handle_says_what_to_do() -> None:
    with pytest.raises(HostFunctionError, match="compile or export it again"):
        torch.ops.ot_backends.pycall([f64(1.0)], "0123456789abcdef", 0)


def test_handles_differ_between_processes(tmp_path: Path) -> None:
    # Both programs are the same but for what the host returns; torch's cache on disk is shared.
    script = """
import sys, numpy as np, torch
from ot_backends.backends import ArraySpec, load_backend
nx, size = load_backend("torch"), int(sys.argv[1])
def host(x): return np.arange(size) + float(size)
def out(x): return ArraySpec((size,), x.dtype)
f = lambda x: (nx.pycall(host, x.detach(), out=out) * x).sum()
x = torch.ones(3, dtype=torch.float64, requires_grad=True)
torch.compile(f, fullgraph=True)(x).backward()
print(x.grad.tolist())
"""
    env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(PACKAGE)}
    for size, want in ((3, [3.0, 4.0, 5.0]), (1, [1.0, 1.0, 1.0])):
        command = [sys.executable, "-c", script, str(size)]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
        assert done.stdout.strip() == str(want), done.stderr


# ---- no derivative, at any level


def opaque(x: Any) -> Any:
    return nx.pycall(np.cumsum, x, out=same).sum()


def detached(x: Any) -> Any:
    return (nx.pycall(np.cumsum, x.detach(), out=same) * x).sum()


def along_one(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x: jvp(f, (x,), (torch.ones_like(x),))[1]


def in_dual_level(f: Callable[..., Any], x: Any) -> Any:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(f(forward_ad.make_dual(x, torch.ones_like(x)))).tangent


def hidden(f: Callable[..., Any], outer: Any, inner: Any) -> Callable[..., Any]:
    """Only the outer level's derivative reaches f; the inner level sees a constant."""
    return outer(lambda x: inner(lambda y: f(x + y.detach()) * y.sum())(torch.ones_like(x)).sum())


TRANSFORMS: dict[str, Callable[..., Any]] = {
    "requires_grad": lambda f, x: torch.autograd.grad(f(y := x.clone().requires_grad_()), y)[0],
    "one of a view": lambda f, x: f(x.clone().requires_grad_()[:2]).backward(),
    "dual level": in_dual_level,
    "grad": lambda f, x: grad(f)(x),
    "vjp": lambda f, x: vjp(f, x)[1](f64(1.0))[0],
    "jvp": lambda f, x: along_one(f)(x),
    "jacrev": lambda f, x: jacrev(f)(x),
    "jacfwd": lambda f, x: jacfwd(f)(x),
    "jvp of jvp": lambda f, x: along_one(along_one(f))(x),
    "jacfwd of jacrev": lambda f, x: jacfwd(jacrev(f))(x),
    "jacrev of jacfwd": lambda f, x: jacrev(jacfwd(f))(x),
    "vmap of grad": lambda f, x: vmap(grad(f))(torch.stack([x, x])),
    "vmap of jvp": lambda f, x: vmap(along_one(f))(torch.stack([x, x])),
    "grad of vmap": lambda f, x: grad(lambda x: vmap(f)(torch.stack([x, x])).sum())(x),
    "jvp of vmap": lambda f, x: along_one(lambda x: vmap(f)(torch.stack([x, x])))(x),
    "vmap of vmap of jvp": lambda f, x: vmap(vmap(along_one(f)))(x.expand(2, 2, 3)),
    "grad hidden by grad": lambda f, x: hidden(f, grad, grad)(x),
    "jvp hidden by jvp": lambda f, x: hidden(f, along_one, along_one)(x),
    "jvp hidden by grad": lambda f, x: hidden(f, along_one, grad)(x),
    "grad hidden by jvp": lambda f, x: hidden(f, grad, along_one)(x),
    "grad hidden by vmap": lambda f, x: grad(
        lambda x: vmap(lambda k: f(x + k))(torch.zeros(2, 1)).sum()
    )(x),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_derivative_raises(name: str) -> None:
    with pytest.raises(NotDifferentiableError, match="argument 0 of the host function 'cumsum'"):
        TRANSFORMS[name](opaque, f64([1.0, 2.0, 3.0]))


@pytest.mark.parametrize("name", TRANSFORMS)
def test_detached_arguments_are_constants(name: str) -> None:
    def same_in_torch(x: Any) -> Any:
        return (x.detach().cumsum(0) * x).sum()

    x = f64([1.0, 2.0, 3.0])
    got, want = (TRANSFORMS[name](f, x) for f in (detached, same_in_torch))
    assert (got is None) == (want is None)
    if want is not None:
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("transform", [lambda f: f, grad, along_one])
def test_a_derivative_raises_while_compiling(transform: Any) -> None:
    x = f64([1.0, 2.0, 3.0]).requires_grad_(transform not in (grad, along_one))
    with pytest.raises(Exception, match="argument 0 of the host function 'cumsum'"):
        compiled(transform(opaque))(x)
    torch.testing.assert_close(compiled(transform(detached))(x), transform(detached)(x))


def test_without_gradients_an_argument_may_require_one() -> None:
    x = f64([1.0, 2.0]).requires_grad_()
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert opaque(x).item() == 4
    assert not detached(x.detach()).requires_grad


def test_only_the_argument_that_carries_a_derivative_is_named() -> None:
    x = f64(1.0)
    k = torch.tensor(1)
    with pytest.raises(NotDifferentiableError, match=r"argument 2 .*requires grad"):
        nx.pycall(lambda *xs: xs[0], x, k, x.clone().requires_grad_(), out=ArraySpec((), "float64"))


# ---- memory, types, devices


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.arange(6.0).reshape(2, 3).mT,
        lambda: torch.arange(6.0)[::2].expand(4, 3),
        lambda: torch.arange(6.0).flip(0)[1:],
        lambda: torch.tensor([1e30, 2.0]).to(torch.bfloat16),  # over the range of float16
        lambda: torch.complex(torch.ones(3), torch.arange(3.0)).conj(),
        lambda: torch.complex(torch.ones(3), torch.arange(3.0)).conj().imag,  # the negative bit
        lambda: torch.empty(0, 3),
        lambda: torch.tensor(3.0),
    ],
)
def test_arguments_of_every_layout(make: Callable[[], Any]) -> None:
    x = make()
    y = nx.pycall(lambda x: x, x, out=x)
    assert y.dtype == x.dtype
    assert torch.equal(y, x)
    assert not y.is_conj()
    assert not y.is_neg()
    if y.numel():
        assert y.data_ptr() != x.data_ptr()
        y.add_(1)  # it is nobody else's
        assert torch.equal(make(), x)


@pytest.mark.parametrize(
    "result",
    [
        np.arange(3.0)[::-1],
        np.broadcast_to(1.5, 3),
        np.arange(3.0).astype(">f8"),
        np.asfortranarray(np.arange(6.0).reshape(3, 2))[:, 0],
        [1.0, 2.0, 3.0],
    ],
)
def test_results_of_every_layout(result: Any) -> None:
    y = nx.pycall(lambda x: result, f64(1.0), out=ArraySpec((3,), "float64"))
    assert y.tolist() == list(np.asarray(result))
    y.add_(1)


def test_autocast_changes_nothing() -> None:
    x = torch.ones(2, 2, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = nx.pycall(twice, x.detach() @ x.detach(), out=same)  # a product is bfloat16 here
        assert y.dtype == torch.bfloat16
        assert y.tolist() == [[4.0, 4.0], [4.0, 4.0]]
        value = nx.set_gradients(x.sum(), (x,), (torch.full((2, 2), 3.0),))
    assert value.dtype == torch.float32
    value.backward()
    assert x.grad.tolist() == [[3.0, 3.0], [3.0, 3.0]]


def test_results_follow_the_device_of_the_arguments() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode  # CUDA tensors without CUDA

    with FakeTensorMode():
        y = nx.pycall(twice, torch.empty(3, device="cuda:0"), out=same)
        assert y.device == torch.device("cuda:0")
        with pytest.raises(Exception, match="several devices"):
            nx.pycall(
                np.add, torch.empty(1, device="cuda:0"), torch.empty(1, device="cuda:1"),
                out=ArraySpec((1,), "float32"),
            )  # fmt: skip


def test_asarray() -> None:
    x = torch.ones(2, dtype=torch.float64, requires_grad=True)
    assert nx.asarray(x) is x
    assert nx.asarray(x, dtype="float32").dtype == torch.float32
    stacked = nx.asarray([x[0], 2 * x[1], 3.0])  # a list of tensors keeps their derivatives
    assert torch.equal(torch.autograd.grad(stacked.sum(), x)[0], f64([1.0, 2.0]))
    frozen = np.arange(3.0)
    frozen.flags.writeable = False
    for array in (frozen, np.arange(3.0)[::-1], np.arange(3.0).astype(">f8"), np.float32(3)):
        assert np.array_equal(nx.asarray(array).numpy(), array)
    assert nx.asarray(frozen, dtype="bfloat16").dtype == torch.bfloat16
    assert nx.asarray([1, 2], like=torch.empty(1, device="meta")).device.type == "meta"
    with pytest.raises(TypeError, match="no dtype 'float128'"):
        nx.asarray([1.0], dtype="float128")


def test_stop_gradient_keeps_the_types_of_trees() -> None:
    x = torch.ones(2, requires_grad=True)
    tree = nx.stop_gradient({"a": (x, 1), "b": [x], "c": Settings(x, None)})
    assert isinstance(tree["c"], Settings)
    assert (tree["a"][1], tree["c"].limit) == (1, None)
    assert not any(y.requires_grad for y in (tree["a"][0], tree["b"][0], tree["c"].factor))


# ---- other processes


def in_child(queue: Any) -> None:
    queue.put(nx.pycall(scaled_by(3.0), f64(2.0), out=same).item())


@pytest.mark.filterwarnings("ignore:.*fork")  # of Python 3.12, and of JAX where it is imported
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_child_processes(method: str) -> None:
    nx.pycall(twice, f64(1.0), out=same)  # used before
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    child = context.Process(target=in_child, args=(queue,))
    child.start()
    assert queue.get(timeout=120) == 6
    child.join(timeout=60)
    assert child.exitcode == 0


def test_without_the_name_that_is_not_public() -> None:
    script = """
import json, sys, torch
del torch._C._AutoDispatchBelowAutograd
from ot_backends.backends import load_backend
nx = load_backend("torch")
same = lambda s: s
x = torch.ones(2, requires_grad=True)
def outcome(f):
    try:
        return f().tolist()
    except Exception as error:
        return type(error).__name__
call = lambda x: nx.pycall(lambda x: 2 * x, x, out=same).sum()
cube = lambda x: nx.set_gradients((x**3).sum(), (x,), (3 * x**2,))
print(json.dumps([
    outcome(lambda: call(x.detach())),
    outcome(lambda: torch.vmap(call)(torch.ones(3, 2))),
    outcome(lambda: call(x)),
    outcome(lambda: torch.func.grad(call)(x.detach())),
    outcome(lambda: torch.func.jvp(call, (x.detach(),), (x.detach(),))[1]),
    outcome(lambda: torch.func.grad(cube)(x.detach())),
    outcome(lambda: torch.compile(cube, fullgraph=True, backend="aot_eager")(x)),
]))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300,
        env={**os.environ, "PYTHONPATH": str(PACKAGE)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    refused = "NotDifferentiableError"
    assert json.loads(done.stdout) == [
        4.0, [4.0, 4.0, 4.0], refused, refused, refused, [3.0, 3.0], "Unsupported",
    ]  # fmt: skip


# ---- set_gradients


def cube(x: Any) -> Any:
    return nx.set_gradients((x**3).sum(), (x,), (3 * x**2,))


def cube_in_torch(x: Any) -> Any:
    return (x**3).sum()


def square_of_linear(x: Any) -> Any:
    c = f64([2.0, 4.0, 6.0])
    return nx.set_gradients((c * x).sum(), (x,), (c,)) ** 2


def square_of_linear_in_torch(x: Any) -> Any:
    return (f64([2.0, 4.0, 6.0]) * x).sum() ** 2


def sums(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x: f(x).sum()


ORDERS: dict[str, Callable[..., Any]] = {
    "grad": grad,
    "jvp": along_one,
    "jacrev jacrev": lambda f: jacrev(jacrev(f)),
    "jacfwd jacrev": lambda f: jacfwd(jacrev(f)),
    "jacrev jacfwd": lambda f: jacrev(jacfwd(f)),
    "jacfwd jacfwd": lambda f: jacfwd(jacfwd(f)),
    "jvp jvp": lambda f: along_one(along_one(f)),
    "grad of jvp": lambda f: grad(along_one(f)),
    "third, reverse": lambda f: grad(sums(grad(sums(grad(f))))),
    "third, forward": lambda f: along_one(along_one(along_one(f))),
    "third, mixed": lambda f: along_one(grad(along_one(f))),
}
BATCHED: dict[str, Callable[..., Any]] = {
    "vmap": vmap,
    "vmap of hessian": lambda f: vmap(jacfwd(jacrev(f))),
    "vmap of jvp of jvp": lambda f: vmap(along_one(along_one(f))),
    "grad of vmap": lambda f: grad(sums(vmap(f))),
    "grad of grad of vmap": lambda f: grad(sums(grad(sums(vmap(f))))),
    "grad of vmap of grad": lambda f: grad(sums(vmap(grad(f)))),
    "jvp of jvp of vmap": lambda f: along_one(along_one(vmap(f))),
    "jvp of vmap of grad": lambda f: along_one(vmap(grad(f))),
    "vmap of vmap of grad": lambda f: lambda x: vmap(vmap(grad(f)))(torch.stack([x, x])),
}
PAIRS = {
    "live": (cube, cube_in_torch),
    "constant": (square_of_linear, square_of_linear_in_torch),
}


@pytest.mark.parametrize("kind", PAIRS)
@pytest.mark.parametrize("name", [*ORDERS, *BATCHED])
def test_set_gradients_at_every_order(name: str, kind: str) -> None:
    transform = {**ORDERS, **BATCHED}[name]
    x = f64([1.0, 2.0, 3.0])
    x = torch.stack([x, 2 * x]) if name in BATCHED else x
    got, want = (transform(f)(x) for f in PAIRS[kind])
    torch.testing.assert_close(got, want, rtol=1e-13, atol=0)


# Compiled forward mode inside forward mode or vmap fails in torch itself now and then, also without
# any of this package, and leaves torch's dispatcher broken behind.
FAILS_IN_TORCH = (
    "jacfwd jacfwd",
    "jvp jvp",
    "third",
    "vmap of hessian",
    "vmap of jvp",
    "jvp of jvp",
)
COMPILED = [x for x in [*ORDERS, *BATCHED] if not any(part in x for part in FAILS_IN_TORCH)]


@pytest.mark.parametrize("kind", PAIRS)
@pytest.mark.parametrize("name", COMPILED)
def test_set_gradients_compiled(name: str, kind: str) -> None:
    transform = {**ORDERS, **BATCHED}[name]
    x = f64([1.0, 2.0, 3.0])
    x = torch.stack([x, 2 * x]) if name in BATCHED else x
    got, want = (
        wrap(transform(f))(x) for f, wrap in zip(PAIRS[kind], (compiled, lambda f: f), strict=True)
    )
    torch.testing.assert_close(got, want, rtol=1e-13, atol=0)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("kind", PAIRS)
def test_set_gradients_compiled_backward(kind: str, backend: str) -> None:
    f, in_torch = PAIRS[kind]
    x = f64([1.0, 2.0, 3.0]).requires_grad_()
    got = torch.autograd.grad(compiled(f, backend=backend)(x), x)
    assert torch.equal(got[0], torch.autograd.grad(in_torch(x), x)[0])


@pytest.mark.parametrize("kind", PAIRS)
@pytest.mark.parametrize("eager_graph", [False, True])
def test_set_gradients_by_autograd_of_autograd(kind: str, eager_graph: bool) -> None:
    f, in_torch = PAIRS[kind]
    f = compiled(f, backend="eager") if eager_graph else f
    x = f64([1.0, 2.0, 3.0]).requires_grad_()
    got, want = f(x), in_torch(x)
    for _ in range(3):  # the double count is 2 at the second order, 3 at the third
        got, want = (torch.autograd.grad(y, x, create_graph=True)[0].sum() for y in (got, want))
        assert got.item() == pytest.approx(want.item(), rel=1e-13)
        if not want.requires_grad:
            break


def test_set_gradients_passes_torchs_own_checkers() -> None:
    x = f64([0.3, 0.7, 1.1]).requires_grad_()
    assert torch.autograd.gradcheck(cube, x, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(cube, x, check_fwd_over_rev=True, check_rev_over_rev=True)
    assert in_dual_level(cube, x.detach()).item() == pytest.approx(3 * (x.detach() ** 2).sum())


@pytest.mark.parametrize("run", [lambda f: f, compiled])
def test_infinite_inputs(run: Callable[..., Any]) -> None:
    x = f64([1.0, math.inf, -math.inf, math.nan]).requires_grad_()
    g = f64([2.0, 0.0, 3.0, 4.0])
    value = run(lambda x: nx.set_gradients(f64(5.0), (x,), (g,)))(x)
    value.backward()
    assert value.item() == 5
    assert x.grad.tolist() == g.tolist()
    f = lambda x: nx.set_gradients(f64(5.0), (x,), (g,))  # noqa: E731
    derivative, value = run(grad_and_value(f))(x.detach())
    assert value.item() == 5
    assert torch.isfinite(derivative).all()
    assert run(lambda x: jvp(f, (x,), (x,))[0])(x.detach()).item() == 5


def test_the_calling_form_of_pot() -> None:
    # as ot.emd2 does: tuples, the value and the gradients already detached
    a, b = (torch.rand(3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    M = torch.rand(3, 3, dtype=torch.float64, requires_grad=True)
    grads = (torch.rand(3), np.arange(3.0), torch.rand(3, 3))  # of any floating type
    value = nx.set_gradients(f64(2.0), (a, b, M), grads)
    value += 1.0  # in place
    value.backward()
    for x, g in zip((a, b, M), grads, strict=True):
        torch.testing.assert_close(x.grad, torch.as_tensor(g).to(torch.float64))


def test_broadcast_jacobian_and_mixed_types() -> None:
    x = torch.arange(3.0, requires_grad=True)  # float32
    value = torch.zeros(2, dtype=torch.float64)
    jacobian = f64([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    weights = f64([1.0, 10.0])
    y = nx.set_gradients(value, (x, x), (jacobian, f64(100.0)))
    assert y.dtype == torch.float64
    (y * weights).sum().backward()
    assert x.grad.dtype == torch.float32
    assert x.grad.tolist() == [41 + 1100.0, 52 + 1100.0, 63 + 1100.0]
    _, tangent = jvp(
        lambda x: nx.set_gradients(value, (x,), (jacobian,)), (x.detach(),), (torch.ones(3),)
    )
    assert tangent.tolist() == [6.0, 15.0]
    with pytest.raises(ProblemError, match="gradient of inputs"):
        nx.set_gradients(value, x, torch.ones(4))
    with pytest.raises(ProblemError, match="value has dtype int64"):
        nx.set_gradients(torch.tensor(3), x, x)


def test_what_it_keeps_for_backward_is_the_gradients() -> None:
    kept: list[int] = []
    x, g = torch.ones(1000, requires_grad=True), torch.ones(())
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: (kept.append(t.nbytes), t)[1], lambda t: t
    ):
        nx.set_gradients(torch.zeros(()), x, g)
    assert sum(kept) <= 8


def test_tracks() -> None:
    x = torch.ones(2)
    assert not nx.tracks(x, x)
    assert nx.tracks(x, x.clone().requires_grad_())
    with torch.no_grad():
        assert not nx.tracks(x.clone().requires_grad_())
    with forward_ad.dual_level():
        assert nx.tracks(forward_ad.make_dual(x, x))
    seen = []
    grad(lambda y: (seen.append(nx.tracks(x)), y)[1])(torch.tensor(1.0))
    assert seen == [True]  # x may hide an outer level
