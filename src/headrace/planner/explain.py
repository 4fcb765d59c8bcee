"""Bottleneck of a plan, and the effect of hardware and job changes, found by replanning."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np

from headrace.core.cluster import Cluster, Machine
from headrace.core.job import UNLIMITED_WINDOW, JobKind, Role
from headrace.core.placement import demand_vector, resource_names
from headrace.core.plan import Explanation, Plan, Remedy, problem_of
from headrace.core.profile import Problem, Profile
from headrace.core.report import MachinePlan, PlanFacts
from headrace.core.units import format_seconds
from headrace.planner.cost.speed_classes import machine_times_s
from headrace.planner.cost.traffic_matrix import traffic_of
from headrace.planner.planner import make_plan

MOST_CLASSES = 4
"""Number of machine classes to vary, in order of decreasing NIC load."""


@dataclass(frozen=True)
class PlanChange:
    """A change of a plan's inputs.

    Attributes:
        name: Description, e.g. `doubling the NIC of m2`.
        problem: The changed inputs.
    """

    name: str
    problem: Problem


def explain(
    plan: Plan,
    on_step: Callable[[str], None] = lambda name: None,
    more: Iterable[PlanChange] = (),
) -> Explanation:
    """Name the bottleneck of a plan and replan for a set of changes, and for `more` changes.

    Each replan uses the method, seed and rounds of `plan` and may keep its placement. A policy or
    seed mix that was `auto` is chosen again. `on_step` is called with the name of each change.

    Raises:
        MissingExtraError: The plan's method needs a package that is not installed.
    """
    is_rehearsed = plan.predicted is not None
    remedies = []
    for change in chain(_changes(plan), more):
        on_step(change.name)
        changed = make_plan(
            change.problem,
            method=plan.method,
            policy=plan.asked.policy,
            seed_mix=plan.asked.seed_mix,
            shares=plan.asked.shares,
            seed=plan.seed,
            rounds=plan.rounds,
            also=(plan.placed,),
        )
        time_s = changed.time_s
        saving = 1 - time_s / plan.time_s if plan.time_s > 0 else 0.0
        remedies.append(Remedy(change.name, time_s, saving))
    return Explanation(
        plan=plan,
        limit=limit_of(plan),
        bottleneck=bottleneck_of(plan),
        time_s=plan.time_s,
        is_rehearsed=is_rehearsed,
        remedies=tuple(sorted(remedies, key=lambda remedy: -remedy.saving)),
        idle=tuple(_idle(plan)),
    )


def num_changes(plan: Plan) -> int:
    """Number of changes that `explain` evaluates."""
    return len(list(_changes(plan)))


def limit_of(plan: Plan) -> str:
    """Largest term of a plan's objective: `nic`, `cycle`, `task` or `latency`."""
    terms = plan.terms
    by_name = {"nic": terms.nic_s, "cycle": terms.cycle_s, "task": terms.task_s}
    largest = max(by_name, key=lambda name: by_name[name])
    return largest if by_name[largest] >= terms.time_s else "latency"


def bottleneck_of(plan: Plan) -> str:
    """Description of the limit on a plan's time per iteration."""
    terms, limit = plan.terms, limit_of(plan)
    if limit == "nic":
        name, _, way = terms.busiest_nic.rpartition(" ")
        verb = "receives" if way == "in" else "sends"
        return f"the network: {name} {verb} for {format_seconds(terms.nic_s)} per iteration"
    if limit == "cycle":
        around = f"{format_seconds(terms.cycle_s)} from one update of the parameters to the next"
        return f"the parameter cycle: {around}"
    if limit == "task":
        return f"computing: the longest task takes {format_seconds(terms.task_s)} per iteration"
    return (
        f"waiting: {format_seconds(terms.latency_s)} between neighbouring stages, with a window of "
        f"{plan.job.window}"
    )


def _idle(plan: Plan) -> Iterator[str]:
    """Sentences about machines that a role avoids because they are too slow."""
    if plan.job.kind is JobKind.FULL_GRAPH:
        # Its trainers' times depend on their parts.
        return
    problem, placed, terms = problem_of(plan), plan.placed, plan.terms
    for role, word, machines in (
        (Role.TRAINER, "trainer", placed.trainers),
        (Role.SAMPLER, "sampler", placed.samplers),
        (Role.SERVER, "parameter server", placed.servers),
    ):
        if not machines or (plan.shares is not None and role is not Role.SERVER):
            continue
        times_s = machine_times_s(problem, role)
        used_s = times_s[list(machines)].max()
        # A longer task delays the plan if its stage, or for the cycle the sum, takes longer than T.
        others_s = 0.0 if role is Role.SAMPLER else terms.cycle_s - used_s
        enough_s = terms.time_s - others_s
        avoided = np.flatnonzero((times_s > used_s) & (times_s > enough_s)).tolist()
        avoided = [m for m in avoided if _has_room(plan, role, m)]
        for time_s in sorted(set(times_s[avoided].tolist())):
            names = [plan.cluster.hosts[m].name for m in avoided if times_s[m] == time_s]
            yield (
                f"No {word} runs on {_listed(names)}: a {word} takes {format_seconds(time_s)} "
                f"there and at most {format_seconds(used_s)} elsewhere, and all wait for the "
                f"slowest. It would pay if a {word} took at most {format_seconds(enough_s)} there."
            )


def _has_room(plan: Plan, role: Role, machine: int) -> bool:
    """Whether a machine without other tasks than its store can host a task of a role."""
    names = resource_names(plan.cluster, plan.job)
    free = plan.cluster.capacities(names)[machine] - demand_vector(plan.job, Role.STORE, names)
    return bool((demand_vector(plan.job, role, names) <= free * (1 + 1e-9)).all())


def _listed(names: list[str]) -> str:
    if len(names) <= 4:
        return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
    return f"{names[0]} and the {len(names) - 1} machines like it"


def plan_facts(plan: Plan) -> PlanFacts:
    """Summary of a plan for a report."""
    tasks: dict[str, list[str]] = {}
    per_trainer = plan.job.samplers_per_trainer
    for w, name in enumerate(plan.placement.trainers):
        tasks.setdefault(name, []).append(f"trainer{w}")
    for s, name in enumerate(plan.placement.samplers):
        tasks.setdefault(name, []).append(f"sampler{s // per_trainer}.{s % per_trainer}")
    for p, name in enumerate(plan.placement.servers):
        tasks.setdefault(name, []).append(f"ps{p}")
    return PlanFacts(
        method=plan.method,
        policy=plan.policy,
        seed_mix=plan.seed_mix_name,
        sync=plan.job.sync.value,
        window=str(plan.job.window or "unlimited"),
        batch_size=plan.job.batch_size,
        trainers=plan.job.trainers,
        samplers_per_trainer=per_trainer,
        limit=bottleneck_of(plan),
        time_s=plan.terms.time_s,
        bound_s=plan.bound_s,
        gap=plan.gap,
        proven=plan.proven,
        network_bytes=plan.network_bytes,
        uniform_network_bytes=plan.uniform_network_bytes,
        fingerprints=plan.fingerprints.model_dump(),
        machines=tuple(
            MachinePlan(
                name=machine.name,
                kind=machine.kind,
                resources=dict(machine.resources),
                nic_in_bytes_per_s=machine.nic_in,
                nic_out_bytes_per_s=machine.nic_out,
                tasks=(f"store{m}", *tasks.get(machine.name, ())),
            )
            for m, machine in enumerate(plan.cluster.hosts)
        ),
    )


def _changes(plan: Plan) -> Iterator[PlanChange]:
    problem = problem_of(plan)
    hosts, job, profile = problem.cluster.hosts, problem.job, problem.profile
    classes = busiest_classes(plan)
    busiest, is_sampled = classes[0], job.kind is JobKind.SAMPLED
    if limit_of(plan) == "nic":
        doubled = [(nics_of(hosts, members), members) for members in classes]
        if len(busiest) > 1:
            doubled.append((f"{nics_of(hosts, busiest[:1])} alone", busiest[:1]))
    else:
        # NICs are not the bottleneck: one change of all NICs is enough.
        all_hosts = list(range(len(hosts)))
        doubled = [(nics_of(hosts, all_hosts), all_hosts)]
        roles = ((Role.TRAINER, "trainers"), (Role.SAMPLER, "samplers"))
        for role, words in roles if is_sampled else roles[:1]:
            name = f"{words} that compute twice as fast"
            yield PlanChange(name, problem._replace(profile=faster(profile, role)))
    for name, members in doubled:
        wider = problem._replace(cluster=doubled_nics(hosts, members))
        yield PlanChange(f"doubling {name}", wider)
    # A measured matrix and known seeds are those of a fixed number of partitions.
    if not profile.store_traffic.matrix and profile.part_seeds is None:
        for members in _distinct_resources(hosts, classes):
            model = hosts[members[0]]
            grown = problem._replace(cluster=_grown(hosts, model))
            yield PlanChange(f"one more machine like {model.name}", grown)
    if is_sampled and job.window != UNLIMITED_WINDOW:
        longer = job.model_copy(update={"window": 2 * job.window})
        name = f"a window of {longer.window} instead of {job.window}"
        yield PlanChange(name, problem._replace(job=longer))


def faster(profile: Profile, role: Role) -> Profile:
    """Profile in which tasks of a role take half the time."""
    halved = {
        kind: time.model_copy(update={"mean": time.mean / 2})
        for kind, time in profile.task_times[role].items()
    }
    return profile.model_copy(update={"task_times": {**profile.task_times, role: halved}})


def busiest_classes(plan: Plan) -> list[list[int]]:
    """Machines grouped by equal hardware, sorted by decreasing NIC load."""
    traffic = traffic_of(problem_of(plan), plan.placed, plan.seeds)
    load_in, load_out = traffic.loads_s(plan.cluster)
    loads = np.maximum(load_in, load_out)
    classes: dict[tuple[object, ...], list[int]] = {}
    for m in np.argsort(-loads, kind="stable").tolist():
        host = plan.cluster.hosts[m]
        resources = tuple(sorted(host.resources.items()))
        classes.setdefault((host.kind, resources, host.nic_in, host.nic_out), []).append(m)
    return list(classes.values())[:MOST_CLASSES]


def _distinct_resources(hosts: tuple[Machine, ...], classes: list[list[int]]) -> list[list[int]]:
    """One class per kind and NIC bandwidth; other resources rarely matter."""
    seen: dict[tuple[object, ...], list[int]] = {}
    for members in classes:
        host = hosts[members[0]]
        seen.setdefault((host.kind, host.nic_in, host.nic_out), members)
    return list(seen.values())


def nics_of(hosts: tuple[Machine, ...], members: list[int]) -> str:
    """Describe the NICs of some machines: `the NICs of m2 and m3`."""
    names = [hosts[m].name for m in sorted(members)]
    if len(names) == 1:
        return f"the NIC of {names[0]}"
    return f"the NICs of {_listed(names)}"


def doubled_nics(hosts: tuple[Machine, ...], members: list[int]) -> Cluster:
    """Cluster in which some machines have twice the NIC bandwidth."""
    chosen = set(members)
    return Cluster(
        machines=tuple(
            host.model_copy(update={"nic_in": 2 * host.nic_in, "nic_out": 2 * host.nic_out})
            if m in chosen
            else host
            for m, host in enumerate(hosts)
        )
    )


def _grown(hosts: tuple[Machine, ...], model: Machine) -> Cluster:
    names = {host.name for host in hosts}
    name = f"{model.name}-more"
    while name in names:
        name += "-more"
    return Cluster(machines=(*hosts, model.model_copy(update={"name": name})))
