"""Which kernel solves: the native one where it was built, else POT's."""

from __future__ import annotations

import os

from ..errors import ProblemError
from . import native, xla

#: Names of the kernels, and what people read of them.
_KERNELS = {"native": "native network simplex", "pot": "POT's emd_c"}


def choose_kernel(kernel: str | None = None) -> str:
    """Return "native" or "pot": as told, else by OT_BACKENDS_KERNEL, else what is there."""
    source = "kernel" if kernel else "the environment variable OT_BACKENDS_KERNEL"
    name = kernel or os.environ.get("OT_BACKENDS_KERNEL") or ""
    if not name:
        return "native" if native.available() else "pot"
    if name not in _KERNELS:
        raise ProblemError(f"{source} must be 'native' or 'pot', but it is {name!r}")
    if name == "native" and not native.available():
        raise ProblemError(
            f"{source} asks for the native kernel, which was not built; install ot_backends where "
            "there is a C++ compiler, or leave it out to use POT's"
        )
    return name


def kernel_name(kernel: str | None = None) -> str:
    """Return the name of the kernel that solves, for people to read."""
    return _KERNELS[choose_kernel(kernel)]


def xla_path(kernel: str | None = None) -> str:
    """Say how a compiled JAX program on the CPU reaches the solver, for people to read."""
    if choose_kernel(kernel) == "native" and xla.available():
        return "calls the kernel natively (jax.ffi)"
    return "calls back into Python"
