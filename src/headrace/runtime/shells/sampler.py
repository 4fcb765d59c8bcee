"""The shell of a sampler, whose process starts when its trainer's loader asks for it."""

from __future__ import annotations

import json
import sys
from typing import Any

from headrace.runtime.shells.child import Child
from headrace.runtime.shells.shell import Shell


class SamplerShell(Shell):
    """Runs a sampler, anew for each loader that it feeds."""

    def __init__(self, task: str, machine: str) -> None:
        super().__init__(task, machine)
        self._settings: dict[str, Any] = {}
        self._begun = 0
        self._place: dict[str, Any] = {}

    def prepare(
        self, settings: dict[str, Any], credentials: bytes, seeds: dict[str, bytes]
    ) -> None:
        """Take what every sampler process here is told.

        Args:
            settings: Fields of `SamplerConfig` that only the run knows.
            credentials: What `Credentials.save` would write.
            seeds: Files of `numpy.save` by split: the seeds of this sampler.
        """
        own = {"task": self.task, "machine": self.machine, "trace": str(self.trace_path)}
        self._settings = {**settings, **own, "credentials": str(self._write_keys(credentials))}
        for split, data in seeds.items():
            (self.folder / f"{split}.npy").write_bytes(data)

    def begin(
        self, config: dict[str, Any], seeds: bytes | None, split: str | None, trainer_machine: str
    ) -> None:
        """Start a process for a loader; one that fed another loader before ends.

        Args:
            config: A `SamplerConfig` without what only the run knows.
            seeds: File of `numpy.save`; none for those that the plan gives this sampler ...
            split: ... of this split.
            trainer_machine: Where the trainer is.
        """
        if self._child is not None:
            self._child.end()
        self._begun += 1
        number = self._begun
        path = self.folder / f"{split}.npy"
        if seeds is not None:
            path = self.folder / f"seeds-{number}.npy"
            path.write_bytes(seeds)
        listen: dict[str, Any] = {"ready": str(self.folder / f"ready-{number}")}
        if trainer_machine == self.machine:
            socket_path = str(self.folder / f"parts-{number}")
            listen["path"], self._place = socket_path, {"socket": socket_path}
        else:
            listen["host"], self._place = self.address, {"host": self.address}
        self._place |= {"task": self.task, "machine": self.machine}
        whole = {**config, **self._settings, "seeds": str(path), "listen": listen}
        file = self.folder / f"sampler-{number}.json"
        file.write_text(json.dumps(whole), encoding="utf-8")
        command = [sys.executable, "-m", "headrace.graph.feeding", "--config", str(file)]
        self._child = Child(command, self.log_path)

    def place(self) -> dict[str, Any] | None:
        """Where the newest process listens; an `error` if it has ended, none if it is not ready."""
        try:
            ready = json.loads((self.folder / f"ready-{self._begun}").read_text(encoding="ascii"))
        except OSError:
            code = None if self._child is None else self._child.code
            if code is None:
                return None
            said = "" if self._child is None else self._child.last_words()
            problem = f"{self.task} on {self.machine} did not start: {said or f'code {code}'}"
            remedy = f"see `headrace logs --task {self.task}`"
            return {"error": {"problem": problem, "remedy": remedy}}
        if "host" in self._place:
            return {**self._place, "port": ready["port"]}
        return self._place
