"""The client of one store, as a sampler uses it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from headrace.graph.sampling.hop import Hop, HopRequest
from headrace.graph.store.embedding_service import GradientPush
from headrace.graph.store.embedding_table import EmbeddingSpec
from headrace.graph.store.shard import Owner
from headrace.rpc.channel import Address, Channel
from headrace.rpc.credentials import Credentials
from headrace.rpc.framing import Message
from headrace.rpc.reconnect import RetryBudget, reach_store

T = TypeVar("T")

TIMEOUT_S = 10.0

_EMBED_S = 120.0
"""First values of very many rows take a while."""


@dataclass(frozen=True)
class StoreStatus:
    """How a store is.

    Attributes:
        part: Which part it serves.
        num_edges: Edges of all types in the part.
        feature_bytes: Size of all columns.
        resident_bytes: What of them is in memory now; none if the system does not tell.
        warmed_bytes: What the store has read of its files since it started ...
        to_warm_bytes: ... and what it will read.
        memory_bytes: Memory of the process that no file backs.
        counts: Requests so far per operation; also `refused` and `failed`.
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
    """Asks one store; several requests may be on their way.

    Every call fails with `StoreError`, which names the store and its machine, if the store
    refuses, does not answer in time or is gone. It is a `HopSource`.

    Args:
        channel: How to reach the store.
        timeout_s: Of every request.
    """

    def __init__(self, channel: Channel, timeout_s: float = TIMEOUT_S) -> None:
        self._channel = channel
        self._timeout_s = timeout_s

    @classmethod
    def connect(
        cls,
        address: Address,
        credentials: Credentials,
        timeout_s: float = TIMEOUT_S,
        retry_budget: RetryBudget | None = None,
    ) -> StoreClient:
        """Open a stream to a store.

        Args:
            address: Where the store is.
            credentials: Of this run.
            timeout_s: Of every request.
            retry_budget: With a store that is started again; none to fail when it is gone.

        Raises:
            StoreError: The store cannot be reached, or does not let this client in.
            MissingExtraError: pyarrow is not installed.
        """
        return cls(reach_store(address, credentials, timeout_s, retry_budget), timeout_s)

    def __enter__(self) -> StoreClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def sample(self, request: HopRequest) -> Hop:
        """Choose neighbours of nodes that the store owns."""
        return self.sample_soon(request).result()

    hop = sample

    def sample_soon(self, request: HopRequest) -> Future[Hop]:
        """Like `sample`, without waiting."""
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
            "has_trees": request.trees is not None,
            "has_bounds": request.bounds is not None,
            "weight": request.weight,
            "time": request.time,
        }
        arrays = [np.asarray(request.nodes, np.int64)]
        arrays += [
            np.asarray(a, np.int64) for a in (request.trees, request.bounds) if a is not None
        ]
        return _then(self._channel.ask(fields, arrays, self._timeout_s), lambda m: Hop(*m.arrays))

    def gather(
        self, of: Owner, column: str, ids: np.ndarray, dims: np.ndarray | None = None
    ) -> np.ndarray:
        """Rows of values, in the type in which they are stored.

        Args:
            of: Node type or edge type.
            column: Name of the column.
            ids: New ids of nodes, or ids of edges as hops give them; in any order, repeated or not.
            dims: Which numbers of each row; all if none.

        Returns:
            An array of its own; `bfloat16` as its bits (`uint16`).
        """
        return self.gather_soon(of, column, ids, dims).result()

    def gather_soon(
        self, of: Owner, column: str, ids: np.ndarray, dims: np.ndarray | None = None
    ) -> Future[np.ndarray]:
        """Like `gather`, without waiting."""
        fields = {"op": "gather", "of": _plain(of), "column": column, "has_dims": dims is not None}
        arrays: list[np.ndarray] = [np.asarray(ids, np.int64)]
        if dims is not None:
            arrays.append(np.asarray(dims, np.int64))
        return _then(self._channel.ask(fields, arrays, self._timeout_s), lambda m: m.arrays[0])

    def embed(self, of: str, column: str, spec: EmbeddingSpec) -> Future[None]:
        """Have learnable rows made; nothing happens if they are there."""
        fields = {"op": "embed", "of": of, "column": column, "spec": spec.model_dump(mode="json")}
        return _then(self._channel.ask(fields, (), _EMBED_S), lambda _: None)

    def push(self, of: str, column: str, gradient_push: GradientPush) -> Future[tuple[bool, int]]:
        """Bring a piece of the gradients of a round, by new ids of nodes.

        Returns:
            Whether the round is made, and how many steps were.
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
        asked = self._channel.ask(
            fields, [gradient_push.rows, gradient_push.gradients], self._timeout_s
        )
        return _then(asked, lambda m: (m.fields["is_made"], m.fields["num_steps"]))

    def put(
        self, of: str, column: str, ids: np.ndarray, arrays: Sequence[np.ndarray], num_steps: int
    ) -> Future[None]:
        """Set learnable rows and the state of their optimizer, after some number of steps."""
        fields = {"op": "put", "of": of, "column": column, "num_steps": num_steps}
        return _then(self._channel.ask(fields, [ids, *arrays], self._timeout_s), lambda _: None)

    def status(self) -> StoreStatus:
        """How the store is."""
        return self.status_soon().result()

    def status_soon(self) -> Future[StoreStatus]:
        """Like `status`, without waiting."""
        asked = self._channel.ask({"op": "status"}, (), self._timeout_s)
        return _then(asked, lambda m: StoreStatus(**m.fields))

    def close(self) -> None:
        """Close the stream; requests that wait fail."""
        self._channel.close()


def _plain(of: Owner) -> str | list[str]:
    return of if isinstance(of, str) else list(of)


def _then(asked: Future[Message], change: Callable[[Message], T]) -> Future[T]:
    """A future of what is made from another's result."""
    made: Future[T] = Future()

    def pass_on(done: Future[Message]) -> None:
        error = done.exception()
        if error is not None:
            made.set_exception(error)
            return
        try:
            made.set_result(change(done.result()))
        except Exception as mistake:
            made.set_exception(mistake)

    asked.add_done_callback(pass_on)
    return made
