"""The driver: starts a plan's tasks, watches them, handles failures."""
