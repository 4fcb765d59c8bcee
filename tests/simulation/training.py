"""The script of the trainers: torch on ten parameters, with real checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from headrace.core.errors import LOST_PEER_CODE, HeadraceError, RunError
from headrace.runtime.protocol.parameter_check import checksum_of, values_of
from headrace.runtime.protocol.run_context import RunContext
from headrace.runtime.protocol.trainer_messages import (
    BatchProgress,
    BatchRequested,
    Message,
    ParameterChecksum,
    Report,
    Waiting,
)
from headrace.runtime.trainer.__main__ import lost_peer
from headrace.runtime.trainer.checkpointer import Checkpoints
from headrace.runtime.trainer.node_embeddings import KeptTable
from headrace.runtime.trainer.rng_state import random_state, restore_random_state
from headrace.training.best_model import BestKeeper
from tests.simulation.cluster import CallError, Cluster, Handle
from tests.simulation.groups import Group
from tests.simulation.processes import Task
from tests.simulation.stores import Rows, row_gradients, undisturbed_rows
from tests.simulation.tasks import TrainerBody
from tests.simulation.world import Killed, World

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Job:
    """What is trained.

    Attributes:
        num_shards: Seed shards; gradients are summed in their order, whoever computes them.
        is_noisy: Whether the trainers' global random numbers matter.
        has_rows: Whether an embedding in a store is trained, too.
        has_counter: Whether there is a second model, which counts steps.
    """

    num_epochs: int
    num_batches: int
    num_shards: int
    num_trainers: int
    every: int
    is_noisy: bool
    has_rows: bool = False
    has_counter: bool = False

    @property
    def num_steps(self) -> int:
        """Steps of the whole run."""
        return self.num_epochs * self.num_batches


class Batches:
    """A loader that can start at any batch."""

    def __init__(self, length: int, checkpoints: Checkpoints, tell: Callable[[Message], None]):
        self._length, self._checkpoints, self._tell = length, checkpoints, tell
        self._next = (0, 0)
        self.is_in_loop = False
        checkpoints.watch(self)

    def __len__(self) -> int:
        return self._length

    def position(self, is_looping: bool) -> tuple[int, int]:
        """Epoch and number of the next batch."""
        return self._next

    def go_to(self, epoch: int, batch: int) -> None:
        """Start the next loop there."""
        self._next = (epoch, batch)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        self._checkpoints.begin_loop(self)
        self._tell(BatchRequested())
        first = self._next[1]
        for number in range(first + 1, self._length + 1):
            self._checkpoints.before_batch()
            epoch, batch = self._next
            self._next = (epoch + 1, 0) if batch + 1 == self._length else (epoch, batch + 1)
            self._checkpoints.took()
            yield epoch, batch
            step = epoch * self._length + batch + 1
            self.is_in_loop = number < self._length
            progress = BatchProgress(True, number, self._length, 8, 1.0, 0.1, {}, step)
            self._tell(progress)
            if number < self._length:
                self._checkpoints.after_step(self)


def make_model() -> nn.Linear:
    """Ten parameters."""
    model = nn.Linear(4, 2)
    draw = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draw))
    return model


@lru_cache(maxsize=1024)
def batch_of(epoch: int, batch: int, shard: int) -> torch.Tensor:
    """Data of a shard of a batch."""
    draws = np.random.default_rng((epoch, batch, shard)).normal(size=(3, 6))
    return torch.from_numpy(draws).float()


def gradient(model: nn.Linear, epoch: int, batch: int, shard: int, noise: float) -> torch.Tensor:
    """Gradients of a shard of a batch."""
    data = batch_of(epoch, batch, shard)
    model.zero_grad()
    loss = ((model(data[:, :4]) - data[:, 4:]) ** 2).mean() * (1.0 + 0.1 * noise)
    loss.backward()
    return torch.cat([each.grad.reshape(-1) for each in model.parameters()])  # type: ignore[union-attr]


def apply(model: nn.Linear, optimizer: torch.optim.Optimizer, total: torch.Tensor) -> None:
    """One step with the summed gradients."""
    at = 0
    for each in model.parameters():
        each.grad = total[at : at + each.numel()].reshape(each.shape)
        at += each.numel()
    optimizer.step()


def shards_of(job: Job, rank: int, world_size: int) -> range:
    """Adjacent shards of a trainer."""
    return range(rank * job.num_shards // world_size, (rank + 1) * job.num_shards // world_size)


def flat(model: nn.Module) -> tuple[float, ...]:
    """All parameters."""
    return tuple(torch.cat([each.detach().reshape(-1) for each in model.parameters()]).tolist())


def undisturbed(job: Job) -> tuple[float, ...]:
    """Final parameters of a run to which nothing happens."""
    before = random_state(CPU)
    states = []
    for rank in range(job.num_trainers):
        torch.default_generator.manual_seed(100 + rank)
        states.append(random_state(CPU))
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.9)
    for epoch in range(job.num_epochs):
        for batch in range(job.num_batches):
            parts: dict[int, torch.Tensor] = {}
            for rank in range(job.num_trainers):
                restore_random_state(states[rank], CPU)
                for shard in shards_of(job, rank, job.num_trainers):
                    noise = float(torch.rand(())) if job.is_noisy else 0.0
                    parts[shard] = gradient(model, epoch, batch, shard, noise)
                states[rank] = random_state(CPU)
            apply(model, optimizer, _sum(parts))
        scheduler.step()
    restore_random_state(before, CPU)
    rows: tuple[float, ...] = ()
    if job.has_rows:
        rows = undisturbed_rows(job.num_epochs, job.num_batches, job.num_trainers)
    return flat(model) + rows


def _sum(parts: dict[int, torch.Tensor]) -> torch.Tensor:
    total = torch.zeros(10)
    for shard in sorted(parts):
        total += parts[shard]
    return total


class Script:
    """Runs the script in the process of a trainer."""

    def __init__(
        self,
        job: Job,
        cluster: Cluster,
        body: TrainerBody,
        task: Task,
        run: RunContext,
        group: Group,
        samplers: Sequence[Handle],
        store: Any,
        finished: Callable[[str, tuple[float, ...]], None],
    ) -> None:
        self._job, self._cluster, self._body, self._task = job, cluster, body, task
        self._world: World = cluster.world
        self._run, self._group, self._samplers = run, group, samplers
        self._finished, self._store = finished, store
        self._rows: Rows | None = None

    def __call__(self) -> None:
        """Run it; the process exits with it."""
        code, error = 0, ""
        try:
            self._train()
        except Killed:
            raise
        except KeyboardInterrupt:
            code = 130
        except HeadraceError as problem:
            code, error = problem.exit_code, f"error: {problem.problem}"
        except Exception as problem:
            if lost := lost_peer(problem):
                code, error = LOST_PEER_CODE, f"error: {lost}"
            else:
                code, error = 1, f"error: {type(problem).__name__}: {problem}"
        if error:
            self._print(error)
        if self._rows is not None:
            self._rows.client.close()
        self._task.exit(code, error)

    def _train(self) -> None:
        job, run, world = self._job, self._run, self._world
        world.sleep(world.random.uniform(0.5, 4.0))
        world.take_randoms(self._task.process)
        is_changed = run.resume is not None and self._cluster.is_script_changed
        model = nn.Linear(4, 3) if is_changed else make_model()
        counter = nn.Linear(1, 1, bias=False)
        # Late, because the layers' own initial values are drawn.
        torch.default_generator.manual_seed(100 + run.rank)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        checkpoints = Checkpoints(run, CPU, BestKeeper(None))
        checkpoints.add(model, optimizer)
        if job.has_counter:
            nn.init.zeros_(counter.weight)
            checkpoints.add(counter, None)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.9)
        history: list[Any] = []
        checkpoints.keep({"scheduler": scheduler, "history": history})
        rows: Rows | None = None
        if job.has_rows:
            rows = self._rows = self._open_rows()
            checkpoints.keep({"rows": KeptTable(cast(Any, rows), run.rank, rows.barrier)})
        loader = Batches(job.num_batches, checkpoints, self._tell)
        self._task.process.details["loader"] = loader
        num_steps = 0
        for epoch in checkpoints.epochs(job.num_epochs):
            self._start_samplers()
            for at, batch in loader:
                assert at == epoch
                self._wait_for_samplers()
                self._compute(world.random.uniform(0.2, 1.5))
                self._raise_error()
                own = {}
                world.take_randoms(self._task.process)
                for shard in shards_of(job, run.rank, run.world_size):
                    noise = float(torch.rand(())) if job.is_noisy else 0.0
                    own[shard] = gradient(model, epoch, batch, shard, noise)
                parts: dict[int, torch.Tensor] = {}
                for given in self._group.begin("gradients", own)().values():
                    parts |= given
                apply(model, optimizer, _sum(parts))
                if rows is not None:
                    rows.step(row_gradients(rows.read(), epoch, batch, run.rank))
                num_steps += 1
                with torch.no_grad():
                    counter.weight += 1
                history.append((epoch, batch))
                if num_steps <= 2:
                    checksum, values = checksum_of(optimizer), values_of(optimizer)
                    self._tell(ParameterChecksum(0, num_steps, checksum, values))
            scheduler.step()
            self._print(f"epoch {epoch}")
            self._tell(Report({"epoch": epoch}))
        wanted = [(e, b) for e in range(job.num_epochs) for b in range(job.num_batches)]
        assert [tuple(each) for each in history] == wanted, "steps were lost or repeated"
        assert not job.has_counter or counter.weight.item() == len(wanted), "the counter is wrong"
        assert run.output is not None
        (run.output / "model.txt").write_text(f"{flat(model)}\n" * 20)
        final = flat(model)
        if rows is not None:
            final += tuple(rows.read().reshape(-1).tolist())
        self._finished(run.task, final)

    def _compute(self, time_s: float) -> None:
        self._world.sleep(time_s)
        details = self._task.process.details
        details["computed_s"] = details.get("computed_s", 0.0) + time_s

    def _raise_error(self) -> None:
        details = self._task.process.details
        if details.get("raises") or self._run.task in self._cluster.raising:
            raise ValueError("the batch is empty")

    def _open_rows(self) -> Rows:
        def notify(store: str, is_waiting: bool) -> None:
            self._tell(Waiting(store, is_waiting))

        def barrier() -> None:
            self._group.begin("restored", None)()

        return Rows(self._cluster, self._store, self._run, barrier, notify)

    # --- samplers ---------------------------------------------------------------------------------

    def _start_samplers(self) -> None:
        for each in self._samplers:
            self._get(each.begin.remote())
        self._wait_until_there()

    def _wait_for_samplers(self) -> None:
        """Replace samplers whose process has ended."""
        for each in self._samplers:
            process = each.actor.body.process
            if process is not None and process.exit_code is not None:
                self._world.sleep(self._world.random.uniform(0.1, 2.0))
                self._get(each.begin_again.remote(f"{each.actor.body.name} {process.how}"))
        self._wait_until_there()

    def _wait_until_there(self) -> None:
        began_s, told = self._world.now_s, False
        for each in self._samplers:
            name = f"{each.actor.body.task} on {each.actor.machine.name}"
            while not self._get(each.is_there.remote()):
                if self._world.now_s > began_s + 60.0:
                    raise RunError(f"cannot start a sampler: {name} did not start", "see its log")
                if self._world.now_s > began_s + 5.0 and not told:
                    told = True
                    self._tell(Waiting(name, True))
                self._world.sleep(0.2)
            if told:
                self._tell(Waiting(name, False))

    def _get(self, ref: Any) -> Any:
        end_s = self._world.now_s + 60.0
        while not ref.is_done:
            if self._world.now_s >= end_s:
                raise RunError("cannot start a sampler: timeout", "see its log")
            ref.waiting = [self._world.ticket()]
            self._world.block(end_s - self._world.now_s)
        if isinstance(ref.error, CallError):
            raise RunError(f"cannot start a sampler: {ref.error}", "see its log")
        return ref.value

    def _tell(self, message: Message) -> None:
        self._body.messages.append(message)

    def _print(self, line: str) -> None:
        self._body.log_bytes += f"{line}\n".encode()
