"""Checkpoints of a trainer: when to write them, their contents, and how to resume from one.

Checkpoints are written between two steps, when the script requests the next batch or epoch. All
trainers get there after the same steps. Rank 0 writes; the others send it their RNG state.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import torch
from torch import nn

from headrace.core.errors import SpecError
from headrace.runtime.protocol.run_context import RunContext
from headrace.runtime.protocol.trainer_messages import (
    CheckpointWrite,
    NumEpochs,
    Resumed,
    send,
)
from headrace.runtime.trainer.rng_state import begin_random, random_state, restore_random_state
from headrace.runtime.trainer.step_trace import steps_of
from headrace.runtime.trainer.stop_consensus import StopConsensus
from headrace.runtime.trainer.stop_signal import StopRequest
from headrace.training.best_model import BestKeeper, set_state, state_of
from headrace.training.checkpoint_files import Position, Sidecar, as_plain, load, save
from headrace.training.collectives import at_first_trainer
from headrace.training.ddp import join_group, plain

FOLDER = "checkpoints"
"""Subfolder of the run's output folder."""

_COST_SHARE = 0.01
"""Largest share of time for end-of-epoch checkpoints; periodic ones are always written."""


class Loader(Protocol):
    """A loader that can start at any batch."""

    def __len__(self) -> int: ...

    def position(self, is_looping: bool) -> tuple[int, int]:
        """Epoch and number of the next batch, in the current loop or in the next one."""
        ...

    def go_to(self, epoch: int, batch: int) -> None:
        """Start the next loop at this epoch and batch."""
        ...


class Checkpoints:
    """Writes a trainer's checkpoints and restores one; without a run it writes none."""

    def __init__(self, run: RunContext | None, device: torch.device, keeper: BestKeeper) -> None:
        self._run, self._device, self._keeper = run, device, keeper
        self._folder = None if run is None or run.output is None else run.output / FOLDER
        self._every = 0 if run is None or self._folder is None else run.checkpoint_every
        self._model: nn.Module | None = None
        self._optimizer: torch.optim.Optimizer | None = None
        self._num_prepared = 0
        self._things: dict[str, Any] = {}
        self._loaders: list[Loader] = []
        self._looped: set[int] = set()
        self._epoch: int | None = None
        self._num_loops = 0
        self._num_taken = self._saved_at = 0
        self._sent: Callable[[], Any] | None = None
        self._cost_s = self._write_cpu_s = self._saved_s = 0.0
        self._stop = StopRequest()
        self._agreement = StopConsensus(run is None or run.world_size == 1, device, self._stop)
        self._writer: threading.Thread | None = None
        self._sidecar: Sidecar | None = None
        self._state: dict[str, Any] = {}
        self._is_pending = self._restores_random = False
        if run is not None and run.resume is not None:
            self._sidecar, self._state = load(run.resume)
            self._is_pending = True

    # --- registration ----------------------------------------------------------------------------

    def add(self, model: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
        """Register a model and its optimizer, before the model is synchronised."""
        number, self._num_prepared = self._num_prepared, self._num_prepared + 1
        if number:
            more = {f"model {number}": model, f"optimizer {number}": optimizer}
            self.keep({name: thing for name, thing in more.items() if thing is not None})
            return
        self._model, self._optimizer = model, optimizer
        if self._is_pending:
            # Servers and other trainers are initialised with the model's values at synchronisation.
            self._restore("model", model, self._state["model"])

    def keep(self, things: Mapping[str, Any]) -> None:
        """Register further objects to save; raises `SpecError` if one cannot be saved."""
        for name, thing in things.items():
            as_plain(state_of(thing, name), name)
        self.add_unchecked(things)

    def add_unchecked(self, things: Mapping[str, Any]) -> None:
        """Register objects without a trial serialization, e.g. because they are large."""
        for name, thing in things.items():
            self._things[name] = thing
            if self._sidecar is not None and not self._is_pending and name in self._state["kept"]:
                self._restore(name, thing, self._state["kept"][name])

    def watch(self, loader: Loader) -> None:
        """Register a loader of the script."""
        number = len(self._loaders)
        self._loaders.append(loader)
        if self._sidecar is not None and not self._is_pending:
            self._place(number, loader)

    # --- hooks in the script's loops --------------------------------------------------------------

    def epochs(self, num: int | None) -> Iterator[int]:
        """Yield the remaining epoch numbers; none if the loop ended before the checkpoint."""
        self._epoch, state = 0, self._state
        self._num_loops += 1
        if self._run is not None and self._run.rank == 0:
            send(self._run.messages, NumEpochs(num))
        if self._is_pending and self._num_loops < state["num_loops"]:
            return
        self._saved_s = time.perf_counter()
        self._agreement.begin(self._num_taken)
        if self._every and self._run is not None:
            join_group(self._device, self._run.world_size)
        with self._stop.intercept_sigint() if self._every else _nothing():
            if self._is_pending:
                self._epoch = int(state["epoch"])
                is_over = num is not None and self._epoch >= num
                if state["loop"] is None or is_over:
                    self._restore_all(is_over)
                    self._restore_random()
            try:
                while num is None or self._epoch < num:
                    self._looped.clear()
                    yield self._epoch
                    self._epoch += 1
                    self._end_epoch(is_last=self._epoch == num)
                self.close()
            finally:
                self._epoch = None

    def begin_loop(self, loader: Loader) -> None:
        """Start a loop over a training loader."""
        self._looped.add(self._loaders.index(loader))
        if self._epoch is not None and self._is_pending:
            self._restore_all()
            self._restores_random = True

    def before_batch(self) -> None:
        """Restore the RNG state, if due, before the next batch is built."""
        if self._restores_random:
            # Late, because starting a loop draws random numbers.
            self._restores_random = False
            self._restore_random()

    def took(self) -> None:
        """Count a batch that is passed to the script."""
        self._num_taken += 1

    def after_step(self, loader: Loader) -> None:
        """Save or stop, if due, between two steps of an epoch."""
        if not self._every or self._epoch is None or self._model is None:
            return
        stops = self._should_stop()
        is_due = self._num_taken % self._every == 0
        # With two loops in an epoch, it is unknown whether the other one has ended.
        if (is_due or stops) and len(self._looped) == 1:
            self._save(loader)
        self._stop_if(stops)

    def close(self) -> None:
        """Wait for pending writes or sends."""
        if self._writer is not None:
            self._writer.join()
            self._writer = None
        elif self._sent is not None and self._run is not None and self._run.rank:
            # Rank 0 may have exited; other collectives report that.
            with suppress(RuntimeError):
                self._sent()
            self._sent = None

    def _end_epoch(self, is_last: bool) -> None:
        if not self._every or self._model is None:
            return
        stops, num_new = self._should_stop(), self._num_taken - self._saved_at
        if is_last or (num_new and (stops or self._agreement.is_cheap or num_new >= self._every)):
            self._save(None)
        self._stop_if(stops)

    def _should_stop(self) -> bool:
        """Whether all trainers stop now; also updates whether rank 0 can save cheaply."""
        passed_s = time.perf_counter() - self._saved_s
        is_cheap = self._cost_s + self._write_cpu_s <= _COST_SHARE * passed_s
        is_first = self._run is not None and self._run.rank == 0
        return self._agreement.should_stop(self._num_taken, is_first and is_cheap)

    def _stop_if(self, stops: bool) -> None:
        if stops:
            self.close()
            raise KeyboardInterrupt

    # --- saving -----------------------------------------------------------------------------------

    def _save(self, loop: Loader | None) -> None:
        assert self._run is not None
        begin_s = time.perf_counter()
        self.close()
        self._sent = randoms = at_first_trainer(random_state(self._device), self._device)
        self._saved_at = self._num_taken
        if self._run.rank == 0:
            position, state = self._position(loop), self._snapshot(loop)
            # Time by which training was delayed since the last checkpoint.
            stall_s, agree_s = time.perf_counter() - begin_s, self._agreement.seconds
            self._agreement.seconds = 0.0
            self._writer = threading.Thread(
                target=self._write,
                args=(position, state, randoms, {"stall_s": stall_s, "agree_s": agree_s}),
                name="write checkpoint",
                daemon=True,
            )
            self._writer.start()
        self._saved_s = time.perf_counter()
        self._cost_s = self._saved_s - begin_s

    def _position(self, loop: Loader | None) -> Position:
        assert self._run is not None
        return Position(
            iteration=self._num_taken,
            epoch=self._epoch or 0,
            batch=0 if loop is None else loop.position(is_looping=True)[1],
            plan=self._run.plan,
            lanes=self._run.assignment,
        )

    def _snapshot(self, loop: Loader | None) -> dict[str, Any]:
        assert self._model is not None
        optimizer = self._optimizer
        return {
            "model": as_plain(plain(self._model).state_dict(), "model"),
            "optimizer": None
            if optimizer is None
            else as_plain(optimizer.state_dict(), "optimizer"),
            "kept": {
                name: as_plain(state_of(thing, name), name) for name, thing in self._things.items()
            },
            "best": self._keeper.state_dict(),
            "loaders": [each.position(is_looping=each is loop) for each in self._loaders],
            "loop": None if loop is None else self._loaders.index(loop),
            "num_loops": self._num_loops,
            "epoch": self._epoch,
            "iteration": self._num_taken,
        }

    def _write(
        self,
        position: Position,
        state: dict[str, Any],
        randoms: Callable[[], list[torch.Tensor] | None],
        costs: dict[str, float],
    ) -> None:
        assert self._run is not None
        assert self._folder is not None
        begin_s, begin_cpu_s = time.perf_counter(), time.thread_time()
        event: dict[str, Any] = {}
        try:
            states = randoms() or []
        except RuntimeError:
            event["problem"] = "is incomplete: other trainers exited"
        else:
            event = self._write_file(
                position, {**state, "randoms": states, "world_size": len(states)}
            )
        self._write_cpu_s = time.thread_time() - begin_cpu_s
        times = {
            **costs,
            "write_s": time.perf_counter() - begin_s,
            "write_cpu_s": self._write_cpu_s,
        }
        event |= {name: round(value, 6) for name, value in times.items()}
        send(self._run.messages, CheckpointWrite(position.iteration, **event))

    def _write_file(self, position: Position, state: dict[str, Any]) -> dict[str, Any]:
        assert self._folder is not None
        try:
            made = save(self._folder, position, state)
        except (OSError, RuntimeError) as error:
            why = getattr(error, "strerror", None) or str(error).splitlines()[0]
            return {"problem": f"cannot be written: {why}"}
        return {"epoch": position.epoch, "batch": position.batch, "bytes": made.sidecar.size}

    # --- resuming ---------------------------------------------------------------------------------

    def _restore_all(self, is_over: bool = False) -> None:
        """Restore the checkpoint's state, except the RNG state."""
        assert self._sidecar is not None
        assert self._run is not None
        self._is_pending, state = False, self._state
        if self._model is not None:
            self._restore("model", plain(self._model), state["model"])
        for name, thing in self._things.items():
            if name in state["kept"]:
                self._restore(name, thing, state["kept"][name])
        # After schedulers, whose construction changes the optimizer's settings.
        if self._optimizer is not None and state["optimizer"] is not None:
            self._restore("optimizer", self._optimizer, state["optimizer"])
        self._keeper.load_state_dict(state["best"])
        for number, loader in enumerate(self._loaders):
            self._place(number, loader)
        self._num_taken = self._saved_at = self._sidecar.iteration
        self._agreement.begin(self._num_taken)
        steps = steps_of(self._run)
        if steps is not None:
            steps.start_at(self._num_taken)
        if self._run.rank == 0:
            sidecar, others = self._sidecar, self._run.assignment != self._sidecar.lanes
            resumed = Resumed(self._num_taken, sidecar.epoch, sidecar.batch, others, is_over)
            send(self._run.messages, resumed)

    def _place(self, number: int, loader: Loader) -> None:
        assert self._run is not None
        assert self._sidecar is not None
        places = self._state["loaders"]
        if number < len(places):
            epoch, batch = places[number]
            # With another seed assignment, the batch of this number has other seeds.
            is_same = self._run.assignment == self._sidecar.lanes and batch < len(loader)
            loader.go_to(epoch, batch if is_same else 0)

    def _restore_random(self) -> None:
        assert self._run is not None
        randoms, rank = self._state["randoms"], self._run.rank
        if rank < len(randoms):
            restore_random_state(randoms[rank], self._device)
        else:
            begin_random(self._num_taken * 1_000_003 + rank)

    def _restore(self, name: str, thing: Any, state: Any) -> None:
        assert self._sidecar is not None
        try:
            set_state(thing, state)
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            raise SpecError(
                f"the {name} of iteration {self._sidecar.iteration} does not match this script's: "
                f"{_reason(error)}",
                "resume with the script that wrote the checkpoint, or start a new run",
            ) from None


def _reason(error: Exception) -> str:
    """What is wrong, without the headline of torch's errors: `Error(s) in loading state_dict`."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    details = [line for line in lines if not line.endswith(":")]
    return (details or lines or [type(error).__name__])[0].rstrip(".")


@contextmanager
def _nothing() -> Iterator[None]:
    yield
