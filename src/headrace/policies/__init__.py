"""Decisions as pure functions of state; the simulator and the runtime carry them out."""
