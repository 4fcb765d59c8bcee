"""Plan: placement, flow policy and the seed mix of the samplers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import (
    Field,
    PlainSerializer,
    SerializerFunctionWrapHandler,
    field_serializer,
    model_serializer,
    model_validator,
)

from headrace.core.cluster import Cluster
from headrace.core.errors import SpecError
from headrace.core.full_graph import FullGraphCandidate
from headrace.core.job import Job, Window
from headrace.core.memory import MemoryEstimate
from headrace.core.placement import Placement, PlacementFile
from headrace.core.profile import Problem, Profile
from headrace.core.seeds import Positive, SeedMix, SeedMixName, SeedRow, uniform_seeds
from headrace.core.units import Count, Number, format_seconds
from headrace.core.values import CheckedFile, Value
from headrace.core.views import view

__all__ = [
    "Asked",
    "Candidate",
    "Explanation",
    "Fingerprints",
    "Plan",
    "Prediction",
    "Remedy",
    "SeedMix",
    "SeedMixName",
    "SeedRow",
    "Shortlist",
    "Terms",
    "uniform_seeds",
]

LOCAL_METHOD = "local"
"""Method name in plans of runs on one machine, which predict nothing."""

_WORTH_NAMING = 0.005
"""Smaller relative savings are within the noise of the search."""

_NEW_FIELDS = ("shares", "memory", "candidates")
"""Fields that version 1 does not have."""

WrittenWindow = Annotated[
    Window, PlainSerializer(lambda window: window or "unlimited", when_used="json")
]


class Fingerprints(Value):
    """Fingerprints of the plan's inputs, sixteen hex digits each."""

    cluster: str
    job: str
    profile: str

    @classmethod
    def of(cls, problem: Problem) -> Fingerprints:
        """Fingerprints of the inputs of a plan."""
        return cls(**{name: each.fingerprint() for name, each in problem._asdict().items()})


class Prediction(Value):
    """Result of simulating the plan; repeating the simulation gives the identical makespan.

    Attributes:
        iterations: Number of simulated iterations; the job may have more.
        window: Run-ahead window K.
        seed: Random seed.
        makespan_s: End of the last task of the last iteration.
        iteration_time_s: Makespan per iteration.
    """

    iterations: Annotated[Count, Field(ge=1)]
    window: WrittenWindow
    seed: Count
    makespan_s: Positive
    iteration_time_s: Positive


class Terms(Value):
    """Terms of a placement's objective, an estimate of the time per iteration.

    Attributes:
        nic_s: Largest NIC load: bytes per iteration over bandwidth.
        busiest_nic: The NIC with that load, e.g. `m2 in`; empty without network traffic.
        cycle_s: Parameter cycle: train, send gradients, update, send parameters; or the ring.
        task_s: Largest task time.
        latency_s: Time of a batch through two adjacent stages.
        time_s: Maximum of `nic_s`, `cycle_s`, `task_s` and latency over window.
    """

    nic_s: Positive
    busiest_nic: str
    cycle_s: Positive
    task_s: Positive
    latency_s: Positive
    time_s: Positive


class Asked(Value):
    """What the user fixed; `auto` leaves the choice to the planner.

    Attributes:
        policy: A flow policy, or `auto`.
        seed_mix: A kind of seed mix, or `auto`.
        shares: `equal` batch shares, or `auto`.
    """

    policy: str = "auto"
    seed_mix: Literal["auto", "uniform", "local-first"] = "auto"
    shares: Literal["auto", "equal"] = "auto"

    @model_serializer(mode="wrap")
    def _omit_default(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Plans of version 1 have no shares; their fingerprints stay the same.
        return {k: v for k, v in write(self).items() if (k, v) != ("shares", "auto")}


class Candidate(Value):
    """One entry of the shortlist.

    Attributes:
        placement: Index of the option: those of the method by their objectives, then published
            and improved ones.
        seed_mix: How seeds are assigned to samplers.
        policy: Flow policy.
        makespan_s: Makespan of a short simulation of `Shortlist.iterations` iterations.
    """

    placement: Annotated[Count, Field(ge=0)]
    seed_mix: SeedMixName
    policy: str
    makespan_s: Positive


class Shortlist(Value):
    """Candidates that were simulated to choose placement, seed mix and policy.

    Attributes:
        iterations: Simulated iterations per candidate.
        candidates: The best candidates, best first.
    """

    iterations: Annotated[Count, Field(ge=1)]
    candidates: tuple[Candidate, ...] = Field(min_length=1)


class Plan(CheckedFile):
    """A placement, flow policy, seed mix and batch shares, with the inputs of the planner.

    Attributes:
        version: 2 if the plan has `shares`, `memory` or `candidates`, else 1.
        method: Name of the placement method.
        policy: Name of the flow policy.
        placement: Machine name of every task.
        seed_mix_name: How seeds are assigned to samplers.
        seed_mix: Seeds of each sampler; uniform over all graph partitions if absent.
        shares: Seeds of each trainer per iteration; equal if absent.
        seed: Random seed of the search.
        rounds: Number of search runs, each with different starting points.
        asked: Which choices were left to the planner.
        predicted: Simulation of the plan; none if the job is too large to simulate.
        terms: Terms of the objective.
        bound_s: Lower bound of `terms.time_s` over all placements with this kind of seed mix, and
            over all shares if `shares` is present.
        gap: `terms.time_s` over `bound_s`, minus one.
        proven: Whether no placement has a smaller `terms.time_s`.
        network_bytes: Mean bytes between machines per iteration.
        uniform_network_bytes: The same with a uniform seed mix.
        shortlist: Simulated candidates; none if the plan was not chosen by simulation.
        fingerprints: Fingerprints of the inputs.
        cluster: The machines.
        job: The job.
        profile: Times and volumes of the job.
        parts: Machine index of every graph partition; partition m is on machine m if absent.
        memory: Estimated memory of the tasks, by a trace of the training script; none if absent.
        candidates: What a full-graph plan was chosen from, best first.
    """

    version: Literal[1, 2] = 1
    method: str
    policy: str
    placement: PlacementFile
    seed_mix_name: SeedMixName = "uniform"
    seed_mix: SeedMix | None = None
    shares: tuple[Annotated[Count, Field(ge=1)], ...] | None = None
    seed: Count = 0
    rounds: Annotated[Count, Field(ge=1)] = 1
    asked: Asked = Asked()
    predicted: Prediction | None = None
    terms: Terms
    bound_s: Positive
    gap: Number
    proven: bool
    network_bytes: Positive
    uniform_network_bytes: Positive
    shortlist: Shortlist | None = None
    fingerprints: Fingerprints
    cluster: Cluster
    job: Job
    profile: Profile
    parts: tuple[Annotated[Count, Field(ge=0)], ...] | None = Field(default=None, min_length=1)
    memory: MemoryEstimate | None = None
    candidates: tuple[FullGraphCandidate, ...] = ()

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        for name in ("cluster", "job", "profile"):
            written = getattr(self.fingerprints, name)
            found = getattr(self, name).fingerprint()
            if written != found:
                raise SpecError(
                    f"the plan was made for a {name} with the fingerprint {written}, "
                    f"but it contains one with {found}",
                    f"plan again for the changed {name}",
                    at=("fingerprints", name),
                )
        try:
            self.placement.resolve(self.cluster).check(self.cluster, self.job)
        except SpecError as error:
            raise SpecError(error.problem, error.remedy, ("placement", *error.at)) from None
        if (self.seed_mix is None) != (self.seed_mix_name == "uniform"):
            raise SpecError(
                f"the seed mix is named {self.seed_mix_name} but is "
                f"{'missing' if self.seed_mix is None else 'given explicitly'}",
                "omit a uniform mix and write out any other",
                at=("seed_mix_name",),
            )
        if self.seed_mix is not None:
            if self.seed_mix.num_samplers != self.job.num_samplers:
                raise SpecError(
                    f"the seed mix has {self.seed_mix.num_samplers} samplers, the job "
                    f"{self.job.num_samplers}",
                    "name every sampler in exactly one row",
                    at=("seed_mix",),
                )
            try:
                self.seed_mix.array(self.cluster)
            except SpecError as error:
                raise SpecError(error.problem, error.remedy, ("seed_mix", *error.at)) from None
        total = self.job.trainers * self.job.batch_size
        if self.shares is not None and (
            len(self.shares) != self.job.trainers or sum(self.shares) != total
        ):
            raise SpecError(
                f"the shares have {sum(self.shares)} seeds for {len(self.shares)} trainers, the "
                f"job {total} for {self.job.trainers}",
                "give every trainer its seeds, with the same sum",
                at=("shares",),
            )
        if max(self.part_machines) >= self.cluster.num_machines:
            raise SpecError(
                f"a graph partition is on machine {max(self.part_machines)}, but the cluster has "
                f"{self.cluster.num_machines}",
                "use machine indices, starting at 0",
                at=("parts",),
            )
        return self

    @model_validator(mode="before")
    @classmethod
    def _version_of_new_fields(cls, data: object) -> object:
        new = [] if not isinstance(data, Mapping) else [k for k in _NEW_FIELDS if data.get(k)]
        if not new or not isinstance(data, Mapping):
            return data
        if data.get("version", 2) == 1:
            raise SpecError(
                f"a plan of version 1 has no {new[0]}", "write `version: 2`", at=("version",)
            )
        return {"version": 2, **data}

    @model_serializer(mode="wrap")
    def _omit_unset_fields(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {k: v for k, v in write(self).items() if k not in _NEW_FIELDS or v}

    @field_serializer("job", mode="wrap", when_used="json")
    def _write_window(self, job: Job, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written: dict[str, Any] = write(job)
        return written | {"window": written["window"] or "unlimited"}

    @property
    def placed(self) -> Placement:
        """Placement by machine index."""
        return self.placement.resolve(self.cluster)

    @property
    def part_machines(self) -> tuple[int, ...]:
        """Machine index of every graph partition."""
        return tuple(range(self.cluster.num_machines)) if self.parts is None else self.parts

    @property
    def seeds(self) -> np.ndarray:
        """Seeds per iteration, by sampler and by the machine of their graph partition."""
        num = self.cluster.num_machines
        if self.seed_mix is not None:
            return self.seed_mix.array(self.cluster)
        weights = self.profile.part_weights(num)
        if weights is None:
            # Seeds are proportional to the number of partitions on a machine.
            counts = np.bincount(self.part_machines, minlength=num)
            seeds: np.ndarray = uniform_seeds(self.job, num) * (counts * (num / counts.sum()))
        else:
            seeds = uniform_seeds(self.job, num) * (num * weights)
        if self.shares is not None:
            ratios = np.array(self.shares) / self.job.batch_size
            seeds *= np.repeat(ratios, self.job.samplers_per_trainer)[:, None]
        return seeds

    @property
    def time_s(self) -> float:
        """Time per iteration: simulated, or the objective if the job is too large to simulate."""
        return self.terms.time_s if self.predicted is None else self.predicted.iteration_time_s

    def explain(self, on_step: Callable[[str], None] = lambda name: None) -> Explanation:
        """Report the bottleneck and the changes that help most, each evaluated by re-planning.

        Args:
            on_step: Called with the description of each change before it is planned.

        Raises:
            MissingExtraError: The plan's method needs a package that is not installed.

        Example:
            >>> import headrace
            >>> machines = [headrace.Machine(name="m", count=3, nic="1Gbps")]
            >>> cluster = headrace.Cluster(machines=machines)
            >>> job = headrace.Job(trainers=2, batch_size=100, iterations=20)
            >>> explanation = headrace.plan(cluster, job, method="colocate").explain()
            >>> explanation.limit
            'nic'
        """
        found: Explanation = view("explain")(self, on_step)
        return found

    def __repr__(self) -> str:
        trainers = f"{self.job.trainers} trainer{'s' if self.job.trainers > 1 else ''}"
        return (
            f"<Plan by {self.method}, {self.policy}: {trainers} on {self.cluster.num_machines} "
            f"machines, {format_seconds(self.time_s)} per iteration>"
        )

    __str__ = __repr__

    def _repr_html_(self) -> str:
        return str(view("html")(self))


@dataclass(frozen=True)
class Remedy:
    """A change of the inputs and its effect on the plan.

    Attributes:
        change: The change, e.g. `doubling the NIC of m2`.
        time_s: Time per iteration of the new plan.
        saving: Fraction of the time per iteration that it saves; negative if it is slower.
    """

    change: str
    time_s: float
    saving: float

    @property
    def matters(self) -> bool:
        """Whether the effect exceeds the noise of the search."""
        return abs(self.saving) >= _WORTH_NAMING

    def sentence(self) -> str:
        """E.g. `doubling the NIC of m2 saves 31 %`."""
        if not self.matters:
            return f"{self.change} changes nothing"
        verb = "saves" if self.saving > 0 else "costs"
        return f"{self.change} {verb} {100 * abs(self.saving):.2g} %"


@dataclass(frozen=True, repr=False)
class Explanation:
    """Bottleneck of a plan and changes that help; a table in notebooks, else plain text.

    Attributes:
        plan: The plan.
        limit: The largest term of its objective: `nic`, `cycle`, `task` or `latency`.
        bottleneck: Description of that term.
        time_s: Time per iteration that the changes are compared with.
        is_rehearsed: Whether times per iteration are simulated; otherwise they are objectives.
        remedies: Changes, largest saving first.
        idle: Sentences about machines that host no task of a role because they are too slow.
    """

    plan: Plan
    limit: str
    bottleneck: str
    time_s: float
    is_rehearsed: bool
    remedies: tuple[Remedy, ...]
    idle: tuple[str, ...] = ()

    def __repr__(self) -> str:
        basis = "simulated" if self.is_rehearsed else "by the objective"
        lines = [
            f"{format_seconds(self.time_s)} per iteration, {basis}.",
            f"The bottleneck is {self.bottleneck}.",
            *self.idle,
        ]
        if self.remedies:
            lines.append("Changes that would help, each planned again:")
        lines += [f"  {each.sentence()} ({format_seconds(each.time_s)})" for each in self.remedies]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return str(view("html")(self))


def problem_of(plan: Plan) -> Problem:
    """The inputs of a plan."""
    return Problem(plan.cluster, plan.job, plan.profile)
