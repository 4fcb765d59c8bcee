"""The graph on every machine: used where it lies, or shipped there once."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from headrace.core.plan import Plan
from headrace.graph.format.manifest import MANIFEST, Manifest, load_manifest
from headrace.graph.format.partitioned_graph import PartitionedGraph
from headrace.policies.lifecycle.events import Event, Failed, Shipped, Waits
from headrace.runtime.controller.task_configs import TaskConfigs
from headrace.runtime.controller.worker_group import PendingActorCalls, WorkerGroup
from headrace.runtime.workers.graph_cache import fingerprint_of

PIECE_BYTES = 4 << 20
_AT_ONCE = 2
_MB = 1e6


@dataclass(frozen=True)
class WantedFiles:
    """What a machine needs of a graph.

    Attributes:
        folder: The graph on the driver's machine.
        fingerprint: Of its manifest.
        sizes: In bytes, by name.
        checksums: The same files' CRC-32.
    """

    folder: Path
    fingerprint: str
    sizes: dict[str, int]
    checksums: dict[str, int]

    @classmethod
    def of(
        cls, folder: Path, parts: Iterable[int], manifest: Manifest | None = None
    ) -> WantedFiles:
        """What a machine with some parts needs: the manifest, ids, links and these parts."""
        manifest = load_manifest(folder) if manifest is None else manifest
        text = (folder / MANIFEST).read_bytes()
        sizes, checksums = {MANIFEST: len(text)}, {MANIFEST: zlib.crc32(text)}
        own = {f"part-{part}" for part in parts}
        for name, info in manifest.files.items():
            if not name.startswith("part-") or name.partition("/")[0] in own:
                sizes[name], checksums[name] = info.bytes, info.crc32
        fingerprint = fingerprint_of(folder)
        assert fingerprint is not None
        return cls(folder, fingerprint, sizes, checksums)


def wanted_files(plan: Plan, graph: PartitionedGraph) -> list[WantedFiles]:
    """What every machine of a plan needs."""
    return [
        WantedFiles.of(
            graph.folder.resolve(),
            [part for part, home in enumerate(plan.part_machines) if home == machine],
            graph.manifest,
        )
        for machine in range(plan.cluster.num_machines)
    ]


class Shipment:
    """Brings one machine what it needs.

    Args:
        wanted: What that is.
        actor: Of the machine's store.
        calls: To make calls with.
        on_step: Told how far it is.
        on_end: Given the graph's folder on the machine, and how many bytes were shipped.
        on_failure: Told what went wrong.
    """

    def __init__(
        self,
        wanted: WantedFiles,
        actor: Any,
        calls: PendingActorCalls,
        on_step: Callable[[str], None],
        on_end: Callable[[str, int], None],
        on_failure: Callable[[str | Exception], None],
    ) -> None:
        self._wanted, self._actor, self._calls = wanted, actor, calls
        self._on_step, self._on_end, self._on_failure = on_step, on_end, on_failure
        self._pieces: list[tuple[str, int]] = []
        self._names: list[str] = []
        self._sent_bytes = self._total_bytes = self._under_way = 0
        asked = actor.find_graph.remote(str(wanted.folder), wanted.fingerprint, wanted.sizes)
        calls.ask(asked, self._found, on_failure)

    def _found(self, found: dict[str, Any]) -> None:
        if "error" in found:
            self._on_failure(str(found["error"]))
            return
        self._names = found["missing"]
        if not self._names:
            self._on_end(found["folder"], 0)
            return
        sizes = self._wanted.sizes
        self._total_bytes = sum(sizes[name] for name in self._names)
        # Last first, because pieces are taken from the end.
        self._pieces = [
            (name, offset)
            for name in self._names
            for offset in range(0, max(sizes[name], 1), PIECE_BYTES)
        ][::-1]
        self._send()

    def _send(self) -> None:
        while self._pieces and self._under_way < _AT_ONCE:
            name, offset = self._pieces.pop()
            try:
                with (self._wanted.folder / name).open("rb") as file:
                    file.seek(offset)
                    piece = file.read(PIECE_BYTES)
            except OSError as error:
                self._on_failure(f"{self._wanted.folder / name} cannot be read: {error.strerror}")
                return
            self._under_way += 1
            taken = self._actor.take.remote(name, offset, piece)
            self._calls.ask(taken, partial(self._sent, len(piece)), self._on_failure)

    def _sent(self, num_bytes: int, _: object) -> None:
        self._under_way -= 1
        self._sent_bytes += num_bytes
        done, whole = self._sent_bytes / _MB, self._total_bytes / _MB
        self._on_step(f"its part of the graph ({done:.0f} of {whole:.0f} MB)")
        self._send()
        if not self._pieces and not self._under_way:
            checksums = {name: self._wanted.checksums[name] for name in self._names}
            self._calls.ask(self._actor.seal.remote(checksums), self._sealed, self._on_failure)

    def _sealed(self, sealed: dict[str, Any]) -> None:
        if "error" in sealed:
            self._on_failure(str(sealed["error"]))
        else:
            self._on_end(sealed["folder"], self._total_bytes)


class GraphShipping:
    """Brings every machine what it needs.

    Args:
        files: What that is.
        worker_group: Actors of all tasks.
        task_configs: Told where the graph is on every machine.
        calls: To make calls with.
        say: Told what the user should know.
        tell: Told how it goes.
    """

    def __init__(
        self,
        files: Sequence[WantedFiles],
        worker_group: WorkerGroup,
        task_configs: TaskConfigs,
        calls: PendingActorCalls,
        say: Callable[[str], None],
        tell: Callable[[Event], None],
    ) -> None:
        self._files, self._worker_group, self._task_configs = files, worker_group, task_configs
        self._calls, self._say, self._tell = calls, say, tell
        self._num_shipped = 0

    def begin(self) -> None:
        """Ask every machine what it has, and send the rest."""
        for machine, wanted in enumerate(self._files):
            name = f"store{machine}"
            Shipment(
                wanted,
                self._worker_group.actor(name),
                self._calls,
                partial(self._wait, name),
                partial(self._end, machine),
                partial(self._fail, name),
            )

    def _wait(self, name: str, words: str) -> None:
        self._tell(Waits(name, words))

    def _end(self, machine: int, folder: str, shipped_bytes: int) -> None:
        self._task_configs.note_folder(machine, folder)
        if shipped_bytes:
            where = self._worker_group.slot(f"store{machine}").task.machine
            self._say(f"{where} got {shipped_bytes / _MB:.1f} MB of the graph in {folder}")
        self._num_shipped += 1
        if self._num_shipped == len(self._files):
            self._tell(Shipped())

    def _fail(self, name: str, error: str | Exception) -> None:
        if isinstance(error, Exception):
            self._tell(self._worker_group.explain(name, error))
        else:
            problem = (
                f"the graph does not get to {self._worker_group.slot(name).task.machine}: {error}"
            )
            self._tell(Failed(problem, "put the graph there, or make room"))
