"""Trainer side of the samplers: prefetches, merges and converts batches to PyG."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, Full, Queue
from types import TracebackType
from typing import Any, Self

from headrace.core.errors import MissingExtraError
from headrace.graph.format.partitioned_graph import as_tensor
from headrace.graph.sampler_worker.channels.errors import PrefetchError
from headrace.graph.sampler_worker.channels.shm import (
    SubBatchReceiver,
)
from headrace.graph.sampler_worker.channels.sub_batch import Key, SubBatch
from headrace.graph.sampler_worker.merge import Blocks, merge
from headrace.graph.sampler_worker.scoring import NewestModel
from headrace.graph.sampler_worker.sub_batch_builder import Clock
from headrace.graph.sources.arrays import EDGE, NODE
from headrace.rpc.config import TELL_AFTER_S

_POLL_INTERVAL_S = 0.2
_JOIN_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class PrefetchReport:
    """Metrics since the measurement started.

    Attributes:
        waited_s: Time in which the trainer had no batch.
        figures: Sums over all sub-batches: seconds per stage, bytes, cache hits.
    """

    num_batches: int
    elapsed_s: float
    waited_s: float
    figures: dict[str, float] = field(default_factory=dict)

    @property
    def idle_share(self) -> float:
        """Fraction of the time in which the trainer had no batch."""
        return self.waited_s / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def cache_hit_rate(self) -> float:
        """Fraction of remote rows found in a cache."""
        hits = self.figures.get("cache_hits", 0.0)
        return hits / max(hits + self.figures.get("cache_misses", 0.0), 1.0)


class Prefetcher:
    """Batches of all epochs, merged from the sub-batches of a trainer's samplers.

    An iteration over it is one epoch; samplers prefetch the next epoch meanwhile. After an early
    `break`, the next iteration continues in the same epoch.

    `shards` is the number of sub-batches of each sampler per batch, by default one. `notify` is
    called with the name of the sampler that blocks the trainer, and True when the wait becomes
    long, False when it ends.
    """

    def __init__(
        self,
        receivers: Sequence[SubBatchReceiver],
        batches_per_epoch: int,
        clock: Clock,
        num_epochs: int | None = None,
        first_batch: int = 0,
        shards: Sequence[int] = (),
        notify: Callable[[str, bool], None] = lambda _name, _waits: None,
    ) -> None:
        self._shards = tuple(shards) or (1,) * len(receivers)
        self._notify = notify
        self._waits_for = "batches"
        self._receivers = tuple(receivers)
        self._batches_per_epoch = batches_per_epoch
        self._clock = clock
        self._left = None if num_epochs is None else num_epochs * batches_per_epoch - first_batch
        self._closed = threading.Event()
        self._models: NewestModel | None = None
        self._failure: Exception | None = None
        # One merged batch is enough while the trainer works on another.
        self._ready: Queue[tuple[SubBatch, Any] | Exception] = Queue(1)
        self.start_measuring()
        # Import before the thread starts: a concurrent import of PyG in the script could see a
        # partially initialised module.
        with suppress(ImportError):
            importlib.import_module("torch_geometric.data")
        self._thread = threading.Thread(target=self._merge, name="merge batches", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __len__(self) -> int:
        return self._batches_per_epoch

    def __iter__(self) -> Iterator[Any]:
        """Batches of one epoch: PyG's `Data` or `HeteroData`.

        Raises:
            PrefetchError: A sampler, or a store it needs, failed or is lost.
        """
        while self._left is None or self._left > 0:
            number, batch = self._next()
            yield batch
            # Release the batch's memory while waiting for the next one.
            del batch
            if number == self._batches_per_epoch - 1:
                return

    def start_measuring(self) -> None:
        """Reset the measurement."""
        self._num_batches, self._waited_s = 0, 0.0
        self._figures: dict[str, float] = {}
        self._began_s = self._clock()

    def report(self) -> PrefetchReport:
        """Return the measurement."""
        elapsed_s = self._clock() - self._began_s
        return PrefetchReport(self._num_batches, elapsed_s, self._waited_s, dict(self._figures))

    def send_model(self, model: bytes) -> None:
        """Send the newest model to all samplers, which score remote nodes with it.

        Returns at once; a model that is not sent yet is replaced.
        """
        if self._models is None:
            self._models = NewestModel()
            threading.Thread(target=self._send_models, name="send models", daemon=True).start()
        self._models.put(model)

    def _send_models(self) -> None:
        assert self._models is not None
        while not self._closed.is_set():
            model = self._models.take()
            for receiver in self._receivers:
                if model is not None:
                    receiver.send_model(model)

    def close(self) -> None:
        """Stop all samplers; batches already returned stay valid."""
        self._closed.set()
        if self._models is not None:
            self._models.put(None)
        for receiver in self._receivers:
            receiver.close()
        # With a timeout: the thread may be starting a replacement sampler.
        self._thread.join(_JOIN_TIMEOUT_S)
        # Free the memory of the unused batch.
        with suppress(Empty):
            self._ready.get_nowait()
        self._ready.put(PrefetchError("the prefetcher was closed", "start another one"))

    def _next(self) -> tuple[int, Any]:
        if self._failure is not None:
            raise self._failure
        if self._closed.is_set():
            problem = "a batch was requested from a closed prefetcher"
            raise PrefetchError(problem, "start another one")
        begin = self._clock()
        item = self._pop()
        self._waited_s += self._clock() - begin
        if isinstance(item, Exception):
            self._failure = item
            raise item
        sub_batch, batch = item
        self._num_batches += 1
        for name, value in sub_batch.figures.items():
            self._figures[name] = self._figures.get(name, 0.0) + value
        if self._left is not None:
            self._left -= 1
        return sub_batch.batch, batch

    def _pop(self) -> tuple[SubBatch, Any] | Exception:
        with suppress(Empty):
            return self._ready.get(timeout=TELL_AFTER_S)
        name = self._waits_for
        self._notify(name, True)
        try:
            return self._ready.get()
        finally:
            self._notify(name, False)

    def _receive(self) -> Iterator[SubBatch]:
        for receiver, num_shards in zip(self._receivers, self._shards, strict=True):
            self._waits_for = getattr(receiver, "sampler", "batches")
            for _ in range(num_shards):
                yield receiver.receive()

    def _merge(self) -> None:
        left, blocks = self._left, Blocks()
        try:
            while left is None or left > 0:
                left = None if left is None else left - 1
                merged = merge(list(self._receive()), blocks)
                batch = to_pyg(merged)
                described = SubBatch(merged.epoch, merged.batch, {}, {}, {}, merged.figures)
                del merged
                if not self._put((described, batch)):
                    return
                del batch
        except Exception as error:
            self._put(error)

    def _put(self, item: tuple[SubBatch, Any] | Exception) -> bool:
        while not self._closed.is_set():
            try:
                self._ready.put(item, timeout=_POLL_INTERVAL_S)
                return True
            except Full:
                continue
        return False


def to_pyg(sub_batch: SubBatch) -> Any:
    """Convert a batch to PyG's `Data`, or `HeteroData` if heterogeneous, without a copy."""
    try:
        from torch_geometric.data import Data, HeteroData
    except ImportError:
        raise MissingExtraError("PyG is not installed", "pip install 'headrace[train]'") from None
    nodes, edges = sub_batch.num_sampled_nodes, sub_batch.num_sampled_edges
    is_homogeneous = tuple(nodes) == (NODE,) and tuple(edges) == (EDGE,)
    data = Data() if is_homogeneous else HeteroData()
    # Features come first, as in PyG, which infers the number of nodes from them.
    for key, array in sub_batch.arrays.items():
        _store(data, is_homogeneous, key)[key.name] = as_tensor(array, key.dtype)
    for name, counts in nodes.items():
        store = data if is_homogeneous else data[name]
        if not any(
            key.of == name and key.kind == "node" and key.name != "n_id" for key in sub_batch.arrays
        ):
            store.num_nodes = sum(counts)
        store.num_sampled_nodes = counts
        if is_homogeneous or counts[0]:
            store.batch_size = counts[0]
    for edge_type, counts in edges.items():
        store = data if is_homogeneous else data[edge_type]
        store.num_sampled_edges = counts
    return data


def _store(data: Any, is_homogeneous: bool, key: Key) -> Any:
    return data if is_homogeneous else data[key.of]
