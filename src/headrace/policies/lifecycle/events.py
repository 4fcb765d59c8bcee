"""Events and commands of the lifecycle of a run."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum

from headrace.core.job import Role


class Phase(StrEnum):
    """Phase of a run."""

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
    """Stage of a task; it never decreases."""

    WAITING = 0
    STARTING = 1
    READY = 2
    STOPPING = 3
    ENDED = 4
    LOST = 5


@dataclass(frozen=True)
class Task:
    """A task of the plan, named like `store0`, `sampler1.0`, `trainer2` or `ps0`."""

    name: str
    role: Role
    machine: str

    def __str__(self) -> str:
        return f"{self.name} on {self.machine}"


@dataclass(frozen=True)
class Deadlines:
    """Time limits in seconds.

    Attributes:
        place_s: Until all tasks are placed and their task actors respond.
        ship_s: Between progress reports of graph shipping.
        start_s: Until all tasks of a role are ready.
        silence_s: Without a response, until a task counts as lost; the network may be cut for 10 s.
        save_s: For trainers to save after a stop.
        urgent_save_s: For trainers to save after a fault, when they may block on a failed task.
        stop_s: For all other tasks to end.
        slow_s: Interval of log lines about waiting tasks.
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
    """All tasks are placed, and their task actors respond."""


@dataclass(frozen=True)
class Shipped:
    """All machines have their graph files."""


@dataclass(frozen=True)
class Waits:
    """A task waits for something, e.g. `2 CPU`; a changed text counts as progress."""

    task: str
    for_what: str


@dataclass(frozen=True)
class Ready:
    """A task is ready."""

    task: str


@dataclass(frozen=True)
class Verified:
    """All graph files on a store's machine are intact."""

    task: str


@dataclass(frozen=True)
class Heard:
    """Tasks have responded."""

    tasks: frozenset[str]


@dataclass(frozen=True)
class Ended:
    """A task process exited.

    Attributes:
        task: Name of the task.
        code: Exit code.
        how: Description: `exited with code 1`.
        output: Last output, if any.
    """

    task: str
    code: int
    how: str
    output: str = ""


@dataclass(frozen=True)
class Lost:
    """Task or machine `name` is lost; `why` is formatted to follow the name."""

    name: str
    why: str


@dataclass(frozen=True)
class Failed:
    """Another fault that ends the run."""

    problem: str
    remedy: str


@dataclass(frozen=True)
class Interrupted:
    """The user stops the run; a second interrupt ends it at once."""


@dataclass(frozen=True)
class Regroup:
    """All tasks must end in order to be started in another way."""

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
    """Place all tasks."""


@dataclass(frozen=True)
class Ship:
    """Copy the graph files to the machines that need them."""


@dataclass(frozen=True)
class Start:
    """Start a task."""

    task: str


@dataclass(frozen=True)
class Stop:
    """End a task; `is_urgent` after a fault or a second interrupt."""

    task: str
    is_urgent: bool = True


@dataclass(frozen=True)
class Log:
    """Log a line for the user."""

    line: str


@dataclass(frozen=True)
class Outcome:
    """Outcome of a run.

    Attributes:
        is_success: Whether all trainers finished successfully.
        is_interrupted: Whether the user stopped it.
        problem: What went wrong; empty otherwise.
        remedy: What to do.
        fault: The first fault, if it may be recoverable.
    """

    is_success: bool = False
    is_interrupted: bool = False
    problem: str = ""
    remedy: str = ""
    fault: Ended | Lost | Regroup | None = None


@dataclass(frozen=True)
class Finish:
    """Clean up; the run has ended."""

    outcome: Outcome


Command = Place | Ship | Start | Stop | Log | Finish
