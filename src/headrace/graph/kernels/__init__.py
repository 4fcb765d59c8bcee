"""Numba kernels over flat arrays."""
