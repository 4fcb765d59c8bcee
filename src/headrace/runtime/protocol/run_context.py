"""The run of a trainer process, read from a file that an environment variable names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field, ValidationError

from headrace.core.errors import SpecError
from headrace.core.values import Value
from headrace.graph.sampler_worker.config import StoreAddress, StoreClientConfig
from headrace.graph.sampler_worker.seed_assignment import GlobalBatches
from headrace.rpc.config import TaskAddress

if TYPE_CHECKING:
    from headrace.rpc.credentials import Credentials
    from headrace.rpc.reconnect import RetryBudget

CONTEXT_VARIABLE = "HEADRACE_RUN"
"""Environment variable with the path of the file."""


class TrainerSettings(Value):
    """Settings of a run that its trainers need.

    Attributes:
        config: The user's config of the script.
        iterations: Number of iterations after which trainers exit; None for no limit.
        checkpoint_every: Steps between checkpoints; 0 for none.
        allow_nan: Whether losses and gradients may be infinite or NaN; else the run fails.
        sizes: Batch sizes of a profiling run, as factors of the plan's: 1, then others.
    """

    config: Mapping[str, Any] = Field(default_factory=dict)
    iterations: Annotated[int, Field(ge=1)] | None = None
    checkpoint_every: Annotated[int, Field(ge=0)] = 0
    allow_nan: bool = False
    sizes: tuple[Annotated[float, Field(gt=0)], ...] = ()


class RunContext(StoreClientConfig, TrainerSettings):
    """A run, as one of its trainers uses it.

    Attributes:
        messages: Socket for metrics and events.
        parts: Folder of the graph whose partitions stores serve; none without stores.
        own_stores: Stores of this machine's graph partitions, which are mapped here; used only for
            learnable embeddings.
        shares_stores: Whether other runs use the same stores, so that they store no embeddings.
        servers: Parameter servers, each with a shard of the model; empty for ring all-reduce.
        task: Name of the trainer.
        rank: Its rank.
        world_size: Number of trainers.
        requests: Socket of the task actor that starts samplers; see `sampler_requests`.
        output: Folder for the script's output.
        resume: Checkpoint to resume from; none to start at the beginning.
        plan: Fingerprint of the plan.
        assignment: Fingerprint of the seed assignment, which determines the batches.
        samplers: Names of the trainer's samplers, in order; empty for none.
        samplers_per_trainer: Samplers of each trainer, in this and in the run's first plan.
        window: Sub-batches that each sampler may have queued for the trainer.
        seeds_per_iteration: Seeds of every seed shard of the job; a shard is what one sampler of
            the run's first plan processes. Shards of a trainer are adjacent; trainers are ordered
            by name, which may differ from the rank. Empty if the script sets its own batches.
        counts: Seeds per epoch of every seed shard, by split.
        shard_counts: Seed shards of each sampler of the job; empty for one each.
        far: Planned weight of neighbours in other partitions, for loaders that train.
        cache_bytes: Planned memory of each sampler for rows of other machines.
        features: Edge type and bytes of the rows that full-graph training divides by features.
        follows_script: Whether the run ends at once if the script has another batch size.
        seeds: Folder with original ids: `<split>-<task>.npy` for the trainer and its samplers.
        bins: Planned bins of a full-graph job.
        assumed_trainers: Trainer of each graph partition, if a step on the full graph is traced:
            this process then is one of several trainers, and the others do not exist.
        assumed_rank: Which of these.
    """

    machine: str
    messages: Path
    tls: bool = False
    parts: Path | None = None
    own_stores: tuple[StoreAddress, ...] = ()
    shares_stores: bool = False
    servers: tuple[TaskAddress, ...] = ()
    task: str = "trainer0"
    rank: Annotated[int, Field(ge=0)] = 0
    world_size: Annotated[int, Field(ge=1)] = 1
    requests: Path | None = None
    output: Path | None = None
    resume: Path | None = None
    plan: str = ""
    assignment: str = ""
    samplers: tuple[str, ...] = ()
    samplers_per_trainer: Annotated[int, Field(ge=1)] = 1
    window: Annotated[int, Field(ge=1)] = 4
    seeds_per_iteration: tuple[int, ...] = ()
    counts: Mapping[str, tuple[int, ...]] = Field(default_factory=dict)
    shard_counts: tuple[Annotated[int, Field(ge=1)], ...] = ()
    far: Annotated[float, Field(gt=0, le=1)] = 1.0
    cache_bytes: Annotated[int, Field(ge=0)] = 0
    features: tuple[tuple[str, float], ...] = ()
    follows_script: bool = False
    seeds: Path | None = None
    bins: Annotated[int, Field(ge=1)] = 1
    assumed_trainers: tuple[int, ...] = ()
    assumed_rank: int = 0

    @property
    def is_planned(self) -> bool:
        """Whether the plan assigns seeds to the trainers; else the script sets its own batches."""
        return bool(self.seeds_per_iteration)

    @property
    def trainer(self) -> int:
        """Number of the trainer in the order of names."""
        return int(self.task.removeprefix("trainer"))

    def batches_of(self, split: str, drop_last: bool = False) -> GlobalBatches:
        """Global batches of one epoch; raises `SpecError` if no seeds of the split are assigned."""
        if split not in self.counts:
            raise SpecError(
                f"this run assigns no seeds of split {split!r}",
                f"its splits are: {', '.join(self.counts) or 'none'}",
            )
        num, shards = self.samplers_per_trainer, self.shard_counts
        of_trainers = tuple(sum(shards[s : s + num]) for s in range(0, len(shards), num))
        return GlobalBatches(
            self.seeds_per_iteration,
            self.counts[split],
            num,
            drop_last,
            of_trainers,
            self.sizes,
            self.iterations or 0,
        )

    @property
    def own_shards(self) -> tuple[int, ...]:
        """Seed shards of each of the trainer's samplers; empty for one each."""
        num = self.samplers_per_trainer
        return self.shard_counts[self.trainer * num : (self.trainer + 1) * num]

    def seeds_of(self, split: str, task: str | None = None) -> np.ndarray:
        """Original ids of a split that are assigned to the trainer or one of its samplers."""
        assert self.seeds is not None
        ids: np.ndarray = np.load(self.seeds / f"{split}-{task or self.task}.npy")
        return ids

    def stores_of(self, folder: Path, with_own: bool = False) -> tuple[StoreAddress, ...]:
        """Stores of the graph in a folder; empty if the run serves another graph."""
        if self.parts is None or folder.resolve() != self.parts.resolve():
            return ()
        return self.stores + (self.own_stores if with_own else ())

    def connect(
        self, stores: tuple[StoreAddress, ...], retry_budget: RetryBudget | None = None
    ) -> Mapping[int, Any]:
        """Functions that connect to stores, by graph partition."""
        from headrace.graph.store.client import TIMEOUT_S, StoreClient

        if not stores:
            return {}
        credentials = self.load_credentials()
        return {
            at.part: partial(
                StoreClient.connect,
                at,
                credentials,
                TIMEOUT_S,
                retry_budget,
            )
            for at in stores
        }

    def load_credentials(self) -> Credentials:
        """Load the trainer's credentials for stores, servers and remote samplers."""
        from headrace.rpc.credentials import Credentials

        assert self.credentials is not None
        credentials = Credentials.load(self.credentials)
        return credentials if self.tls else replace(credentials, identity=None)


def current_run() -> RunContext | None:
    """The run of this process, if any; raises `SpecError` if the run's file is invalid."""
    path = os.environ.get(CONTEXT_VARIABLE)
    return _load(path) if path else None


@lru_cache(maxsize=1)
def _load(path: str) -> RunContext:
    remedy = f"start the script with `headrace run`, or unset {CONTEXT_VARIABLE}"
    try:
        return RunContext.model_validate_json(Path(path).read_bytes())
    except OSError as error:
        raise SpecError(f"cannot read the run's file {path}: {error.strerror}", remedy) from None
    except ValidationError:
        raise SpecError(f"{path} is not a valid run file", remedy) from None
