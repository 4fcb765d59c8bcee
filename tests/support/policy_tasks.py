"""Tasks of a small run, for tests of policies."""

from __future__ import annotations

from headrace.core.job import Role
from headrace.policies.lifecycle.events import Event, Placed, Ready, Shipped, Task

TASKS = (
    Task("store0", Role.STORE, "m0"),
    Task("store1", Role.STORE, "m1"),
    Task("sampler0.0", Role.SAMPLER, "m1"),
    Task("ps0", Role.SERVER, "m0"),
    Task("trainer0", Role.TRAINER, "m0"),
    Task("trainer1", Role.TRAINER, "m1"),
)
"""All roles, on two machines."""

EXIT_CODES = (0, 1, 2, 7, 130, -9)
"""One exit code of each kind that recovery tells apart."""


def start_of(tasks: tuple[Task, ...]) -> tuple[Event, ...]:
    """Events that lead from the begin of a run to its training."""
    return (Placed(), Shipped(), *(Ready(task.name) for task in tasks))
