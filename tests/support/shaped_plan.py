"""A plan whose policy shapes traffic; imports no torch."""

from __future__ import annotations

from headrace.api.plan import plan
from headrace.core.cluster import Cluster
from headrace.core.job import Job
from headrace.core.plan import Plan


def make_plan() -> Plan:
    """Of two machines, under a policy that shapes traffic."""
    machines = [{"name": name, "nic": "1Gbps", "resources": {"cpu": 8}} for name in ("m0", "m1")]
    cluster = Cluster.model_validate({"version": 1, "machines": machines})
    job = Job(trainers=2, batch_size=8, model_bytes=4e6)
    return plan(cluster, job, method="colocate", policy="priority")
