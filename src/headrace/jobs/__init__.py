"""Sweeps: many trials of one script, from a space of settings to a table of results."""
