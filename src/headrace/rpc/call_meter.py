"""Measure the wire bytes and the latency of RPC calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future

import numpy as np

from headrace.rpc.client import Channel
from headrace.rpc.framing import Fields, Message
from headrace.tracing.meter import Call, current_meter

Clock = Callable[[], float]

# Length, frame, array dtypes, and the headers of a packet, in bytes; and the headers of TCP, IP and
# Ethernet per byte (packets of up to 64 KiB).
_REQUEST_BYTES, _REPLY_BYTES, _PER_BYTE = 130, 150, 1.0012

_FEATURES_OP = "gather"
"""Request for rows; all others are for the structure of the graph."""

Record = Callable[[Call], None]


class MeteredChannel:
    """A `Channel` that reports every completed call.

    Args:
        channel: The wrapped channel.
        clock: Returns seconds.
        who: Returns the callback for a call, or None; runs in the calling thread when it sends.
    """

    def __init__(self, channel: Channel, clock: Clock, who: Callable[[], Record | None]) -> None:
        self._channel = channel
        self._clock = clock
        self._who = who

    def ask(
        self, fields: Fields, arrays: Sequence[np.ndarray], timeout_s: float
    ) -> Future[Message]:
        """Send a request; see `Channel`."""
        record = self._who()
        if record is None:
            return self._channel.ask(fields, arrays, timeout_s)
        start_s = self._clock()
        request_bytes = _wire_bytes(fields, arrays, _REQUEST_BYTES)
        future = self._channel.ask(fields, arrays, timeout_s)

        def done(future: Future[Message]) -> None:
            if future.exception() is None:
                reply = future.result()
                reply_bytes = _wire_bytes(reply.fields, reply.arrays, _REPLY_BYTES)
                num_bytes = (request_bytes, reply_bytes)
                op = str(fields.get("op", ""))
                record(Call(start_s, self._clock(), *num_bytes, reply.fields, op))

        # Registered before the caller can wait: a finished sub-batch has recorded all its calls.
        future.add_done_callback(done)
        return future

    def close(self) -> None:
        """Close the wrapped channel."""
        self._channel.close()


def measured_store(channel: Channel, task: str, clock: Clock) -> MeteredChannel:
    """Wrap a store channel; calls are recorded in the meter of the calling sub-batch."""

    def who() -> Record | None:
        meter = current_meter()
        if meter is None:
            return None

        def record(call: Call) -> None:
            service_s = float(call.fields.get("service_s", 0.0))
            times_s = (call.start_s, call.end_s)
            num_bytes = (call.request_bytes, call.reply_bytes)
            meter.add_call(task, times_s, *num_bytes, service_s, call.op == _FEATURES_OP)

        return record

    return MeteredChannel(channel, clock, who)


def _wire_bytes(fields: Fields, arrays: Sequence[np.ndarray], fixed_bytes: int) -> int:
    payload = sum(array.nbytes for array in arrays)
    # An estimate of the JSON size, several times as fast as encoding it.
    header = 2 + sum(len(name) + len(str(value)) + 4 for name, value in fields.items())
    return int(fixed_bytes + _PER_BYTE * (payload + header))
