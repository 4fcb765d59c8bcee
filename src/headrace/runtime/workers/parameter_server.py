"""Task actor of a parameter server."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any

from headrace.linux.network import ready_port
from headrace.runtime.cluster.actor_system import ActorSystem
from headrace.runtime.protocol.actor_state import ActorState
from headrace.runtime.workers.base import TaskActor
from headrace.runtime.workers.task_process import TaskProcess


class ParameterServerActor(TaskActor):
    """Runs a parameter server."""

    preload = "train"

    def __init__(self, task: str, machine: str, system: ActorSystem) -> None:
        super().__init__(task, machine, system)
        self._ready = self.folder / "ready"

    def start(self, config: dict[str, Any], credentials: bytes) -> None:
        """Start the server; `config` is a `ServerConfig` without machine-specific fields."""
        own = {
            "task": self.task,
            "credentials": str(self._write_keys(credentials)),
            "ready": str(self._ready),
            "trace": str(self.trace_path),
        }
        path = self.folder / "server.json"
        path.write_text(json.dumps({**config, **own}), encoding="utf-8")
        command = [
            sys.executable,
            "-m",
            "headrace.training.parameter_server",
            "--config",
            str(path),
        ]
        self._process = TaskProcess(command, self.log_path, lease=self._lease)

    def state(self) -> ActorState:
        """State of the process, and its port."""
        return replace(super().state(), port=ready_port(self._ready))
