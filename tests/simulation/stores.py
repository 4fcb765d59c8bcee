"""Stores in virtual time: real request handlers behind real reconnecting channels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from headrace.graph.store.client import StoreClient
from headrace.graph.store.embedding_service import Embeddings, EmbeddingService, GradientPush
from headrace.graph.store.embedding_table import EmbeddingSpec, make_embedding
from headrace.graph.store.service import StoreService
from headrace.graph.store.shard import Shard, ShardRows
from headrace.rpc.client import CHECK_LOG
from headrace.rpc.config import RpcLimits, TaskAddress
from headrace.rpc.credentials import Credentials
from headrace.rpc.errors import DiskFullError, StoreError, StoreLostError
from headrace.rpc.framing import Fields, Message, encode_request
from headrace.rpc.reconnect import RetryBudget, reach_store
from headrace.rpc.server import answer
from headrace.runtime.protocol.run_context import RunContext
from tests.simulation.cluster import Cluster

NUM_ROWS, DIM = 5, 2
FIRST = 10
IDS = np.arange(FIRST, FIRST + NUM_ROWS, dtype=np.int64)
SHARD = Shard(0, {}, {("node", "ids"): ShardRows(FIRST, IDS, "int64")})
_REQUEST_S = 10.0
_COLUMNS = ("e", "e.state0", "e.state1")


def spec_of(num_trainers: int) -> EmbeddingSpec:
    """The embedding of all jobs."""
    return EmbeddingSpec(dim=DIM, seed=3, num_trainers=num_trainers)


def open_service(folder: Path) -> StoreService:
    """The handlers of a store, which keeps its rows in a folder."""
    return StoreService(SHARD, RpcLimits(), embeddings=Embeddings(SHARD, folder))


class Link:
    """A connection between a process and a store, like `RpcChannel`; ends with either.

    Raises:
        StoreLostError: The store cannot be reached.
    """

    def __init__(self, cluster: Cluster, address: TaskAddress, timeout_s: float) -> None:
        self._cluster, self._world, self._address = cluster, cluster.world, address
        assert self._world.current is not None
        client = self._client = self._world.current.process
        body = self._body = cluster.stores[address.port]
        self._pending: dict[int, tuple[Future[Message], str]] = {}
        self._failure: StoreError | None = None
        self._number = 0
        # Resets of a push: while it waits for other trainers, or once it is done.
        self.resets_waiting = self.loses_reply = False
        machine = body.machine
        end_s, pause_s = self._world.now_s + timeout_s, 1.0
        while not self._is_reachable:
            # The kernel asks again after 1, 2 and 4 s.
            self._world.sleep(min(pause_s, end_s - self._world.now_s))
            if self._world.now_s >= end_s:
                raise StoreLostError(f"{address} did not accept the connection", CHECK_LOG)
            pause_s *= 2
        self._world.sleep(2 * cluster.latency_s(client.machine, machine))
        self._task, self._service = body.process, body.service
        if self._task is None or self._task.exit_code is not None or self._service is None:
            raise StoreLostError(f"{address} is gone (Connection refused)", CHECK_LOG)
        self._task.at_exit.append(self._closed_there)
        cluster.links.append(self)

    def ask(
        self, fields: Fields, arrays: Sequence[np.ndarray], timeout_s: float
    ) -> Future[Message]:
        """Send a request."""
        future: Future[Message] = Future()
        if self._failure is not None:
            future.set_exception(self._failure)
            return future
        self._number += 1
        number, operation = self._number, str(fields.get("op"))
        self._pending[number] = future, operation
        data = encode_request(number, fields, arrays)
        self._world.after(timeout_s, partial(self._to_client, partial(self._expire, number)))
        # The last piece of a trainer waits for the other trainers.
        waits = operation == "push" and fields["piece"] == int(fields["num_pieces"]) - 1
        self._send(True, partial(self._arrive, data, waits))
        return future

    @property
    def _is_reachable(self) -> bool:
        machine, now_s = self._body.machine, self._world.now_s
        is_cut = self._cluster.cut_until_s(self._client.machine, machine) > now_s
        return not is_cut and machine.is_alive and machine.frozen_until_s <= now_s

    @property
    def is_open(self) -> bool:
        """Whether it can be used."""
        return self._failure is None and not self._client.is_dead

    def close(self) -> None:
        """Close the connection."""
        self._end(StoreError(f"the connection to {self._address} was closed", "open a new one"))

    def reset(self) -> None:
        """The network drops the connection."""
        self._to_client(partial(self._end, self._lost("Connection reset by peer")))

    def _send(self, is_request: bool, call: Callable[[], None]) -> None:
        ends = self._client.machine, self._body.machine
        source, target = ends if is_request else ends[::-1]
        self._cluster.send(source, target, call, (self, is_request))

    def _to_client(self, call: Callable[[], None]) -> None:
        """Let the client handle something, once it is not stopped."""
        if self._client.thaws_s() > self._world.now_s and not self._client.is_dead:
            self._world.at(self._client.thaws_s(), partial(self._to_client, call))
        else:
            self._world.call_in(self._client, call)

    def _closed_there(self) -> None:
        if self._body.machine.is_alive:
            self._send(False, self.reset)

    # --- in the store -----------------------------------------------------------------------------

    def _arrive(self, data: bytes, waits: bool) -> None:
        process = self._task.process
        if self._task.exit_code is not None:
            self._closed_there()
        elif process.thaws_s() > self._world.now_s:
            self._world.at(process.thaws_s(), partial(self._arrive, data, waits))
        elif waits:
            if self.resets_waiting:
                self.resets_waiting = False
                self.reset()
            self._world.spawn(process, partial(self._serve, data, waits), "request")
        else:
            self._world.call_in(process, partial(self._serve, data))

    def _serve(self, data: bytes, waits: bool = False) -> None:
        reply = answer(self._service, memoryview(data))
        if waits and self.loses_reply:
            self.loses_reply = False
            self.reset()
        self._send(False, partial(self._to_client, partial(self._deliver, reply)))

    # --- in the client ----------------------------------------------------------------------------

    def _deliver(self, reply: Message) -> None:
        future, operation = self._pending.pop(reply.number, (None, ""))
        if future is None:
            return
        if "problem" in reply.fields:
            problem = f"{self._address} refused to {operation}: {reply.fields['problem']}"
            kind = DiskFullError if reply.fields.get("is_full") else StoreError
            future.set_exception(kind(problem, str(reply.fields.get("remedy"))))
        else:
            future.set_result(reply)

    def _expire(self, number: int) -> None:
        if number in self._pending:
            problem = f"{self._address} did not answer {self._pending[number][1]}"
            self._end(StoreLostError(problem, CHECK_LOG))

    def _lost(self, why: str) -> StoreLostError:
        return StoreLostError(f"{self._address} is gone ({why})", CHECK_LOG)

    def _end(self, error: StoreError) -> None:
        failure = self._failure = self._failure or error
        pending, self._pending = list(self._pending.values()), {}
        for future, _ in pending:
            future.set_exception(failure)


class Rows:
    """An embedding of a trainer in the store; kept in its checkpoints.

    Args:
        barrier: Waits for all trainers.
        notify: Called when the trainer waits for the store, and when it does no longer.
    """

    def __init__(
        self,
        cluster: Cluster,
        body: Any,
        run: RunContext,
        barrier: Callable[[], object],
        notify: Callable[[str, bool], None],
    ) -> None:
        world, machine = cluster.world, body.machine
        address = TaskAddress(
            task=body.task, machine=machine.name, host=machine.address, port=body.number
        )
        budget, credentials = None, cast(Credentials, None)
        if run.retry_budget_s:
            budget = RetryBudget(run.retry_budget_s, lambda: world.now_s, notify)
        channel = reach_store(address, credentials, _REQUEST_S, budget)
        self.client = StoreClient(channel, _REQUEST_S)
        self._rank, self.barrier = run.rank, barrier
        self._round = self._num_steps = 0
        self.client.embed("node", "e", spec_of(run.world_size)).result()

    def step(self, gradients: np.ndarray) -> None:
        """One sync round of all trainers."""
        self._round += 1
        is_made = False
        half = NUM_ROWS // 2
        pieces = [(IDS[:half], gradients[:half]), (IDS[half:], gradients[half:])]
        while not is_made:
            asked = [
                self.client.push(
                    "node", "e", GradientPush(self._rank, self._round, n, 2, True, 0.05, ids, own)
                )
                for n, (ids, own) in enumerate(pieces)
            ]
            # A store that has restarted meanwhile has lost the pieces of an incomplete round.
            for each in asked:
                is_made, self._num_steps = each.result()

    def read(self, column: str = "e") -> np.ndarray:
        """All rows."""
        return self.client.gather("node", column, IDS)

    def state_dict(self) -> dict[str, Any]:
        """Rows and states."""
        found = [torch.from_numpy(self.read(column)) for column in _COLUMNS]
        return {"rows": found, "num_steps": self._num_steps}

    def load_settings(self, state: dict[str, Any]) -> None:
        """Go on from the rows that the first trainer puts."""
        self._num_steps = int(state["num_steps"])

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put the rows."""
        self.load_settings(state)
        arrays = [each.numpy() for each in state["rows"]]
        self.client.put("node", "e", IDS, arrays, self._num_steps).result()


def row_gradients(rows: np.ndarray, epoch: int, batch: int, rank: int) -> np.ndarray:
    """Gradients of a trainer, which depend on the rows."""
    gradients: np.ndarray = (0.1 * rows + _row_draws(epoch, batch, rank)).astype(np.float32)
    return gradients


@lru_cache(maxsize=1024)
def _row_draws(epoch: int, batch: int, rank: int) -> np.ndarray:
    return np.random.default_rng((epoch, batch, rank, 77)).normal(size=(NUM_ROWS, DIM))


def undisturbed_rows(num_epochs: int, num_batches: int, num_trainers: int) -> tuple[float, ...]:
    """Final rows of a run to which nothing happens."""
    embedding = make_embedding(None, IDS, spec_of(num_trainers))
    service = EmbeddingService(embedding)
    for number in range(num_epochs * num_batches):
        rows = embedding.values.copy()
        epoch, batch = divmod(number, num_batches)
        for rank in range(num_trainers):
            gradients = row_gradients(rows, epoch, batch, rank)
            own = np.arange(NUM_ROWS)
            service.push(GradientPush(rank, number + 1, 0, 1, True, 0.05, own, gradients), 0.0)
    return tuple(embedding.values.reshape(-1).tolist())
