"""What a trainer and parameter servers have in common: a model, a step, and what it moves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from headrace.core.values import Value
from headrace.rpc.limits import RpcLimits
from headrace.training.parameter_server.sharding import ShardLayout

Options = Mapping[str, Any]
"""Of one group of parameters: learning rate and the like."""

States = Mapping[str, tuple[np.ndarray, np.ndarray]]
"""What an optimizer keeps, by name: values, and which parameters have any."""


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
        held_s: How much of that time nothing moved: the server worked or waited for others.
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
"""Takes the exchanges of one step, one per server."""


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
    layout: ShardLayout
    groups: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class GradientShard:
    """What a trainer has for a step.

    Attributes:
        number: Of the step, from 1.
        iteration: Of the training, for traces.
        gradients: All of them, flat.
        present: Which parameters have any.
        options: Of the optimizer, if they may have changed; those of rank 0 count.
        values: Parameters, if rank 0 has changed them by hand.
    """

    number: int
    iteration: int
    gradients: np.ndarray
    present: np.ndarray
    options: Sequence[Options] | None = None
    values: np.ndarray | None = None


SHARD_LIMITS = RpcLimits(max_request_bytes=1 << 30)
"""Gradients of a whole shard come at once, and so do its parameters."""


class ServerAddress(Value):
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
    limits: RpcLimits = SHARD_LIMITS
