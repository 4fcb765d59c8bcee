"""Task actor of a graph store, which also manages the graph's files on its machine."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace.linux.network import unreachable, write_private
from headrace.runtime.cluster.actor_system import ActorSystem
from headrace.runtime.protocol.actor_state import ActorState
from headrace.runtime.workers.base import TaskActor
from headrace.runtime.workers.graph_cache import GraphCache
from headrace.runtime.workers.task_process import TaskProcess

_AGENT_GRACE_S = 5.0


class StoreActor(TaskActor):
    """Runs a store, or uses one that runs already; there is an actor on every machine."""

    def __init__(
        self, task: str, machine: str, system: ActorSystem, cache: str | None = None
    ) -> None:
        super().__init__(task, machine, system)
        self._files = GraphCache(cache)
        self._config: dict[str, Any] = {}
        self._num_starts = 0
        self._attached: ActorState | None = None
        self._agent: TaskProcess | None = None

    def find_graph(self, given: str, fingerprint: str, files: dict[str, int]) -> dict[str, Any]:
        """Return the graph's folder on this machine and its missing files."""
        return self._files.find(given, fingerprint, files)

    def receive(self, name: str, offset: int, data: bytes) -> None:
        """Write a chunk of a shipped file."""
        self._files.receive(name, offset, data)

    def seal(self, checksums: dict[str, int]) -> dict[str, Any]:
        """Verify shipped files and give them their final names."""
        return self._files.seal(checksums)

    def attach(self, ports: dict[int, int], is_verified: bool) -> None:
        """Start no store: the run has no graph, or another process serves it at these ports."""
        names = {str(part): port for part, port in ports.items()}
        self._attached = ActorState(ports=names, is_verified=is_verified)

    def start(self, config: dict[str, Any], credentials: bytes) -> None:
        """Start the store.

        `config` is a `StoreConfig` without machine-specific fields.
        """
        self._config = {**config, "credentials": str(self._write_keys(credentials))}
        self._start()

    def restart(self) -> None:
        """Restart the store on the same ports."""
        ports = self._ports()
        if ports is not None:
            self._config["parts"] = ports
        if self._process is not None:
            self._process.end()
        self._start()

    def state(self) -> ActorState:
        """State of the process, its ports and the machine's NIC."""
        if self._attached is not None:
            return replace(self._attached, nic=self.nic())
        return replace(
            super().state(),
            ports=self._ports(),
            nic=self.nic(),
            starts=self._num_starts,
            is_verified=self._ready.with_name(f"{self._ready.name}-verified").exists(),
        )

    def reach(self, places: dict[str, tuple[str, int]]) -> dict[str, str]:
        """Connect to hosts and ports by name; return the errors of unreachable ones."""
        return unreachable(places)

    def control_traffic(self, config: dict[str, Any]) -> None:
        """Start the traffic agent of this machine with an `AgentConfig`."""
        path = self.folder / "traffic.json"
        write_private(path, json.dumps(config).encode())
        command = [sys.executable, "-m", "headrace.runtime.traffic", str(path)]
        self._agent = TaskProcess(command, self.folder / "traffic.log")

    def close(self) -> None:
        """Stop the processes and remove the folder."""
        try:
            if self._agent is not None:
                # Only the agent can restore the NIC's configuration.
                self._agent.end(_AGENT_GRACE_S)
        finally:
            super().close()

    def _start(self) -> None:
        self._num_starts += 1
        path = self.folder / "store.json"
        # A restarted store loads its learnable embeddings from this folder.
        own = {"ready": str(self._ready), "embedding_folder": str(self.folder / "embeddings")}
        path.write_text(json.dumps({**own, **self._config}), encoding="utf-8")
        command = [sys.executable, "-m", "headrace.graph.store", "--config", str(path)]
        self._process = TaskProcess(command, self.log_path, lease=self._lease)

    @property
    def _ready(self) -> Path:
        # One file per start, so that a stale one is not read.
        return self.folder / f"ready-{self._num_starts}"

    def _ports(self) -> dict[str, int] | None:
        try:
            ready = json.loads(self._ready.read_text(encoding="ascii"))
        except OSError:
            return None
        ports: dict[str, int] = ready["ports"]
        return ports
