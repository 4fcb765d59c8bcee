"""What was found of a run: prediction beside reality, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from headrace.core.job import Role
from headrace.core.units import Count, Number
from headrace.core.values import Value

Amount = Annotated[Number, Field(ge=0)]
Num = Annotated[Count, Field(ge=0)]


class Split(Value):
    """Where an iteration of a trainer goes, in seconds on average.

    Attributes:
        compute_s: Its own step.
        peers_s: From the end of its step until the last trainer's step has ended.
        exchange_s: From there to the end of the exchange of gradients.
        wait_s: From there until its samplers' parts of the next batch are there.
        other_s: From there to the next step: taking the batch over, and whatever the script does.
    """

    compute_s: Amount
    peers_s: Amount
    exchange_s: Amount
    wait_s: Amount
    other_s: Amount

    @property
    def total_s(self) -> float:
        """All of it."""
        return self.compute_s + self.peers_s + self.exchange_s + self.wait_s + self.other_s


class TrainerTime(Value):
    """A trainer's time in steady iterations, as rehearsed and as seen."""

    name: str
    machine: str
    predicted: Split | None = None
    measured: Split | None = None


class MachineUse(Value):
    """Share of its bandwidth that a machine's network card used in steady iterations."""

    name: str
    predicted_in: Amount | None = None
    predicted_out: Amount | None = None
    measured_in: Amount | None = None
    measured_out: Amount | None = None


class TaskUse(Value):
    """Share of the time in which a task was busy in steady iterations."""

    name: str
    role: Role
    machine: str
    predicted: Amount | None = None
    measured: Amount | None = None


class Assumption(Value):
    """A figure that the plan's profile has, and what this run says of it.

    Attributes:
        what: E.g. `trainer step on large`.
        unit: `s` for seconds, `B` for bytes.
        assumed: By the plan's profile.
        measured: In the run.
    """

    what: str
    unit: Literal["s", "B"]
    assumed: Amount | None = None
    measured: Amount | None = None


class Pace(Value):
    """Time per iteration, predicted and measured.

    Attributes:
        predicted_s: Of a rehearsal with the plan's profile.
        profile: Where that profile comes from.
        profile_note: What it says of itself.
        rehearsed_s: Of a rehearsal with what was measured in this very run: how far it is from
            `measured_s` is the model's own error.
        measured_s: Mean over steady iterations.
        num_iterations: That were seen.
        num_skipped: First ones, which are not counted: windows fill in them.
        num_steady: That are counted.
        num_pauses: In which the script did something else, or tasks were started again.
        pauses_s: How long they were, all together.
    """

    predicted_s: Amount | None = None
    profile: Literal["measured", "synthetic"] | None = None
    profile_note: str = ""
    rehearsed_s: Amount | None = None
    measured_s: Amount | None = None
    num_iterations: Num = 0
    num_skipped: Num = 0
    num_steady: Num = 0
    num_pauses: Num = 0
    pauses_s: Amount = 0.0

    @property
    def excess(self) -> float | None:
        """How much longer an iteration took than was predicted, as a share of the prediction."""
        if self.measured_s is None or not self.predicted_s:
            return None
        return self.measured_s / self.predicted_s - 1


class Phase(Value):
    """A stretch of the run's time."""

    name: str
    start_s: Amount
    end_s: Amount


class Curve(Value):
    """A figure that the script reported, over the run.

    Attributes:
        name: Of the figure.
        axis: What `at` counts: a figure such as `epoch`, or `report`.
        at: Where each value lies.
        values: The figure.
    """

    name: str
    axis: str
    at: tuple[Number, ...]
    values: tuple[Number, ...]


class Moment(Value):
    """Something that was decided, in seconds since the run began."""

    at_s: Number
    text: str


class Earlier(Value):
    """What an attempt under another plan had come to before the run went on without that plan.

    Attributes:
        attempt: Its number.
        num_machines: That it ran on.
        num_iterations: That were seen of it.
        measured_s: Time per steady iteration, where there were enough.
    """

    attempt: Num
    num_machines: Num
    num_iterations: Num
    measured_s: Amount | None = None


class Change(Value):
    """Something that could be different, and what rehearsals make of it.

    Attributes:
        change: E.g. `doubling the NIC of m2`.
        saving: Share of the time per seed that it saves.
        time_s: Time per iteration.
        remark: What to know before doing it.
    """

    change: str
    saving: Number
    time_s: Amount
    remark: str = ""


class Advice(Value):
    """What would help most.

    Attributes:
        time_s: Time per iteration that changes are held against, rehearsed like them.
        profile: Whether rehearsals rest on what was measured in this run, or on the plan's profile.
        tried: Everything that was rehearsed, largest saving first.
    """

    time_s: Amount
    profile: Literal["run", "plan"]
    tried: tuple[Change, ...] = ()

    def best(self, num: int = 3, least: float = 0.01) -> tuple[Change, ...]:
        """The changes that save most, none below what a rehearsal can tell."""
        return tuple(change for change in self.tried if change.saving >= least)[:num]


class MachinePlan(Value):
    """A machine and what the plan gives it."""

    name: str
    kind: str
    resources: Mapping[str, Amount] = Field(default_factory=dict)
    nic_in_bytes_per_s: Amount
    nic_out_bytes_per_s: Amount
    tasks: tuple[str, ...] = ()


class PlanFacts(Value):
    """The plan in short.

    Attributes:
        limit: What bounds its time per iteration, in a sentence.
        time_s: Its objective.
        bound_s: No placement has a smaller one.
        machines: All of them.
    """

    method: str
    policy: str
    seed_mix: str
    sync: str
    window: str
    batch_size: Num
    trainers: Num
    samplers_per_trainer: Num
    limit: str = ""
    time_s: Amount
    bound_s: Amount
    gap: Number
    proven: bool
    network_bytes: Amount
    uniform_network_bytes: Amount
    fingerprints: Mapping[str, str] = Field(default_factory=dict)
    machines: tuple[MachinePlan, ...] = ()


class Report(Value):
    """What was found of a run.

    Attributes:
        version: Of this format.
        run_id: Name of the run.
        job: Name of the job.
        state: How far the run is.
        problem: Why it failed; empty if it did not.
        remedy: What to try then.
        began_s: When it began, in seconds since 1970.
        elapsed_s: How long it took so far.
        attempts: How often it was begun or gone on with.
        restarts: How often a task was started again.
        samples_per_s: Seeds of all trainers together, in steady iterations.
        pace: Time per iteration.
        phases: What the run's time was spent on.
        trainers: Where their time went.
        machines: How busy network cards were.
        tasks: How busy tasks were.
        assumptions: The plan's profile beside this run.
        curves: What the script reported.
        decisions: What was decided meanwhile.
        earlier: Attempts under other plans.
        advice: What would help most.
        plan: The plan; the last one, if it was planned anew.
        command: How to run it again.
        versions: Of the software that ran it.
        made_by: The headrace that wrote this.
        missing: What could not be said, and why.
    """

    version: Literal[1] = 1
    run_id: str
    job: str = ""
    state: str
    problem: str = ""
    remedy: str = ""
    began_s: Number
    elapsed_s: Amount
    attempts: Num = 1
    restarts: Num = 0
    samples_per_s: Amount | None = None
    pace: Pace = Pace()
    phases: tuple[Phase, ...] = ()
    trainers: tuple[TrainerTime, ...] = ()
    machines: tuple[MachineUse, ...] = ()
    tasks: tuple[TaskUse, ...] = ()
    assumptions: tuple[Assumption, ...] = ()
    curves: tuple[Curve, ...] = ()
    decisions: tuple[Moment, ...] = ()
    earlier: tuple[Earlier, ...] = ()
    advice: Advice | None = None
    plan: PlanFacts | None = None
    command: str = ""
    versions: Mapping[str, str] = Field(default_factory=dict)
    made_by: str = ""
    missing: tuple[str, ...] = ()
