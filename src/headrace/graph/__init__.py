"""Conversion of input graphs to memory-mapped partitions, and access to them."""
