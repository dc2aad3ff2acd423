"""``doctor``: what is installed, which kernel solves, and whether the numbers are right."""

from __future__ import annotations

import argparse
import platform
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

import numpy as np

from .. import emd2, solve
from ..backends import Backend, load_backend
from ..host import HostSolve, available_threads, kernel_name, xla_path
from ..version import __version__
from . import missing
from .reference import Float, slope, transport_value

HELP = "print versions and check values and derivatives on each installed backend"

_PACKAGES = ("numpy", "scipy", "POT", "array-api-compat", "jax", "jaxlib", "torch")
_BACKENDS = ("numpy", "jax", "torch")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options: there are none."""


def run(args: argparse.Namespace) -> int:
    """Print everything; return 1 if a check failed, else 0."""
    print(f"{'ot_backends':20}{__version__}")
    print(f"{'python':20}{platform.python_version()} on {platform.system()} {platform.machine()}")
    for package in _PACKAGES:
        print(f"{package:20}{_version(package)}")
    print(f"{'kernel':20}{kernel_name()}")
    print(f"{'JAX on the CPU':20}{xla_path()}")
    print(f"{'threads':20}{available_threads()}")
    print(flush=True)
    ok = _check("kernel loads", _kernel)
    for name in _BACKENDS:
        ok &= _check_backend(name)
    print("\nall is well" if ok else "\nsome checks failed")
    return 0 if ok else 1


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _kernel() -> str:
    HostSolve().prepare()
    return ""


def _check_backend(name: str) -> bool:
    try:
        if missing(name):
            print(f'{name:20}not installed (pip install "ot_backends[{name}]")')
            return True
        nx = load_backend(name)
    except Exception as error:
        print(f"{name:20}failed: cannot be imported: {_one_line(error)}")
        return False
    values = _check(f"{name} values", lambda: _values(nx))
    return _check(f"{name} derivatives", lambda: _derivatives(nx)) and values


def _check(title: str, check: Callable[[], str]) -> bool:
    """Run one check, which returns a remark or raises, and print its line."""
    try:
        print(f"{title:20}ok {check()}".rstrip(), flush=True)
    except Exception as error:  # whatever is wrong, the other lines are still of use
        print(f"{title:20}failed: {_one_line(error)}", flush=True)
        return False
    return True


def _one_line(error: Exception) -> str:
    first = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {first}"


# ---- the checks


class _Problem(NamedTuple):
    a: Float
    b: Float
    M: Float


def _problem(seed: int, n: int = 12, m: int = 9) -> _Problem:
    rng = np.random.default_rng(seed)
    a, b = rng.random(n) + 0.2, rng.random(m) + 0.2
    return _Problem(a / a.sum(), b / b.sum(), rng.random((n, m)))


def _values(nx: Backend) -> str:
    """A batch of problems, some weights zero, against HiGHS."""
    problems = [_problem(seed) for seed in range(8)]
    for k, problem in enumerate(problems):
        problem.a[:k] = 0.0
    a, b, M = map(np.stack, zip(*problems, strict=True))
    found = solve(nx.asarray(M), nx.asarray(a), nx.asarray(b), check_marginals=False).value
    expected = np.array([transport_value(*problem) for problem in problems])
    return _agree(_numpy(found), expected, "HiGHS")


def _derivatives(nx: Backend) -> str:
    """Gradients in a, b and M, compiled where the framework compiles, against differences."""
    problem = _problem(8)
    gradients = _GRADIENTS[nx.name](*(nx.asarray(x) for x in problem))
    rng = np.random.default_rng(9)
    found, expected = [], []
    for k, gradient in enumerate(map(_numpy, gradients)):
        for _ in range(3):
            direction = rng.standard_normal(gradient.shape)

            def along(t: float, k: int = k, direction: Float = direction) -> float:
                moved = [x + t * direction if i == k else x for i, x in enumerate(problem)]
                return transport_value(*moved)

            found.append(np.sum(gradient * direction))
            expected.append(slope(along, 1e-5))
    dtype = _numpy(gradients[0]).dtype
    return _agree(np.array(found, dtype), np.array(expected), "differences of HiGHS")


def _numpy_gradients(a: Any, b: Any, M: Any) -> tuple[Any, ...]:
    result = solve(M, a, b)  # sum(a) = sum(b): the potentials are the derivatives
    return result.u, result.v, result.plan


def _jax_gradients(a: Any, b: Any, M: Any) -> tuple[Any, ...]:
    import jax

    return tuple(jax.jit(jax.grad(emd2, (0, 1, 2)))(a, b, M))


def _torch_gradients(a: Any, b: Any, M: Any) -> tuple[Any, ...]:
    leaves = [x.requires_grad_() for x in (a, b, M)]
    emd2(*leaves).backward()
    return tuple(x.grad for x in leaves)


_GRADIENTS = {"numpy": _numpy_gradients, "jax": _jax_gradients, "torch": _torch_gradients}


def _numpy(x: Any) -> Any:
    return np.asarray(x.detach().cpu() if hasattr(x, "detach") else x)


def _agree(found: Any, expected: Float, judge: str) -> str:
    error = float(np.max(np.abs(found - expected)) / np.max(np.abs(expected)))
    tolerance = max(1e-7, 100 * float(np.finfo(found.dtype).eps))
    if not error <= tolerance:
        raise ArithmeticError(f"off by {error:.1e} from {judge} in {found.dtype}")
    return f"(within {error:.0e} of {judge}, {found.dtype})"
