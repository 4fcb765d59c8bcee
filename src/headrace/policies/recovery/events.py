"""What befalls a run (events), and what is to be done about it (decisions)."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.policies.lifecycle.events import Task


@dataclass(frozen=True)
class Limits:
    """How often a run may be mended without getting any further; a new checkpoint counts anew.

    Attributes:
        restarts: Of one task.
        resumes: Of the whole run from its newest checkpoint.
    """

    restarts: int = 3
    resumes: int = 5

    @classmethod
    def of(cls, max_restarts: int) -> Limits:
        """What `--max-restarts` stands for: with 0 the first fault ends the run."""
        return cls(max_restarts, max_restarts + 2 if max_restarts else 0)


# --- events --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TaskEnded:
    """The process of a task has ended and should not have; its shell is there.

    Attributes:
        task: The task.
        code: Of its exit; negative if a signal ended it.
        why: In words that follow the task's name: `was ended by SIGKILL`.
        can_restart: Whether all others can wait where they are until it is back.
    """

    task: Task
    code: int
    why: str
    can_restart: bool = False


@dataclass(frozen=True)
class TaskLost:
    """A task is gone together with its shell; its machine is there."""

    task: Task
    why: str


@dataclass(frozen=True)
class MachineLost:
    """All tasks of a machine are gone, or cannot be reached."""

    machine: str
    why: str


@dataclass(frozen=True)
class MachinesJoined:
    """Machines are there that the run does not use."""

    machines: frozenset[str]


@dataclass(frozen=True)
class Settled:
    """Nothing of the run is running, and these are the machines that are there.

    Attributes:
        machines: Among them others than the run's.
    """

    machines: frozenset[str]


@dataclass(frozen=True)
class Stepped:
    """All trainers have done an iteration."""


@dataclass(frozen=True)
class Saved:
    """There is a new checkpoint, whole and out of danger.

    Attributes:
        iteration: After how many iterations it was made.
    """

    iteration: int


@dataclass(frozen=True)
class Drifted:
    """The run is no longer what its plan was made for, and there is a better plan.

    Attributes:
        why: What has changed, and what the other plan saves.
    """

    why: str


Event = TaskEnded | TaskLost | MachineLost | MachinesJoined | Settled | Stepped | Saved | Drifted

# --- decisions -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Restart:
    """Start a task again where it is, while all others wait.

    Attributes:
        task: The task.
        why: What happened, with the names of task and machine.
        number: The how manieth restart since the last checkpoint this is ...
        most: ... and how many there may be.
    """

    task: Task
    why: str
    number: int
    most: int

    @property
    def line(self) -> str:
        """The decision, as people read it."""
        return f"{self.why}: starting it again ({self.number} of {self.most})"


@dataclass(frozen=True)
class Resume:
    """End all tasks and go on from the newest checkpoint.

    Attributes:
        why: What happened.
        attempt: The how manieth start of all tasks this will be.
        saved: Iteration of the newest checkpoint; none to begin anew.
        without: Machines that are gone.
        joined: Machines that are to be used from now on.
        machines: Those that are used.
        replans: Whether there is a better plan for the same machines; trainers save first.
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
        """The decision, as people read it."""
        how = "beginning anew" if self.saved is None else f"going on from iteration {self.saved}"
        if self.replans:
            how = "going on with another plan"
        where = f" on {', '.join(sorted(self.machines))}" if self.without or self.joined else ""
        return f"{self.why}: {how}{where} (attempt {self.attempt})"


@dataclass(frozen=True)
class GiveUp:
    """End the run.

    Attributes:
        why: What happened.
        because: Why nothing is done about it; empty if the user wants it so.
    """

    why: str
    because: str = ""

    @property
    def line(self) -> str:
        """The decision, as people read it."""
        return f"{self.why}: giving up{', as ' if self.because else ''}{self.because}"


Decision = Restart | Resume | GiveUp
