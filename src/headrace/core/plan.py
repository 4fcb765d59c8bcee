"""What was decided: placement, network policy and which seeds every sampler takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import (
    Field,
    PlainSerializer,
    SerializerFunctionWrapHandler,
    field_serializer,
    model_validator,
)

from headrace.core.cluster import Cluster
from headrace.core.errors import SpecError
from headrace.core.job import Job, Window
from headrace.core.placement import Placement, PlacementFile
from headrace.core.profile import Profile
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

_WORTH_NAMING = 0.005
"""A smaller saving is not told from the noise of a search."""

WrittenWindow = Annotated[
    Window, PlainSerializer(lambda window: window or "unlimited", when_used="json")
]


class Fingerprints(Value):
    """Which inputs a plan was made for, in sixteen hex digits each."""

    cluster: str
    job: str
    profile: str


class Prediction(Value):
    """A rehearsal of the plan; rehearsing it again gives the same makespan to the last digit.

    Attributes:
        iterations: How many were rehearsed; the job may have more.
        window: Run-ahead window K.
        seed: Of all draws.
        makespan_s: When the last task of the last iteration ended.
        iteration_time_s: Makespan per iteration.
    """

    iterations: Annotated[Count, Field(ge=1)]
    window: WrittenWindow
    seed: Count
    makespan_s: Positive
    iteration_time_s: Positive


class Terms(Value):
    """What bounds the time per iteration of a placement, at mean volumes and times.

    Attributes:
        nic_s: Largest load of a network card: bytes per iteration over bandwidth.
        busiest_nic: The card with that load, e.g. `m2 in`; empty if nothing crosses the network.
        cycle_s: Parameter cycle: train, send gradients, update, send parameters; or the ring.
        task_s: Largest task time.
        latency_s: An iteration from the stores to the parameters, alone on the network.
        time_s: The largest of the load, the cycle, the task and latency over window.
    """

    nic_s: Positive
    busiest_nic: str
    cycle_s: Positive
    task_s: Positive
    latency_s: Positive
    time_s: Positive


class Asked(Value):
    """What was left to the planner, and what not.

    Attributes:
        policy: A flow policy, or `auto`.
        seed_mix: A kind of seed mix, or `auto`.
    """

    policy: str = "auto"
    seed_mix: Literal["auto", "uniform", "local-first"] = "auto"


class Candidate(Value):
    """One line of the shortlist.

    Attributes:
        placement: Number of the placement on the shortlist; 0 had the smallest objective.
        seed_mix: How seeds were given to samplers.
        policy: Flow policy.
        makespan_s: Of a short rehearsal, the same number of iterations for all candidates.
    """

    placement: Annotated[Count, Field(ge=0)]
    seed_mix: SeedMixName
    policy: str
    makespan_s: Positive


class Shortlist(Value):
    """What was rehearsed to choose placement, seed mix and policy.

    Attributes:
        iterations: How many of each candidate.
        candidates: The best ones, best first.
    """

    iterations: Annotated[Count, Field(ge=1)]
    candidates: tuple[Candidate, ...] = Field(min_length=1)


class Plan(CheckedFile):
    """A decision, with everything it was decided for.

    Attributes:
        method: Name of the placement method.
        policy: Name of the flow policy.
        placement: Where every task runs, by machine name.
        seed_mix_name: How seeds were given to samplers.
        seed_mix: Which seeds each sampler takes; uniform over all parts if absent.
        seed: Of the search.
        rounds: How many times the search was run, each time from other starts.
        asked: What was left to the planner.
        predicted: A rehearsal of the plan; none if the job is too large to rehearse.
        terms: What bounds the time per iteration.
        bound_s: No placement with this kind of seed mix has a smaller `terms.time_s`.
        gap: `terms.time_s` over `bound_s`, minus one.
        proven: Whether no placement has a smaller `terms.time_s`.
        network_bytes: Between machines per iteration, on average.
        uniform_network_bytes: The same if every sampler took seeds of all parts alike.
        shortlist: What the plan was chosen from; none if it was not chosen by rehearsal.
        fingerprints: Of the inputs.
        cluster: The machines.
        job: The job.
        profile: Its times and volumes.
        parts: Machine of every graph part, by number; part m lies on machine m if absent.
    """

    version: Literal[1] = 1
    method: str
    policy: str
    placement: PlacementFile
    seed_mix_name: SeedMixName = "uniform"
    seed_mix: SeedMix | None = None
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

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        for name in ("cluster", "job", "profile"):
            written = getattr(self.fingerprints, name)
            found = getattr(self, name).fingerprint()
            if written != found:
                raise SpecError(
                    f"the plan was made for a {name} with the fingerprint {written}, "
                    f"the one in it has {found}",
                    f"plan again for the changed {name}",
                    at=("fingerprints", name),
                )
        try:
            self.placement.resolve(self.cluster).check(self.cluster, self.job)
        except SpecError as error:
            raise SpecError(error.problem, error.remedy, ("placement", *error.at)) from None
        if (self.seed_mix is None) != (self.seed_mix_name == "uniform"):
            raise SpecError(
                f"the seed mix is called {self.seed_mix_name} and "
                f"{'missing' if self.seed_mix is None else 'written out'}",
                "leave a uniform mix out and write any other",
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
        if max(self.part_machines) >= self.cluster.num_machines:
            raise SpecError(
                f"a part lies on machine {max(self.part_machines)}, the cluster has "
                f"{self.cluster.num_machines}",
                "name machines by their number, from 0 on",
                at=("parts",),
            )
        return self

    @field_serializer("job", mode="wrap", when_used="json")
    def _write_the_window_as_people_do(
        self, job: Job, write: SerializerFunctionWrapHandler
    ) -> dict[str, Any]:
        written: dict[str, Any] = write(job)
        return written | {"window": written["window"] or "unlimited"}

    @property
    def placed(self) -> Placement:
        """The placement by machine index."""
        return self.placement.resolve(self.cluster)

    @property
    def part_machines(self) -> tuple[int, ...]:
        """Machine of every graph part."""
        return tuple(range(self.cluster.num_machines)) if self.parts is None else self.parts

    @property
    def seeds(self) -> np.ndarray:
        """Seeds per iteration, by sampler and by the machine that has their part."""
        num = self.cluster.num_machines
        if self.seed_mix is not None:
            return self.seed_mix.array(self.cluster)
        # A machine with several parts has as many times the seeds.
        counts = np.bincount(self.part_machines, minlength=num)
        seeds: np.ndarray = uniform_seeds(self.job, num) * (counts * (num / counts.sum()))
        return seeds

    @property
    def time_s(self) -> float:
        """Time per iteration: rehearsed, or the objective if the job is too large for that."""
        return self.terms.time_s if self.predicted is None else self.predicted.iteration_time_s

    def explain(self, on_step: Callable[[str], None] = lambda name: None) -> Explanation:
        """Name the bottleneck, and what would help most, each found by planning again.

        Args:
            on_step: Called with the name of every change before it is planned.

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
    """A change of the inputs and what a new plan makes of it.

    Attributes:
        change: What is changed, e.g. `doubling the NIC of m2`.
        time_s: Time per iteration of the new plan.
        saving: Share of the time per iteration that it saves; negative if it costs.
    """

    change: str
    time_s: float
    saving: float

    @property
    def matters(self) -> bool:
        """Whether it saves or costs more than the noise of a search."""
        return abs(self.saving) >= _WORTH_NAMING

    def sentence(self) -> str:
        """E.g. `doubling the NIC of m2 saves 31 %`."""
        if not self.matters:
            return f"{self.change} changes nothing"
        verb = "saves" if self.saving > 0 else "costs"
        return f"{self.change} {verb} {100 * abs(self.saving):.2g} %"


@dataclass(frozen=True, repr=False)
class Explanation:
    """What bounds a plan, and what would help; a notebook shows a table, a shell sentences.

    Attributes:
        plan: The plan.
        limit: The largest term of its objective: `nic`, `cycle`, `task` or `latency`.
        bottleneck: The same in a sentence.
        time_s: Time per iteration that the remedies are measured against.
        is_rehearsed: Whether times per iteration are rehearsed; else they are objectives.
        remedies: Largest saving first.
    """

    plan: Plan
    limit: str
    bottleneck: str
    time_s: float
    is_rehearsed: bool
    remedies: tuple[Remedy, ...]

    def __repr__(self) -> str:
        basis = "rehearsed" if self.is_rehearsed else "by the objective"
        lines = [
            f"{format_seconds(self.time_s)} per iteration, {basis}.",
            f"The bottleneck is {self.bottleneck}.",
        ]
        if self.remedies:
            lines.append("What would help, by planning again:")
        lines += [f"  {each.sentence()} ({format_seconds(each.time_s)})" for each in self.remedies]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return str(view("html")(self))
