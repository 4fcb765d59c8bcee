"""State of a task actor, which the controller polls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.runtime.protocol.trainer_messages import Message


@dataclass(frozen=True)
class ActorState:
    """State of a task actor and its process; fields of other roles have their defaults.

    Attributes:
        pid: Process id; None if no process is running.
        code: Exit code of the process; None if it has not exited.
        rss_bytes: Resident memory of the process.
        anonymous_bytes: Memory that the process itself has allocated.
        is_stopped: Whether a signal has stopped the process.
        how, last_error, ended_ago_s: How and when it exited, and its last error line.
        messages: New messages of a trainer.
        output: Names of a trainer's output files.
        checkpoints: Texts of a trainer's checkpoint sidecars by name.
        port: Port of a parameter server that listens.
        ports: Ports of a store that listens, by partition.
        nic: Bytes received and sent by a store's machine.
        starts: Number of starts of a store.
        is_verified: Whether a store has verified its files.
        restarts, why: Restarts of a sampler by its trainer, and the last reason.
        waits_for: The task that a sampler waits for.
    """

    pid: int | None = None
    code: int | None = None
    log_bytes: int = 0
    trace_bytes: int = 0
    rss_bytes: int | None = None
    anonymous_bytes: int | None = None
    is_stopped: bool = False
    how: str = ""
    last_error: str = ""
    ended_ago_s: float = 0.0
    messages: tuple[Message, ...] = ()
    output: tuple[str, ...] = ()
    checkpoints: Mapping[str, str] = field(default_factory=dict)
    port: int | None = None
    ports: Mapping[str, int] | None = None
    nic: tuple[int, int] | None = None
    starts: int = 1
    is_verified: bool = False
    restarts: int = 0
    why: str = ""
    waits_for: str = ""
