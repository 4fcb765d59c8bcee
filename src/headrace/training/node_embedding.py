"""Learnable node embeddings as a torch module; the rows are in the graph stores.

All trainers make a step together. Each pushes the weighted gradients of its batch to the stores of
the rows. A store sums them in the order of ranks, makes one step of its sparse optimizer, and then
replies. So rows read after a step are updated, and do not depend on the order of arrival.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from headrace.core.errors import SpecError
from headrace.graph.format.partitioned_graph import PartitionedGraph
from headrace.graph.store.client import StoreClient
from headrace.graph.store.embedding_service import GradientPush
from headrace.graph.store.embedding_table import EmbeddingSpec, sum_duplicates
from headrace.training.ddp import TIMEOUT_S

T = TypeVar("T")

_PIECE_BYTES = 16 << 20
"""Size of one request or reply: several are in flight, and stores allow 64 MiB."""

_MAX_UNUSED = 1000
"""Batches of collected gradients after which a missing step() is reported."""


class EmbeddingTable:
    """All rows of an embedding; all trainers must create it, in the same order.

    Args:
        graph: The graph.
        node_type: Node type with the embedding.
        name: Name of the embedding.
        spec: Dimension and optimizer.
        stores: Store of each graph partition.
        rank: Rank of this trainer.
        lr: Learning rate, may be changed between steps; that of rank 0 is used.
        clock: Returns seconds.

    Raises:
        StoreError: A store is unreachable, or trainers disagree.
    """

    def __init__(
        self,
        graph: PartitionedGraph,
        node_type: str,
        name: str,
        spec: EmbeddingSpec,
        stores: Sequence[StoreClient],
        rank: int,
        lr: float,
        clock: Callable[[], float],
    ) -> None:
        self.node_type, self.name, self.spec, self.lr = node_type, name, spec, lr
        self._clock = clock
        self.num_nodes = graph.num_nodes_of(node_type)
        self._graph, self._offsets = graph, graph.offsets(node_type)
        self._stores, self._rank = stores, rank
        self._num_rounds = self._num_steps = 0
        self._gradients: list[tuple[np.ndarray, np.ndarray]] = []
        _all([store.embed(node_type, name, spec) for store in stores])

    def gather(self, original_ids: np.ndarray) -> np.ndarray:
        """Rows of nodes, `float32`."""
        return self._read(self.name, original_ids)

    def collect(self, original_ids: np.ndarray, gradients: np.ndarray) -> None:
        """Add gradients of rows to the next step; ids may be repeated."""
        self._gradients.append((self._graph.to_new(self.node_type, original_ids), gradients))
        if len(self._gradients) > _MAX_UNUSED:
            raise SpecError(
                f"gradients of {_MAX_UNUSED} batches were collected for the embedding "
                f"{self.name!r} without a step",
                "pass the optimizer to ctx.prepare, whose step() also updates embeddings, or call "
                "step() of the embedding",
            )

    def forget(self) -> None:
        """Drop the collected gradients."""
        self._gradients.clear()

    def begin_step(self) -> Callable[[], None]:
        """Push collected gradients, on all trainers; the returned function waits for the step."""
        collected, self._gradients = self._gradients, []
        self._num_rounds += 1
        if collected:
            ids, gradients = (np.concatenate(each) for each in zip(*collected, strict=True))
            ids, sums = sum_duplicates(ids, gradients)
        else:
            ids, sums = np.empty(0, np.int64), np.empty((0, self.spec.dim), np.float32)
        cuts = np.searchsorted(ids, self._offsets)
        wanted = [
            (store, self._pieces(ids[begin:end], sums[begin:end], bool(collected)))
            for store, begin, end in zip(self._stores, cuts, cuts[1:], strict=False)
        ]
        first = [self._push(store, pieces) for store, pieces in wanted]

        def wait() -> None:
            for (store, pieces), asked in zip(wanted, first, strict=True):
                self._num_steps = self._wait_for_round(store, pieces, asked)

        return wait

    def state_dict(self) -> dict[str, Any]:
        """All rows and their optimizer state, by original ids; call it between two steps."""
        names = [self.name, *(f"{self.name}.state{i}" for i in range(self.spec.num_states))]
        rows, *states = map(torch.from_numpy, self._read_all(names))
        return {
            "rows": rows,
            "states": states,
            "num_steps": self._num_steps,
            "optimizer": self.spec.optimizer,
            "lr": self.lr,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore all rows and their optimizer state; one trainer suffices."""
        self.load_settings(state)
        arrays = [each.numpy() for each in (state["rows"], *state["states"])]
        new = self._graph.to_new(self.node_type, np.arange(self.num_nodes))
        order = np.argsort(new)
        asked: list[Future[None]] = []
        for part, store in enumerate(self._stores):
            for begin, end in self._ranges(self._offsets[part], self._offsets[part + 1]):
                chosen = order[begin:end]
                pieces = [array[chosen] for array in arrays]
                ids = np.arange(begin, end)
                asked.append(store.put(self.node_type, self.name, ids, pieces, self._num_steps))
                if len(asked) == 4:
                    _all(asked)
                    asked.clear()
        _all(asked)

    def load_settings(self, state: Mapping[str, Any]) -> None:
        """Restore the settings of a state, without its rows."""
        shape = (self.num_nodes, self.spec.dim)
        if state["optimizer"] != self.spec.optimizer:
            raise ValueError(f"its optimizer was {state['optimizer']}")
        if any(tuple(each.shape) != shape for each in (state["rows"], *state["states"])):
            raise ValueError(f"it had rows of shape {tuple(state['rows'].shape)}, not {shape}")
        self._num_steps, self.lr = int(state["num_steps"]), float(state["lr"])
        self.forget()

    def _read(self, column: str, original_ids: np.ndarray) -> np.ndarray:
        ids = self._graph.to_new(self.node_type, original_ids)
        rows = np.empty((len(ids), self.spec.dim), np.float32)
        partitions = np.searchsorted(self._offsets, ids, side="right") - 1
        asked: list[tuple[np.ndarray, Future[np.ndarray]]] = []
        for part, store in enumerate(self._stores):
            own = np.flatnonzero(partitions == part)
            for begin, end in self._ranges(0, len(own)):
                places = own[begin:end]
                asked.append((places, store.gather_soon(self.node_type, column, ids[places])))
        for places, found in asked:
            rows[places] = found.result()
        return rows

    def _read_all(self, columns: Sequence[str]) -> list[np.ndarray]:
        """All rows of some columns, by original ids; stores are read in parallel."""
        found = [np.empty((self.num_nodes, self.spec.dim), np.float32) for _ in columns]
        asked = [
            (rows[begin:end], store.gather_soon(self.node_type, column, np.arange(begin, end)))
            for column, rows in zip(columns, found, strict=True)
            for part, store in enumerate(self._stores)
            for begin, end in self._ranges(self._offsets[part], self._offsets[part + 1])
        ]
        for place, future in asked:
            place[:] = future.result()
        new = self._graph.to_new(self.node_type, np.arange(self.num_nodes))
        return [rows[new] for rows in found]

    def _pieces(self, ids: np.ndarray, sums: np.ndarray, has_any: bool) -> list[GradientPush]:
        ranges = list(self._ranges(0, len(ids))) or [(0, 0)]
        return [
            GradientPush(
                self._rank, self._num_rounds, number, len(ranges), has_any, self.lr,
                ids[begin:end], sums[begin:end],
            )
            for number, (begin, end) in enumerate(ranges)
        ]  # fmt: skip

    def _push(
        self, store: StoreClient, pieces: Sequence[GradientPush]
    ) -> list[Future[tuple[bool, int]]]:
        return [store.push(self.node_type, self.name, piece) for piece in pieces]

    def _wait_for_round(
        self,
        store: StoreClient,
        pieces: Sequence[GradientPush],
        asked: Sequence[Future[tuple[bool, int]]],
    ) -> int:
        """Wait until a store has completed the sync round; returns its number of steps."""
        deadline_s = self._clock() + TIMEOUT_S
        while True:
            is_made, num_steps = _all(asked)[-1]
            if is_made:
                return num_steps
            if self._clock() >= deadline_s:
                break
            # All of them: a restarted store has none.
            asked = self._push(store, pieces)
        raise SpecError(
            f"other trainers have pushed no gradients of the embedding {self.name!r} for "
            f"{TIMEOUT_S:.0f} s",
            "call step() equally often on all trainers",
        )

    def _ranges(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """Split a range of rows into ranges that fit a request with all their states."""
        row_bytes = 8 + 4 * self.spec.dim * (1 + self.spec.num_states)
        size = max(1, _PIECE_BYTES // row_bytes)
        for start in range(int(begin), int(end), size):
            yield start, min(start + size, int(end))


class NodeEmbedding(nn.Module):
    """Learnable rows of nodes; calling it returns the rows of a batch's nodes.

    It has no parameters: the stores hold and optimize the rows.
    """

    def __init__(
        self, table: EmbeddingTable, device: torch.device, weight: Callable[[], float]
    ) -> None:
        super().__init__()
        self._table, self._device, self._weight = table, device, weight

    def forward(self, n_id: Tensor) -> Tensor:
        """Rows of nodes by original ids, as in `n_id` of batches.

        With gradients enabled, the gradients of the rows are collected for the next step.
        """
        ids = n_id.detach().cpu().numpy().reshape(-1)

        def read() -> Tensor:
            rows = self._table.gather(ids).reshape(*n_id.shape, self._table.spec.dim)
            return torch.from_numpy(rows).to(self._device)

        if not torch.is_grad_enabled():
            return read()
        anchor = torch.empty(0, device=self._device, requires_grad=True)
        collect = partial(self._collect, ids)
        rows: Tensor = _Collected.apply(anchor, read, collect)  # type: ignore[no-untyped-call]
        return rows

    def rows(self, ids: Tensor | None = None) -> Tensor:
        """Rows by original ids, without gradients; all rows if `ids` is None."""
        wanted = np.arange(self._table.num_nodes) if ids is None else ids.cpu().numpy()
        return torch.from_numpy(self._table.gather(wanted))

    def step(self) -> None:
        """Apply the collected gradients; all trainers must call it.

        The optimizer given to `ctx.prepare` does this in each step.
        """
        self._table.begin_step()()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the collected gradients."""
        self._table.forget()

    @property
    def lr(self) -> float:
        """Learning rate; may be changed between steps, that of rank 0 is used."""
        return self._table.lr

    @lr.setter
    def lr(self, lr: float) -> None:
        self._table.lr = lr

    def extra_repr(self) -> str:
        """Arguments shown by `print`."""
        table = self._table
        return f"{table.name!r}, {table.num_nodes} x {table.spec.dim}, {table.spec.optimizer}"

    def __deepcopy__(self, memo: dict[int, Any]) -> NodeEmbedding:
        # A copy of a model uses the same rows.
        return self

    def _collect(self, ids: np.ndarray, gradient: Tensor) -> None:
        weighed = gradient.detach().to("cpu", torch.float32) * self._weight()
        self._table.collect(ids, weighed.reshape(len(ids), self._table.spec.dim).numpy())


class _Collected(torch.autograd.Function):
    """Returns rows and passes their gradients to a callback."""

    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, read: Callable[[], Tensor], collect: Callable[[Tensor], None]
    ) -> Tensor:
        ctx.collect = collect
        return read()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, None]:
        ctx.collect(gradients[0])
        return None, None, None


def _all(asked: Sequence[Future[T]]) -> list[T]:
    return [each.result() for each in asked]
