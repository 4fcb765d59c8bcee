"""Events and decisions of fault recovery."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.policies.lifecycle.events import Task


@dataclass(frozen=True)
class Limits:
    """Limits of restarts per task and resumes of the run since the last checkpoint."""

    restarts: int = 3
    resumes: int = 5

    @classmethod
    def of(cls, max_restarts: int) -> Limits:
        """Limits for `--max-restarts`; with 0 the first fault ends the run."""
        return cls(max_restarts, max_restarts + 2 if max_restarts else 0)


# --- events --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TaskEnded:
    """A task process exited unexpectedly; its task actor is alive.

    Attributes:
        task: The task.
        code: Exit code; negative if ended by a signal.
        why: Reason, formatted to follow the task's name: `was ended by SIGKILL`.
        can_restart: Whether all other tasks can wait for a restart.
    """

    task: Task
    code: int
    why: str
    can_restart: bool = False


@dataclass(frozen=True)
class TaskLost:
    """A task and its task actor are lost; the machine is alive."""

    task: Task
    why: str


@dataclass(frozen=True)
class MachineLost:
    """All tasks of a machine are lost or unreachable."""

    machine: str
    why: str


@dataclass(frozen=True)
class MachinesJoined:
    """Machines are available that the run does not use."""

    machines: frozenset[str]


@dataclass(frozen=True)
class Settled:
    """All tasks of the run have ended; `machines` are available, used by the run or not."""

    machines: frozenset[str]


@dataclass(frozen=True)
class Begun:
    """Trainers were told to run the script."""


@dataclass(frozen=True)
class Stepped:
    """All trainers completed an iteration."""


@dataclass(frozen=True)
class Saved:
    """A new checkpoint, made after `iteration` iterations, is complete and not on hold."""

    iteration: int


@dataclass(frozen=True)
class Held:
    """A new checkpoint, made after `iteration` iterations, is on hold until `Released`."""

    iteration: int


@dataclass(frozen=True)
class Released:
    """The graph files are verified: the checkpoint that was on hold, if any, counts as saved."""


@dataclass(frozen=True)
class Drifted:
    """The run no longer matches its plan, and a better plan exists; `why` describes both."""

    why: str


Event = (
    TaskEnded
    | TaskLost
    | MachineLost
    | MachinesJoined
    | Settled
    | Begun
    | Stepped
    | Saved
    | Held
    | Released
    | Drifted
)

# --- decisions -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Restart:
    """Restart a task on its machine while all others wait.

    Attributes:
        task: The task.
        why: Cause, with the names of task and machine.
        number: Number of this restart since the last checkpoint.
        most: Limit of restarts.
    """

    task: Task
    why: str
    number: int
    most: int

    @property
    def line(self) -> str:
        """Log line of the decision."""
        return f"{self.why}: restarting it ({self.number} of {self.most})"


@dataclass(frozen=True)
class Resume:
    """End all tasks and resume from the newest checkpoint.

    Attributes:
        why: Cause.
        attempt: Number of this start of all tasks.
        saved: Iteration of the newest checkpoint; None to start from the beginning.
        without: Lost machines.
        joined: Machines used from now on.
        machines: Machines in use.
        replans: Whether a better plan exists for the same machines; trainers save first.
    """

    why: str
    attempt: int
    saved: int | None = None
    without: frozenset[str] = field(default_factory=frozenset)
    joined: frozenset[str] = field(default_factory=frozenset)
    machines: frozenset[str] = field(default_factory=frozenset)
    replans: bool = False

    @property
    def line(self) -> str:
        """Log line of the decision."""
        how = "starting over" if self.saved is None else f"resuming from iteration {self.saved}"
        if self.replans:
            how = "resuming with another plan"
        where = f" on {', '.join(sorted(self.machines))}" if self.without or self.joined else ""
        return f"{self.why}: {how}{where} (attempt {self.attempt})"


@dataclass(frozen=True)
class GiveUp:
    """End the run; `because` is why it is not recovered, empty if recovery is disabled."""

    why: str
    because: str = ""

    @property
    def line(self) -> str:
        """Log line of the decision."""
        return f"{self.why}: giving up{', because ' if self.because else ''}{self.because}"


Decision = Restart | Resume | GiveUp
