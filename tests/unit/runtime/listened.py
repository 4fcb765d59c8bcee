"""A small plan, and a status of it, for those who listen to runs."""

from __future__ import annotations

from typing import Any

from headrace.api.plan import plan
from headrace.core.cluster import Cluster
from headrace.core.job import Job
from headrace.core.plan import Plan
from headrace.runtime.cluster.nodes import Node
from headrace.runtime.cluster.placement_group import TaskPlacement, slots_of
from headrace.runtime.run_dir.status import Status

NODES = tuple(Node(f"m{m}", f"id{m}", f"10.0.0.{m + 1}", {}) for m in range(2))


def small_plan() -> tuple[Plan, tuple[TaskPlacement, ...]]:
    """Two machines with a store, a sampler and a trainer each; and where they go."""
    machines = [{"name": node.machine, "nic": "1Gbps"} for node in NODES]
    cluster = Cluster.model_validate({"version": 1, "machines": machines})
    made = plan(cluster, Job(name="small", trainers=2, batch_size=2), method="colocate")
    return made, slots_of(made, NODES)


def status(**fields: Any) -> Status:
    """A status with some fields."""
    return Status(run_id="run-1", since_s=0.0, updated_s=1.0, job="small", **fields)
