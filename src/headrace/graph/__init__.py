"""Graphs on disk: from any source to memory-mapped parts."""
