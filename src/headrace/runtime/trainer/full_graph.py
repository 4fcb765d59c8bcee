"""The full graph of a run: its one batch per epoch counts as a step, and checkpoints restore it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import torch

from headrace.graph.format.partitioned_graph import PartitionedGraph
from headrace.graph.loader.neighbor_loader import are_batches_wrapped
from headrace.runtime.protocol.run_context import RunContext
from headrace.runtime.trainer.loaders import Points
from headrace.runtime.trainer.sampler_client import retry_budget_of
from headrace.runtime.trainer.step_trace import steps_of, watched
from headrace.training.full_graph.assumed import AssumedTrainers
from headrace.training.full_graph.full_graph import FullGraph
from headrace.training.full_graph.swap import FullGraphOptions

if TYPE_CHECKING:
    from headrace.runtime.trainer.checkpointer import Checkpoints


class RunFullGraph(FullGraph):
    """See `FullGraph`.

    Args:
        run: The run; None for a single process.
        graph: The graph.
        group: Process group of the trainers; None for a single process.
        device: Device of the batch.
        weight: Items behind the mean that this trainer's loss is; None for its training nodes.
        **options: See `FullGraphOptions`; bins are those of the plan if not given.
    """

    def __init__(
        self,
        run: RunContext | None,
        graph: PartitionedGraph,
        group: Any,
        device: torch.device,
        weight: float | None = None,
        **options: Unpack[FullGraphOptions],
    ) -> None:
        if run is not None:
            options = {"bins": run.bins, **options}
        stores = () if run is None else run.stores_of(Path(graph.folder))
        connect = None if run is None else run.connect(stores, retry_budget_of(run))
        if run is not None and any(run.assumed_trainers):
            group = AssumedTrainers(graph, run.assumed_trainers, run.assumed_rank)
        super().__init__(graph, group, device, connect, weight, **options)
        steps = None if run is None else steps_of(run)
        if steps is not None:
            self.watch(steps.swap)
        if run is not None:
            self.follow(run.features)
        self._run = run
        self._checkpoints: Checkpoints | None = None
        self._epoch = 0

    def keep_in(self, checkpoints: Checkpoints) -> None:
        """Register with checkpoints, which save the number of epochs."""
        self._checkpoints = checkpoints
        checkpoints.watch(self)

    def position(self, is_looping: bool) -> tuple[int, int]:
        """Epoch and number of the next batch."""
        return self._epoch, 0

    def go_to(self, epoch: int, batch: int) -> None:
        """Continue with an epoch."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        run, checkpoints = self._run, self._checkpoints
        if run is None or are_batches_wrapped():
            return super().__iter__()
        points = None
        if checkpoints is not None:
            checkpoints.begin_loop(self)
            points = Points(self, checkpoints)
        num = max(1, self.part.train_nodes())
        return watched(run, self._counted(), True, (num, num, 1), None, 0, points)

    def _counted(self) -> Iterator[Any]:
        self._epoch += 1
        yield from super().__iter__()
