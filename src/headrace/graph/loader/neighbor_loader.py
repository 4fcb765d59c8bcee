"""Drop-in replacements of PyG's loaders for partitioned graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import LinkLoader, NodeLoader
from torch_geometric.sampler import BaseSampler, NegativeSampling
from torch_geometric.sampler.base import SubgraphType

from headrace.core.errors import SpecError
from headrace.graph.loader.batch_order import NumberedBatch, NumberedLoader
from headrace.graph.loader.graph_view import GraphView
from headrace.graph.loader.inputs import links_of, seeds_of
from headrace.graph.sampling.neighbor_sampler import BatchKey
from headrace.graph.sampling.store_pool import Connect

if TYPE_CHECKING:
    from headrace.graph.loader.collate import Collator
    from headrace.graph.loader.pyg_sampler import KeyedSampler, NegativesOf


class _KeyedLoader(NumberedLoader):
    """Common base of both loaders: batches with keys, built without PyG's copies."""

    data: Any
    transform: Callable[[Any], Any] | None
    transform_sampler_output: Callable[[Any], Any] | None
    filter_per_worker: bool
    _access: GraphView
    _maker: Collator | None
    _keyed: KeyedSampler | None

    def _open(
        self,
        data: Any,
        neighbor_sampler: BaseSampler | None,
        connect: Mapping[int, Connect] | None,
        keep_dtype: bool,
        directed: bool,
        sampling: dict[str, Any],
    ) -> tuple[Any, BaseSampler | None]:
        """Open the graph and create the sampler; returns PyG's constructor arguments."""
        # Imported late: a loader with sampler processes does not sample itself.
        from headrace.graph.loader.collate import Collator
        from headrace.graph.loader.pyg_sampler import KeyedSampler
        from headrace.graph.loader.pyg_stores import (
            PartitionedFeatureStore,
            PartitionedGraphStore,
            find_access,
        )

        access = find_access(data, connect)
        self._keyed = self._maker = None
        if neighbor_sampler is None:
            if not directed:
                sampling["subgraph_type"] = SubgraphType.induced
            neighbor_sampler = KeyedSampler(access, **sampling)
        if isinstance(neighbor_sampler, KeyedSampler):
            self._keyed = neighbor_sampler
            self._maker = Collator(access, keep_dtype)
        if not isinstance(data, Data | HeteroData):
            data = PartitionedFeatureStore(access, keep_dtype), PartitionedGraphStore(access)
        self._access = access
        return data, neighbor_sampler

    def _key(self, index: Any) -> tuple[Any, BatchKey | None]:
        """Positions of the seeds, and the key of a numbered batch."""
        if not isinstance(index, NumberedBatch):
            return index, None
        seed = 0 if self._keyed is None else self._keyed.seed
        return index.index, BatchKey(seed, index.epoch, index.number)

    def _make(self, out: Any) -> Any:
        assert self._maker is not None
        new_ids = out.new_ids
        if self.transform_sampler_output is not None:
            # The transform may change the nodes.
            out, new_ids = self.transform_sampler_output(out), None
        return out, self._maker.make(out, new_ids)

    def _done(self, data: Any) -> Any:
        return data if self.transform is None else self.transform(data)

    def _get_iterator(self) -> Any:
        if self.num_workers > 0 and self._access.stores.is_connected:
            raise SpecError(
                "this process is connected to stores, which its workers cannot inherit",
                "use num_workers=0, or create the iterator before any other request to the stores",
            )
        begin: Callable[[], Iterator[Any]] = super()._get_iterator
        return wrapped(begin)


Wrapper = Callable[[Callable[[], Iterator[Any]], bool], Iterator[Any]]
"""Called with a function that begins an epoch, and whether its batches are all the same; returns
the batches of a loop."""

_WRAPPER: Wrapper | None = None
_BATCH_SIZE: int | None = None


def wrap_batches(wrapper: Wrapper | None, batch_size: int | None = None) -> None:
    """Let a function replace the batches of all loops of this process that sample in it.

    Args:
        wrapper: The function; None for none.
        batch_size: Seeds of a batch of loaders that shuffle; None for the script's.
    """
    global _WRAPPER, _BATCH_SIZE
    _WRAPPER, _BATCH_SIZE = wrapper, batch_size


def wrapped(begin: Callable[[], Iterator[Any]], is_constant: bool = False) -> Iterator[Any]:
    """Batches of a loop: those of the function that `wrap_batches` has set, if any.

    Args:
        begin: Begins an epoch.
        is_constant: Whether each epoch has the same batch, which must not be copied.
    """
    return begin() if _WRAPPER is None else _WRAPPER(begin, is_constant)


def are_batches_wrapped() -> bool:
    """Whether `wrap_batches` has set a function."""
    return _WRAPPER is not None


def wrapped_batch_size() -> int | None:
    """Seeds of a batch that `wrap_batches` sets."""
    return _BATCH_SIZE


class NeighborLoader(NodeLoader, _KeyedLoader):  # type: ignore[misc]
    """PyG's `NeighborLoader`, with the same interface, also for partitioned graphs.

    The same seed gives the same batches for any number of partitions, stores and workers. Arguments
    that are not listed are those of PyG.

    Args:
        data: A folder or `PartitionedGraph`, a PyG `Data` or `HeteroData`, or the result of
            `open_stores`.
        input_nodes: As in PyG, by original ids; also `"train"`, `"val"` or `"test"`, in a
            heterogeneous graph `("paper", "train")`.
        subgraph_type: `directional`, `bidirectional` or `induced`.
        time_attr: As in PyG; a column of nodes or of edges.
        is_sorted: Ignored: neighbour lists are always sorted.
        neighbor_sampler: As in PyG; with any sampler but `KeyedSampler`, PyG builds the batches.
        directed: As in PyG, which deprecates it.
        seed: Random seed of the order of seeds and of sampling.
        far: Weight of neighbours in other partitions than most seeds of the batch (with samplers,
            of the sub-batch), from 0.01 to 1. With local seeds, 0.25 about halves the rows from
            other machines. Below 1, batches depend on the partitioning. None for that of the plan
            if the loader shuffles, else 1.
        labor: Whether neighbours are drawn by LABOR (layer-neighbour sampling, as DGL's
            `LaborSampler`): every node takes the neighbours with the smallest random numbers, which
            all nodes of a hop share. Each neighbour is drawn as often as without it, but a batch
            has fewer nodes. Cannot be combined with `replace`, `disjoint`, times, weights, `far`
            and `remote`.
        keep_dtype: Whether 16-bit features are kept, not cast to `float32`.
        cache_bytes: Memory of each sampler process for a cache of remote feature rows; ignored
            without sampler processes. None for that of the plan.
        remote: Scores of remote nodes and features, a `headrace.RemoteSampling`; ignored without
            sampler processes, and if no partition is on another machine.
        connect: How to connect to the stores of remote graph partitions.
        **kwargs: Arguments of `DataLoader`: `batch_size`, `shuffle`, `num_workers` and others.

    Raises:
        SpecError: The graph lacks a requested node type, column or split.
    """

    def __init__(
        self,
        data: Any,
        num_neighbors: Any,
        input_nodes: Any = None,
        input_time: Tensor | None = None,
        replace: bool = False,
        subgraph_type: SubgraphType | str = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        time_attr: str | None = None,
        weight_attr: str | None = None,
        transform: Callable[[Any], Any] | None = None,
        transform_sampler_output: Callable[[Any], Any] | None = None,
        is_sorted: bool = False,
        filter_per_worker: bool | None = None,
        neighbor_sampler: BaseSampler | None = None,
        directed: bool = True,
        *,
        seed: int = 0,
        far: float | None = None,
        labor: bool = False,
        keep_dtype: bool = False,
        cache_bytes: int | None = None,
        remote: Any = None,
        connect: Mapping[int, Connect] | None = None,
        **kwargs: Any,
    ) -> None:
        if input_time is not None and time_attr is None:
            raise SpecError(
                "input_time is set, time_attr is not", "set time_attr to the time column"
            )
        sampling = {
            "num_neighbors": num_neighbors,
            "replace": replace,
            "subgraph_type": subgraph_type,
            "disjoint": disjoint,
            "temporal_strategy": temporal_strategy,
            "time_attr": time_attr,
            "weight_attr": weight_attr,
            "seed": seed,
            "far": 1.0 if far is None else far,
            "labor": labor,
        }
        data, sampler = self._open(data, neighbor_sampler, connect, keep_dtype, directed, sampling)
        super().__init__(
            data=data,
            node_sampler=sampler,
            input_nodes=seeds_of(self._access, input_nodes),
            input_time=input_time,
            transform=transform,
            transform_sampler_output=transform_sampler_output,
            filter_per_worker=filter_per_worker,
            seed=seed,
            **kwargs,
        )

    def collate_fn(self, index: Any) -> Any:
        """Sample around the seeds at these positions."""
        index, key = self._key(index)
        if self._keyed is None:
            return super().collate_fn(index)
        out = self._keyed.sample_from_nodes(self.input_data[index], key=key)
        return self.filter_fn(out) if self.filter_per_worker else out

    def filter_fn(self, out: Any) -> Any:
        """Add features to a sampler output."""
        if self._keyed is None:
            return super().filter_fn(out)
        out, data = self._make(out)
        input_type = self.input_data.input_type
        store = data if input_type is None else data[input_type]
        store.input_id, store.seed_time = out.metadata[:2]
        store.batch_size = len(out.metadata[0])
        return self._done(data)


class LinkNeighborLoader(LinkLoader, _KeyedLoader):  # type: ignore[misc]
    """PyG's `LinkNeighborLoader`, with the same interface, also for partitioned graphs.

    The same seed gives the same batches and negatives for any number of partitions, stores and
    workers. As in PyG, negatives may be existing links. They depend on the loader's links and edge
    type: loaders for training and for testing with the same seed have different negatives. A
    loader without shuffling has the same negatives in every epoch.

    Arguments that are not listed are those of `NeighborLoader` or PyG.

    Args:
        edge_label_index: As in PyG, by original ids; also the name of a split of held-out links,
            in a heterogeneous graph `(edge_type, "test")`.
        neg_sampling_ratio: As in PyG, which deprecates it.
        seed: Random seed of the order of links, of negatives and of sampling.

    Raises:
        SpecError: The graph lacks a requested edge type, column or split.
    """

    def __init__(
        self,
        data: Any,
        num_neighbors: Any,
        edge_label_index: Any = None,
        edge_label: Tensor | None = None,
        edge_label_time: Tensor | None = None,
        replace: bool = False,
        subgraph_type: SubgraphType | str = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        neg_sampling: NegativeSampling | None = None,
        neg_sampling_ratio: float | None = None,
        time_attr: str | None = None,
        weight_attr: str | None = None,
        transform: Callable[[Any], Any] | None = None,
        transform_sampler_output: Callable[[Any], Any] | None = None,
        is_sorted: bool = False,
        filter_per_worker: bool | None = None,
        neighbor_sampler: BaseSampler | None = None,
        directed: bool = True,
        *,
        seed: int = 0,
        far: float | None = None,
        labor: bool = False,
        keep_dtype: bool = False,
        connect: Mapping[int, Connect] | None = None,
        **kwargs: Any,
    ) -> None:
        if (edge_label_time is None) != (time_attr is None):
            raise SpecError(
                "only one of edge_label_time and time_attr is set",
                "set both for temporal sampling, or none",
            )
        sampling = {
            "num_neighbors": num_neighbors,
            "replace": replace,
            "subgraph_type": subgraph_type,
            "disjoint": disjoint,
            "temporal_strategy": temporal_strategy,
            "time_attr": time_attr,
            "weight_attr": weight_attr,
            "seed": seed,
            "far": 1.0 if far is None else far,
            "labor": labor,
        }
        input_data = data
        data, sampler = self._open(data, neighbor_sampler, connect, keep_dtype, directed, sampling)
        edge_type, links = links_of(self._access, input_data, edge_label_index)
        super().__init__(
            data=data,
            link_sampler=sampler,
            edge_label_index=links if isinstance(data, Data) else (edge_type, links),
            edge_label=edge_label,
            edge_label_time=edge_label_time,
            neg_sampling=neg_sampling,
            neg_sampling_ratio=neg_sampling_ratio,
            transform=transform,
            transform_sampler_output=transform_sampler_output,
            filter_per_worker=filter_per_worker,
            seed=seed,
            **kwargs,
        )
        self._negatives_of: NegativesOf | None = None
        if self.neg_sampling is not None:
            # A user's sampler may change the order in every epoch.
            samplers = [kwargs.get(name) for name in ("sampler", "batch_sampler")]
            shuffles = bool(kwargs.get("shuffle")) or any(each is not None for each in samplers)
            from headrace.graph.loader.pyg_sampler import NegativesOf

            self._negatives_of = NegativesOf.links(links, edge_type, shuffles)

    def collate_fn(self, index: Any) -> Any:
        """Sample around the links at these positions."""
        index, key = self._key(index)
        if self._keyed is None:
            return super().collate_fn(index)
        out = self._keyed.sample_from_edges(
            self.input_data[index], self.neg_sampling, key=key, negatives_of=self._negatives_of
        )
        return self.filter_fn(out) if self.filter_per_worker else out

    def filter_fn(self, out: Any) -> Any:
        """Add features to a sampler output."""
        if self._keyed is None:
            return super().filter_fn(out)
        out, data = self._make(out)
        edge_type = self.input_data.input_type
        links = data if edge_type is None else data[edge_type]
        links.input_id = out.metadata[0]
        if self.neg_sampling is None or self.neg_sampling.is_binary():
            links.edge_label_index, links.edge_label, links.edge_label_time = out.metadata[1:4]
        else:
            source = data if edge_type is None else data[edge_type[0]]
            destination = data if edge_type is None else data[edge_type[2]]
            source.src_index = out.metadata[1]
            destination.dst_pos_index, destination.dst_neg_index = out.metadata[2:4]
            source.seed_time = destination.seed_time = out.metadata[4]
        return self._done(data)
