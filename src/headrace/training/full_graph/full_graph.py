"""A graph in one batch per trainer: all nodes and all edges, without sampling."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parameter import UninitializedParameter

from headrace.core.errors import SpecError
from headrace.graph.format.partitioned_graph import PartitionedGraph
from headrace.graph.loader.neighbor_loader import wrapped
from headrace.graph.sampling.store_pool import Connect
from headrace.graph.schema import EdgeType
from headrace.training.full_graph.assumed import AssumedTrainers, is_assumed
from headrace.training.full_graph.exchange import HaloExchange
from headrace.training.full_graph.layers import Halo, Halos, wrap_layers
from headrace.training.full_graph.matchings import RoundTransfers
from headrace.training.full_graph.part import GraphPart, Ownership, RowsOfTrainers
from headrace.training.full_graph.swap import FullGraphOptions, SwapPolicy, SwapWatch


class FullGraph:
    """This trainer's part of a graph; an iterable of one batch, `Data` or `HeteroData`.

    A batch has the columns, masks and original ids (`n_id`) of this trainer's nodes, and all their
    in-edges. Sources in `edge_index` that other trainers own have numbers behind this trainer's
    nodes; layers of a prepared model get their rows.

    Creating it is a collective call.

    Args:
        graph: The graph; every partition's files are on some trainer's machine.
        group: Process group of the trainers, or `AssumedTrainers`; None for a single process.
        device: Device of the batch.
        connect: How to connect to stores of features in partitions without files here.
        weight: Items behind the mean that this trainer's loss is; None for its training nodes.
        **options: See `FullGraphOptions`.

    Attributes:
        part: This trainer's nodes and edges.
        halos: Exchanges of rows.
        overlaps: Whether models whose layers add up rows compute the rows that other trainers need
            first, in bins, and other rows while these are on their way.
    """

    def __init__(
        self,
        graph: PartitionedGraph,
        group: Any = None,
        device: torch.device | None = None,
        connect: Mapping[int, Connect] | None = None,
        weight: float | None = None,
        **options: Unpack[FullGraphOptions],
    ) -> None:
        unknown = sorted(options.keys() - FullGraphOptions.__annotations__)
        if unknown:
            names = ", ".join(FullGraphOptions.__annotations__)
            raise SpecError(f"there is no option {unknown[0]!r}", f"use {names}")
        self._graph, self._group = graph, group
        self._policy = SwapPolicy(
            options.get("rounding"), options.get("is_stale", False), options.get("parallelism")
        )
        is_alone = group is None or is_assumed(group)
        if not is_alone and options.get("matchings", False):
            self._policy.transfers = RoundTransfers(group)
        self.overlaps = True
        num_bins = options.get("bins", 1)
        if num_bins < 1:
            raise SpecError(f"{num_bins} bins were asked for", "use at least 1")
        self._exchanges: list[HaloExchange] = []
        rank, self._num_trainers = 0, 1
        if isinstance(group, AssumedTrainers):
            rank, self._num_trainers, ownership = group.rank, group.num_trainers, group.ownership
        else:
            if group is not None:
                rank, self._num_trainers = dist.get_rank(group), dist.get_world_size(group)
            ownership = Ownership.balanced(graph, self._places(graph))
        self.part = part = GraphPart(graph, ownership, rank, connect)
        halos = {edge_type: self._halo(edge_type) for edge_type in graph.edge_types}
        self.halos = Halos(halos, self._join, group, self._policy, num_bins)
        items = torch.tensor(part.train_nodes() if weight is None else weight, dtype=torch.float64)
        self._loss_scale = float(items) * self._num_trainers / max(self._sum(items), 1e-300)
        self._batch = part.batch().to(device or "cpu")
        self._keep()

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[Any]:
        return wrapped(self._one_batch, is_constant=True)

    def _one_batch(self) -> Iterator[Any]:
        # The same tensors: constant rows are exchanged once.
        yield copy.copy(self._batch)

    @property
    def sent_bytes(self) -> int:
        """Payload of halo rows and their gradients that this trainer has sent."""
        return sum(exchange.sent_bytes for exchange in self._exchanges)

    def follow(self, planned: Collection[tuple[str, float]]) -> None:
        """Divide rows by features as planned, unless the options say otherwise.

        Args:
            planned: Edge type, empty for all, and bytes of the rows.
        """
        self._policy.planned = planned

    def watch(self, watch: SwapWatch) -> None:
        """Measure the swaps of training steps."""
        self._policy.watch = watch

    def wrap(self, model: nn.Module) -> None:
        """Make a model train on all trainers' parts; a collective call.

        Gradients of its output are weighted, so that the mean of the trainers' parameter gradients
        is the gradient of the mean loss over all training nodes.

        Raises:
            SpecError: A part of the model cannot work on parts of a graph.
        """
        wrap_layers(model, self.halos, self._loss_scale, self.overlaps)
        if any(isinstance(each, UninitializedParameter) for each in model.parameters()):
            self._initialise(model)

    def _initialise(self, model: nn.Module) -> None:
        batch, was_training = self._batch, model.training
        rows = ("x", "edge_index") if self.part.is_homogeneous else ("x_dict", "edge_index_dict")
        try:
            with torch.no_grad():
                model.eval()(*(getattr(batch, name) for name in rows))
        except TypeError:
            raise SpecError(
                f"{type(model).__name__} has parameters without a size",
                f"call it on a batch before, or let it accept ({', '.join(rows)})",
            ) from None
        finally:
            model.train(was_training)

    def _exchange(
        self, num_own: int, halo_of: Callable[[GraphPart], RowsOfTrainers], edges: str = ""
    ) -> HaloExchange:
        needed = self._group.needed(halo_of) if is_assumed(self._group) else ()
        trainers, rows = halo_of(self.part)
        exchange = HaloExchange(num_own, trainers, rows, self._group, self._policy, edges, needed)
        self._exchanges.append(exchange)
        return self._exchanges[-1]

    def _halo(self, edge_type: EdgeType) -> Halo:
        part = self.part
        num_own, num_destinations = part.num_nodes(edge_type[0]), part.num_nodes(edge_type[2])
        edges = "/".join(edge_type) if len(self._graph.edge_types) > 1 else ""
        exchange = self._exchange(num_own, lambda each: each.halo(edge_type), edges)
        return Halo(exchange, num_destinations, part.first_halo_row(edge_type) - num_own)

    def _join(self) -> Halo:
        num_own = sum(map(self.part.num_nodes, self._graph.node_types))
        exchange = self._exchange(num_own, GraphPart.joined_halo)
        return Halo(exchange, num_own, num_edges=self.part.halo_edges())

    def _sum(self, value: torch.Tensor) -> float:
        total = value.clone()
        if is_assumed(self._group):
            total *= self._num_trainers
        elif self._group is not None:
            dist.all_reduce(total, group=self._group)
        return float(total)

    def _places(self, graph: PartitionedGraph) -> np.ndarray:
        """Whether a trainer's machine has the files of a partition."""
        folder = Path(graph.folder)
        here = [(folder / f"part-{number}").is_dir() for number in range(graph.num_parts)]
        own = torch.tensor(here, dtype=torch.uint8)
        if self._group is None:
            return own.bool().numpy()[None]
        every = [torch.empty_like(own) for _ in range(self._num_trainers)]
        dist.all_gather(every, own, group=self._group)
        return torch.stack(every).bool().numpy()

    def _keep(self) -> None:
        batch = self._batch
        for edge_type in self._graph.edge_types:
            stores = (
                [batch] if self.part.is_homogeneous else [batch[edge_type[0]], batch[edge_type]]
            )
            columns = [
                value
                for store in stores
                for value in store.to_dict().values()
                if isinstance(value, torch.Tensor)
            ]
            self.halos.keep(edge_type, stores[-1].edge_index, columns)
