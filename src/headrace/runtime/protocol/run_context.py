"""What a script must know of the run it belongs to: a file, named by the environment."""

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
from headrace.graph.sampler_worker.config import StoreAddress
from headrace.graph.sampler_worker.seed_assignment import GlobalBatches
from headrace.training.parameter_server.types import ServerAddress

if TYPE_CHECKING:
    from headrace.rpc.credentials import Credentials
    from headrace.rpc.reconnect import RetryBudget

CONTEXT_VARIABLE = "HEADRACE_RUN"
"""Names the file."""


class RunContext(Value):
    """A run, as its trainer sees it.

    Attributes:
        machine: Name of the machine, for messages.
        messages: Socket that takes figures for the display.
        parts: Directory of the graph whose parts are with stores; none if nobody serves one.
        stores: Where they are.
        own_stores: Stores of parts of this machine, which are mapped here: only learnable rows are
            asked for there.
        servers: Parameter servers, each with a part of the model; none if trainers form a ring.
        credentials: File to talk to stores and servers with.
        tls: Whether they are asked over encrypted connections.
        retry_budget_s: How long to wait for a lost store or sampler to be replaced; 0 to fail at
            once.
        num_samplers: Processes that make batches for each loader that trains; 0 for none.
        log: File for messages of samplers.
        task: Name of the trainer.
        rank: Its place among all trainers.
        world_size: How many there are.
        requests: Socket of whoever starts samplers for the trainer (see `asking`); none if the
            trainer starts them itself.
        config: What the user set for the script.
        trace: File for what the trainer measures; none to measure nothing.
        iterations: After so many the trainer ends, wherever its script is; none for all.
        output: Folder for what the script keeps.
        checkpoint_every: How many steps lie between two checkpoints; 0 for none.
        resume: Checkpoint to go on from; none to begin.
        plan: Fingerprint of the plan.
        lanes: Fingerprint of how seeds are dealt: what batches are made of.
        samplers: Names of the trainer's samplers, in order.
        samplers_per_trainer: How many each trainer of the job has, and had when the run began.
        window: How many parts of each sampler may wait for the trainer.
        shares: Seeds per iteration of every lane of the job: of what a sampler took in the plan
            with which the run began. Those of a trainer are side by side; trainers are in the order
            of their names, which need not be that of ranks.
        counts: Seeds per epoch of every lane of the job, by split.
        lane_counts: How many lanes each sampler of the job has; none for one each.
        allow_nan: Whether losses and gradients may be infinite or not a number.
        follows_script: Whether the run ends at once if the script asks for another batch size.
        seeds: Folder with original ids: `<split>-<task>.npy` for the trainer and its samplers.
    """

    machine: str
    messages: Path
    parts: Path | None = None
    stores: tuple[StoreAddress, ...] = ()
    own_stores: tuple[StoreAddress, ...] = ()
    servers: tuple[ServerAddress, ...] = ()
    credentials: Path | None = None
    tls: bool = False
    retry_budget_s: Annotated[float, Field(ge=0)] = 0.0
    num_samplers: Annotated[int, Field(ge=0)] = 0
    log: Path | None = None
    task: str = "trainer0"
    rank: Annotated[int, Field(ge=0)] = 0
    world_size: Annotated[int, Field(ge=1)] = 1
    requests: Path | None = None
    config: Mapping[str, Any] = Field(default_factory=dict)
    trace: Path | None = None
    iterations: Annotated[int, Field(ge=1)] | None = None
    output: Path | None = None
    checkpoint_every: Annotated[int, Field(ge=0)] = 0
    resume: Path | None = None
    plan: str = ""
    lanes: str = ""
    samplers: tuple[str, ...] = ()
    samplers_per_trainer: Annotated[int, Field(ge=1)] = 1
    window: Annotated[int, Field(ge=1)] = 4
    shares: tuple[int, ...] = ()
    counts: Mapping[str, tuple[int, ...]] = Field(default_factory=dict)
    lane_counts: tuple[Annotated[int, Field(ge=1)], ...] = ()
    allow_nan: bool = False
    follows_script: bool = False
    seeds: Path | None = None

    @property
    def trainer(self) -> int:
        """Number of the trainer: where its samplers are among all of the job."""
        return int(self.task.removeprefix("trainer"))

    def batches_of(self, split: str, drop_last: bool = False) -> GlobalBatches:
        """One epoch of a split, as all trainers take it.

        Raises:
            SpecError: The plan deals no seeds of this split.
        """
        if split not in self.counts:
            raise SpecError(
                f"this run has no share of a split {split!r}",
                f"it has {', '.join(self.counts) or 'none'}",
            )
        num, lanes = self.samplers_per_trainer, self.lane_counts
        of_trainers = tuple(sum(lanes[s : s + num]) for s in range(0, len(lanes), num))
        return GlobalBatches(self.shares, self.counts[split], num, drop_last, of_trainers)

    @property
    def own_lanes(self) -> tuple[int, ...]:
        """How many lanes each of the trainer's samplers has; none for one each."""
        num = self.samplers_per_trainer
        return self.lane_counts[self.trainer * num : (self.trainer + 1) * num]

    def seeds_of(self, split: str, task: str | None = None) -> np.ndarray:
        """Original ids that the trainer, or one of its samplers, takes of a split."""
        assert self.seeds is not None
        ids: np.ndarray = np.load(self.seeds / f"{split}-{task or self.task}.npy")
        return ids

    def stores_of(self, folder: Path, with_own: bool = False) -> tuple[StoreAddress, ...]:
        """Stores of the graph in a folder; none if this run serves another graph."""
        if self.parts is None or folder.resolve() != self.parts.resolve():
            return ()
        return self.stores + (self.own_stores if with_own else ())

    def connect(
        self, stores: tuple[StoreAddress, ...], retry_budget: RetryBudget | None = None
    ) -> Mapping[int, Any]:
        """How to reach stores, by part; with patience if they are started again."""
        from headrace.graph.store.client import TIMEOUT_S, StoreClient
        from headrace.rpc.channel import Address

        if not stores:
            return {}
        credentials = self.load_credentials()
        return {
            at.part: partial(
                StoreClient.connect,
                Address(at.task, at.machine, at.host, at.port),
                credentials,
                TIMEOUT_S,
                retry_budget,
            )
            for at in stores
        }

    def load_credentials(self) -> Credentials:
        """What the trainer shows stores and samplers of other machines."""
        from headrace.rpc.credentials import Credentials

        assert self.credentials is not None
        credentials = Credentials.load(self.credentials)
        return credentials if self.tls else replace(credentials, identity=None)


def current_run() -> RunContext | None:
    """The run this process belongs to, if `headrace run` started it.

    Raises:
        SpecError: The run's file cannot be understood.
    """
    path = os.environ.get(CONTEXT_VARIABLE)
    return _load(path) if path else None


@lru_cache(maxsize=1)
def _load(path: str) -> RunContext:
    remedy = f"start the script with `headrace run`, or unset {CONTEXT_VARIABLE}"
    try:
        return RunContext.model_validate_json(Path(path).read_bytes())
    except OSError as error:
        raise SpecError(f"the run's file {path} cannot be read: {error.strerror}", remedy) from None
    except ValidationError:
        raise SpecError(f"{path} is no file of a run", remedy) from None
