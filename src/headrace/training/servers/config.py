"""What a parameter server's process is told, and where trainers find it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from headrace.core.values import Value
from headrace.graph.service.limits import Limits

SHARD_LIMITS = Limits(max_request_bytes=1 << 30)
"""Gradients of a whole shard come at once, and so do its parameters."""


class ServerAt(Value):
    """A parameter server, as a trainer reaches it.

    Attributes:
        task: Name of the server, for messages.
        machine: Name of its machine, for messages.
        host: Name or address it listens on.
        port: Port it listens on.
    """

    task: str
    machine: str
    host: str
    port: Annotated[int, Field(ge=1, le=65535)]


class ServerConfig(Value):
    """A parameter server.

    Attributes:
        task: Name of the server.
        num_trainers: Who sends gradients: ranks from 0.
        credentials: File written by `Credentials.save`.
        ready: File to write, with port and process number, when it serves.
        host: Address to listen on.
        port: 0 for any that is free.
        tls: Whether everything is encrypted; without it the token travels readable to all.
        num_threads: Of its optimizer.
        trace: File for what it measures; none to measure nothing.
        limits: What trainers may ask for.
    """

    task: str = "ps0"
    num_trainers: Annotated[int, Field(ge=1)]
    credentials: Path
    ready: Path
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 0
    tls: bool = True
    num_threads: Annotated[int, Field(ge=1)] = 1
    trace: Path | None = None
    limits: Limits = SHARD_LIMITS
