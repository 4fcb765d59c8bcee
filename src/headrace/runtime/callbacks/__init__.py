"""Callbacks of a run: status files, metrics, trackers, drift monitor."""
