"""Joins host, basis and backends: the only place where a host result becomes differentiable."""

from .emd import emd, emd2
from .solve import Result, Status, solve

__all__ = ["Result", "Status", "emd", "emd2", "solve"]
