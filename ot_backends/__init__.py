"""Exact optimal transport that NumPy, JAX and PyTorch can differentiate."""
