"""Profiles with task times per machine instead of per machine class."""

from __future__ import annotations

from headrace.core.cluster import Cluster
from headrace.core.job import Role
from headrace.core.plan import Plan
from headrace.core.profile import Profile, TaskTime


def told_apart(cluster: Cluster) -> Cluster:
    """Return the cluster with every machine in its own class."""
    return Cluster(
        machines=tuple(host.model_copy(update={"kind": host.name}) for host in cluster.hosts)
    )


def filled_in(measured: Profile, plan: Plan) -> Profile:
    """Complete a per-machine profile with the plan's profile, if that was measured.

    Tasks that a machine did not run get the plan's time. Ring steps get at most the plan's time:
    they do no computation, so longer times are waits for a saturated NIC.
    """
    known = plan.profile
    if known.source != "measured":
        return measured

    def time_of(role: Role, name: str, kind: str) -> TaskTime:
        seen = measured.task_times[role].get(name)
        if role not in known.task_times or (seen is not None and role is not Role.RING):
            return seen or measured.task_time(role, name)
        planned = known.task_time(role, kind)
        mean_s = planned.mean * known.seed_scale(role, plan.job)
        planned = planned.model_copy(update={"mean": mean_s})
        return planned if seen is None or planned.mean <= seen.mean else seen

    times = {
        role: {host.name: time_of(role, host.name, host.kind) for host in plan.cluster.hosts}
        for role in measured.task_times
    }
    return measured.model_copy(update={"task_times": times})
