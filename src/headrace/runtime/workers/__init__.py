"""Processes of tasks: how they are started, warm where that is possible."""
