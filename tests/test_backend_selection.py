"""get_backend: the right framework for any arrays, importing nothing, and no mixtures."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from ot_backends import get_backend
from ot_backends.backends import load_backend
from ot_backends.errors import MissingBackendError, MixedBackendsError


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_numpy_lists_and_scalars() -> None:
    for arrays in (
        [np.ones(3)],
        [[1.0, 2.0]],
        [1.0],
        [np.float32(1)],
        [None, np.ones(2), [1, 2], 3, True, 2j, (1.0, [2.0])],
        [np.ma.ones(2)],
        [],
        [None],
    ):
        assert get_backend(*arrays).name == "numpy"


def test_one_object_per_framework(framework: Any) -> None:
    x = framework.array([1.0])
    assert get_backend(x) is get_backend(x, x) is load_backend(framework.name)
    assert get_backend(x).name == framework.name
    assert get_backend(x).xp.__name__.endswith(
        {"jax": "jax.numpy"}.get(framework.name, framework.name)
    )


def test_lists_scalars_and_none_go_with_any_array(framework: Any) -> None:
    x = framework.array([1.0])
    for arrays in ([x, [1.0], None], [2, None, x], [np.float64(3), x], [[[0.5]], (1, 2), x]):
        assert get_backend(*arrays).name == framework.name


def test_lists_of_arrays_belong_to_their_framework(framework: Any) -> None:
    x = framework.array(1.0)
    assert get_backend([x, 2.0]).name == framework.name
    assert get_backend([[1.0, x], [x, x]]).name == framework.name


def test_wrapped_arrays_in_transformations(differentiable: Any) -> None:
    seen = []

    def f(x: Any) -> Any:
        seen.append((type(x), get_backend(x, [0.5], None).name))
        return (x * x).sum()

    x, many = differentiable.array([1.0, 2.0]), differentiable.array(np.ones((3, 2)))
    differentiable.grad(f)(x)
    differentiable.vmap(f)(many)
    differentiable.vmap(differentiable.grad(f))(many)
    differentiable.jacfwd(differentiable.jacrev(f))(x)
    differentiable.jvp(f, (x,), (x,))
    assert {name for _, name in seen} == {differentiable.name}
    assert len({kind for kind, _ in seen}) > (1 if differentiable.name == "jax" else 0)
    differentiable.jit(lambda x: get_backend(x).xp.sum(x))(x)


def test_jax_arrays_beside_numpy_arrays() -> None:
    jnp = pytest.importorskip("jax.numpy")
    assert get_backend(np.ones(2), jnp.ones(2)).name == "jax"
    assert get_backend([np.ones(2), jnp.ones(2)]).name == "jax"


def test_mixtures_are_refused() -> None:
    torch = pytest.importorskip("torch")
    jnp = pytest.importorskip("jax.numpy")
    t, j, n = torch.ones(2), jnp.ones(2), np.ones(2)
    for arrays in (
        [t, j],
        [j, t],
        [t, n],
        [n, None, t],
        [n, j, t],
        [[t, n]],
        [t, [n]],
        [[[t], [j]]],
    ):
        with pytest.raises(MixedBackendsError, match=r"torch\.Tensor|list") as caught:
            get_backend(*arrays)
        assert isinstance(caught.value, TypeError)
        assert "convert" in str(caught.value)


def test_subclasses_of_tensors() -> None:
    torch = pytest.importorskip("torch")

    class Tagged(torch.Tensor):  # type: ignore[misc, name-defined]
        pass

    tagged = torch.ones(2).as_subclass(Tagged)
    for x in (torch.nn.Parameter(torch.ones(2)), tagged, torch.ones(2).requires_grad_()):
        assert get_backend(x, [1.0]).name == "torch"


def test_array_likes() -> None:
    class HasArray:
        def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
            return np.ones(2)

    assert get_backend(HasArray()).name == "numpy"
    pytest.importorskip("jax")

    class HasJaxArray:
        def __jax_array__(self) -> Any:
            return np.ones(2)

    assert get_backend(HasJaxArray()).name == "jax"


@pytest.mark.parametrize("thing", ["text", {"a": 1}, {1.0}, object()])
def test_things_that_are_no_arrays(thing: Any) -> None:
    for arrays in ([thing], [np.ones(2), thing], [[thing]]):
        with pytest.raises(TypeError, match=type(thing).__name__):
            get_backend(*arrays)


def test_unknown_name() -> None:
    with pytest.raises(ValueError, match="'numpy', 'jax', 'torch'"):
        load_backend("tensorflow")


def test_importing_and_selecting_import_no_framework() -> None:
    out = run(
        "import sys, ot_backends, numpy as np\n"
        "assert not {'torch', 'jax', 'ot'} & set(sys.modules)\n"
        "assert ot_backends.get_backend(np.ones(3), [1.0]).name == 'numpy'\n"
        "nx = ot_backends.get_backend([1.0])\n"
        "nx.pycall(lambda x: x, [1.0], out=np.ones(1))\n"
        "nx.set_gradients(1.0, (np.ones(1),), (np.ones(1),))\n"
        "print(sorted({'torch', 'jax', 'ot'} & set(sys.modules)))"
    )
    assert out.strip() == "[]"


@pytest.mark.parametrize(("one", "other"), [("torch", "jax"), ("jax", "torch")])
def test_one_framework_does_not_import_the_other(one: str, other: str) -> None:
    pytest.importorskip(one)
    array = {"torch": "torch.ones(2)", "jax": "jax.numpy.ones(2)"}[one]
    run(
        f"import sys, {one}, ot_backends\n"
        f"nx = ot_backends.get_backend({array})\n"
        f"assert nx.name == {one!r}\n"
        f"x = nx.pycall(lambda x: x * 2, nx.stop_gradient({array}), out={array})\n"
        f"nx.set_gradients(x, (x,), (x,))\n"
        f"assert {other!r} not in sys.modules, {other!r}"
    )


@pytest.mark.parametrize("name", ["jax", "torch"])
def test_a_missing_framework_names_the_command(name: str) -> None:
    out = run(
        f"import sys; sys.modules[{name!r}] = None\n"
        "from ot_backends.backends import load_backend\n"
        f"from ot_backends.errors import MissingBackendError\n"
        f"try: load_backend({name!r})\n"
        "except MissingBackendError as error: print(error)"
    )
    assert f'pip install "ot_backends[{name}]"' in out
    assert issubclass(MissingBackendError, ImportError)
