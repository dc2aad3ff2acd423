"""Joins host, basis and backends: the only place where a host result becomes differentiable."""

from .emd import emd, emd2
from .export import register_xla_calls
from .solve import Result, Status, solve

__all__ = ["Result", "Status", "emd", "emd2", "register_xla_calls", "solve"]
