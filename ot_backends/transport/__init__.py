"""Joins host, basis and backends: the only place where a host result becomes differentiable."""
