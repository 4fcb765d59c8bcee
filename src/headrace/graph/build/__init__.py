"""Conversion of a graph source to a partitioned graph."""
