"""Checks that need four JAX devices; as a script it runs all of them.

Each prints one line of JSON; test_devices_jax.py turns the lines into tests.
"""

from __future__ import annotations

import functools
import json
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

import ot_backends
from ot_backends.backends import jax_hostcall
from ot_backends.errors import UnsupportedTransformError

CHECKS: dict[str, Callable[[], None]] = {}
N, ROWS, COLS = 8, 6, 5  # problems, and their size


def check(f: Callable[..., None]) -> Callable[..., None]:
    CHECKS[f.__name__] = f
    return f


def with_and_without_vma(f: Callable[[bool], None]) -> Callable[[bool], None]:
    CHECKS[f"{f.__name__}[check_vma]"] = functools.partial(f, True)
    CHECKS[f"{f.__name__}[no check_vma]"] = functools.partial(f, False)
    return f


@contextmanager
def host_calls() -> Iterator[list[list[tuple[int, ...]]]]:
    """The shapes of the arguments of every host call; compiled programs call through Python."""
    original, calls = jax_hostcall.run_host, []
    twin = jax_hostcall.compiled_twin

    def spy(fn: Any, arrays: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append([x.shape for x in arrays])
        return original(fn, arrays, *args, **kwargs)

    jax_hostcall.run_host, jax_hostcall.compiled_twin = spy, lambda *_: None
    try:
        yield calls
    finally:
        jax_hostcall.run_host, jax_hostcall.compiled_twin = original, twin
        jax.clear_caches()


def same(got: Any, want: Any, tolerance: float = 1e-13) -> None:
    leaves = zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True)
    for x, y in leaves:
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=0, atol=tolerance)


@functools.cache
def batch() -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(0)
    a, b = rng.random((N, ROWS)) + 0.2, rng.random((N, COLS)) + 0.2
    a, b = a / a.sum(1, keepdims=True), b / b.sum(1, keepdims=True)
    return tuple(jnp.array(x) for x in (a, b, rng.random((N, ROWS, COLS))))


def batched(in_axes: Any = 0) -> Callable[..., Any]:
    return jax.vmap(ot_backends.emd2, in_axes)


@jax.jit
def shared(a: Any, b: Any, M: Any) -> Any:
    """A loss in which the weights are replicated and the costs are a batch; not linear."""
    return (batched((None, None, 0))(a, b, M) ** 2).sum()


def mesh(*names: str, explicit: bool = False) -> Any:
    kind = jax.sharding.AxisType.Explicit if explicit else jax.sharding.AxisType.Auto
    size = {1: (4,), 2: (2, 2)}[len(names)]
    return jax.make_mesh(size, names, axis_types=(kind,) * len(names))


def placed(x: Any, mesh: Any, *spec: Any) -> Any:
    return jax.device_put(x, jax.sharding.NamedSharding(mesh, P(*spec)))


# ---- shard_map: one host call per device, on its own shard


@with_and_without_vma
def all_arguments_sharded(vma: bool) -> None:
    a, b, M = batch()
    f = jax.shard_map(batched(), mesh=mesh("x"), in_specs=P("x"), out_specs=P("x"), check_vma=vma)
    want = batched()(a, b, M)
    with host_calls() as calls:
        same(jax.jit(f)(a, b, M), want)
    assert calls == [[(2, ROWS), (2, COLS), (2, ROWS, COLS)]] * 4, calls
    same(jax.jit(f)(a, b, M), want)
    same(f(a, b, M), want)  # not compiled
    loss = lambda f: jax.jit(lambda a, b, M: (f(a, b, M) ** 2).sum())  # noqa: E731
    want = jax.grad(loss(batched()), (0, 1, 2))(a, b, M)
    same(jax.grad(loss(f), (0, 1, 2))(a, b, M), want)
    want = jax.jvp(loss(batched()), (a, b, M), (a, b, M))
    same(jax.jvp(loss(f), (a, b, M), (a, b, M)), want)


@with_and_without_vma
def replicated_weights_get_the_whole_gradient(vma: bool) -> None:
    (a, *_), (b, *_), M = batch()
    part = lambda a, b, M: jax.lax.psum(shared(a, b, M), "x")  # noqa: E731
    specs = {"in_specs": (P(), P(), P("x")), "out_specs": P(), "check_vma": vma}
    f = jax.shard_map(part, mesh=mesh("x"), **specs)
    want = jax.value_and_grad(shared, (0, 1, 2))(a, b, M)
    with host_calls() as calls:
        same(jax.jit(f)(a, b, M), want[0])
        same(jax.jit(jax.value_and_grad(f, (0, 1, 2)))(a, b, M), want)
    assert calls == [[(1, ROWS), (1, COLS), (2, ROWS, COLS)]] * 8, calls
    same(jax.jit(jax.value_and_grad(f, (0, 1, 2)))(a, b, M), want)
    want = jax.hessian(shared)(a, b, M)
    same(jax.jit(jax.hessian(f))(a, b, M), want, 1e-12)


@with_and_without_vma
def gradients_taken_inside(vma: bool) -> None:
    (a, *_), (b, *_), M = batch()

    def step(a: Any, b: Any, M: Any) -> Any:
        da, db, dM = jax.grad(shared, (0, 1, 2))(a, b, M)
        # check_vma sums over the devices by itself, in the transpose of the replication
        return (da, db, dM) if vma else (*jax.lax.psum((da, db), "x"), dM)

    specs = (P(), P(), P("x"))
    f = jax.shard_map(step, mesh=mesh("x"), in_specs=specs, out_specs=specs, check_vma=vma)
    same(jax.jit(f)(a, b, M), jax.grad(shared, (0, 1, 2))(a, b, M))


@with_and_without_vma
def training_inside_scan(vma: bool) -> None:
    (a, *_), (b, *_), M = batch()

    def train(devices: bool) -> Callable[..., Any]:
        def run(a: Any, b: Any, M: Any) -> Any:
            def body(M: Any, _: Any) -> Any:
                loss, dM = jax.value_and_grad(shared, 2)(a, b, M)
                return M - 0.1 * dM, jax.lax.psum(loss, "x") if devices else loss

            return jax.lax.scan(body, M, None, length=3)

        return run

    specs = {"in_specs": (P(), P(), P("x")), "out_specs": (P("x"), P()), "check_vma": vma}
    f = jax.shard_map(train(True), mesh=mesh("x"), **specs)
    same(jax.jit(f)(a, b, M), train(False)(a, b, M))
    total = lambda f: lambda a: f(a, b, M)[1].sum()  # noqa: E731
    same(jax.jit(jax.grad(total(f)))(a), jax.grad(total(train(False)))(a), 1e-12)


@with_and_without_vma
def plan_and_potentials(vma: bool) -> None:
    a, b, M = batch()

    def f(a: Any, b: Any, M: Any) -> Any:
        result = ot_backends.solve(M, a, b)
        return result.plan, *result.potentials, result.basis

    g = jax.shard_map(f, mesh=mesh("x"), in_specs=P("x"), out_specs=P("x"), check_vma=vma)
    same(jax.jit(g)(a, b, M), f(a, b, M))


@with_and_without_vma
def meshes_of_two_axes(vma: bool) -> None:
    a, b, M = batch()
    want = batched()(a, b, M)
    for spec, size in ((P(("x", "y")), 2), (P("x"), 4)):
        f = jax.shard_map(
            batched(), mesh=mesh("x", "y"), in_specs=spec, out_specs=spec, check_vma=vma
        )
        with host_calls() as calls:
            same(jax.jit(f)(a, b, M), want)
        assert calls == [[(size, ROWS), (size, COLS), (size, ROWS, COLS)]] * 4, calls


@check
def one_axis_of_two_by_hand() -> None:
    a, b, M = batch()
    want = batched()(a, b, M)
    f = jax.jit(
        jax.shard_map(
            batched(), mesh=mesh("x", "y"), in_specs=P("x"), out_specs=P("x"), axis_names={"x"}
        )
    )
    with host_calls() as calls:
        try:
            same(f(a, b, M), want)
        except UnsupportedTransformError as error:  # JAX before 0.7
            assert not jax.config.jax_use_shardy_partitioner
            assert "axis_names" in str(error)  # noqa: PT017
        else:
            assert calls == [[(4, ROWS), (4, COLS), (4, ROWS, COLS)]] * 4, calls


@with_and_without_vma
def set_gradients_of_replicated_inputs(vma: bool) -> None:
    nx = ot_backends.get_backend(jnp.ones(1))
    w, x = jnp.array([1.0, 2.0]), jnp.arange(8.0)

    def part(w: Any, x: Any) -> Any:
        value = nx.set_gradients((w**3).sum() * x.sum(), (w, x), (3 * w**2 * x.sum(), (w**3).sum()))
        return jax.lax.psum(value, "x")

    f = jax.shard_map(part, mesh=mesh("x"), in_specs=(P(), P("x")), out_specs=P(), check_vma=vma)
    plain = lambda w, x: (w**3).sum() * x.sum()  # noqa: E731
    same(jax.jit(f)(w, x), plain(w, x))
    same(jax.jit(jax.grad(f, (0, 1)))(w, x), jax.grad(plain, (0, 1))(w, x))
    same(jax.jit(jax.hessian(f, 0))(w, x), jax.hessian(plain, 0)(w, x))
    same(jax.jit(jax.jacrev(jax.jacrev(f, 0), 1))(w, x), jax.jacrev(jax.jacrev(plain, 0), 1)(w, x))


@check
def gradients_that_vary_where_the_value_does_not() -> None:
    nx = ot_backends.get_backend(jnp.ones(1))
    w, x = jnp.array([1.0, 2.0]), jnp.arange(8.0)

    def part(w: Any, x: Any) -> Any:
        value = nx.set_gradients(1.0, w, w * x.sum())  # 1 on every device, its gradient is not
        return jax.lax.psum(value, "x")

    f = jax.shard_map(part, mesh=mesh("x"), in_specs=(P(), P("x")), out_specs=P())
    same(jax.jit(jax.value_and_grad(f))(w, x), (4.0, w * x.sum()))


@check
def arguments_that_vary_over_different_axes() -> None:
    nx = ot_backends.get_backend(jnp.ones(1))
    x, y, w = jnp.arange(4.0), jnp.array([3.0, 5.0]), jnp.array(2.0)

    def part(w: Any, x: Any, y: Any) -> Any:
        dot = nx.pycall(lambda x, y: (x * y).sum(), *nx.stop_gradient((x, y)), out=w)
        return jax.lax.psum(w * dot, ("x", "y"))

    f = jax.shard_map(part, mesh=mesh("x", "y"), in_specs=(P(), P("x"), P("y")), out_specs=P())
    want = float(x.sum() * y.sum())
    same(jax.jit(jax.value_and_grad(f))(w, x, y), (2 * want, want))


@check
def pmap() -> None:
    a, b, M = (x[:4] for x in batch())
    if not hasattr(jax, "pmap"):
        return
    want = batched()(a, b, M)
    with host_calls() as calls:
        same(jax.pmap(ot_backends.emd2)(a, b, M), want)
    assert calls == [[(ROWS,), (COLS,), (ROWS, COLS)]] * 4, calls
    gradient = jax.grad(ot_backends.emd2, (0, 1, 2))
    same(jax.pmap(gradient)(a, b, M), jax.vmap(gradient)(a, b, M))


# ---- jit over sharded arrays: one host call with the whole


@check
def sharded_jit() -> None:
    a, b, M = batch()
    loss = lambda a, b, M: (batched()(a, b, M) ** 2).sum()  # noqa: E731
    split = [placed(x, mesh("x"), "x") for x in (a, b, M)]
    want = jax.value_and_grad(loss, (0, 1, 2))(a, b, M)
    with host_calls() as calls:
        same(jax.jit(jax.value_and_grad(loss, (0, 1, 2)))(*split), want)
    assert calls == [[(N, ROWS), (N, COLS), (N, ROWS, COLS)]], calls
    same(jax.value_and_grad(loss, (0, 1, 2))(*split), want)  # not compiled
    want = jax.hessian(shared, 0)(a[0], b[0], M)
    same(jax.jit(jax.hessian(shared, 0))(a[0], b[0], split[2]), want)


@check
def one_problem_sharded_by_rows() -> None:
    _, (b, *_), M = batch()
    M, a = M.reshape(-1, COLS), jnp.ones(N * ROWS) / (N * ROWS)
    split = placed(M, mesh("x"), "x")
    want = jax.value_and_grad(ot_backends.emd2, 2)(a, b, M)
    for f in (lambda f: f, jax.jit):
        same(f(jax.value_and_grad(ot_backends.emd2, 2))(a, b, split), want)


def check_explicit(f: Callable[[], None]) -> Callable[[], None]:
    """Register `f` where JAX has what Explicit axes need (0.7)."""
    return check(f) if hasattr(jax.sharding, "reshard") else f


@check_explicit
def explicit_axes() -> None:
    a, b, M = batch()
    devices = mesh("x", explicit=True)
    args = [placed(x, devices, "x") for x in (a, b, M)]
    loss = lambda a, b, M: (batched()(a, b, M) ** 2).sum()  # noqa: E731
    value = jax.jit(batched())(*args)
    same(value, batched()(a, b, M))
    assert jax.typeof(value).sharding.spec == P("x")
    want = jax.grad(loss, (0, 1, 2))(a, b, M)
    same(jax.jit(jax.grad(loss, (0, 1, 2)))(*args), want)
    with jax.set_mesh(devices):
        same(batched()(*args), batched()(a, b, M))
        same(jax.grad(loss, (0, 1, 2))(*args), want)
    whole = lambda a, b, M: (ot_backends.solve(M, a, b).value ** 2).sum()  # noqa: E731
    for f in (whole, jax.jit(whole)):
        same(f(*args), whole(a, b, M))
    same(jax.jit(jax.grad(whole, (0, 1, 2)))(*args), want)


@check_explicit
def explicit_axes_on_rows() -> None:
    _, b, M = batch()
    M, a, b = M[:4].reshape(-1, COLS), jnp.ones(4 * ROWS) / (4 * ROWS), b[0]
    split = placed(M, mesh("x", explicit=True), "x")
    for f in (ot_backends.emd2, jax.jit(ot_backends.emd2)):
        same(f(a, b, split), ot_backends.emd2(a, b, M))
    gradient = jax.jit(jax.grad(ot_backends.emd2, 2))(a, b, split)
    same(gradient, jax.grad(ot_backends.emd2, 2)(a, b, M))
    assert jax.typeof(gradient).sharding.spec == P("x", None)


@check_explicit
def explicit_axes_that_jax_cannot_index() -> None:
    (a, *_), (b, *_), M = batch()
    split = placed(M, mesh("x", explicit=True), "x")
    try:
        jax.jit(batched((None, None, 0)))(a, b, split)
    except UnsupportedTransformError as error:
        message = str(error)
    else:
        raise AssertionError("a shared argument beside one that is split over Explicit axes")
    assert "shard_map" in message
    same(
        jax.jit(lambda M: ot_backends.solve(M, a, b).value)(split),
        batched((None, None, 0))(a, b, M),
    )


# ---- placement


@check
def results_stay_on_the_device_of_the_inputs() -> None:
    a, b, M = (x[0] for x in batch())
    device = jax.devices()[2]
    there = [jax.device_put(x, device) for x in (a, b, M)]
    for f in (ot_backends.emd2, jax.jit(ot_backends.emd2), jax.grad(ot_backends.emd2)):
        assert f(*there).devices() == {device}
    result = ot_backends.solve(there[2], there[0], there[1])
    assert all(x.devices() == {device} for x in jax.tree.leaves(result))
    nx = ot_backends.get_backend(a)
    assert nx.pycall(lambda x: x, there[0], out=a).devices() == {device}
    mixed = ot_backends.emd2(np.asarray(a), b, there[2])  # what is not pinned follows
    assert mixed.devices() == {device}


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    assert jax.device_count() == 4
    ot_backends.emd2(np.ones(2) / 2, np.ones(2) / 2, np.eye(2))  # imports what the solver needs
    print(json.dumps({"started": True}), flush=True)
    for name, f in CHECKS.items():
        try:
            f()
            outcome = None
        except Exception:
            outcome = traceback.format_exc()
        print(json.dumps({"check": name, "error": outcome}), flush=True)


if __name__ == "__main__":
    main()
