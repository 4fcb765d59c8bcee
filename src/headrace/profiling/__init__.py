"""Profiles from traces of runs, with confidence intervals."""

from headrace.profiling.from_trace import (
    default_skip,
    measured_iteration_time_s,
    num_iterations,
    profile_trace,
)

__all__ = ["default_skip", "measured_iteration_time_s", "num_iterations", "profile_trace"]
