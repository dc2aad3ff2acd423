"""JAX programs that another process exported."""

from __future__ import annotations

from ..errors import OTError
from ..host import xla

__all__ = ["register_xla_calls"]


def register_xla_calls() -> None:
    """Make the native solver known to XLA, before a program from elsewhere calls it.

    A program that was exported with ``jax.export`` on the CPU calls the native kernel by its name,
    ``"ot_backends_solve"``. Tracing a function of this package makes the name known by itself; a
    process that only loads such a program calls this function first.

    Raises
    ------
    OTError
        Where the package was built without the kernel, or for a newer JAX.

    Examples
    --------
    >>> import jax, ot_backends
    >>> ot_backends.register_xla_calls()  # then jax.export.deserialize(...).call(...)
    >>> check = jax.export.DisabledSafetyCheck.custom_call("ot_backends_solve")
    >>> step = jax.jit(lambda M: ot_backends.solve(M).value)
    >>> exported = jax.export.export(step, disabled_checks=[check])(jax.numpy.ones((3, 4)))
    """
    from ..backends.jax_ffi import register

    handler = xla.handler()
    if handler is None or not register(xla.TARGET, handler):
        raise OTError(
            "the native kernel's custom call is not available: install ot_backends where there is "
            "a C++ compiler, beside the jaxlib that is used (python -m ot_backends doctor tells)"
        )
