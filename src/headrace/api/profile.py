"""Profiles from traces of runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from headrace.api.documents.load import AnyPath
from headrace.api.simulate import simulate
from headrace.core.errors import SpecError
from headrace.core.plan import Plan, problem_of
from headrace.core.profile import Profile, StepSample
from headrace.core.trace import Trace
from headrace.observability.trace_file import load_trace, save_trace
from headrace.profiling import measured_iteration_time_s, num_iterations, profile_trace
from headrace.profiling.growth import trainer_steps
from headrace.profiling.trace_assembly import link_bytes

__all__ = [
    "SIZES",
    "Outlook",
    "compare",
    "link_bytes",
    "load_trace",
    "profile_text",
    "profile_trace",
    "save_profile",
    "save_trace",
    "trace_summary",
    "with_steps",
]


SIZES = (1.0, 0.5, 0.25)
"""Batch sizes of a profiling run, as factors of the plan's; larger ones may not fit the memory."""


@dataclass(frozen=True)
class Outlook:
    """Predicted (simulated) and measured time per iteration."""

    predicted_s: float
    measured_s: float

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return self.predicted_s / self.measured_s

    def summary(self) -> dict[str, Any]:
        """All figures as plain values."""
        return {
            "predicted_iteration_time_s": self.predicted_s,
            "measured_iteration_time_s": self.measured_s,
            "predicted_over_measured": self.ratio,
        }


def compare(
    trace: Trace, plan: Plan, profile: Profile, iterations: int = 200, skip: int | None = None
) -> Outlook:
    """Simulate a plan with a profile and compare with the trace of a run."""
    problem = problem_of(plan).with_profile(profile)
    found = simulate(*problem, plan, plan.policy, iterations=iterations)
    return Outlook(found.iteration_time_s, measured_iteration_time_s(trace, skip))


def with_steps(
    profile: Profile,
    trace: Trace,
    plan: Plan,
    script: Path,
    graph: Path,
    arguments: Sequence[str] = (),
    config: Mapping[str, Any] | None = None,
    on_step: Callable[[str], None] = lambda name: None,
) -> Profile:
    """A profile with the measured steps of its trainers and what they do, by a trace of the script.

    Raises:
        SpecError: The script fails, or does not take batches of a headrace loader.
    """
    # Imports torch.
    from headrace.runtime.controller.script_step import trace_script

    samples = []
    for seeds, times in trainer_steps(trace, plan, profile.skipped or 0).items():
        on_step(f"tracing a step of {seeds} seeds")
        step = trace_script(script, graph, arguments, seeds, is_real=False, config=config)
        if step is not None and step.counts is not None:
            samples.append(StepSample(seeds=seeds, counts=step.counts, times=times))
    if not samples:
        return profile
    return profile.model_copy(update={"version": 2, "steps": tuple(samples)})


def profile_text(profile: Profile) -> str:
    """A profile as YAML."""
    written = profile.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    return yaml.safe_dump(
        {"version": profile.version, **written}, sort_keys=False, default_flow_style=None, width=99
    )


def save_profile(profile: Profile, path: AnyPath) -> None:
    """Write a profile as YAML."""
    try:
        Path(path).write_text(profile_text(profile), encoding="utf-8")
    except OSError as error:
        reason = error.strerror or error
        raise SpecError(f"{path} cannot be written ({reason})", "choose another path") from None


def trace_summary(trace: Trace) -> dict[str, Any]:
    """Plain values of a trace: the output of `headrace trace --json`.

    Example:
        >>> import headrace
        >>> machines = [headrace.Machine(name="m", count=3, nic="1Gbps")]
        >>> cluster = headrace.Cluster(machines=machines)
        >>> job = headrace.Job(trainers=2, batch_size=100, iterations=20)
        >>> headrace.save_trace(headrace.simulate(cluster, job).trace(), "trace.npz")
        >>> trace_summary(headrace.load_trace("trace.npz"))["num_iterations"]
        20
    """
    return {
        "num_iterations": num_iterations(trace),
        "makespan_s": trace.makespan_s,
        "num_executions": len(trace.executions.task),
        "num_flows": len(trace.flows.src),
        "machines": [
            {"name": name, "in_bytes": in_bytes, "out_bytes": out_bytes}
            for name, (in_bytes, out_bytes) in link_bytes(trace).items()
        ],
    }
