"""Kernels in the first command: interpreted where that is faster, compiled in the background.

`python -m headrace.cli.kernels` compiles the kernels of planner and simulator.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

VARIABLE = "HEADRACE_COMPILE"
"""Environment variable; `now` compiles kernels when they are first called."""

BUDGET_S = 24.0
"""Estimated seconds of interpretation per command; the kernels compile in about 40 s."""

IN_BACKGROUND = "compiling kernels in the background, only the first time: half a minute"


@contextmanager
def first_use(report: Callable[[str], None]) -> Iterator[None]:
    """Interpret kernels that are not compiled yet, and compile them in the background."""
    from headrace.policies.interpreted import CALLER

    if os.environ.get(VARIABLE) == "now":
        yield
        return

    def start() -> Callable[[], object]:
        report(IN_BACKGROUND)
        return compile_in_background()

    CALLER.set_budget(BUDGET_S, start)
    try:
        yield
    finally:
        CALLER.finish()


def compile_in_background() -> Callable[[], object]:
    """Start a process that compiles the kernels and outlives this one, unless there is one.

    Returns a function that waits for its end.
    """
    # Without the lock or the process, the next command interprets or compiles again.
    with suppress(OSError), _locked(fcntl.LOCK_NB):
        subprocess.Popen(
            [sys.executable, "-m", "headrace.cli.kernels"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    return wait


def wait() -> None:
    """Wait for the process that compiles the kernels."""
    with suppress(OSError), _locked():
        pass


def compile_kernels() -> None:
    """Compile the kernels of planner and simulator."""
    import headrace
    from headrace.core.placement import Placement
    from headrace.core.profile import Problem
    from headrace.policies.flow import FLOW_POLICIES
    from headrace.profiling.default_profile import default_profile
    from headrace.simulator import build_instance, simulate

    cluster = headrace.Cluster.model_validate(
        {"version": 1, "machines": [{"name": "m", "count": 2, "nic": "1Gbps"}]}
    )
    job = headrace.Job(trainers=2, batch_size=8, iterations=8)
    # What the next command needs first: the planner, then the other policies.
    headrace.plan(cluster, job)
    problem = Problem(cluster, job, default_profile())
    instance, _ = build_instance(problem, Placement(samplers=(0, 1), trainers=(1, 0)))
    for general in (False, True):
        for policy in FLOW_POLICIES:
            simulate(instance, policy, record=True, general=general)


@contextmanager
def _locked(flags: int = 0) -> Iterator[None]:
    """Hold the lock of the process that compiles the kernels."""
    from headrace.simulator.pair_kernel import run_pairs

    folder = Path(run_pairs.stats.cache_path)  # type: ignore[attr-defined]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "headrace.lock").open("w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX | flags)
        yield


if __name__ == "__main__":
    os.nice(10)
    with _locked():
        compile_kernels()
