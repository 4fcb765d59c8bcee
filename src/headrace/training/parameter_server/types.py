"""Types shared by trainers and parameter servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from headrace.core.values import Value
from headrace.rpc.config import RpcLimits
from headrace.training.parameter_server.sharding import ShardLayout

Options = Mapping[str, Any]
"""Options of one parameter group, such as the learning rate."""

States = Mapping[str, tuple[np.ndarray, np.ndarray]]
"""Optimizer state by name: values, and which parameters have any."""


@dataclass(frozen=True)
class Exchange:
    """Data exchanged between a trainer and one server in a step.

    Attributes:
        server: Name of the server.
        iteration: Iteration of the training.
        sent_bytes: Bytes sent on the network.
        got_bytes: Bytes received.
        start_s: When gradients were sent.
        end_s: When parameters were received.
        held_s: Time without transfer: the server computed or waited for other trainers.
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
        """Transfer time of gradients and of parameters, in proportion to their bytes."""
        moving_s = max(0.0, self.end_s - self.start_s - self.held_s)
        there_s = moving_s * self.sent_bytes / max(self.sent_bytes + self.got_bytes, 1)
        return there_s, moving_s - there_s


Record = Callable[[Sequence[Exchange]], None]
"""Called with the exchanges of one step, one per server."""


@dataclass(frozen=True)
class Shared:
    """A model on the servers.

    Attributes:
        number: Number of the model, in the order of preparation.
        layout: Assignment to servers.
        groups: Parameter group of each parameter.
        dtype: Dtype of all values.
    """

    number: int
    layout: ShardLayout
    groups: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class GradientShard:
    """A trainer's data for a step.

    Attributes:
        number: Number of the step, from 1.
        iteration: Iteration of the training, for traces.
        gradients: All gradients, flat.
        present: Which parameters have gradients.
        options: Options of the optimizer, sent by rank 0.
        values: Parameters, if rank 0's script has changed them.
        encoded: Gradients of each server in 8 bits, sent instead of `gradients` if given.
    """

    number: int
    iteration: int
    gradients: np.ndarray
    present: np.ndarray
    options: Sequence[Options] | None = None
    values: np.ndarray | None = None
    encoded: Sequence[np.ndarray] | None = None


SHARD_LIMITS = RpcLimits(max_request_bytes=1 << 30)
"""Gradients and parameters of a whole shard are sent in one message."""


class ServerConfig(Value):
    """Configuration of a parameter server.

    Attributes:
        task: Name of the server.
        num_trainers: Number of trainers.
        credentials: File written by `Credentials.save`.
        ready: File to write, with port and process ID, when it is ready.
        host: Address to listen on.
        port: 0 for any free port.
        tls: Whether to use TLS; without it the token is sent unencrypted.
        num_threads: Threads of its optimizer.
        trace: Trace file; None for no trace.
        limits: Limits for trainers.
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
