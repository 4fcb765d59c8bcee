"""A trainer's share of a split: which seeds its loader has, and how many all trainers take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice, pairwise
from typing import Any

import numpy as np
import torch

from headrace.core.errors import SpecError
from headrace.graph.format.partitioned_graph import PartitionedGraph
from headrace.graph.loader.batch_order import SeededShuffle
from headrace.graph.sampler_worker.seed_assignment import GlobalBatches
from headrace.graph.schema import SPLITS
from headrace.runtime.protocol.run_context import RunContext
from headrace.runtime.protocol.trainer_messages import send, tell_note
from headrace.runtime.trainer.sampler_client import Portion
from headrace.training.ddp import STEP


@dataclass
class TrainerSeeds:
    """One trainer's part of every global batch of a split.

    Attributes:
        split: Which split.
        trainer: Number of the trainer.
        batches: Of all trainers.
        lanes: How many each of the trainer's samplers has; none for one each.
        iteration: The next one of this epoch.
    """

    split: str
    trainer: int
    batches: GlobalBatches
    iteration: int = 0
    lanes: tuple[int, ...] = ()

    @cached_property
    def num_seeds(self) -> np.ndarray:
        """Of all trainers, by iteration and trainer."""
        return self.batches.num_seeds()

    def __len__(self) -> int:
        return len(self.num_seeds)

    @property
    def portions(self) -> list[Portion]:
        """What the trainer's samplers are told."""
        own = self.batches.lanes_of(self.trainer)
        numbers = iter(range(*own.indices(len(self.batches.shares))))
        lanes = self.lanes or (1,) * (own.stop - own.start)
        groups = [[self._portion(lane) for lane in islice(numbers, num)] for num in lanes]
        return [replace(first, further=tuple(further)) for first, *further in groups]

    def _portion(self, lane: int) -> Portion:
        return Portion(self.batches.shares[lane], self.batches.ends(lane))

    def in_step(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The same batches, while gradients are weighed by the seeds that trainers have."""
        try:
            for batch in batches:
                row = self.num_seeds[self.iteration]
                self.iteration = (self.iteration + 1) % len(self)
                STEP.begin(int(row[self.trainer]), int(row.sum()))
                yield batch
                del batch
        finally:
            STEP.end()


class SharedBatches:
    """Positions of seeds, in batches of the sizes of a share; for loaders without samplers.

    Args:
        share: With one sampler per trainer, see `GlobalBatches.merged`.
        num_seeds: Of this trainer.
        seed: Of the order.
    """

    def __init__(self, share: TrainerSeeds, num_seeds: int, seed: int) -> None:
        self._share = share
        self._shuffle = SeededShuffle(num_seeds, seed)

    @property
    def epoch(self) -> int:
        """The next one; set it to go on with another."""
        return self._shuffle.epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._shuffle.epoch = epoch

    def __len__(self) -> int:
        return len(self._share)

    def __iter__(self) -> Iterator[list[int]]:
        order = list(self._shuffle)
        self._shuffle.epoch += 1
        cuts = np.cumsum([0, *self._share.num_seeds[:, self._share.trainer]])
        for begin, end in pairwise(cuts.tolist()):
            yield order[begin:end]


def check_assignment(graph: PartitionedGraph, node_type: str | None) -> None:
    """See that seeds of a type are those that a run deals: of the first type that has splits.

    Raises:
        SpecError: They are of another one.
    """
    assigned = next((node.name for node in graph.manifest.nodes if node.splits), None)
    if node_type is not None and node_type != assigned:
        raise SpecError(
            f"a loader needs seeds of {node_type!r}, but the plan assigns seeds of {assigned!r}",
            f"train on {assigned!r}, or give the loader ids instead of a split's name",
        )


def compare_batch_size(run: RunContext, asked: int | None) -> None:
    """Compare a script's batch size with the plan's, the mean over all trainers.

    In a run that follows its script, another size ends the trainer. All trainers run the same
    script, so all of them end here; the driver gets `{"kind": "batch_size", "asked": 512}` and
    plans again. In other runs the plan's size is used, and the user is told.
    """
    planned = sum(run.shares) / run.world_size
    if asked in (None, planned):
        return
    if run.follows_script:
        send(run.messages, {"kind": "batch_size", "asked": asked})
        raise SystemExit(0)
    if run.rank == 0:
        problem = f"the plan has batches of {planned:g} seeds, the script's {asked} is not used"
        tell_note(run, f"{problem}; to use it, set batch_size in the job file and plan again")


def take_seeds(run: RunContext, settings: dict[str, Any]) -> TrainerSeeds | None:
    """Let a loader that shuffles a split by its name have this trainer's share of it.

    Args:
        run: Says who takes what.
        settings: Of the loader, by name; seeds and batch size are replaced.

    Returns:
        None if the loader has seeds of its own.

    Raises:
        SpecError: The plan gives the trainer other batches, or none.
    """
    nodes = settings.get("input_nodes")
    node_type, split = None, nodes
    if isinstance(nodes, tuple | list) and len(nodes) == 2:
        node_type, split = nodes
    if run.requests is None or not isinstance(split, str) or split not in SPLITS:
        return None
    if not settings.get("shuffle"):
        return None
    if isinstance(settings["data"], PartitionedGraph):
        check_assignment(settings["data"], node_type)
    batches = run.batches_of(split, bool(settings.get("drop_last")))
    share = TrainerSeeds(split, run.trainer, batches, lanes=run.own_lanes)
    batch_size = batches.batch_size(run.trainer)
    given = settings.setdefault("batch_size", batch_size)
    if given != batch_size:
        if run.follows_script:
            compare_batch_size(run, given)
        raise SpecError(
            f"the plan gives {run.task} batches of {batch_size} seeds, its loader asks for {given}",
            f"leave batch_size out, or say {batch_size}; to change it, change the job and plan "
            "again",
        )
    if not len(share):
        raise SpecError(
            f"the {sum(batches.counts)} seeds of {split} make no batch of "
            f"{sum(batches.shares)} for {batches.num_trainers} trainers",
            "plan with smaller batches or fewer trainers",
        )
    ids = torch.from_numpy(run.seeds_of(split))
    settings["input_nodes"] = ids if node_type is None else (node_type, ids)
    return share
