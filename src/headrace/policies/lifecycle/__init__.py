"""Lifecycle of a run: events in, commands out."""
