"""Times and swaps of a full-graph job, from the trace of a run."""

from __future__ import annotations

import numpy as np

from headrace.core.coflows import CoflowGraph
from headrace.core.errors import SpecError
from headrace.core.job import Role
from headrace.core.plan import Plan
from headrace.core.profile import Profile
from headrace.core.trace import Trace
from headrace.profiling.samples import task_time_of, variation_of
from headrace.simulator import build_coflow_instance, simulate


def measured_epochs(trace: Trace, plan: Plan, wanted: np.ndarray) -> Profile:
    """The plan's profile with the times and swaps of a full-graph run.

    A trainer's time is what it computed in an epoch, for the mean of all parts. Ring steps and
    model bytes are those of the plan's profile.

    Args:
        trace: Trace of the run, with swaps.
        plan: The plan of the run.
        wanted: Whether to count each epoch.

    Raises:
        SpecError: The plan does not have the parts of the trainers, or no epoch has all swaps.
    """
    figures, num = plan.profile.full_graph, plan.job.trainers
    if figures is None or figures.num_trainers != num:
        raise SpecError(
            "the plan is not one of a full-graph job",
            "write `kind: full-graph` in the job file, and plan with --graph",
        )
    epochs = _Epochs(trace, num, wanted)
    work = np.array(figures.nodes, dtype=np.float64) + np.array(figures.edges)
    figures = figures.model_copy(update={"work": float(work.mean()), "bins": plan.job.bins})
    # By stage, trainer and epoch.
    times_s = epochs.times_s
    total_s = times_s.sum(axis=0)
    even_s = total_s / np.maximum(figures.work_factors(), 1e-9)[:, None]
    shares = times_s.sum(axis=(1, 2)) / max(float(total_s.sum()), 1e-12)
    large = shares >= 1 / len(shares)
    factors = _apart(times_s[large] / np.maximum(times_s[large].mean(axis=2, keepdims=True), 1e-12))
    kinds = np.array([plan.cluster.hosts[m].kind for m in plan.placed.trainers])
    times = {
        kind: task_time_of(even_s[kinds == kind].ravel()).model_copy(
            update={"variation": variation_of(factors[:, kinds == kind].ravel())}
        )
        for kind in sorted(set(kinds.tolist()))
    }
    if not {host.kind for host in plan.cluster.hosts} <= times.keys():
        times.setdefault("default", task_time_of(even_s.ravel()))
    found = {
        "swaps": trace.swaps,
        "shares": tuple(float(f"{share:.6g}") for share in shares),
        "delays": tuple(float(f"{delay_s:.6g}") for delay_s in epochs.delays_s(plan)),
        "epoch_bytes": float(epochs.swap_bytes.sum() / epochs.num),
    }
    return plan.profile.model_copy(
        update={
            "source": "measured",
            "note": f"{epochs.num} epochs of {plan.job.name} on {num} machines",
            "task_times": {**plan.profile.task_times, Role.TRAINER: times},
            "full_graph": figures.model_copy(update=found),
        }
    )


def _apart(factors: np.ndarray) -> np.ndarray:
    """Factors of stages relative to those of all trainers in the same epoch.

    Trainers wait for each other because they differ, not in an epoch that is slower for all.
    """
    num = factors.shape[1]
    if num == 1:
        return factors
    relative = factors / np.maximum(factors.mean(axis=1, keepdims=True), 1e-12)
    # Their own mean is closer to them than that of other epochs.
    wider: np.ndarray = np.maximum(1 + (relative - 1) * np.sqrt(num / (num - 1)), 0.0)
    return wider


class _Epochs:
    """Epochs of a trace in which all trainers had all swaps.

    Attributes:
        num: Number of epochs.
        start_s: Start of each execution, by stage, trainer and epoch. A stage is before the first
            swap, or during or after one.
        end_s: End of each.
        swap_bytes: Bytes of each swap in all epochs, by sender and receiver.
    """

    def __init__(self, trace: Trace, num_trainers: int, wanted: np.ndarray) -> None:
        roles, rows = np.array(trace.task_roles), trace.executions
        trainers = np.flatnonzero(roles == Role.TRAINER)
        stages = [trainers, *np.flatnonzero(roles == Role.LAYER).reshape(-1, num_trainers)]
        number = np.full(len(roles), -1)
        number[np.concatenate(stages)] = np.arange(len(stages) * num_trainers)
        kept = (number[rows.task] >= 0) & (rows.iteration < len(wanted))
        task, n = number[rows.task[kept]], rows.iteration[kept]
        times = np.full((2, len(stages) * num_trainers, len(wanted)), np.nan)
        times[0, task, n], times[1, task, n] = rows.start_s[kept], rows.end_s[kept]
        whole = wanted & ~np.isnan(times).any(axis=(0, 1))
        self.num = int(whole.sum())
        if not self.num:
            raise SpecError(
                "no epoch of the trace has the swaps of all trainers",
                "run more epochs, and without `is_stale`",
            )
        self.start_s, self.end_s = times[:, :, whole].reshape(2, len(stages), num_trainers, -1)
        self.swap_bytes = np.zeros((len(trace.swaps), num_trainers, num_trainers))
        for flows in (trace.flows, trace.local):
            if flows is None:
                continue
            counted = (flows.iteration < len(wanted)) & (roles[flows.dst] == Role.LAYER)
            counted[counted] = whole[flows.iteration[counted]]
            stage, receiver = np.divmod(number[flows.dst[counted]], num_trainers)
            sender = number[flows.src[counted]] % num_trainers
            np.add.at(self.swap_bytes, (stage // 2 - 1, sender, receiver), flows.num_bytes[counted])

    @property
    def times_s(self) -> np.ndarray:
        """What each trainer computed, by stage, trainer and epoch."""
        times_s: np.ndarray = np.maximum(self.end_s - self.start_s, 0.0)
        return times_s

    def delays_s(self, plan: Plan) -> list[float]:
        """Median time of each swap beyond a simulation of its transfers that start as measured.

        Time in which trainers computed during the swap is not counted.
        """
        start_s, busy_s, there_s = self.start_s[1::2], self.end_s[1::2], self.start_s[2::2]
        delays_s = []
        for swap, volumes in enumerate(self.swap_bytes / self.num):
            first_s = start_s[swap].min(axis=0)
            # By epoch: a trainer that starts late delays the others in that epoch only.
            offsets_s = (start_s[swap] - first_s).T
            moved_s = [_transfer_s(plan, volumes, each_s) for each_s in offsets_s]
            ends_s = there_s[swap].max(axis=0) - first_s
            hidden_s = busy_s[swap].max(axis=0) - first_s
            expected_s = np.maximum(moved_s, hidden_s)
            delays_s.append(max(float(np.median(ends_s - expected_s)), 0.0))
        return delays_s


def _transfer_s(plan: Plan, volumes: np.ndarray, offsets_s: np.ndarray) -> float:
    """Simulated time until all rows of a swap are there, if trainers start at these times."""
    machines = plan.placement.trainers
    tasks = [
        {"name": f"{verb}{w}", "machine": machine, "time": time_s}
        for verb, times_s in (("send", offsets_s), ("receive", np.zeros(len(machines))))
        for w, (machine, time_s) in enumerate(zip(machines, times_s.tolist(), strict=True))
    ]
    flows = [
        {"src": f"send{a}", "dst": f"receive{b}", "bytes": volumes[a, b]}
        for a, b in np.argwhere(volumes > 0).tolist()
    ]
    if not flows:
        return float(offsets_s.max())
    graph = CoflowGraph.model_validate(
        {
            "machines": plan.cluster.machines,
            "types": ["rows"],
            "tasks": tasks,
            "coflows": [{"name": "swap", "type": "rows", "flows": flows}],
        }
    )
    instance, _ = build_coflow_instance(graph)
    return simulate(instance, "maxmin").makespan_s
