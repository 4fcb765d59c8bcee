"""Learnable node embeddings of a trainer, stored in the run's stores or in this process."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from pydantic import ValidationError

from headrace.core.errors import RunError, SpecError
from headrace.core.validation_errors import first_problem
from headrace.graph.format.partitioned_graph import PartitionedGraph
from headrace.graph.store.client import StoreClient
from headrace.graph.store.embedding_service import Embeddings
from headrace.graph.store.embedding_table import EmbeddingSpec
from headrace.graph.store.in_process import InProcessChannel
from headrace.graph.store.service import StoreService
from headrace.graph.store.shard import open_shard
from headrace.rpc.config import RpcLimits
from headrace.runtime.protocol.run_context import RunContext
from headrace.runtime.trainer.sampler_client import retry_budget_of
from headrace.training.ddp import STEP, from_first_trainer
from headrace.training.node_embedding import EmbeddingTable, NodeEmbedding

_EPS = {"adagrad": 1e-10}
"""Default epsilon of torch's optimizers, where it is not 1e-8."""


class NodeEmbeddings:
    """All embeddings of a trainer; without a run, all rows are in this process."""

    def __init__(self, run: RunContext | None, device: torch.device) -> None:
        self._run, self._device = run, device
        self._stores: list[StoreClient] = []
        self._tables: dict[str, EmbeddingTable] = {}

    def make(
        self, graph: PartitionedGraph, name: str, node_type: str | None, lr: float, **spec: Any
    ) -> tuple[NodeEmbedding, KeptTable]:
        """Create an embedding and its adapter for checkpoints; the process group exists already.

        Raises `SpecError` for a wrong node type or setting, and `StoreError` if a store is
        unreachable or settings differ between trainers.
        """
        if name in self._tables:
            raise SpecError(f"an embedding {name!r} exists already", "create it once and reuse it")
        if self._run is not None and self._run.shares_stores:
            raise SpecError(
                f"the embedding {name!r} would be in stores that other runs use too",
                "run without --stores: a run stores embeddings in its own stores",
            )
        node_type = _node_type(graph, name, node_type)
        rank, num_trainers = (0, 1) if self._run is None else (self._run.rank, self._run.world_size)
        table = EmbeddingTable(
            graph,
            node_type,
            name,
            _spec(name, node_type, num_trainers, spec),
            self._connect_stores(graph),
            rank,
            lr,
            time.monotonic,
        )
        self._tables[name] = table
        module = NodeEmbedding(table, self._device, lambda: STEP.weight)
        return module, KeptTable(table, rank, lambda: from_first_trainer(0.0, self._device))

    def step(self) -> None:
        """Apply the collected gradients of all embeddings; a collective call."""
        # Send to all stores before waiting, so that they work in parallel.
        for wait in [table.begin_step() for table in self._tables.values()]:
            wait()

    def close(self) -> None:
        """Disconnect from the stores."""
        for store in self._stores:
            store.close()
        self._stores.clear()

    def _connect_stores(self, graph: PartitionedGraph) -> list[StoreClient]:
        if not self._stores:
            run = self._run
            stores = () if run is None else run.stores_of(graph.folder, with_own=True)
            connect = {} if run is None else run.connect(stores, retry_budget_of(run))
            for part in range(graph.num_parts):
                if part in connect:
                    self._stores.append(connect[part]())
                elif run is None or run.world_size == 1:
                    self._stores.append(_in_process(graph, part))
                else:
                    raise SpecError(
                        f"no store serves part {part}, so its rows cannot be synchronised",
                        "start stores for all parts",
                    )
        return self._stores


class KeptTable:
    """Checkpoint adapter of an embedding: rank 0 restores the rows while the others wait."""

    def __init__(self, table: EmbeddingTable, rank: int, wait: Callable[[], object]) -> None:
        self._table, self._rank, self._wait = table, rank, wait

    def state_dict(self) -> dict[str, Any]:
        """Return all rows of all stores."""
        return self._table.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Write all rows to the stores; a collective call."""
        if self._rank == 0:
            self._table.load_state_dict(state)
        else:
            self._table.load_settings(state)
        try:
            self._wait()
        except RuntimeError:
            # Not an error of this script, so it may be resumed again.
            raise RunError(
                "other trainers exited while the rows of an embedding were restored",
                "see their logs, and resume the run",
            ) from None


def _in_process(graph: PartitionedGraph, part: int) -> StoreClient:
    shard = open_shard(graph, part)
    return StoreClient(
        InProcessChannel(StoreService(shard, RpcLimits(), embeddings=Embeddings(shard)))
    )


def _node_type(graph: PartitionedGraph, name: str, given: str | None) -> str:
    types = graph.node_types
    found = given or (name if name in types else types[0] if len(types) == 1 else None)
    if found not in types:
        what = f"there is no node type {given!r}" if given else f"{name!r} is not a node type"
        raise SpecError(what, f"pass node_type=..., one of {', '.join(types)}")
    return found


def _spec(name: str, node_type: str, num_trainers: int, given: Mapping[str, Any]) -> EmbeddingSpec:
    # The rows of a node differ between embeddings.
    text = f"{given['seed']}/{node_type}/{name}".encode()
    seed = int.from_bytes(hashlib.sha256(text).digest()[:8], "little")
    settings = {"eps": _EPS.get(given["optimizer"], 1e-8), **given, "seed": seed}
    try:
        return EmbeddingSpec(**settings, num_trainers=num_trainers)
    except ValidationError as error:
        raise SpecError(
            f"the embedding {name!r}: {first_problem(error)}", "see the arguments of ctx.embedding"
        ) from None
