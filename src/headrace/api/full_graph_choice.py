"""Choice of the trainers, the gradient sum and the bins of a full-graph job by simulation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, cast

from headrace.core.errors import InfeasibleError, SpecError
from headrace.core.full_graph import FullGraphCandidate
from headrace.core.job import Job, Role, Sync
from headrace.core.memory import MEMORY, MemoryEstimate, TaskMemory
from headrace.core.plan import Plan
from headrace.core.profile import Problem, Profile
from headrace.core.units import format_bytes
from headrace.costs.memory import memory_by_machine, with_demands
from headrace.planner.full_graph import merged, num_able

CHOICES = ("trainers", "sync", "bins")
"""What can be chosen."""

MOST_BINS = 64
"""Bins are powers of two up to this number; more hardly need less memory."""

Parts = tuple[int, ...]
"""Trainer of each graph partition."""


def parse_choices(text: str) -> frozenset[str]:
    """Names of choices, separated by commas; `all` for all of them.

    Raises:
        SpecError: A name is unknown.
    """
    names = CHOICES if text == "all" else tuple(each.strip() for each in text.split(","))
    unknown = [each for each in names if each not in CHOICES]
    if unknown:
        raise SpecError(
            f"{unknown[0]!r} cannot be chosen", f"choose all, or some of {', '.join(CHOICES)}"
        )
    return frozenset(names)


class TracedMemory(NamedTuple):
    """Memory of tasks by a trace of the script.

    Attributes:
        tasks: Memory of each role.
        estimate: The same without a plan.
    """

    tasks: Sequence[TaskMemory]
    estimate: MemoryEstimate


@dataclass
class FullGraphChooser:
    """Makes the fastest plan of a full-graph job that fits the machines.

    Attributes:
        problem: The machines and the job; `trainers`, `sync` and `bins` hold if not chosen.
        profile_of: Profile with the rows between trainers that have these partitions.
        make: Makes the plan of a problem.
        choices: What to choose; see `CHOICES`.
        trace: Memory of the tasks of a job with these partitions, by a trace of the script; None
            without a script.
    """

    problem: Problem
    profile_of: Callable[[Parts | None], Profile]
    make: Callable[[Problem], Plan]
    choices: frozenset[str]
    trace: Callable[[Job, Parts], TracedMemory] | None = None
    _traced: dict[tuple[int, int], TracedMemory] = field(default_factory=dict)

    def plan(self) -> Plan:
        """Make the plan.

        Raises:
            SpecError: There are more trainers than partitions, or the profile lacks their rows.
            InfeasibleError: Nothing fits the machines.
        """
        job, whole = self.problem.job, self.profile_of(None)
        assert whole.full_graph is not None
        num_parts = whole.full_graph.num_trainers
        if job.trainers > num_parts and "trainers" not in self.choices:
            raise SpecError(
                f"the job has {job.trainers} trainers, the graph {num_parts} partitions",
                f"partition the graph with `--parts {job.trainers}`, or use fewer trainers",
            )
        nums = [job.trainers]
        if "trainers" in self.choices:
            nums = list(range(1, min(num_parts, self.problem.cluster.num_machines) + 1))
        found: list[tuple[FullGraphCandidate, Plan | None]] = []
        for num in nums:
            parts = merged(whole.full_graph, num)
            profile = whole if num == num_parts else self.profile_of(parts)
            syncs = (Sync.RING, Sync.PS) if "sync" in self.choices and num > 1 else (job.sync,)
            for sync in syncs:
                changed = job.model_copy(update={"trainers": num, "sync": sync})
                found.append(self._candidate(changed, profile, parts))
        found.sort(key=lambda each: _rank(each[0]))
        best = found[0][1]
        if best is None:
            raise InfeasibleError(found[0][0].why_not, self._remedy())
        if not self.choices:
            return best
        candidates = tuple(candidate for candidate, _ in found)
        return best.model_copy(update={"candidates": candidates, "version": 2})

    def _candidate(
        self, job: Job, profile: Profile, parts: Parts
    ) -> tuple[FullGraphCandidate, Plan | None]:
        problem, job_bins = self.problem, job.bins or 1
        memory, bins, why_not = None, job_bins, ""
        if self.trace is not None:
            bins, memory, why_not = self._fitting_bins(job, parts)
        trainer = None
        if memory is not None:
            trainer = next(t.total_bytes for t in memory.tasks if t.role is Role.TRAINER)
        job = job.model_copy(update={"bins": bins if bins > 1 else job.bins})
        plan = None
        if not why_not:
            try:
                plan = self._made(problem._replace(job=job), profile, parts, memory)
            except InfeasibleError as error:
                why_not = error.problem
        time_s = None if plan is None else plan.time_s
        found = FullGraphCandidate(
            trainers=job.trainers,
            sync=job.sync.value,
            bins=bins,
            time_s=time_s,
            trainer_bytes=trainer,
            why_not=why_not,
        )
        return found, plan

    def _fitting_bins(self, job: Job, parts: Parts) -> tuple[int, TracedMemory, str]:
        """The smallest number of bins with which the trainers fit, and their memory."""
        most = [1 << each for each in range(MOST_BINS.bit_length())]
        if "bins" not in self.choices or not self._is_memory_known:
            most = [job.bins or 1]
        low, high = 0, len(most) - 1
        memory = self._traced_with(job, parts, most[0])
        if self._fits(job, memory):
            return most[0], memory, ""
        memory = self._traced_with(job, parts, most[high])
        if not self._fits(job, memory):
            needs = next(t.total_bytes for t in memory.tasks if t.role is Role.TRAINER)
            words = "1 bin" if most[high] == 1 else f"{most[high]} bins"
            return (
                most[high],
                memory,
                (
                    f"by the estimate of the script, a trainer of {job.trainers} needs "
                    f"{format_bytes(needs)} of memory with {words}; too few machines have it"
                ),
            )
        while high - low > 1:
            middle = (low + high) // 2
            fits = self._fits(job, self._traced_with(job, parts, most[middle]))
            low, high = (low, middle) if fits else (middle, high)
        return most[high], self._traced_with(job, parts, most[high]), ""

    def _traced_with(self, job: Job, parts: Parts, bins: int) -> TracedMemory:
        # Servers are the same for all numbers of bins, and the step for both ways to sum.
        key = job.trainers * 2 + (job.sync is Sync.PS), bins
        if key not in self._traced:
            assert self.trace is not None
            self._traced[key] = self.trace(job.model_copy(update={"bins": bins}), parts)
        return self._traced[key]

    @property
    def _is_memory_known(self) -> bool:
        return all(MEMORY in host.resources for host in self.problem.cluster.hosts)

    def _demanding(self, job: Job, memory: TracedMemory) -> Job:
        """The job whose tasks demand their estimated memory, if that of machines is known."""
        return with_demands(job, memory.tasks, [0.0]) if self._is_memory_known else job

    def _fits(self, job: Job, memory: TracedMemory) -> bool:
        problem = self.problem._replace(job=self._demanding(job, memory))
        return num_able(problem) >= job.trainers

    def _made(
        self, problem: Problem, profile: Profile, parts: Parts, memory: TracedMemory | None
    ) -> Plan:
        own, figures = problem.job, profile.full_graph
        assert figures is not None
        figures = figures.with_bins(own.bins or 1)
        if own.trainers == 1:
            # There is nobody to swap rows with.
            figures = figures.model_copy(update={"delays": ()})
        profile = profile.model_copy(update={"full_graph": figures})
        job = own if memory is None else self._demanding(own, memory)
        made = self.make(problem._replace(job=job).with_profile(profile))
        assert made.parts is not None
        placed = tuple(made.parts[trainer] for trainer in parts)
        made = made.model_copy(update={"parts": placed})
        if memory is None:
            return made
        nothing = [0.0] * made.cluster.num_machines
        machines = memory_by_machine(memory.tasks, made.cluster, made.placed, nothing)
        for machine in machines:
            if not machine.fits:
                raise InfeasibleError(
                    f"{machine.machine} needs {format_bytes(machine.needed_bytes)} of memory and "
                    f"has {format_bytes(cast(float, machine.memory_bytes))}",
                    self._remedy(),
                )
        demands = {
            role: demand[MEMORY]
            for role, demand in made.job.demands.items()
            if MEMORY in demand and MEMORY not in own.demand(role)
        }
        estimated = memory.estimate.model_copy(update={"machines": machines, "demands": demands})
        return made.model_copy(update={"memory": estimated, "version": 2})

    def _remedy(self) -> str:
        left = [name for name in ("trainers", "bins") if name not in self.choices]
        if not left:
            return "add machines or memory, or partition the graph into more parts"
        return f"let headrace choose more: `--choose {','.join(sorted({*self.choices, *left}))}`"


def _rank(candidate: FullGraphCandidate) -> tuple[bool, float, int, int, bool]:
    """Fitting ones first, then by time; of equal ones the simpler."""
    time_s = float(f"{candidate.time_s or 0.0:.4g}")
    return (
        bool(candidate.why_not),
        time_s,
        candidate.trainers if not candidate.why_not else -candidate.trainers,
        candidate.bins,
        candidate.sync == "ps",
    )
