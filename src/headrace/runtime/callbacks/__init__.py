"""Whoever follows a run: files, metrics, trackers, drift."""
