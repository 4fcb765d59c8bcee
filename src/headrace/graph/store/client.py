"""Client of one graph store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from headrace.graph.sampling.hop import Hop, HopRequest
from headrace.graph.schema import TypeName
from headrace.graph.store.embedding_service import GradientPush
from headrace.graph.store.embedding_table import EmbeddingSpec
from headrace.rpc.client import Channel
from headrace.rpc.config import TaskAddress
from headrace.rpc.credentials import Credentials
from headrace.rpc.framing import Message
from headrace.rpc.reconnect import RetryBudget, reach_store

T = TypeVar("T")

TIMEOUT_S = 10.0

_EMBED_TIMEOUT_S = 120.0
"""Initialising many rows takes longer than `TIMEOUT_S`."""


@dataclass(frozen=True)
class StoreStatus:
    """State of a store.

    Attributes:
        feature_bytes: Size of all columns.
        resident_bytes: Column bytes in memory now; None if the system does not report it.
        warmed_bytes: File bytes read by the warmer since the store started.
        to_warm_bytes: File bytes the warmer reads in total.
        memory_bytes: Anonymous memory of the process.
        counts: Requests per operation, and `refused`, `failed` and `cut`.
    """

    part: int
    num_edges: int
    feature_bytes: int
    resident_bytes: int | None
    warmed_bytes: int
    to_warm_bytes: int
    memory_bytes: int
    counts: Mapping[str, int]


class StoreClient:
    """Sends requests to one store; several may be in flight. A `HopSource`.

    Every call raises `StoreError`, which names the store and its machine, if the store refuses
    the request, times out or is unreachable.
    """

    def __init__(self, channel: Channel, timeout_s: float = TIMEOUT_S) -> None:
        self._channel = channel
        self._timeout_s = timeout_s

    @classmethod
    def connect(
        cls,
        address: TaskAddress,
        credentials: Credentials,
        timeout_s: float = TIMEOUT_S,
        retry_budget: RetryBudget | None = None,
    ) -> StoreClient:
        """Open a connection to a store.

        Requests are retried within `retry_budget` while the store restarts; without one they fail.

        Raises:
            StoreError: The store is unreachable or rejects the client.
        """
        return cls(reach_store(address, credentials, timeout_s, retry_budget), timeout_s)

    def __enter__(self) -> StoreClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def sample(self, request: HopRequest) -> Hop:
        """Sample neighbours of nodes in the store's graph partition."""
        return self.sample_soon(request).result()

    hop = sample

    def sample_soon(self, request: HopRequest) -> Future[Hop]:
        """Non-blocking `sample`."""
        rule = request.rule
        fields = {
            "op": "sample",
            "edge_type": list(request.edge_type),
            "fanout": request.fanout,
            "key": request.key,
            "replace": rule.replace,
            "disjoint": rule.disjoint,
            "last": rule.last,
            "edge_ids": rule.edge_ids,
            "labor": rule.labor,
            "has_trees": request.trees is not None,
            "has_bounds": request.bounds is not None,
            "weight": request.weight,
            "time": request.time,
            "far": rule.far,
            "near": None if request.near is None else list(request.near),
        }
        arrays = [np.asarray(request.nodes, np.int64)]
        arrays += [
            np.asarray(a, np.int64) for a in (request.trees, request.bounds) if a is not None
        ]
        return _then(self._channel.ask(fields, arrays, self._timeout_s), lambda m: Hop(*m.arrays))

    def gather(
        self, of: TypeName, column: str, ids: np.ndarray, dims: np.ndarray | None = None
    ) -> np.ndarray:
        """Read rows of a column as they are stored; `bfloat16` as its bits (`uint16`).

        Rows of different lengths (`sparse`) are concatenated.

        Args:
            of: Node type or edge type.
            column: Name of the column.
            ids: New node ids, or edge ids as hops return them; any order, duplicates allowed.
            dims: Dimensions of each row to read; None for all.
        """
        return self.gather_soon(of, column, ids, dims).result()

    def gather_soon(
        self, of: TypeName, column: str, ids: np.ndarray, dims: np.ndarray | None = None
    ) -> Future[np.ndarray]:
        """Non-blocking `gather`."""
        fields = {"op": "gather", "of": _plain(of), "column": column, "has_dims": dims is not None}
        arrays: list[np.ndarray] = [np.asarray(ids, np.int64)]
        if dims is not None:
            arrays.append(np.asarray(dims, np.int64))
        return _then(self._channel.ask(fields, arrays, self._timeout_s), lambda m: m.arrays[0])

    def embed(self, of: str, column: str, spec: EmbeddingSpec) -> Future[None]:
        """Create an embedding; a no-op if it exists."""
        fields = {"op": "embed", "of": of, "column": column, "spec": spec.model_dump(mode="json")}
        return _then(self._channel.ask(fields, (), _EMBED_TIMEOUT_S), lambda _: None)

    def push(self, of: str, column: str, gradient_push: GradientPush) -> Future[tuple[bool, int]]:
        """Push a piece of the gradients of a sync round, by new node ids.

        Returns whether the sync round is complete, and the number of steps so far.
        """
        fields = {
            "op": "push",
            "of": of,
            "column": column,
            "rank": gradient_push.rank,
            "round": gradient_push.round,
            "piece": gradient_push.piece,
            "num_pieces": gradient_push.num_pieces,
            "has_any": gradient_push.has_any,
            "lr": gradient_push.lr,
        }
        reply = self._channel.ask(
            fields, [gradient_push.rows, gradient_push.gradients], self._timeout_s
        )
        return _then(reply, lambda m: (m.fields["is_made"], m.fields["num_steps"]))

    def put(
        self, of: str, column: str, ids: np.ndarray, arrays: Sequence[np.ndarray], num_steps: int
    ) -> Future[None]:
        """Set embedding rows and their optimizer state as of step `num_steps`."""
        fields = {"op": "put", "of": of, "column": column, "num_steps": num_steps}
        return _then(self._channel.ask(fields, [ids, *arrays], self._timeout_s), lambda _: None)

    def status(self) -> StoreStatus:
        """Query the state of the store."""
        return self.status_soon().result()

    def status_soon(self) -> Future[StoreStatus]:
        """Non-blocking `status`."""
        reply = self._channel.ask({"op": "status"}, (), self._timeout_s)
        return _then(reply, lambda m: StoreStatus(**m.fields))

    def close(self) -> None:
        """Close the connection; pending requests fail."""
        self._channel.close()


def _plain(of: TypeName) -> str | list[str]:
    return of if isinstance(of, str) else list(of)


def _then(reply: Future[Message], change: Callable[[Message], T]) -> Future[T]:
    """Return a future with `change` applied to the reply."""
    made: Future[T] = Future()

    def forward(done: Future[Message]) -> None:
        error = done.exception()
        if error is not None:
            made.set_exception(error)
            return
        try:
            made.set_result(change(done.result()))
        except Exception as failure:
            made.set_exception(failure)

    reply.add_done_callback(forward)
    return made
