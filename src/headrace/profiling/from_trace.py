"""Profile of a job from a trace."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from headrace.core.errors import SpecError
from headrace.core.job import Role
from headrace.core.plan import Plan
from headrace.core.profile import BatchTraffic, Profile, StoreTraffic, TaskTime
from headrace.core.trace import Flows, Trace
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
    return float((ends_s[last] - ends_s[first]) / (last - first))


def profile_trace(trace: Trace, plan: Plan, skip: int | None = None) -> Profile:
    """Measure times and volumes after the first `skip` (default: `default_skip`) iterations."""
    skip = default_skip(trace) if skip is None else skip
    num = num_iterations(trace)
    if num <= skip:
        raise SpecError(
            f"the trace has {num} iterations, of which {skip} are to be excluded",
            "run more iterations, or exclude fewer",
        )
    volumes = _Volumes(trace, plan, skip, num)
    return Profile(
        source="measured",
        note=f"{num - skip} iterations of {plan.job.name} on {plan.cluster.num_machines} machines",
        seeds_per_sampler=plan.job.batch_size / plan.job.samplers_per_trainer,
        seeds_per_trainer=plan.job.batch_size,
        task_times=_task_times(trace, plan, skip, num),
        store_traffic=volumes.stores(),
        batch_traffic=volumes.batches(),
        model_bytes=volumes.model_bytes(),
        skipped=skip,
    )


def _task_times(
    trace: Trace, plan: Plan, skip: int, num: int
) -> Mapping[Role, Mapping[str, TaskTime]]:
    rows = trace.executions
    kept = (rows.iteration >= skip) & (rows.iteration < num)
    # Ring steps of zero duration may be negative by a rounding error.
    time_s = np.maximum(rows.end_s - rows.start_s, 0.0) * _per_seed(trace, plan)[rows.task]
    kinds = [machine.kind for machine in plan.cluster.hosts]
    times: dict[Role, dict[str, TaskTime]] = {}
    for role in dict.fromkeys(Role(name) for name in trace.task_roles):
        is_of_role = np.array(
            [
                r == role and name != "barrier"
                for r, name in zip(trace.task_roles, trace.task_names, strict=True)
            ]
        )
        of_role = kept & is_of_role[rows.task]
        if not of_role.any() and role in (Role.TRAINER, Role.SAMPLER):
            raise SpecError(
                f"the trace has no {role.value} execution after {skip} iterations",
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


def _per_seed(trace: Trace, plan: Plan) -> np.ndarray:
    """Factor per task that scales its time to the nominal number of seeds."""
    factor = np.ones(len(trace.task_names))
    nominal = plan.job.batch_size / plan.job.samplers_per_trainer
    seeds = plan.seeds.sum(axis=1)
    roles = np.array(trace.task_roles)
    factor[roles == Role.SAMPLER] = nominal / seeds
    factor[roles == Role.TRAINER] = nominal / seeds.reshape(plan.job.trainers, -1).mean(axis=1)
    return factor


class _Volumes:
    """Transfers between tasks, local or remote, in the counted iterations."""

    def __init__(self, trace: Trace, plan: Plan, skip: int, num: int) -> None:
        self._trace, self._plan = trace, plan
        self._num = num - skip
        self._roles = np.array(trace.task_roles)
        self._first = {role: int(np.argmax(self._roles == role)) for role in Role}
        tables = [trace.flows] if trace.local is None else [trace.flows, trace.local]
        self._src, self._dst, self._iteration, self._bytes = (
            np.concatenate([getattr(table, name)[_kept(table, skip, num)] for table in tables])
            for name in ("src", "dst", "iteration", "num_bytes")
        )
        self._iteration = self._iteration - skip

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
        matrix, errors = bytes_per_seed(seeds, means, spread / np.sqrt(self._num))
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
        samples = self._bytes[of] / self._plan.seeds.sum(axis=1)[sampler]
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

    def _between(self, src: Role, dst: Role) -> np.ndarray:
        found: np.ndarray = (self._roles[self._src] == src) & (self._roles[self._dst] == dst)
        return found


def _kept(flows: Flows, skip: int, num: int) -> np.ndarray:
    kept: np.ndarray = (flows.iteration >= skip) & (flows.iteration < num)
    return kept
