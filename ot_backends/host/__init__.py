"""The exact solvers: NumPy in, NumPy out. No framework is imported here."""

from .batch import HostSolve, available_threads
from .check import check_shapes, mass_tolerance
from .pot_kernel import load_kernel
from .solution import Options, Solution
from .which import choose_kernel, kernel_name, xla_path

__all__ = [
    "HostSolve",
    "Options",
    "Solution",
    "available_threads",
    "check_shapes",
    "choose_kernel",
    "kernel_name",
    "load_kernel",
    "mass_tolerance",
    "xla_path",
]
