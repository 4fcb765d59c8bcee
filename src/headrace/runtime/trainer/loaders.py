"""PyG loaders for scripts; in a run they use its stores and samplers."""

from __future__ import annotations

import inspect
import os
import weakref
from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from headrace.graph.format import partitioned_graph
from headrace.graph.format.partitioned_graph import PartitionedGraph
from headrace.graph.loader import neighbor_loader
from headrace.graph.loader.graph_view import PartitionedGraphView
from headrace.graph.loader.inputs import check_draws, fanouts_of, links_of, seeds_of
from headrace.graph.sampler_worker.prefetcher import Prefetcher
from headrace.graph.sampling.store_pool import Connect
from headrace.runtime.protocol.finite_check import watch_gradients
from headrace.runtime.protocol.parameter_check import send_parameters
from headrace.runtime.protocol.run_context import RunContext, current_run
from headrace.runtime.protocol.trainer_messages import Note, send
from headrace.runtime.trainer.remote_model import ModelFeed
from headrace.runtime.trainer.run_graph import open_graph
from headrace.runtime.trainer.sampler_client import (
    can_prefetch,
    num_batches,
    portions_of,
    retry_budget_of,
    start_samplers,
    use_planned_far,
)
from headrace.runtime.trainer.seed_shards import SharedBatches, TrainerSeeds, assign_seeds
from headrace.runtime.trainer.step_trace import watched

if TYPE_CHECKING:
    from headrace.runtime.trainer.checkpointer import Checkpoints, Loader

_IN_PROCESS = ("data", "node_sampler", "_keyed", "_maker")
"""Attributes that a loader with sampler processes creates when they are used."""


class NeighborLoader(neighbor_loader.NeighborLoader):
    """PyG's `NeighborLoader` with the same arguments; see `headrace.graph.loader.neighbor_loader`.

    Under `headrace run`, remote graph partitions are read from stores, and the run's samplers build
    the batches of loaders that shuffle. If a loop over such a loader is left early, the next loop
    continues it. Such a loader samples in this process only if it is called, if its `data` or
    `node_sampler` is used, or if another loader is in a loop with the same samplers.
    """

    __signature__ = inspect.signature(neighbor_loader.NeighborLoader)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        settings = _bind_settings(neighbor_loader.NeighborLoader, args, kwargs)
        self._prefetcher: Prefetcher | None = None
        self._trainer_seeds: TrainerSeeds | None = None
        self._checkpoints: Checkpoints | None = None
        self._next = (0, 0)
        self._settings = settings
        self._run, self._graph = _find_graph(settings)
        use_planned_far(settings, self._run)
        self._model_feed = ModelFeed.of(settings)
        if self._run is not None and self._graph is not None:
            # Seeds are resolved locally: this machine has the graph's files.
            here = PartitionedGraphView(self._graph)
            self._trainer_seeds = assign_seeds(self._run, settings)
            settings["input_nodes"] = seeds_of(here, settings.get("input_nodes"))
            self._samplers = _num_samplers(self._run, settings, self)
            if not self._samplers:
                settings["connect"] = _connect(self._run, self._graph)
            assignment = sum(self._run.counts.get("train", ()))
            if self._trainer_seeds is None and _num_seeds(settings) >= assignment:
                _warn_unsharded(self._run, settings, "seeds", "pass a split's name, e.g. 'train'")
        super().__init__(**self._for_torch(settings))
        if self._samplers:
            del self.data, self.node_sampler

    _samplers = 0
    _loop: weakref.ref[Generator[Any, None, None]] | None = None

    def _open(self, data: Any, *given: Any) -> tuple[Any, Any]:
        if not self._samplers:
            return super()._open(data, *given)
        assert self._run is not None
        sampling = given[-1]
        self._access = PartitionedGraphView(data)
        self._fanouts = fanouts_of(self._access, sampling["num_neighbors"])
        check_draws(**sampling)
        if self._model_feed is not None:
            self._model_feed.check(self._access, sampling)
        if sampling["weight_attr"] is not None:
            # Maps the weights, which checks them.
            view = PartitionedGraphView(data, _connect(self._run, data))
            view.hops(sampling["weight_attr"], None)
        self._given = given
        return (None, None), None

    def __getattr__(self, name: str) -> Any:
        if name not in _IN_PROCESS or "_given" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        assert self._run is not None
        assert self._graph is not None
        sampler, _, *rest = self._given
        opened = super()._open(self._graph, sampler, _connect(self._run, self._graph), *rest)
        self.data, self.node_sampler = opened
        return self.__dict__[name]

    @property
    def num_samplers(self) -> int:
        """Number of processes that build the batches; 0 if this process does."""
        return self._samplers

    def __len__(self) -> int:
        if self._trainer_seeds is not None:
            return len(self._trainer_seeds)
        if not self.num_samplers:
            return super().__len__()
        return num_batches(len(self.input_data.node), self.num_samplers, self._settings)

    def __iter__(self) -> Any:
        run, trainer_seeds = self._run, self._trainer_seeds
        if run is None or neighbor_loader.are_batches_wrapped():
            return super().__iter__()
        trains = bool(self._settings.get("shuffle"))
        if self._checkpoints is not None and trains:
            self._checkpoints.begin_loop(self)
        size = (len(self.input_data.node), self._settings.get("batch_size", 1), len(self))
        prefetcher = self._start_prefetcher() if self.num_samplers and self._claim() else None
        if prefetcher is None:
            self._next = (self.epoch, self._next[1] if self._next[0] == self.epoch else 0)
        first = self._next[1]
        batches = super().__iter__() if prefetcher is None else self._fed(prefetcher)
        if trainer_seeds is not None:
            trainer_seeds.iteration = first
            batches = trainer_seeds.in_step(batches)
        points = Points(self, self._checkpoints) if trains and self._checkpoints else None
        loop = watched(run, self._counted(batches), trains, size, prefetcher, first, points)
        self._loop = weakref.ref(loop)
        return loop

    def _claim(self) -> bool:
        """Take the samplers from the loader that used them; False if it is in a loop."""
        assert self._run is not None
        if self._run.is_planned:
            return True
        for other in set(_USERS) - {self}:
            if other._is_looping:
                return False
            other._close_prefetcher()
            _USERS.discard(other)
        _USERS.add(self)
        return True

    @property
    def _is_looping(self) -> bool:
        loop = None if self._loop is None else self._loop()
        return loop is not None and inspect.getgeneratorstate(loop) != inspect.GEN_CLOSED

    def keep_in(self, checkpoints: Checkpoints) -> None:
        """Register with checkpoints, which save the position of this loader."""
        self._checkpoints = checkpoints
        checkpoints.watch(self)

    def position(self, is_looping: bool) -> tuple[int, int]:
        """Epoch and number of the next batch; without samplers, a left loop does not resume."""
        if self.num_samplers or is_looping:
            return self._next
        return self.epoch, 0

    def go_to(self, epoch: int, batch: int) -> None:
        """Start the next loop at this epoch and batch."""
        self._next = (epoch, batch)
        self._close_prefetcher()
        super().go_to(epoch, batch)
        if isinstance(self.batch_sampler, SharedBatches):
            self.batch_sampler.epoch = epoch

    def _close_prefetcher(self) -> None:
        if self._prefetcher is not None:
            self._prefetcher.close()
            self._prefetcher = None

    def _counted(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            epoch, number = self._next
            self._next = (epoch + 1, 0) if number + 1 == len(self) else (epoch, number + 1)
            yield batch
            del batch

    def _for_torch(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Settings of a loader without samplers, which selects its own seeds."""
        if self._trainer_seeds is None or self.num_samplers:
            return settings
        trainer_seeds = self._trainer_seeds = replace(
            self._trainer_seeds, batches=self._trainer_seeds.batches.merged()
        )
        nodes = settings["input_nodes"]
        num_seeds = len(nodes[1] if isinstance(nodes, tuple) else nodes)
        batches = SharedBatches(trainer_seeds, num_seeds, settings.get("seed", 0))
        theirs = {"batch_size", "shuffle", "drop_last"}
        kept = {name: value for name, value in settings.items() if name not in theirs}
        return {**kept, "batch_sampler": batches}

    def _fed(self, prefetcher: Prefetcher) -> Iterator[Any]:
        node_type = self.input_data.input_type
        ids, order = self._seeds()
        feed = self._model_feed
        for batch in prefetcher:
            store = batch if node_type is None else batch[node_type]
            seeds = store.n_id[: store.batch_size]
            store.input_id = order[torch.searchsorted(ids, seeds)]
            yield self._done(batch)
            del batch, store, seeds
            if feed is not None:
                feed.after_batch(prefetcher)

    def _seeds(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Original ids of all seeds, ascending, and their positions in the input nodes."""
        nodes = self.input_data.node
        ids, order = nodes.sort()
        return ids, order

    def _start_prefetcher(self) -> Prefetcher:
        if self._prefetcher is None:
            run, graph, access = self._run, self._graph, self._access
            assert run is not None
            assert graph is not None
            trainer_seeds, seeds = self._trainer_seeds, self.input_data.node.numpy()
            if trainer_seeds is None:
                batch_size = self._settings.get("batch_size", 1)
                portions = portions_of(seeds, batch_size, self.num_samplers)
            else:
                portions = trainer_seeds.portions
            self._prefetcher = start_samplers(
                run,
                access,
                graph.folder,
                self.input_data.input_type or access.node_types[0],
                portions,
                len(self),
                self._fanouts,
                self._settings,
                None if trainer_seeds is None else trainer_seeds.split,
                self._next,
            )
            weakref.finalize(self, self._prefetcher.close)
        return self._prefetcher


class LinkNeighborLoader(neighbor_loader.LinkNeighborLoader):
    """PyG's `LinkNeighborLoader`, same arguments; see `headrace.graph.loader.neighbor_loader`.

    Under `headrace run`, remote graph partitions are read from stores.
    """

    __signature__ = inspect.signature(neighbor_loader.LinkNeighborLoader)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        settings = _bind_settings(neighbor_loader.LinkNeighborLoader, args, kwargs)
        self._run, graph = _find_graph(settings)
        use_planned_far(settings, self._run)
        if self._run is not None and graph is not None:
            here = PartitionedGraphView(graph)
            given = settings.get("edge_label_index")
            edge_type, links = links_of(here, graph, given)
            settings["edge_label_index"] = links if edge_type is None else (edge_type, links)
            settings["connect"] = _connect(self._run, graph)
            if not any(map(torch.is_tensor, given if isinstance(given, tuple | list) else [given])):
                remedy = "pass each trainer its own, e.g. links[:, ctx.rank :: ctx.world_size]"
                _warn_unsharded(self._run, settings, "links", remedy)
        self._trains = bool(settings.get("shuffle"))
        super().__init__(**settings)

    def __iter__(self) -> Any:
        if self._run is None or neighbor_loader.are_batches_wrapped():
            return super().__iter__()
        size = (len(self.input_data.row), self.batch_size or 1, len(self))
        return watched(self._run, super().__iter__(), self._trains, size)


_PLANNED: weakref.WeakSet[NeighborLoader] = weakref.WeakSet()
"""The loader that uses this trainer's planned samplers; only one can."""

_USERS: weakref.WeakSet[NeighborLoader] = weakref.WeakSet()
"""The loader that uses the samplers of a run without planned seeds at the moment."""


def _num_samplers(run: RunContext, settings: dict[str, Any], loader: NeighborLoader) -> int:
    num_seeds = _num_seeds(settings)
    if not can_prefetch(settings, num_seeds):
        return 0
    batch_size = int(settings.get("batch_size", 1))
    if not run.is_planned:
        return min(len(run.samplers), batch_size, num_seeds)
    if _PLANNED or not run.samplers or len(run.samplers) > min(batch_size, num_seeds):
        return 0
    _PLANNED.add(loader)
    return len(run.samplers)


def _num_seeds(settings: Mapping[str, Any]) -> int:
    nodes = settings["input_nodes"]
    ids = nodes[1] if isinstance(nodes, tuple) else nodes
    return int(ids.sum()) if ids.dtype == torch.bool else len(ids)


def _bind_settings(loader: Any, args: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    settings = dict(inspect.signature(loader).bind(*args, **kwargs).arguments)
    settings.update(settings.pop("kwargs", {}))
    batch_size = neighbor_loader.wrapped_batch_size()
    if batch_size is not None and settings.get("shuffle"):
        settings["batch_size"] = batch_size
    return settings


def _find_graph(settings: dict[str, Any]) -> tuple[RunContext | None, PartitionedGraph | None]:
    """Return the run, and the graph if it is partitioned and the caller passed no stores."""
    run, data = current_run(), settings["data"]
    if run is not None:
        send_parameters(run)
        watch_gradients(run)
    if run is None or settings.get("connect"):
        return run, None
    if isinstance(data, str | os.PathLike):
        data = settings["data"] = open_graph(data)
    if isinstance(data, PartitionedGraph) and run.parts is not None and data.folder != run.parts:
        # Use the machine's own copy, which its stores and samplers use.
        served = partitioned_graph.open_graph(run.parts)
        if served.manifest == data.manifest:
            data = settings["data"] = served
    return run, data if isinstance(data, PartitionedGraph) else None


def _warn_unsharded(run: RunContext, settings: dict[str, Any], what: str, remedy: str) -> None:
    """Warn that all trainers process the same seeds, if a training loader is not sharded."""
    if run.world_size > 1 and run.rank == 0 and settings.get("shuffle"):
        problem = f"a loader's {what} are not sharded: each trainer processes all of them"
        send(run.messages, Note(f"{problem}; to shard them, {remedy}"))


def _connect(run: RunContext, graph: PartitionedGraph) -> Mapping[int, Connect] | None:
    stores = run.stores_of(Path(graph.folder))
    return run.connect(stores, retry_budget_of(run)) if stores else None


class Points:
    """Points in a loop over a loader at which checkpoints may be written."""

    def __init__(self, loader: Loader, checkpoints: Checkpoints) -> None:
        self._loader, self._checkpoints = loader, checkpoints
        self.before_batch, self.took = checkpoints.before_batch, checkpoints.took

    def after_step(self) -> None:
        """Save or stop, if due, between two steps of an epoch."""
        self._checkpoints.after_step(self._loader)
