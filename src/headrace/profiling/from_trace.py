"""Profile of a job from a trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from headrace.core.errors import SpecError
from headrace.core.growth import Growth, Quantity
from headrace.core.job import Role
from headrace.core.plan import Plan
from headrace.core.profile import BatchTraffic, Profile, StoreTraffic, TaskTime
from headrace.core.trace import Trace
from headrace.profiling.full_graph import measured_epochs
from headrace.profiling.growth import growth_of
from headrace.profiling.samples import relative_error, task_time_of, variation_of
from headrace.profiling.volumes import bytes_per_seed

MAX_SKIPPED = 10
"""Maximum number of first iterations to exclude: compilers, caches and windows warm up in them."""


def default_skip(trace: Trace) -> int:
    """A fifth of the iterations, at most `MAX_SKIPPED`."""
    return min(MAX_SKIPPED, num_iterations(trace) // 5)


def num_iterations(trace: Trace) -> int:
    """Number of iterations that any trainer has completed."""
    is_trainer = np.array(trace.task_roles)[trace.executions.task] == Role.TRAINER
    return int(trace.executions.iteration[is_trainer].max(initial=-1)) + 1


def measured_iteration_time_s(trace: Trace, skip: int | None = None) -> float:
    """Mean time per iteration after the first `skip` (default: `default_skip`)."""
    skip = default_skip(trace) if skip is None else skip
    last = num_iterations(trace) - 1
    if last - max(skip - 1, 0) < 1:
        raise SpecError(
            f"the trace has {last + 1} iterations, of which {skip} are to be excluded",
            "run more iterations, or exclude fewer",
        )
    is_trainer = np.array(trace.task_roles)[trace.executions.task] == Role.TRAINER
    ends_s = np.full(last + 1, -np.inf)
    np.maximum.at(
        ends_s, trace.executions.iteration[is_trainer], trace.executions.end_s[is_trainer]
    )
    first = max(skip - 1, 0)
    usual = usual_iterations(trace, last + 1)
    # In a profiling run other sizes follow the usual one, and then the usual one again.
    steady = usual & np.roll(usual, 1) & np.roll(usual, 2)
    steady[: first + 1] = False
    if usual.all() or not steady.any():
        return float((ends_s[last] - ends_s[first]) / (last - first))
    return float(np.diff(ends_s)[steady[1:]].mean())


def usual_iterations(trace: Trace, num: int, usual_seeds: float | None = None) -> np.ndarray:
    """Whether each iteration has the usual number of seeds; all if not recorded.

    `usual_seeds` is the plan's number; without it, or if no iteration has it, the most frequent.
    """
    if trace.seeds is None:
        return np.ones(num, dtype=bool)
    total = np.zeros(num, np.int64)
    known = trace.seeds[:, :num].sum(axis=0)
    total[: len(known)] = known
    usual: np.ndarray = total == (0 if usual_seeds is None else round(usual_seeds))
    if usual_seeds is None or not usual.any():
        sizes, counts = np.unique(total[total > 0], return_counts=True)
        usual = total == sizes[np.argmax(counts)] if len(sizes) else np.ones(num, dtype=bool)
    return usual


def profile_trace(trace: Trace, plan: Plan, skip: int | None = None) -> Profile:
    """Measure times and volumes after the first `skip` (default: `default_skip`) iterations."""
    skip = default_skip(trace) if skip is None else skip
    num = num_iterations(trace)
    if num <= skip:
        raise SpecError(
            f"the trace has {num} iterations, of which {skip} are to be excluded",
            "run more iterations, or exclude fewer",
        )
    usual = usual_iterations(trace, num, float(plan.seeds.sum()))
    usual[:skip] = False
    if not usual.any():
        usual[skip:] = True
    if trace.swaps:
        return _full_graph(trace, plan, usual, skip)
    growth = growth_of(trace, plan, skip, num) or plan.profile.growth
    volumes = _Volumes(trace, plan, usual, growth)
    return Profile(
        source="measured",
        note=f"{usual.sum()} iterations of {plan.job.name} on {plan.cluster.num_machines} machines",
        seeds_per_sampler=plan.job.batch_size / plan.job.samplers_per_trainer,
        seeds_per_trainer=plan.job.batch_size,
        num_samplers=plan.job.num_samplers,
        task_times=_task_times(trace, plan, usual, growth),
        store_traffic=volumes.stores(),
        batch_traffic=volumes.batches(),
        model_bytes=volumes.model_bytes(),
        skipped=skip,
        part_seeds=plan.profile.part_seeds,
        traffic=plan.profile.traffic,
        **({} if growth is None else {"growth": growth}),
    )


def _full_graph(trace: Trace, plan: Plan, usual: np.ndarray, skip: int) -> Profile:
    """Profile of a full-graph run; ring steps and gradients as in sampled runs."""
    found = measured_epochs(trace, plan, usual)
    measured: dict[str, object] = {"skipped": skip}
    ring = _Volumes(trace, plan, usual, None).model_bytes()
    if ring is not None:
        measured["model_bytes"] = ring
    if Role.RING.value in trace.task_roles:
        ring_times = _task_times(trace, plan, usual, None, (Role.RING,))
        measured["task_times"] = {**found.task_times, **ring_times}
    return found.model_copy(update=measured)


def _task_times(
    trace: Trace,
    plan: Plan,
    wanted: np.ndarray,
    growth: Growth | None,
    roles: Sequence[Role] | None = None,
) -> Mapping[Role, Mapping[str, TaskTime]]:
    """Times of some roles, or of all in the trace."""
    rows = trace.executions
    kept = _are_in(rows.iteration, wanted)
    # Ring steps of zero duration may be negative by a rounding error.
    time_s = np.maximum(rows.end_s - rows.start_s, 0.0) * _per_seed(trace, plan, growth)[rows.task]
    kinds = [machine.kind for machine in plan.cluster.hosts]
    times: dict[Role, dict[str, TaskTime]] = {}
    for role in roles or dict.fromkeys(Role(name) for name in trace.task_roles):
        is_of_role = np.array(
            [
                r == role and name != "barrier"
                for r, name in zip(trace.task_roles, trace.task_names, strict=True)
            ]
        )
        of_role = kept & is_of_role[rows.task]
        if not of_role.any() and role in (Role.TRAINER, Role.SAMPLER):
            raise SpecError(
                f"the trace has no {role.value} execution in {wanted.sum()} iterations",
                "run more iterations, and check the logs of the tasks",
            )
        if not of_role.any():
            # No store requests, or no gradient exchange.
            times[role] = {"default": TaskTime(mean=0.0)}
            continue
        machine_kinds = np.array(kinds)[trace.task_machines[rows.task]]
        seen = sorted(set(machine_kinds[of_role].tolist()))
        times[role] = {k: task_time_of(time_s[of_role & (machine_kinds == k)]) for k in seen}
        if not set(kinds) <= set(seen):
            # For classes without such a task, use the mean of all others.
            times[role].setdefault("default", task_time_of(time_s[of_role]))
    return times


def _per_seed(trace: Trace, plan: Plan, growth: Growth | None) -> np.ndarray:
    """Factor per task that scales its time to the nominal number of seeds."""
    factor = np.ones(len(trace.task_names))
    nominal = plan.job.batch_size / plan.job.samplers_per_trainer
    seeds = plan.seeds.sum(axis=1)
    roles = np.array(trace.task_roles)
    factor[roles == Role.SAMPLER] = nominal / _equivalent(growth, "sampler_time", seeds, nominal)
    equivalent = _equivalent(growth, "trainer_time", seeds, nominal)
    factor[roles == Role.TRAINER] = nominal / equivalent.reshape(plan.job.trainers, -1).mean(axis=1)
    return factor


def _equivalent(
    growth: Growth | None, quantity: Quantity, seeds: np.ndarray, nominal: float
) -> np.ndarray:
    return seeds if growth is None else growth.equivalent_seeds(quantity, seeds, nominal)


class _Volumes:
    """Transfers between tasks, local or remote, in the counted iterations."""

    def __init__(self, trace: Trace, plan: Plan, wanted: np.ndarray, growth: Growth | None) -> None:
        self._trace, self._plan, self._growth = trace, plan, growth
        self._num = int(wanted.sum())
        self._roles = np.array(trace.task_roles)
        self._first = {role: int(np.argmax(self._roles == role)) for role in Role}
        tables = [trace.flows] if trace.local is None else [trace.flows, trace.local]
        self._src, self._dst, self._iteration, self._bytes = (
            np.concatenate(
                [getattr(table, name)[_are_in(table.iteration, wanted)] for table in tables]
            )
            for name in ("src", "dst", "iteration", "num_bytes")
        )
        self._iteration = (np.cumsum(wanted) - 1)[self._iteration]

    def stores(self) -> StoreTraffic:
        """Bytes per seed by graph partition and store; requests count as responses."""
        seeds, num_stores = self._plan.seeds, self._plan.cluster.num_machines
        volumes = np.zeros((len(seeds), num_stores, self._num))
        of = self._between(Role.STORE, Role.SAMPLER)
        sampler = self._dst[of] - self._first[Role.SAMPLER]
        np.add.at(volumes, (sampler, self._src[of], self._iteration[of]), self._bytes[of])
        sent = self._between(Role.SAMPLER, Role.STORE)
        sampler = self._src[sent] - self._first[Role.SAMPLER]
        np.add.at(volumes, (sampler, self._dst[sent], self._iteration[sent]), self._bytes[sent])
        means, spread = volumes.mean(axis=2), volumes.std(axis=2, ddof=1 if self._num > 1 else 0)
        here = self._trace.task_machines[self._first[Role.SAMPLER] :][: len(seeds)]
        # Transfers within a machine are known only if they were recorded.
        unseen = (here[:, None] == np.arange(num_stores)) & (means == 0)
        means[unseen] = np.nan
        equivalent = seeds * self._ratio("store_bytes")[:, None]
        # Entries that the run does not determine are those of the plan's profile, scaled, if they
        # were measured or sampled.
        known = self._plan.profile.store_traffic
        expected = known.bytes_per_seed_matrix(num_stores) if known.matrix else None
        matrix, errors = bytes_per_seed(equivalent, means, spread / np.sqrt(self._num), expected)
        pairs = volumes[~unseen & (means > 0)]
        factors = (pairs / pairs.mean(axis=1, keepdims=True)).ravel() if len(pairs) else np.ones(1)
        return StoreTraffic(
            matrix=tuple(tuple(float(f"{value:.6g}") for value in row) for row in matrix),
            variation=variation_of(factors),
            num_iterations=self._num,
            relative_errors=tuple(tuple(map(float, row)) for row in errors),
        )

    def batches(self) -> BatchTraffic:
        """Bytes per seed from sampler to trainer."""
        of = self._between(Role.SAMPLER, Role.TRAINER)
        sampler = self._src[of] - self._first[Role.SAMPLER]
        equivalent = self._plan.seeds.sum(axis=1) * self._ratio("batch_bytes")
        samples = self._bytes[of] / equivalent[sampler]
        if not len(samples):
            return BatchTraffic(bytes_per_seed=0.0)
        return BatchTraffic(
            bytes_per_seed=float(samples.mean()),
            variation=variation_of(samples),
            num_iterations=self._num,
            relative_error=relative_error(samples),
        )

    def model_bytes(self) -> float | None:
        """Gradient bytes per iteration, from ring or parameter server traffic."""
        ring = self._between(Role.RING, Role.RING)
        if ring.any():
            return float(self._bytes[ring].mean() * self._plan.job.trainers)
        servers = self._between(Role.TRAINER, Role.SERVER)
        if servers.any():
            return float(self._bytes[servers].mean() * self._plan.job.num_servers)
        return None

    def _ratio(self, quantity: Quantity) -> np.ndarray:
        """Equivalent seeds over seeds, per sampler."""
        job, own = self._plan.job, self._plan.seeds.sum(axis=1)
        nominal = job.batch_size / job.samplers_per_trainer
        ratio: np.ndarray = _equivalent(self._growth, quantity, own, nominal) / own
        return ratio

    def _between(self, src: Role, dst: Role) -> np.ndarray:
        found: np.ndarray = (self._roles[self._src] == src) & (self._roles[self._dst] == dst)
        return found


def _are_in(iterations: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Whether iterations are among the wanted ones, a mask."""
    inside: np.ndarray = iterations < len(wanted)
    inside[inside] = wanted[iterations[inside]]
    return inside
