"""How much a store gives to anyone who asks."""

from __future__ import annotations

from dataclasses import dataclass

TELL_AFTER_S = 5.0
"""Who waits for another task for longer says so."""


@dataclass(frozen=True)
class RpcLimits:
    """Bounds on what one peer, or all of them, can make a store do.

    Attributes:
        max_rows: Nodes per request.
        max_request_bytes: Size of a request.
        max_reply_bytes: Size of a reply, known before it is made.
        max_streams: Clients at the same time. 16 machines with 20 trainers and 4 samplers each
            make 1,280.
        greeting_s: A connection must have opened a stream with the token after this time ...
        greeting_bytes: ... and after this much data.
        idle_s: A stream that said nothing for so long is closed; clients say something four times
            as often.
        stall_s: A peer that has not taken an offered reply after this time is cut off.
        stream_s: No stream lives longer; none if a stream may live as long as the run.
    """

    max_rows: int = 2_000_000
    max_request_bytes: int = 64 << 20
    max_reply_bytes: int = 1 << 30
    max_streams: int = 2048
    greeting_s: float = 10.0
    greeting_bytes: int = 1 << 16
    idle_s: float = 120.0
    stall_s: float = 60.0
    stream_s: float | None = None
