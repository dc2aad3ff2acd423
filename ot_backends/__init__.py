"""Exact optimal transport that NumPy, JAX and PyTorch can differentiate.

*Solvers run on the host, the basis says the derivative, backends carry both into a framework.*
"""

from .backends import ArraySpec, get_backend, host_function
from .transport import Result, Status, emd, emd2, solve
from .version import __version__

__all__ = [
    "ArraySpec",
    "Result",
    "Status",
    "__version__",
    "emd",
    "emd2",
    "get_backend",
    "host_function",
    "solve",
]
