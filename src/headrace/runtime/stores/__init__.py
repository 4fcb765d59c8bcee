"""Stores that outlive runs: their supervisor, and the commands that start and stop it."""
