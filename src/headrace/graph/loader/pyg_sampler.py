"""PyG `BaseSampler` over `GraphView`, with original ids as input and output."""

from __future__ import annotations

import dataclasses
import threading
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch_geometric.sampler import (
    BaseSampler,
    EdgeSamplerInput,
    HeteroSamplerOutput,
    NegativeSampling,
    NodeSamplerInput,
    SamplerOutput,
)
from torch_geometric.sampler.base import NumNeighbors, SubgraphType
from torch_geometric.sampler.neighbor_sampler import edge_sample, node_sample

from headrace.core.errors import SpecError
from headrace.graph.loader.graph_view import GraphView
from headrace.graph.loader.induced_subgraph import with_all_edges
from headrace.graph.loader.inputs import check_draws, fanouts_of
from headrace.graph.sampling.hop import Rule, hop_key
from headrace.graph.sampling.neighbor_sampler import BatchKey, HeteroSampled, Sampler
from headrace.graph.sampling.remote_scores import RemoteScores
from headrace.graph.schema import EdgeType

Output: TypeAlias = SamplerOutput | HeteroSamplerOutput


@dataclass(frozen=True)
class NegativesOf:
    """Identifies the loader of negatives, so that loaders of one training have different negatives.

    Attributes:
        checksum: Checksum of the loader's links.
        edge_type: Edge type of the links; empty if homogeneous.
        shuffles: Whether the loader shuffles. One that does not draws the same negatives in every
            epoch, so that its metrics are comparable.
    """

    checksum: int = 0
    edge_type: tuple[str, ...] = ()
    shuffles: bool = True

    @classmethod
    def links(cls, links: Tensor, edge_type: EdgeType | None, shuffles: bool) -> NegativesOf:
        """Identify the loader of these links."""
        checksum = 0
        for end in links.to("cpu", torch.int64):
            checksum = zlib.crc32(end.contiguous().numpy(), checksum)
        return cls(checksum, edge_type or (), shuffles)

    @property
    def purpose(self) -> str:
        """Name of the random stream."""
        return "/".join((*self.edge_type, "training" if self.shuffles else "evaluation"))


class KeyedSampler(BaseSampler):  # type: ignore[misc]
    """Samples batches that depend only on their keys; with `far` also on the partitioning.

    Outputs have original node ids. `edge` numbers edges in storage order; `edge_permutation` maps
    these to original ids. `new_ids` of an output are the new node ids by node type. Arguments
    but `access`, `seed`, `far` and `labor` are those of PyG's `NeighborSampler`; `time_attr` may be
    an edge column. `scores` may be set to weights of remote nodes, by home partition.

    Raises:
        SpecError: The graph lacks a column, or a combination of options is not supported.
    """

    def __init__(
        self,
        access: GraphView,
        num_neighbors: Any,
        replace: bool = False,
        subgraph_type: SubgraphType | str = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        time_attr: str | None = None,
        weight_attr: str | None = None,
        seed: int = 0,
        far: float = 1.0,
        labor: bool = False,
    ) -> None:
        self.access = access
        if not isinstance(num_neighbors, NumNeighbors):
            num_neighbors = NumNeighbors(num_neighbors)
        self.num_neighbors = num_neighbors
        self.subgraph_type = SubgraphType(subgraph_type)
        self.disjoint = disjoint or time_attr is not None
        self.seed = seed
        self._time, self._weight = time_attr, weight_attr
        if self.subgraph_type == SubgraphType.induced and self.disjoint:
            raise SpecError(
                "induced subgraphs cannot be disjoint",
                "use subgraph_type='directional', or omit disjoint and time_attr",
            )
        check_draws(
            replace=replace,
            disjoint=disjoint,
            temporal_strategy=temporal_strategy,
            time_attr=time_attr,
            weight_attr=weight_attr,
            far=far,
            labor=labor,
        )
        last = temporal_strategy == "last" and time_attr is not None
        self._rule = Rule(replace, self.disjoint, last, far=far, labor=labor)
        self._fanouts = fanouts_of(access, num_neighbors)
        # Fails here, not in the first batch, if a column is missing; stores check their own.
        self._source = access.hops(weight_attr, time_attr)
        self._own = threading.local()
        self.scores: Mapping[int, RemoteScores] = {}
        self._node_time: Any = None
        self._permutation: Any = None

    def __getstate__(self) -> dict[str, Any]:
        # Tables are per thread; neighbour lists are mapped again after unpickling.
        return {**self.__dict__, "_own": None, "_source": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._own = threading.local()
        self._source = self.access.hops(self._weight, self._time)

    def sample_from_nodes(
        self, index: NodeSamplerInput, *, key: BatchKey | None = None, **_: Any
    ) -> Output:
        """Sample around nodes with original ids; without `key`, it is derived from the seeds."""
        key = key or self._key_of(index.node)
        out = node_sample(index, lambda seed, time: self._sample(seed, time, key))
        return self._finish(out)

    def sample_from_edges(
        self,
        index: EdgeSamplerInput,
        neg_sampling: NegativeSampling | None = None,
        *,
        key: BatchKey | None = None,
        negatives_of: NegativesOf | None = None,
    ) -> Output:
        """Sample around both ends of links and of negatives.

        Args:
            index: The links, by original ids.
            neg_sampling: How many negative links or destinations to draw.
            key: Random key; derived from the links if None.
            negatives_of: The loader of the negatives.
        """
        key = key or self._key_of(torch.stack([index.row, index.col]))
        negatives = None
        if neg_sampling is not None:
            negatives = _KeyedNegatives(neg_sampling, key, negatives_of or NegativesOf())
        out = edge_sample(
            index,
            lambda seed, time: self._sample(seed, time, key),
            self._counts(),
            self.disjoint,
            None if negatives is None or index.time is None else self._times_of_nodes(),
            negatives,
        )
        return self._finish(out)

    @property
    def edge_permutation(self) -> Any:
        """Original edge ids in storage order, by edge type if heterogeneous.

        Not used by the loaders of this package; takes 8 bytes per edge.
        """
        if self._permutation is None:
            access = self.access
            found = {
                edge_type: torch.from_numpy(
                    access.edge_ids(edge_type, np.arange(access.offsets[edge_type][-1]))
                )
                for edge_type in access.edge_types
                if access.has_edge_ids(edge_type)
            }
            self._permutation = found
        if self.access.is_homogeneous:
            return self._permutation.get(self.access.edge_types[0])
        return self._permutation

    def _sample(self, seed: Any, time: Any, key: BatchKey) -> Output:
        access = self.access
        named = seed if isinstance(seed, dict) else {access.node_types[0]: seed}
        seeds = {name: access.to_new(name, ids.numpy()) for name, ids in named.items()}
        times = None
        if time is not None:
            times = time if isinstance(time, dict) else {access.node_types[0]: time}
            times = {name: each.numpy() for name, each in times.items()}
        elif self._time is not None:
            times = {name: self._seed_times(name, ids) for name, ids in seeds.items()}
        sampler = self._sampler()
        out = sampler.sample_hetero(seeds, self._fanouts, key, times)
        if self.subgraph_type == SubgraphType.induced:
            out = with_all_edges(out, self._source, sampler.rule)
        made = self._hetero(out) if isinstance(seed, dict) else self._homogeneous(out)
        made.new_ids = out.node
        return made

    def _homogeneous(self, out: HeteroSampled) -> SamplerOutput:
        (node_type,), (edge_type,) = self.access.node_types, self.access.edge_types
        return SamplerOutput(
            node=self._originals(node_type, out.node[node_type]),
            row=_tensor(out.row[edge_type]),
            col=_tensor(out.col[edge_type]),
            edge=None if out.edge is None else _tensor(out.edge[edge_type]),
            batch=None if out.tree is None else _tensor(out.tree[node_type]),
            num_sampled_nodes=out.num_sampled_nodes[node_type],
            num_sampled_edges=out.num_sampled_edges[edge_type],
        )

    def _hetero(self, out: HeteroSampled) -> HeteroSamplerOutput:
        return HeteroSamplerOutput(
            node={name: self._originals(name, ids) for name, ids in out.node.items()},
            row={edge_type: _tensor(rows) for edge_type, rows in out.row.items()},
            col={edge_type: _tensor(rows) for edge_type, rows in out.col.items()},
            edge=None if out.edge is None else {e: _tensor(ids) for e, ids in out.edge.items()},
            batch=None if out.tree is None else {n: _tensor(t) for n, t in out.tree.items()},
            num_sampled_nodes=out.num_sampled_nodes,
            num_sampled_edges=out.num_sampled_edges,
        )

    def _finish(self, out: Output) -> Output:
        if self.subgraph_type == SubgraphType.bidirectional:
            return out.to_bidirectional(keep_orig_edges=False)
        return out

    def _sampler(self) -> Sampler:
        if not hasattr(self._own, "sampler"):
            access = self.access
            edge_ids = any(access.columns[e] or access.has_edge_ids(e) for e in access.edge_types)
            rule = dataclasses.replace(self._rule, edge_ids=edge_ids)
            self._own.sampler = Sampler(
                self._source, access.num_nodes, access.edge_types, rule, access.node_offsets
            )
        sampler: Sampler = self._own.sampler
        sampler.scores = self.scores
        return sampler

    def _originals(self, node_type: str, new_ids: np.ndarray) -> Tensor:
        return _tensor(self.access.to_original(node_type, new_ids))

    def _key_of(self, seeds: Tensor) -> BatchKey:
        return BatchKey(self.seed, 0, zlib.crc32(seeds.contiguous().numpy().tobytes()))

    def _counts(self) -> int | dict[str, int]:
        counts = self.access.num_nodes
        return counts[self.access.node_types[0]] if self.access.is_homogeneous else counts

    def _seed_times(self, node_type: str, new_ids: np.ndarray) -> np.ndarray:
        """Times of the seeds if the input has none."""
        assert self._time is not None
        if self._time not in self.access.columns[node_type]:
            raise SpecError(
                f"nodes of type {node_type!r} have no {self._time!r}, and the seeds have no time",
                "pass input_time or edge_label_time",
            )
        times = np.empty(len(new_ids), self.access.column(node_type, self._time).dtype)
        self.access.gather(node_type, self._time, new_ids).into(times)
        return times.astype(np.int64)

    def _times_of_nodes(self) -> Any:
        """Times of all nodes by original id, so that no negative is later than its link."""
        if self._node_time is None and self._time is not None:
            self._node_time = {}
            for name, count in self.access.num_nodes.items():
                if self._time in self.access.columns[name]:
                    new_ids = self.access.to_new(name, np.arange(count))
                    self._node_time[name] = _tensor(self._seed_times(name, new_ids))
        if not self._node_time:
            return None
        if self.access.is_homogeneous:
            return self._node_time[self.access.node_types[0]]
        return self._node_time


class _KeyedNegatives(NegativeSampling):  # type: ignore[misc]
    """Draws negatives from a key; PyG uses one generator per process."""

    def __init__(self, options: NegativeSampling, key: BatchKey, of: NegativesOf) -> None:
        super().__init__(options.mode, options.amount, options.src_weight, options.dst_weight)
        self._generators = {}
        epoch = key.epoch if of.shuffles else 0
        for endpoint in ("src", "dst"):
            name = (of.purpose, "negatives", endpoint)
            number = hop_key(key.seed, epoch, key.batch, of.checksum, name)
            self._generators[endpoint] = torch.Generator().manual_seed(number)

    def sample(self, num_samples: int, endpoint: str, num_nodes: int | None = None) -> Tensor:
        """Draw original ids of negatives."""
        generator = self._generators[endpoint]
        weight = self.src_weight if endpoint == "src" else self.dst_weight
        if weight is None:
            assert num_nodes is not None
            return torch.randint(num_nodes, (num_samples,), generator=generator)
        if weight.numel() != num_nodes:
            raise SpecError(
                f"{endpoint}_weight of negatives has {weight.numel()} values, there are "
                f"{num_nodes} nodes",
                "pass one weight per node",
            )
        return torch.multinomial(weight, num_samples, replacement=True, generator=generator)


def _tensor(array: np.ndarray) -> Tensor:
    return torch.from_numpy(array)
