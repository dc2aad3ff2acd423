"""JAX on the CPU reaches the native kernel without Python: in the program, exported, and cached."""

import re
import textwrap
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import prob
from subprocesses import run_python

import ot_backends
from ot_backends.host import native, xla

pytestmark = pytest.mark.skipif(
    not (native.available() and xla.available()), reason="built without the native kernel"
)

TARGET = "ot_backends_solve"


def targets(**options: str) -> list[str]:
    """The custom calls of a compiled value and gradient."""

    def loss(a: jax.Array, b: jax.Array, M: jax.Array) -> jax.Array:
        return ot_backends.emd2(a, b, M, **options)

    args = [jnp.asarray(x, jnp.float32) for x in prob().args]
    text = jax.jit(jax.value_and_grad(loss)).lower(*args).compile().as_text()
    return re.findall(r'custom_call_target="([^"]*)"', text)


def test_program_holds_one_custom_call_and_no_callback() -> None:
    assert targets(kernel="native") == [TARGET]


def test_the_other_kernel_is_called_back() -> None:
    (target,) = targets(kernel="pot")
    assert "callback" in target


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_both_ways_to_the_host_agree(dtype: str) -> None:
    a, b, M = (jnp.asarray(x, jnp.float32) for x in prob().args)
    M = M.astype(dtype)

    def solve(kernel: str) -> list[np.ndarray]:
        result = jax.jit(lambda a, b, M: ot_backends.solve(M, a, b, kernel=kernel))(a, b, M)
        return [np.asarray(x, np.float64) for x in (result.value, result.u, result.plan)]

    for x, y in zip(solve("native"), solve("pot"), strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-2 if dtype != "float32" else 1e-6, atol=1e-6)


SAVE = """
import sys
import jax, jax.numpy as jnp
import ot_backends

check = jax.export.DisabledSafetyCheck.custom_call("ot_backends_solve")
f = jax.jit(jax.value_and_grad(lambda M: ot_backends.solve(M).value))
exported = jax.export.export(f, disabled_checks=[check])(jnp.ones((3, 4)))
open(sys.argv[1], "wb").write(exported.serialize())
"""
LOAD = """
import sys
import jax, jax.numpy as jnp
import ot_backends

ot_backends.register_xla_calls()
f = jax.export.deserialize(bytearray(open(sys.argv[1], "rb").read()))
M = jnp.arange(12.0).reshape(3, 4) % 5
value, plan = f.call(M)
result = ot_backends.solve(M)
assert abs(value - result.value) < 1e-6, (value, result.value)
assert abs(plan - result.plan).max() < 1e-6
print("loaded")
"""


def test_exported_program_runs_in_another_process(tmp_path: Path) -> None:
    file = str(tmp_path / "program")
    run_python(SAVE, file)
    assert "loaded" in run_python(LOAD, file)


CACHED = textwrap.dedent("""
    import sys
    import jax, jax.numpy as jnp
    import ot_backends

    jax.config.update("jax_compilation_cache_dir", sys.argv[1])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    M = jnp.ones((3, 4))
    events = []
    jax.monitoring.register_event_listener(lambda event, **_: events.append(event))
    jax.jit(jax.value_and_grad(lambda M: ot_backends.solve(M).value))(M)
    print("misses", events.count("/jax/compilation_cache/cache_misses"),
          "hits", events.count("/jax/compilation_cache/cache_hits"))
""")


def test_second_process_compiles_nothing(tmp_path: Path) -> None:
    first, second = (run_python(CACHED, str(tmp_path)) for _ in range(2))
    assert "hits 0" in first
    assert "misses 0" not in first
    assert "misses 0" in second
    assert "hits 0" not in second
