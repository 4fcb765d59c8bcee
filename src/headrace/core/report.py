"""Data model of a run report: predicted and measured figures."""

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
    """Mean time components of one trainer iteration, in seconds.

    Attributes:
        compute_s: The trainer's own step.
        peers_s: From the end of its step to the end of the slowest trainer's step.
        exchange_s: From there to the end of the gradient exchange.
        wait_s: From there until the sub-batches of the next batch have arrived.
        other_s: From there to the next step: receiving the batch, and other script code.
    """

    compute_s: Amount
    peers_s: Amount
    exchange_s: Amount
    wait_s: Amount
    other_s: Amount

    @property
    def total_s(self) -> float:
        """Sum of all components."""
        return self.compute_s + self.peers_s + self.exchange_s + self.wait_s + self.other_s


class TrainerTime(Value):
    """A trainer's time in steady iterations, predicted and measured."""

    name: str
    machine: str
    predicted: Split | None = None
    measured: Split | None = None


class MachineUse(Value):
    """NIC utilisation of a machine in steady iterations, as a fraction of its bandwidth."""

    name: str
    predicted_in: Amount | None = None
    predicted_out: Amount | None = None
    measured_in: Amount | None = None
    measured_out: Amount | None = None


class TaskUse(Value):
    """Fraction of the time in which a task was busy in steady iterations."""

    name: str
    role: Role
    machine: str
    predicted: Amount | None = None
    measured: Amount | None = None


class TaskMemoryUse(Value):
    """Peak memory of a task, without cached files and shared memory."""

    name: str
    role: Role
    machine: str
    estimated_bytes: Amount | None = None
    measured_bytes: Amount | None = None


class Assumption(Value):
    """A figure of the plan's profile compared with the run.

    Attributes:
        what: E.g. `trainer step on large`.
        unit: `s` for seconds, `B` for bytes, `%` for a share.
        assumed: Value in the plan's profile.
        measured: Value measured in the run.
    """

    what: str
    unit: Literal["s", "B", "%"]
    assumed: Amount | None = None
    measured: Amount | None = None


class Pace(Value):
    """Time per iteration, predicted and measured.

    Attributes:
        predicted_s: Simulated with the plan's profile.
        profile: Source of that profile.
        profile_note: Note of that profile.
        rehearsed_s: Simulated with the figures measured in this run; the difference from
            `measured_s` is the model error.
        measured_s: Mean over steady iterations.
        num_iterations: Number of recorded iterations.
        num_skipped: Number of first iterations that are excluded because windows fill in them.
        num_steady: Number of iterations in the mean.
        num_pauses: Number of pauses: other script code, or restarted tasks.
        pauses_s: Total duration of the pauses.
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
        """Relative excess of the measured over the predicted time per iteration."""
        if self.measured_s is None or not self.predicted_s:
            return None
        return self.measured_s / self.predicted_s - 1


class Phase(Value):
    """A named time interval of the run."""

    name: str
    start_s: Amount
    end_s: Amount


class Curve(Value):
    """A metric that the script reported, over the run.

    Attributes:
        name: Name of the metric.
        axis: Unit of `at`: a metric such as `epoch`, or `report`.
        at: Position of each value.
        values: Values of the metric.
    """

    name: str
    axis: str
    at: tuple[Number, ...]
    values: tuple[Number, ...]


class Moment(Value):
    """A logged decision, in seconds since the start of the run."""

    at_s: Number
    text: str


class Earlier(Value):
    """Summary of an attempt that ran under an earlier plan.

    Attributes:
        attempt: Number of the attempt.
        num_machines: Number of machines.
        num_iterations: Number of recorded iterations.
        measured_s: Time per steady iteration, if there were enough.
    """

    attempt: Num
    num_machines: Num
    num_iterations: Num
    measured_s: Amount | None = None


class Change(Value):
    """A possible change and its simulated effect.

    Attributes:
        change: E.g. `doubling the NIC of m2`.
        saving: Fraction of the time per seed that it saves.
        time_s: Time per iteration.
        remark: Caveat.
    """

    change: str
    saving: Number
    time_s: Amount
    remark: str = ""


class Advice(Value):
    """Changes that would help most.

    Attributes:
        time_s: Simulated time per iteration that changes are compared with.
        profile: Profile of the simulations: measured in this `run`, or that of the `plan`.
        tried: All simulated changes, largest saving first.
    """

    time_s: Amount
    profile: Literal["run", "plan"]
    tried: tuple[Change, ...] = ()

    def best(self, num: int = 3, least: float = 0.01) -> tuple[Change, ...]:
        """Return the changes with the largest savings, of at least `least`."""
        return tuple(change for change in self.tried if change.saving >= least)[:num]


class MachinePlan(Value):
    """A machine and the tasks placed on it."""

    name: str
    kind: str
    resources: Mapping[str, Amount] = Field(default_factory=dict)
    nic_in_bytes_per_s: Amount
    nic_out_bytes_per_s: Amount
    tasks: tuple[str, ...] = ()


class PlanFacts(Value):
    """Summary of the plan.

    Attributes:
        limit: The bottleneck, in a sentence.
        time_s: Objective.
        bound_s: Lower bound of the objective over all placements.
        machines: All machines.
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
    """Report of a run.

    Attributes:
        version: Version of the file format.
        run_id: Name of the run.
        job: Name of the job.
        state: State of the run.
        problem: Why the run failed; empty if it did not.
        remedy: What to try after a failure.
        began_s: Start time, in seconds since 1970.
        elapsed_s: Duration so far.
        attempts: Number of times the run was started or resumed.
        restarts: Number of task restarts.
        samples_per_s: Seeds per second of all trainers, in steady iterations.
        epoch_bytes: Bytes between machines per epoch, by kind.
        pace: Time per iteration.
        phases: Phases of the run.
        trainers: Time components of trainers.
        machines: NIC utilisation.
        tasks: Task utilisation.
        memory: Peak memory of tasks.
        assumptions: The plan's profile compared with this run.
        curves: Metrics that the script reported.
        decisions: Logged decisions.
        earlier: Attempts under other plans.
        advice: Changes that would help most.
        plan: The plan; the latest if the run was re-planned.
        command: Command that repeats the run.
        versions: Versions of the software that ran it.
        made_by: headrace version that wrote the report.
        missing: Omitted figures and the reasons.
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
    epoch_bytes: Mapping[str, Amount] = Field(default_factory=dict)
    pace: Pace = Pace()
    phases: tuple[Phase, ...] = ()
    trainers: tuple[TrainerTime, ...] = ()
    machines: tuple[MachineUse, ...] = ()
    tasks: tuple[TaskUse, ...] = ()
    memory: tuple[TaskMemoryUse, ...] = ()
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
