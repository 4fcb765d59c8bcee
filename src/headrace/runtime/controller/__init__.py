"""The driver: starts a plan's tasks, monitors them and handles failures."""
