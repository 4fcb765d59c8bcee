"""Task actor of a sampler, whose process starts when its trainer's loader requests it."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace.runtime.cluster.actor_system import ActorSystem
from headrace.runtime.protocol.actor_state import ActorState
from headrace.runtime.workers.base import TaskActor
from headrace.runtime.workers.task_process import TaskProcess, how_ended

_MAX_TRIES = 3
"""Restarts of a process that was killed before it listened."""


class SamplerActor(TaskActor):
    """Runs a sampler, with a new process for each loader."""

    def __init__(self, task: str, machine: str, system: ActorSystem) -> None:
        super().__init__(task, machine, system)
        self._settings: dict[str, Any] = {}
        self._begun = 0
        self._last: tuple[dict[str, Any], bytes | None, str | None, str] | None = None
        self._restarts = self._num_early = 0
        self._why = ""
        self._place: dict[str, Any] = {}

    def prepare(
        self, settings: dict[str, Any], credentials: bytes, seeds: dict[str, list[bytes]]
    ) -> None:
        """Store the run's fields of `SamplerConfig`, and the seeds.

        Seeds are `numpy.save` files of this sampler's seed shards, by split.
        """
        own = {"task": self.task, "machine": self.machine, "trace": str(self.trace_path)}
        self._settings = {**settings, **own, "credentials": str(self._write_keys(credentials))}
        for split, shards in seeds.items():
            for shard, data in enumerate(shards):
                self._seeds_path(split, shard).write_bytes(data)

    def begin(
        self, config: dict[str, Any], seeds: bytes | None, split: str | None, trainer_machine: str
    ) -> None:
        """Start a process for a loader; the process of a previous loader is stopped.

        Seeds are a `numpy.save` file; none for those of the split that the plan assigns.
        """
        if self._process is not None:
            self._process.end()
        self._last = (config, seeds, split, trainer_machine)
        self._begun += 1
        number = self._begun
        path = self._seeds_path(split, 0)
        further = [
            {**shard, "seeds": str(self._seeds_path(split, number))}
            for number, shard in enumerate(config.get("further", ()), 1)
        ]
        if seeds is not None:
            path = self.folder / f"seeds-{number}.npy"
            path.write_bytes(seeds)
        listen: dict[str, Any] = {"ready": str(self.folder / f"ready-{number}")}
        if trainer_machine == self.machine:
            socket_path = str(self.folder / f"sub-batches-{number}")
            listen["path"], self._place = socket_path, {"socket": socket_path}
        else:
            listen["host"], self._place = self.address, {"host": self.address}
        self._place |= {"task": self.task, "machine": self.machine}
        own = {"seeds": str(path), "further": further, "listen": listen}
        own["waits"] = str(self.folder / f"waits-{number}")
        whole = {**config, **self._settings, **own}
        file = self.folder / f"sampler-{number}.json"
        file.write_text(json.dumps(whole), encoding="utf-8")
        command = [sys.executable, "-m", "headrace.graph.sampler_worker", "--config", str(file)]
        self._process = TaskProcess(command, self.log_path, lease=self._lease)

    def begin_again(self, epoch: int, batch: int, why: str) -> None:
        """Start a new process at an epoch and batch, after the trainer lost the last one."""
        if self._last is None:
            return
        config, seeds, split, trainer_machine = self._last
        self._restarts += 1
        self._why = after_name(f"{self.task} on {self.machine}", why)
        first = {"first_epoch": epoch, "first_batch": batch}
        self.begin({**config, **first}, seeds, split, trainer_machine)

    def _seeds_path(self, split: str | None, shard: int) -> Path:
        return self.folder / f"{split}-{shard}.npy"

    def _can_restart(self) -> bool:
        has_retry_budget = self._last is not None and bool(self._last[0].get("retry_budget_s"))
        return has_retry_budget and self._num_early < _MAX_TRIES

    def _first(self) -> tuple[int, int]:
        config = {} if self._last is None else self._last[0]
        return config.get("first_epoch", 0), config.get("first_batch", 0)

    def state(self) -> ActorState:
        """State of the process, its restarts, and the task that it waits for."""
        try:
            waits_for = (self.folder / f"waits-{self._begun}").read_text(encoding="utf-8")
        except OSError:
            waits_for = ""
        own = super().state()
        return replace(own, restarts=self._restarts, why=self._why, waits_for=waits_for)

    def place(self) -> dict[str, Any] | None:
        """Address of the current process; an `error` if it exited, none if not ready."""
        try:
            ready = json.loads((self.folder / f"ready-{self._begun}").read_text(encoding="ascii"))
        except OSError:
            code = None if self._process is None else self._process.code
            if code is None:
                return None
            if code < 0 and self._can_restart():
                # A signal is an external cause; errors of the process end it with an exit code.
                self._num_early += 1
                self.begin_again(*self._first(), f"{self.task} on {self.machine} {how_ended(code)}")
                return None
            last_error = "" if self._process is None else self._process.last_error_line()
            problem = f"{self.task} on {self.machine} did not start: {last_error or f'code {code}'}"
            remedy = f"see `headrace logs --task {self.task}`"
            return {"error": {"problem": problem, "remedy": remedy}}
        self._num_early = 0
        if "host" in self._place:
            return {**self._place, "port": ready["port"]}
        return self._place


def after_name(task: str, why: str) -> str:
    """Why a task was lost, formatted to follow its name; `why` may name it or another task."""
    rest = why.removeprefix(f"{task} ")
    return f"was lost: {why}" if rest == why else rest
