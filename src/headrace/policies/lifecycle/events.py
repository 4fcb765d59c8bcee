"""What happens to a run (events), and what is to be done about it (commands)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum

from headrace.core.job import Role


class Phase(StrEnum):
    """How far a run is."""

    PLACING = "placing"
    SHIPPING = "shipping"
    STORES = "stores"
    SAMPLERS = "samplers"
    SERVERS = "servers"
    TRAINERS = "trainers"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


class Stage(IntEnum):
    """How far a task is; it never goes back."""

    WAITING = 0
    STARTING = 1
    READY = 2
    STOPPING = 3
    ENDED = 4
    LOST = 5


@dataclass(frozen=True)
class Task:
    """A task of the plan.

    Attributes:
        name: `store0`, `sampler1.0`, `trainer2`, `ps0`.
        role: What it does.
        machine: Where it runs.
    """

    name: str
    role: Role
    machine: str

    def __str__(self) -> str:
        return f"{self.name} on {self.machine}"


@dataclass(frozen=True)
class Deadlines:
    """How long things may take, in seconds.

    Attributes:
        place_s: Until all tasks have their place and their shells.
        ship_s: Until a graph that is being shipped makes a step.
        start_s: Until all tasks of a role are ready.
        silence_s: Until a task that does not answer counts as lost; a network may be cut for 10 s.
        save_s: For trainers to save what they have once they are told to stop.
        urgent_save_s: The same where somebody has failed, for whom others may wait in vain.
        stop_s: For all others to end.
        slow_s: After which it is said who waits for what, and again each time it has passed.
    """

    place_s: float = 150.0
    ship_s: float = 120.0
    start_s: float = 150.0
    silence_s: float = 22.0
    save_s: float = 32.0
    urgent_save_s: float = 6.0
    stop_s: float = 3.0
    slow_s: float = 10.0


# --- events --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Placed:
    """Every task has its place, and its shell answers from there."""


@dataclass(frozen=True)
class Shipped:
    """Every machine has what it needs of the graph."""


@dataclass(frozen=True)
class Waits:
    """A task waits for something; new words count as a step ahead.

    Attributes:
        task: Name of the task.
        for_what: E.g. `2 CPU` or `part 1, 40 of 80 MB`.
    """

    task: str
    for_what: str


@dataclass(frozen=True)
class Ready:
    """A task does what it is there for."""

    task: str


@dataclass(frozen=True)
class Verified:
    """All files of the graph that a store's machine has are intact."""

    task: str


@dataclass(frozen=True)
class Heard:
    """Tasks have answered."""

    tasks: frozenset[str]


@dataclass(frozen=True)
class Ended:
    """The process of a task has ended.

    Attributes:
        task: Name of the task.
        code: Of its exit.
        how: In words: `ended with code 1`.
        said: Its last words, if any.
    """

    task: str
    code: int
    how: str
    said: str = ""


@dataclass(frozen=True)
class Lost:
    """A task is gone together with its shell, or all tasks of a machine are.

    Attributes:
        name: Of a task or of a machine.
        why: What is known, in words that follow the name: `its process was killed`.
    """

    name: str
    why: str


@dataclass(frozen=True)
class Failed:
    """Something else went wrong, which the run cannot do without."""

    problem: str
    remedy: str


@dataclass(frozen=True)
class Interrupted:
    """Somebody wants the run to end; told again, at once."""


@dataclass(frozen=True)
class Regroup:
    """All tasks are to end, so that they can be started in another way."""

    why: str


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


Event = (
    Placed
    | Shipped
    | Waits
    | Ready
    | Verified
    | Heard
    | Ended
    | Lost
    | Failed
    | Interrupted
    | Regroup
    | Tick
)

# --- commands ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """Find a place for every task."""


@dataclass(frozen=True)
class Ship:
    """See that every machine has what it needs of the graph."""


@dataclass(frozen=True)
class Start:
    """Start a task."""

    task: str


@dataclass(frozen=True)
class Stop:
    """End a task.

    Attributes:
        task: Name of the task.
        is_urgent: Whether somebody has failed, or the user does not want to wait.
    """

    task: str
    is_urgent: bool = True


@dataclass(frozen=True)
class Say:
    """Tell the user."""

    line: str


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        is_success: Whether all trainers did what they should.
        is_interrupted: Whether somebody ended it.
        problem: What went wrong; empty otherwise.
        remedy: What to try.
        fault: What it began with, if that may be mended.
    """

    is_success: bool = False
    is_interrupted: bool = False
    problem: str = ""
    remedy: str = ""
    fault: Ended | Lost | Regroup | None = None


@dataclass(frozen=True)
class Finish:
    """Clear away whatever is left; this is the end."""

    outcome: Outcome


Command = Place | Ship | Start | Stop | Say | Finish
