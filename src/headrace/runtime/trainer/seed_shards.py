"""A trainer's seeds of a split, and the seeds per iteration of all trainers."""

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
from headrace.runtime.protocol.trainer_messages import BatchSizeRequest, Note, send
from headrace.runtime.trainer.sampler_client import Portion
from headrace.training.ddp import STEP


@dataclass
class TrainerSeeds:
    """One trainer's seeds in every global batch of a split.

    Attributes:
        iteration: Next iteration of this epoch.
        shards: Seed shards of each of the trainer's samplers; empty for one each.
    """

    split: str
    trainer: int
    batches: GlobalBatches
    iteration: int = 0
    shards: tuple[int, ...] = ()

    @cached_property
    def num_seeds(self) -> np.ndarray:
        """Seeds by iteration and trainer."""
        return self.batches.num_seeds()

    def __len__(self) -> int:
        return len(self.num_seeds)

    @property
    def portions(self) -> list[Portion]:
        """Sub-batches of each of the trainer's samplers."""
        own = self.batches.shards_of(self.trainer)
        numbers = iter(range(*own.indices(len(self.batches.seeds_per_iteration))))
        shards = self.shards or (1,) * (own.stop - own.start)
        groups = [[self._portion(shard) for shard in islice(numbers, num)] for num in shards]
        return [replace(first, further=tuple(further)) for first, *further in groups]

    def _portion(self, shard: int) -> Portion:
        return Portion(self.batches.seeds_per_iteration[shard], self.batches.ends(shard))

    def in_step(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the batches and set the gradient weight of each: its part of all seeds."""
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
    """Batch sampler for loaders without samplers: seed positions in batches of planned sizes."""

    def __init__(self, trainer_seeds: TrainerSeeds, num_seeds: int, seed: int) -> None:
        self._trainer_seeds = trainer_seeds
        self._shuffle = SeededShuffle(num_seeds, seed)

    @property
    def epoch(self) -> int:
        """The next epoch."""
        return self._shuffle.epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._shuffle.epoch = epoch

    def __len__(self) -> int:
        return len(self._trainer_seeds)

    def __iter__(self) -> Iterator[list[int]]:
        order = list(self._shuffle)
        self._shuffle.epoch += 1
        cuts = np.cumsum([0, *self._trainer_seeds.num_seeds[:, self._trainer_seeds.trainer]])
        for begin, end in pairwise(cuts.tolist()):
            yield order[begin:end]


def check_assignment(graph: PartitionedGraph, node_type: str | None) -> None:
    """Raise `SpecError` if seeds of a node type are not assigned; the first type with splits is."""
    assigned = next((node.name for node in graph.manifest.nodes if node.splits), None)
    if node_type is not None and node_type != assigned:
        raise SpecError(
            f"a loader needs seeds of {node_type!r}, but the plan assigns seeds of {assigned!r}",
            f"train on {assigned!r}, or pass ids to the loader instead of a split's name",
        )


def compare_batch_size(run: RunContext, asked: int | None) -> None:
    """Compare a script's batch size with the plan's, the mean over all trainers.

    If the run follows its script, another size ends all trainers, which run the same script; the
    driver plans again. Otherwise the plan's size is used, and the user is notified.
    """
    planned = sum(run.seeds_per_iteration) / run.world_size
    if asked is None or asked == planned:
        return
    if run.follows_script:
        send(run.messages, BatchSizeRequest(asked))
        raise SystemExit(0)
    if run.rank == 0:
        problem = f"the plan has batches of {planned:g} seeds, the script's {asked} is not used"
        remedy = "to use it, set batch_size in the job file and plan again"
        send(run.messages, Note(f"{problem}; {remedy}"))


def assign_seeds(run: RunContext, settings: dict[str, Any]) -> TrainerSeeds | None:
    """Assign this trainer's seeds to a loader that shuffles a split given by name.

    Replaces seeds and batch size in `settings`. Returns none if the loader has its own seeds.
    Raises `SpecError` if the plan assigns other batches to the trainer, or none.
    """
    nodes = settings.get("input_nodes")
    node_type, split = None, nodes
    if isinstance(nodes, tuple | list) and len(nodes) == 2:
        node_type, split = nodes
    if not run.is_planned or not isinstance(split, str) or split not in SPLITS:
        return None
    if not settings.get("shuffle"):
        return None
    if isinstance(settings["data"], PartitionedGraph):
        check_assignment(settings["data"], node_type)
    batches = run.batches_of(split, bool(settings.get("drop_last")))
    trainer_seeds = TrainerSeeds(split, run.trainer, batches, shards=run.own_shards)
    batch_size = batches.batch_size(run.trainer)
    given = settings.setdefault("batch_size", batch_size)
    if given == sum(run.seeds_per_iteration) / run.world_size:
        # The plan may give the trainer another share of the global batch.
        settings["batch_size"] = batch_size
    elif given != batch_size:
        if run.follows_script:
            compare_batch_size(run, given)
        raise SpecError(
            f"the plan assigns {run.task} batches of {batch_size} seeds, its loader has {given}",
            f"omit batch_size or pass {batch_size}; to change it, change the job and plan again",
        )
    if not len(trainer_seeds):
        raise SpecError(
            f"the {sum(batches.counts)} seeds of {split} make no batch of "
            f"{sum(batches.seeds_per_iteration)} for {batches.num_trainers} trainers",
            "plan with smaller batches or fewer trainers",
        )
    ids = torch.from_numpy(run.seeds_of(split))
    settings["input_nodes"] = ids if node_type is None else (node_type, ids)
    return trainer_seeds
