"""Loops over flat arrays, compiled by numba."""
