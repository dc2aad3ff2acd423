"""Importing the package imports no framework; a missing one costs only its own backend."""

from __future__ import annotations

import subprocess
import sys

import pytest

BLOCK = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
"""

USE = {
    "numpy": """
import numpy as np, ot_backends
a, b, M = np.array([.75, .25]), np.array([.5, .5]), np.array([[0., 2.], [2., 1.]])
""",
    "jax": """
import numpy as np, jax, jax.numpy as jnp, ot_backends
a, b, M = jnp.array([.75, .25]), jnp.array([.5, .5]), jnp.array([[0., 2.], [2., 1.]])
g = jax.jit(jax.grad(ot_backends.emd2, 2))(a, b, M)
np.testing.assert_array_equal(g, [[.5, .25], [0., .25]])
""",
    "torch": """
import numpy as np, torch, ot_backends
a, b, M = (torch.tensor(x) for x in ([.75, .25], [.5, .5], [[0., 2.], [2., 1.]]))
g = torch.func.grad(ot_backends.emd2, 2)(a, b, M)
np.testing.assert_array_equal(g, [[.5, .25], [0., .25]])
""",
}
COMMON = """
assert float(ot_backends.emd2(a, b, M)) == .75
np.testing.assert_array_equal(ot_backends.emd(a, b, M), [[.5, .25], [0., .25]])
assert float(ot_backends.solve(M, a, b).value) == .75
assert ot_backends.get_backend(M).name == {name!r}
"""


def run(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "module",
    [
        "ot_backends",
        "ot_backends.errors",
        "ot_backends.backends",
        "ot_backends.derivatives",
        "ot_backends.host",
        "ot_backends.transport",
    ],
)
def test_import_imports_no_framework(module: str) -> None:
    run(f"""
import sys, {module}
loaded = {{"torch", "jax", "jaxlib", "ot", "tensorflow", "cupy"}} & set(sys.modules)
assert not loaded, loaded
""")


@pytest.mark.parametrize("name", list(USE))
def test_one_framework_imports_no_other(name: str) -> None:
    namespace = {"numpy": "numpy", "jax": "jax.numpy", "torch": "torch"}[name]
    run(f"""
import importlib, sys, ot_backends
array = importlib.import_module({namespace!r}).asarray([1.0, 2.0])
assert ot_backends.get_backend(array).name == {name!r}
loaded = { ({"jax", "torch", "ot"} - {name})!r} & set(sys.modules)
assert not loaded, loaded
""")


@pytest.mark.parametrize("name", list(USE))
def test_everything_works_without_the_other_frameworks(name: str) -> None:
    blocked = {"jax", "jaxlib", "torch"} - {name, f"{name}lib"}
    run(BLOCK.format(blocked=blocked) + USE[name] + COMMON.format(name=name))


@pytest.mark.parametrize("name", ["jax", "torch"])
def test_the_error_for_a_missing_framework_names_the_command(name: str) -> None:
    run(
        BLOCK.format(blocked={name})
        + f"""
from ot_backends.backends.select import load_backend
from ot_backends.errors import MissingBackendError
try:
    load_backend({name!r})
except MissingBackendError as error:
    assert isinstance(error, ImportError)
    assert "pip install" in str(error), error
    assert {name!r} in str(error), error
else:
    raise SystemExit("no error")
"""
    )
