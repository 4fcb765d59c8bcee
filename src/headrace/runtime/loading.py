"""PyG's loaders for scripts: alone they work in one process, in a run they use what it started."""

from __future__ import annotations

import inspect
import os
import time
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from headrace.graph.feeding.feed import Feed
from headrace.graph.loading import loaders
from headrace.graph.loading.access import GraphAccess
from headrace.graph.loading.inputs import links_of, seeds_of
from headrace.graph.loading.stores import find_access
from headrace.graph.opening import PartitionedGraph, open_graph
from headrace.runtime.context import RunContext, current_run
from headrace.runtime.feeds import can_feed, num_batches, start_samplers
from headrace.runtime.messages import send

_TELL_EVERY_S = 0.2


class NeighborLoader(loaders.NeighborLoader):
    """PyG's `NeighborLoader`, word for word; see `headrace.graph.loading.loaders`.

    Under `headrace run`, parts that stores serve are asked for there, and a loader that shuffles
    is fed by the run's sampler processes; a loop over it that is left early is continued by the
    next one.
    """

    __signature__ = inspect.signature(loaders.NeighborLoader)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        settings = _by_name(loaders.NeighborLoader, args, kwargs)
        self._feed: Feed | None = None
        self._run, self._graph = _find(settings)
        if self._run is not None and self._graph is not None:
            # The parts are on this machine, though others serve them: seeds are found here.
            settings["input_nodes"] = seeds_of(
                find_access(self._graph), settings.get("input_nodes")
            )
            _connect(self._run, self._graph, settings)
        self._settings = settings
        super().__init__(**settings)

    @property
    def num_samplers(self) -> int:
        """Processes that make the batches; 0 if this one does."""
        run, graph = self._run, self._graph
        if run is None or graph is None or not run.num_samplers:
            return 0
        num_seeds: int = len(self.input_data.node)
        if not can_feed(self._access, self._settings, num_seeds):
            return 0
        return min(run.num_samplers, int(self._settings.get("batch_size", 1)), num_seeds)

    def __len__(self) -> int:
        if not self.num_samplers:
            return super().__len__()
        return num_batches(len(self.input_data.node), self.num_samplers, self._settings)

    def __iter__(self) -> Any:
        if self._run is None:
            return super().__iter__()
        trains = bool(self._settings.get("shuffle"))
        size = (len(self.input_data.node), self.batch_size or 1, len(self))
        if not self.num_samplers:
            return _watched(self._run, super().__iter__(), trains, size)
        return _watched(self._run, self._fed(), trains, size, self._start_feed())

    def _fed(self) -> Iterator[Any]:
        node_type = self.input_data.input_type
        ids, order = self._seeds()
        for batch in self._start_feed():
            store = batch if node_type is None else batch[node_type]
            seeds = store.n_id[: store.batch_size]
            store.input_id = order[torch.searchsorted(ids, seeds)]
            yield self._done(batch)
            del batch, store, seeds

    def _seeds(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Original ids of all seeds, ascending, and where each was among the input nodes."""
        nodes = self.input_data.node
        ids, order = nodes.sort()
        return ids, order

    def _start_feed(self) -> Feed:
        if self._feed is None:
            run, graph, access, keyed = self._run, self._graph, self._access, self._keyed
            assert run is not None
            assert graph is not None
            assert keyed is not None
            if access.is_homogeneous:
                fanouts = {access.edge_types[0]: keyed.num_neighbors.get_values()}
            else:
                fanouts = keyed.num_neighbors.get_values(list(access.edge_types))
            self._feed = start_samplers(
                run,
                access,
                graph.folder,
                self.input_data.input_type or access.node_types[0],
                self.input_data.node.numpy(),
                fanouts,
                self.num_samplers,
                self._settings,
            )
            weakref.finalize(self, self._feed.close)
        return self._feed


class LinkNeighborLoader(loaders.LinkNeighborLoader):
    """PyG's `LinkNeighborLoader`, word for word; see `headrace.graph.loading.loaders`.

    Under `headrace run`, parts that stores serve are asked for there.
    """

    __signature__ = inspect.signature(loaders.LinkNeighborLoader)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        settings = _by_name(loaders.LinkNeighborLoader, args, kwargs)
        self._run, graph = _find(settings)
        if self._run is not None and graph is not None:
            here: GraphAccess = find_access(graph)
            edge_type, links = links_of(here, graph, settings.get("edge_label_index"))
            settings["edge_label_index"] = links if edge_type is None else (edge_type, links)
            _connect(self._run, graph, settings)
        self._trains = bool(settings.get("shuffle"))
        super().__init__(**settings)

    def __iter__(self) -> Any:
        if self._run is None:
            return super().__iter__()
        size = (len(self.input_data.row), self.batch_size or 1, len(self))
        return _watched(self._run, super().__iter__(), self._trains, size)


def _by_name(loader: Any, args: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    settings = dict(inspect.signature(loader).bind(*args, **kwargs).arguments)
    settings.update(settings.pop("kwargs", {}))
    return settings


def _find(settings: dict[str, Any]) -> tuple[RunContext | None, PartitionedGraph | None]:
    """The run, and the graph if it lies in parts; whoever names stores wants no others."""
    run, data = current_run(), settings["data"]
    if run is None or settings.get("connect"):
        return run, None
    if isinstance(data, str | os.PathLike):
        data = settings["data"] = open_graph(data)
    return run, data if isinstance(data, PartitionedGraph) else None


def _connect(run: RunContext, graph: PartitionedGraph, settings: dict[str, Any]) -> None:
    stores = run.stores_of(Path(graph.folder))
    if stores:
        settings["connect"] = run.connect(stores)


def _watched(
    run: RunContext,
    batches: Iterator[Any],
    trains: bool,
    size: tuple[int, int, int],
    feed: Feed | None = None,
) -> Iterator[Any]:
    """Batches of one epoch, while the display learns how fast they are taken."""
    num_seeds, batch_size, num_steps = size
    began_s = told_s = time.perf_counter()
    waited_s = 0.0
    if feed is not None:
        feed.start_measuring()
    for number in range(1, num_steps + 1):
        before_s = time.perf_counter()
        batch = next(batches, None)
        now_s = time.perf_counter()
        waited_s += now_s - before_s
        if batch is None:
            return
        if now_s - told_s >= _TELL_EVERY_S or number == num_steps:
            told_s = now_s
            message = {
                "kind": "batches",
                "trains": trains,
                "batch": number,
                "num_batches": num_steps,
                "num_samples": min(number * batch_size, num_seeds),
                "elapsed_s": now_s - began_s,
                "waited_s": waited_s,
                "stages": {"here_s": waited_s} if feed is None else feed.report().figures,
            }
            send(run.messages, message)
        yield batch
        del batch
    # The last step of an iterator may have something to do after its last batch.
    next(batches, None)
