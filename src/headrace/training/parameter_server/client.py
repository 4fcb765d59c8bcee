"""Trainer-side client of the parameter servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

import numpy as np

from headrace.rpc.call_meter import MeteredChannel
from headrace.rpc.client import Channel
from headrace.rpc.config import TELL_AFTER_S, TaskAddress
from headrace.rpc.credentials import Credentials
from headrace.rpc.errors import StoreError
from headrace.rpc.framing import Message
from headrace.rpc.reconnect import RetryBudget, reach_store
from headrace.tracing.meter import Call
from headrace.training.parameter_server.optimizer_specs import SCALARS
from headrace.training.parameter_server.types import (
    Exchange,
    GradientShard,
    Options,
    Record,
    Shared,
    States,
)

TIMEOUT_S = 10.0
"""Timeout of a request; servers reply earlier, even if other trainers are late."""

PATIENCE_S = 60.0
"""Time a server may be unreachable."""

Clock = Callable[[], float]
Notify = Callable[[str, bool], None]
"""Called with what is awaited, and True when waiting for it takes long, False when it ends."""


def _ignore(name: str, waits: bool) -> None:
    """Ignore a notification."""


@dataclass(eq=False)
class _Server:
    """One server, and the calls of the current step."""

    name: str
    channel: Channel
    calls: list[Call] = field(default_factory=list)


class Servers:
    """All parameter servers of a run.

    Args:
        channels: Channel to each server, by name.
        rank: Rank of this trainer.
        clock: Returns seconds.
        timeout_s: Timeout for other trainers.
        record: Called with the exchanges of every step, one per server.
        tell: Called with late trainers once waiting takes long, and when it ends.
    """

    def __init__(
        self,
        channels: Mapping[str, Channel],
        rank: int,
        clock: Clock,
        timeout_s: float,
        record: Record | None = None,
        notify: Notify = _ignore,
    ) -> None:
        self.rank = rank
        self._clock, self._timeout_s = clock, timeout_s
        self._record, self._notify = record, notify
        self._servers = [_Server(name, channel) for name, channel in channels.items()]
        for server in self._servers:
            add = server.calls.append
            server.channel = MeteredChannel(server.channel, clock, lambda add=add: add)  # type: ignore[misc]

    @classmethod
    def connect(
        cls,
        places: Sequence[TaskAddress],
        credentials: Credentials,
        rank: int,
        clock: Clock,
        timeout_s: float,
        record: Record | None = None,
        notify: Notify = _ignore,
        retry_budget_s: float = PATIENCE_S,
    ) -> Servers:
        """Connect to all servers, which may be unreachable for `retry_budget_s`; see the class."""
        retry_budget = RetryBudget(retry_budget_s, clock, notify)
        channels = {at.task: reach_store(at, credentials, TIMEOUT_S, retry_budget) for at in places}
        return cls(channels, rank, clock, timeout_s, record, notify)

    def __len__(self) -> int:
        return len(self._servers)

    def begin(
        self, shared: Shared, optimizer: str, options: Sequence[Options], values: np.ndarray
    ) -> np.ndarray:
        """Register a model; all trainers must. Returns the values of rank 0.

        Args:
            shared: The model.
            optimizer: Name of a torch optimizer.
            options: Options of each parameter group.
            values: Initial values; those of rank 0 are used.
        """
        fields = {
            "op": "begin", "model": shared.number, "rank": self.rank, "optimizer": optimizer,
            "options": list(options), "dtype": shared.dtype,
        }  # fmt: skip

        def arrays(server: int) -> list[np.ndarray]:
            pieces = shared.layout.pieces(server)
            lengths = np.array([piece.length for piece in pieces], np.int64)
            groups = np.array([shared.groups[piece.parameter] for piece in pieces], np.int64)
            own = [] if self.rank else [values[slice(*shared.layout.bounds(server))]]
            return [lengths, groups, *own]

        found = self._collect(shared, self._answers(fields, [arrays(p) for p in range(len(self))]))
        for server in self._servers:
            server.calls.clear()
        return found

    def step(self, shared: Shared, shard: GradientShard) -> np.ndarray:
        """Push gradients, and return the parameters once all trainers have pushed theirs."""
        found = self._collect(shared, self._answers(*self._gradient_pushes(shared, shard, False)))
        self._record_exchanges(shard.iteration)
        return found

    def hold(self, shared: Shared, shard: GradientShard) -> float:
        """Like `step`, but only sum the gradients; returns their squared norm. See `scale`."""
        replies = self._answers(*self._gradient_pushes(shared, shard, True))
        return float(sum(reply.fields["square"] for reply in replies))

    def scale(self, shared: Shared, shard: GradientShard, factor: float) -> np.ndarray:
        """Make a held step with scaled gradients; returns the parameters."""
        fields = {"op": "scale", "model": shared.number, "step": shard.number, "factor": factor}
        found = self._collect(shared, self._answers(fields, [()] * len(self)))
        self._record_exchanges(shard.iteration)
        return found

    def state(self, shared: Shared) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Optimizer state by name: values of all elements or of all parameters."""
        layout = shared.layout
        names: set[str] = set()
        for reply in self._ask_all({"op": "names", "model": shared.number}):
            names.update(reply.fields["names"])
        found = {}
        for name in sorted(names):
            has = np.zeros(len(layout.sizes), bool)
            values = np.zeros(len(has) if name in SCALARS else layout.num_elements, np.float64)
            if name not in SCALARS:
                values = values.astype(shared.dtype)
            fields = {"op": "state", "model": shared.number, "name": name}
            for server, reply in enumerate(self._ask_all(fields)):
                parameters = [piece.parameter for piece in layout.pieces(server)]
                own, own_has = reply.arrays
                has[parameters] = own_has
                values[parameters if name in SCALARS else slice(*layout.bounds(server))] = own
            found[name] = (values, has)
        return found

    def load(self, shared: Shared, states: States) -> None:
        """Replace the optimizer state, in the format of `state`."""
        layout = shared.layout
        self._ask_all({"op": "forget", "model": shared.number})
        for name, (values, has) in states.items():
            fields = {"op": "load", "model": shared.number, "name": name}
            arrays = []
            for server in range(len(self)):
                parameters = [piece.parameter for piece in layout.pieces(server)]
                own = values[parameters if name in SCALARS else slice(*layout.bounds(server))]
                arrays.append([own, has[parameters]])
            self._ask_all(fields, arrays)

    def close(self) -> None:
        """Close all connections."""
        for server in self._servers:
            server.channel.close()

    def _gradient_pushes(
        self, shared: Shared, shard: GradientShard, holds: bool
    ) -> tuple[dict[str, Any], list[list[np.ndarray]]]:
        options = None if shard.options is None else list(shard.options)
        fields = {
            "op": "gradients", "model": shared.number, "rank": self.rank, "step": shard.number,
            "iteration": shard.iteration, "holds": holds, "options": options,
        }  # fmt: skip
        arrays = []
        for server in range(len(self)):
            own = slice(*shared.layout.bounds(server))
            has = shard.present[[piece.parameter for piece in shared.layout.pieces(server)]]
            changed = [] if shard.values is None else [shard.values[own]]
            sent = shard.gradients[own] if shard.encoded is None else shard.encoded[server]
            arrays.append([sent, has, *changed])
        return fields, arrays

    def _answers(
        self, fields: Mapping[str, Any], arrays: Sequence[Sequence[np.ndarray]]
    ) -> list[Message]:
        """Send to all servers, and wait for each until no trainer is missing."""
        began_s, awaited = self._clock(), ""
        waiting = [
            self._ask(*each) for each in zip(self._servers, repeat(fields), arrays, strict=False)
        ]
        wait = {"op": "wait", "model": fields["model"], "step": fields.get("step", 0)}
        wait["holds"] = fields.get("holds", False)
        replies = []
        for server, asked in zip(self._servers, waiting, strict=True):
            reply = asked.result()
            while "missing" in reply.fields:
                late = ", ".join(map(str, reply.fields["missing"]))
                waited_s = self._clock() - began_s
                if waited_s > self._timeout_s:
                    raise StoreError(
                        f"{server.name} has no gradients of rank {late} "
                        f"after {self._timeout_s:.0f} s",
                        "call step() equally often on all trainers",
                    )
                if waited_s > TELL_AFTER_S and not awaited:
                    awaited = f"gradients of rank {late}"
                    self._notify(awaited, True)
                reply = self._ask(server, wait, ()).result()
            replies.append(reply)
        if awaited:
            self._notify(awaited, False)
        return replies

    def _collect(self, shared: Shared, replies: Sequence[Message]) -> np.ndarray:
        """Concatenate the parameters of all servers."""
        found = np.empty(shared.layout.num_elements, shared.dtype)
        for server, reply in enumerate(replies):
            found[slice(*shared.layout.bounds(server))] = reply.arrays[0]
        return found

    def _ask_all(
        self, fields: Mapping[str, Any], arrays: Sequence[Sequence[np.ndarray]] = ()
    ) -> list[Message]:
        asked = [
            self._ask(server, fields, arrays[p] if arrays else ())
            for p, server in enumerate(self._servers)
        ]
        replies = [each.result() for each in asked]
        for server in self._servers:
            server.calls.clear()
        return replies

    def _ask(
        self, server: _Server, fields: Mapping[str, Any], arrays: Sequence[np.ndarray]
    ) -> Future[Message]:
        """Send a request; the returned future completes after the call was recorded."""
        made: Future[Message] = Future()

        def pass_on(done: Future[Message]) -> None:
            error = done.exception()
            if error is not None:
                made.set_exception(error)
            else:
                made.set_result(done.result())

        server.channel.ask(fields, arrays, TIMEOUT_S).add_done_callback(pass_on)
        return made

    def _record_exchanges(self, iteration: int) -> None:
        exchanges = [self._exchange(server, iteration) for server in self._servers]
        if self._record is not None:
            self._record(exchanges)

    def _exchange(self, server: _Server, iteration: int) -> Exchange:
        calls = list(server.calls)
        server.calls.clear()
        start_s, end_s = min(c.start_s for c in calls), max(c.end_s for c in calls)
        moving_s = sum(c.end_s - c.start_s - float(c.fields.get("held_s", 0.0)) for c in calls)
        return Exchange(
            server.name,
            iteration,
            sum(call.request_bytes for call in calls),
            sum(call.reply_bytes for call in calls),
            start_s,
            end_s,
            end_s - start_s - moving_s,
        )
