"""The exact solvers: NumPy in, NumPy out. No framework is imported here."""

from .batch import HostSolve, available_threads
from .check import check_shapes, mass_tolerance
from .pot_kernel import load_kernel
from .solution import Options, Solution
from .which import kernel_name

__all__ = [
    "HostSolve",
    "Options",
    "Solution",
    "available_threads",
    "check_shapes",
    "kernel_name",
    "load_kernel",
    "mass_tolerance",
]
