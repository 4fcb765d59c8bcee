"""A trainer's side of the parameter servers: one flat vector, whoever has which part of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headrace.graph.service.channel import Address, Channel
from headrace.graph.service.errors import StoreError
from headrace.graph.service.measuring import Call, MeasuredChannel
from headrace.graph.service.messages import Message
from headrace.graph.service.patience import Patience, reach_store
from headrace.graph.service.security import Credentials
from headrace.training.servers.config import ServerAt
from headrace.training.servers.layout import Layout
from headrace.training.servers.learning import States
from headrace.training.servers.recipes import SCALARS, Options

TIMEOUT_S = 10.0
"""Servers answer sooner, be it that others are late."""

PATIENCE_S = 30.0
"""How long a server may be out of reach."""

Clock = Callable[[], float]


@dataclass(frozen=True)
class Exchange:
    """What a step has moved between a trainer and one server.

    Attributes:
        server: Name of the server.
        iteration: Of the training.
        sent_bytes: On the network ...
        got_bytes: ... and back.
        start_s: When gradients were sent.
        end_s: When parameters were there.
        held_s: How much of that time the server had them, or waited for others.
    """

    server: str
    iteration: int
    sent_bytes: int
    got_bytes: int
    start_s: float
    end_s: float
    held_s: float

    @property
    def moving_s(self) -> tuple[float, float]:
        """Time on the network: gradients, and parameters; shared by their bytes."""
        moving_s = max(0.0, self.end_s - self.start_s - self.held_s)
        there_s = moving_s * self.sent_bytes / max(self.sent_bytes + self.got_bytes, 1)
        return there_s, moving_s - there_s


Note = Callable[[Sequence[Exchange]], None]


@dataclass(frozen=True)
class Shared:
    """A model that servers have.

    Attributes:
        number: Of the model, in the order in which they were prepared.
        layout: Who has what.
        groups: Of which group each parameter is.
        dtype: Of all numbers.
    """

    number: int
    layout: Layout
    groups: tuple[int, ...]
    dtype: str


@dataclass(eq=False)
class _Server:
    """One server, and what was asked of it in this step."""

    name: str
    channel: Channel
    calls: list[Call] = field(default_factory=list)


class Servers:
    """All servers of a run.

    Args:
        channels: How to reach each, by name.
        rank: Of this trainer.
        clock: Seconds.
        timeout_s: How long to wait for other trainers.
        note: Told of the exchanges of every step, one per server; none if nobody wants to know.
    """

    def __init__(
        self,
        channels: Mapping[str, Channel],
        rank: int,
        clock: Clock,
        timeout_s: float,
        note: Note | None = None,
    ) -> None:
        self.rank = rank
        self._clock, self._timeout_s, self._note = clock, timeout_s, note
        self._servers = [_Server(name, channel) for name, channel in channels.items()]
        for server in self._servers:
            add = server.calls.append
            server.channel = MeasuredChannel(server.channel, clock, lambda add=add: add)  # type: ignore[misc]

    @classmethod
    def connect(
        cls,
        places: Sequence[ServerAt],
        credentials: Credentials,
        rank: int,
        clock: Clock,
        timeout_s: float,
        note: Note | None = None,
        tell: Callable[[str, bool], None] = lambda _name, _waits: None,
    ) -> Servers:
        """Reach all servers.

        Raises:
            StoreError: One cannot be reached, or does not let this trainer in.
        """
        patience = Patience(PATIENCE_S, clock, tell)
        channels = {
            at.task: reach_store(
                Address(at.task, at.machine, at.host, at.port), credentials, TIMEOUT_S, patience
            )
            for at in places
        }
        return cls(channels, rank, clock, timeout_s, note)

    def __len__(self) -> int:
        return len(self._servers)

    def begin(
        self, shared: Shared, optimizer: str, options: Sequence[Options], values: np.ndarray
    ) -> np.ndarray:
        """Begin a model; all trainers must.

        Args:
            shared: The model.
            optimizer: Name of torch's optimizer.
            options: Of each of its groups.
            values: First values, of which those of rank 0 are taken.

        Returns:
            Values of rank 0.

        Raises:
            StoreError: Trainers have different models, or a server is gone.
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

        found = self._collect(shared, 0, [(fields, arrays(p)) for p in range(len(self))])
        for server in self._servers:
            server.calls.clear()
        return found

    def step(
        self,
        shared: Shared,
        number: int,
        iteration: int,
        gradients: np.ndarray,
        present: np.ndarray,
        options: Sequence[Options] | None = None,
        values: np.ndarray | None = None,
    ) -> np.ndarray:
        """Bring gradients, and get parameters once all trainers have brought theirs.

        Args:
            shared: The model.
            number: Of the step, from 1.
            iteration: Of the training, for traces.
            gradients: All of them, flat.
            present: Which parameters have any.
            options: Of the optimizer, if they may have changed; those of rank 0 count.
            values: Parameters, if rank 0 has changed them by hand.

        Raises:
            StoreError: Other trainers do not come, or a server is gone.
        """
        fields: dict[str, Any] = {
            "op": "gradients", "model": shared.number, "rank": self.rank, "step": number,
            "iteration": iteration, "options": None if options is None else list(options),
        }  # fmt: skip
        asked = []
        for server in range(len(self)):
            own = slice(*shared.layout.bounds(server))
            has = present[[piece.parameter for piece in shared.layout.pieces(server)]]
            arrays = [gradients[own], has] + ([] if values is None else [values[own]])
            asked.append((fields, arrays))
        found = self._collect(shared, number, asked)
        exchanges = [self._exchange(server, iteration) for server in self._servers]
        if self._note is not None:
            self._note(exchanges)
        return found

    def state(self, shared: Shared) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """What the optimizers keep: by name, values of all numbers or of all parameters."""
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
                owners = [piece.parameter for piece in layout.pieces(server)]
                own, own_has = reply.arrays
                has[owners] = own_has
                values[owners if name in SCALARS else slice(*layout.bounds(server))] = own
            found[name] = (values, has)
        return found

    def load(self, shared: Shared, states: States) -> None:
        """Let the optimizers keep this instead, as `state` gave it."""
        layout = shared.layout
        self._ask_all({"op": "forget", "model": shared.number})
        for name, (values, has) in states.items():
            fields = {"op": "load", "model": shared.number, "name": name}
            arrays = []
            for server in range(len(self)):
                owners = [piece.parameter for piece in layout.pieces(server)]
                own = values[owners if name in SCALARS else slice(*layout.bounds(server))]
                arrays.append([own, has[owners]])
            self._ask_all(fields, arrays)

    def close(self) -> None:
        """Leave all servers."""
        for server in self._servers:
            server.channel.close()

    def _collect(
        self, shared: Shared, number: int, asked: Sequence[tuple[Mapping[str, Any], Any]]
    ) -> np.ndarray:
        """Ask all servers at once, then wait for what each has after a step."""
        end_s = self._clock() + self._timeout_s
        waiting = [
            self._ask(server, fields, arrays)
            for server, (fields, arrays) in zip(self._servers, asked, strict=True)
        ]
        found = np.empty(shared.layout.num_elements, shared.dtype)
        wait = {"op": "wait", "model": shared.number, "step": number}
        for p, server in enumerate(self._servers):
            reply = waiting[p].result()
            while not reply.arrays:
                if self._clock() > end_s:
                    late = ", ".join(map(str, reply.fields["missing"]))
                    raise StoreError(
                        f"{server.name} has no gradients of rank {late} "
                        f"after {self._timeout_s:.0f} s",
                        "see that all trainers call step() as often",
                    )
                reply = self._ask(server, wait, ()).result()
            found[slice(*shared.layout.bounds(p))] = reply.arrays[0]
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
        """Ask one server; whoever has the answer knows that the call was noted before."""
        made: Future[Message] = Future()

        def pass_on(done: Future[Message]) -> None:
            error = done.exception()
            if error is not None:
                made.set_exception(error)
            else:
                made.set_result(done.result())

        server.channel.ask(fields, arrays, TIMEOUT_S).add_done_callback(pass_on)
        return made

    def _exchange(self, server: _Server, iteration: int) -> Exchange:
        calls = list(server.calls)
        server.calls.clear()
        return Exchange(
            server.name,
            iteration,
            sum(call.request_bytes for call in calls),
            sum(call.reply_bytes for call in calls),
            min(call.start_s for call in calls),
            max(call.end_s for call in calls),
            sum(float(call.fields.get("held_s", 0.0)) for call in calls),
        )
