"""Traces that tasks record."""
