"""What was decided: placement, network policy and which seeds every sampler takes."""

from __future__ import annotations

from collections.abc import Mapping
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
from headrace.core.units import Count, Number
from headrace.core.values import Value

SeedMixName = Literal["uniform", "local-first"]
"""How seeds were given to samplers: from all parts alike, or those of their own machine first."""

Positive = Annotated[Number, Field(ge=0)]
WrittenWindow = Annotated[
    Window, PlainSerializer(lambda window: window or "unlimited", when_used="json")
]


class SeedRow(Value):
    """The seeds that some samplers take, the same for each of them.

    Attributes:
        samplers: Which samplers, as entries of the placement's `samplers`.
        parts: Seeds per iteration by the machine whose graph part they come from.
        others: Seeds per iteration from every part that is not named.
    """

    samplers: tuple[Annotated[Count, Field(ge=0)], ...] = Field(min_length=1)
    parts: Mapping[str, Positive] = Field(default_factory=dict)
    others: Positive = 0.0


class SeedMix(Value):
    """Seeds per iteration that each sampler takes from each graph part.

    Samplers of one machine usually take the same and most parts not at all, so what is written is
    short; fractions are averages over an epoch.

    Attributes:
        rows: Every sampler is in exactly one of them.
    """

    rows: tuple[SeedRow, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _every_sampler_once(self) -> Self:
        samplers = sorted(sampler for row in self.rows for sampler in row.samplers)
        if samplers != list(range(len(samplers))):
            raise SpecError(
                f"the rows of the seed mix list {len(samplers)} samplers, but not each of "
                f"0 to {len(samplers) - 1} once",
                "name every sampler in exactly one row",
                at=("rows",),
            )
        return self

    @property
    def num_samplers(self) -> int:
        """Samplers of all rows."""
        return sum(len(row.samplers) for row in self.rows)

    @classmethod
    def of(cls, seeds: np.ndarray, cluster: Cluster) -> SeedMix:
        """Write an array down without loss.

        Args:
            seeds: Seeds per iteration, shape (num_samplers, num_parts).
            cluster: Whose machines host the parts.
        """
        names = [machine.name for machine in cluster.hosts]
        members: dict[bytes, list[int]] = {}
        for sampler, row in enumerate(seeds):
            members.setdefault(row.tobytes(), []).append(sampler)
        rows = []
        for samplers in members.values():
            row = seeds[samplers[0]]
            values, counts = np.unique(row, return_counts=True)
            others = float(values[np.argmax(counts)])
            named = {names[part]: float(row[part]) for part in np.flatnonzero(row != others)}
            rows.append(SeedRow(samplers=tuple(samplers), parts=named, others=others))
        return cls(rows=tuple(rows))

    def array(self, cluster: Cluster) -> np.ndarray:
        """Seeds per iteration, shape (num_samplers, num_parts).

        Raises:
            SpecError: A row names a machine that the cluster does not have.
        """
        index = {machine.name: part for part, machine in enumerate(cluster.hosts)}
        seeds = np.empty((self.num_samplers, cluster.num_machines))
        for i, each in enumerate(self.rows):
            row = np.full(cluster.num_machines, each.others)
            for name, num in each.parts.items():
                if name not in index:
                    raise SpecError(
                        f"the seed mix names machine {name!r}, which the cluster does not have",
                        "name machines of the cluster",
                        at=("rows", i, "parts", name),
                    )
                row[index[name]] = num
            seeds[list(each.samplers)] = row
        return seeds


def uniform_seeds(job: Job, num_parts: int) -> np.ndarray:
    """Every sampler takes its seeds from all parts alike: the paper's model.

    Returns:
        Seeds per iteration, shape (num_samplers, num_parts).
    """
    return np.full(
        (job.num_samplers, num_parts), job.batch_size / job.samplers_per_trainer / num_parts
    )


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


class Plan(Value):
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
