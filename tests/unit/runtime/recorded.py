"""What tasks of a small plan would record, written by hand."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from headrace.core.cluster import Cluster, Machine
from headrace.core.job import Job, Role
from headrace.core.placement import Placement
from headrace.core.plan import Plan
from headrace.core.profile import BatchTraffic, Problem, Profile, StoreTraffic, TaskTime
from headrace.planner.planner import make_plan

NIC = 1e8
"""Bytes per second."""

PART_BYTES = 4_000_000
"""That a store sends a sampler in an iteration."""


def small_plan(time_s: float = 0.1) -> Plan:
    """Two trainers with a sampler each on the first two of three machines.

    Args:
        time_s: Of an iteration, as the plan predicts it.
    """
    cluster = Cluster(
        machines=tuple(
            Machine(name=f"m{i}", nic_in=NIC, nic_out=NIC, resources={"cpu": 2}) for i in range(3)
        )
    )
    job = Job(
        trainers=2,
        batch_size=8,
        model_bytes=800,
        iterations=200,
        demands={Role.TRAINER: {"cpu": 1}, Role.SAMPLER: {"cpu": 1}},
    )
    profile = Profile(
        task_times={role: {"default": TaskTime(mean=0.01)} for role in Role},
        store_traffic=StoreTraffic(bytes_per_seed=3 * PART_BYTES / 8),
        batch_traffic=BatchTraffic(bytes_per_seed=100),
    )
    found = make_plan(Problem(cluster, job, profile), method="colocate", policy="maxmin")
    placed = Placement(samplers=(0, 1), trainers=(0, 1))
    predicted = found.predicted
    assert predicted is not None
    return found.model_copy(
        update={
            "placement": type(found.placement).of(placed, cluster),
            "predicted": predicted.model_copy(update={"iteration_time_s": time_s}),
        }
    )


def recorded(first: int, last: int, time_s: float) -> Iterator[tuple[str, bytes]]:
    """Tasks, and what they write in some iterations."""
    for w in (0, 1):
        sampler, trainer = f"sampler{w}.0", f"trainer{w}"
        sampled: list[list[Any]] = []
        trained: list[list[Any]] = []
        for n in range(first, last + 1):
            at_s = 100 + n * time_s
            sampled.append(["exec", sampler, n, at_s, at_s + 0.05, 0.05, 0.01, 800])
            for store in {0, 1, 2} - {w}:
                times = (at_s, at_s + 0.045)
                sampled.append(["flow", f"store{store}", sampler, n, PART_BYTES, *times])
                sampled.append(["serve", f"store{store}", sampler, n, 0.005])
            sampled.append(["local", f"store{w}", sampler, n, PART_BYTES])
            trained.append(["ring", trainer, n, at_s + 0.07, at_s + 0.08, 800])
            trained.append(["exec", trainer, n, at_s + 0.06, at_s + 0.08])
        yield sampler, text(sampled)
        yield trainer, text(trained)


def text(records: list[list[Any]]) -> bytes:
    """Records as tasks write them."""
    return "".join(json.dumps(record) + "\n" for record in records).encode()
