"""Exact optimal transport that NumPy, JAX and PyTorch can differentiate.

*Solvers run on the host, the basis says the derivative, backends carry both into a framework.*
"""

from .backends import ArraySpec, get_backend, host_function
from .derivatives import (
    check_grads,
    custom_gradient,
    linear_solve,
    root,
    stop_gradient,
    zero_grad,
)
from .transport import Result, Status, emd, emd2, register_xla_calls, solve
from .version import __version__

__all__ = [
    "ArraySpec",
    "Result",
    "Status",
    "__version__",
    "check_grads",
    "custom_gradient",
    "emd",
    "emd2",
    "get_backend",
    "host_function",
    "linear_solve",
    "register_xla_calls",
    "root",
    "solve",
    "stop_gradient",
    "zero_grad",
]
