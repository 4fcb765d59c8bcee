"""Decisions as pure functions of state, executed by the simulator and the runtime."""
