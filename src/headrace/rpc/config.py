"""Addresses and limits of RPC servers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from headrace.core.values import Value

TELL_AFTER_S = 5.0
"""Waits for another task longer than this are reported."""


@dataclass(frozen=True)
class RpcLimits:
    """Limits on requests, replies and streams.

    Attributes:
        max_rows: Nodes per request.
        max_request_bytes: Size of a request.
        max_reply_bytes: Size of a reply, computed before it is created.
        max_streams: Concurrent clients. 16 machines with 20 trainers and 4 samplers each need
            1,280.
        handshake_s: Time within which a connection must present the token.
        idle_s: A connection without a complete request is closed after this time; clients ping more
            often.
        stall_s: A connection whose client does not read a reply within this time is closed.
        stream_s: Maximum lifetime of a stream; None for no limit.
    """

    max_rows: int = 2_000_000
    max_request_bytes: int = 64 << 20
    max_reply_bytes: int = 1 << 30
    max_streams: int = 2048
    handshake_s: float = 10.0
    idle_s: float = 120.0
    stall_s: float = 60.0
    stream_s: float | None = None


class TaskAddress(Value):
    """Address of a store, sampler or parameter server; `task` and `machine` are for messages."""

    task: str
    machine: str
    host: str
    port: Annotated[int, Field(ge=1, le=65535)]

    def __str__(self) -> str:
        return f"{self.task} on {self.machine}"
