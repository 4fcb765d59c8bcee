"""Ships the graph to machines that do not have it."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from headrace.graph.format.manifest import MANIFEST, Manifest, load_manifest
from headrace.graph.format.partitioned_graph import PartitionedGraph
from headrace.policies.lifecycle.events import Event, Failed, Shipped, Waits
from headrace.runtime.controller.worker_group import PendingActorCalls, WorkerGroup
from headrace.runtime.workers.graph_cache import fingerprint_of

PIECE_BYTES = 4 << 20
_MAX_PENDING = 2
_MB = 1e6


@dataclass(frozen=True)
class WantedFiles:
    """Graph files that a machine needs.

    Attributes:
        folder: The graph on the driver's machine.
        fingerprint: Fingerprint of its manifest.
        sizes: File sizes in bytes, by name.
        checksums: CRC-32 of the files, by name.
    """

    folder: Path
    fingerprint: str
    sizes: dict[str, int]
    checksums: dict[str, int]

    @classmethod
    def of(
        cls, folder: Path, parts: Iterable[int], manifest: Manifest | None = None
    ) -> WantedFiles:
        """Files for some graph partitions: the manifest, ids, links and the partitions."""
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


def wanted_files(
    graph: PartitionedGraph, part_machines: Sequence[int], num_machines: int
) -> list[WantedFiles]:
    """Graph files that each machine needs, given the machine of each partition."""
    return [
        WantedFiles.of(
            graph.folder.resolve(),
            [part for part, home in enumerate(part_machines) if home == machine],
            graph.manifest,
        )
        for machine in range(num_machines)
    ]


class Shipment:
    """Ships missing files to one machine, through the actor of its store.

    Args:
        wanted: Files that the machine needs.
        on_step: Called with the progress.
        on_end: Called with the graph folder on the machine and the number of shipped bytes.
        on_failure: Called with the error.
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
        self._sent_bytes = self._total_bytes = self._num_pending = 0
        ref = actor.find_graph.remote(str(wanted.folder), wanted.fingerprint, wanted.sizes)
        calls.add(ref, self._found, on_failure)

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
        # Reversed, because chunks are popped from the end.
        self._pieces = [
            (name, offset)
            for name in self._names
            for offset in range(0, max(sizes[name], 1), PIECE_BYTES)
        ][::-1]
        self._send()

    def _send(self) -> None:
        while self._pieces and self._num_pending < _MAX_PENDING:
            name, offset = self._pieces.pop()
            try:
                with (self._wanted.folder / name).open("rb") as file:
                    file.seek(offset)
                    piece = file.read(PIECE_BYTES)
            except OSError as error:
                self._on_failure(f"{self._wanted.folder / name} cannot be read: {error.strerror}")
                return
            self._num_pending += 1
            ref = self._actor.receive.remote(name, offset, piece)
            self._calls.add(ref, partial(self._sent, len(piece)), self._on_failure)

    def _sent(self, num_bytes: int, _: object) -> None:
        self._num_pending -= 1
        self._sent_bytes += num_bytes
        done, whole = self._sent_bytes / _MB, self._total_bytes / _MB
        self._on_step(f"its part of the graph ({done:.0f} of {whole:.0f} MB)")
        self._send()
        if not self._pieces and not self._num_pending:
            checksums = {name: self._wanted.checksums[name] for name in self._names}
            self._calls.add(self._actor.seal.remote(checksums), self._sealed, self._on_failure)

    def _sealed(self, sealed: dict[str, Any]) -> None:
        if "error" in sealed:
            self._on_failure(str(sealed["error"]))
        else:
            self._on_end(sealed["folder"], self._total_bytes)


class GraphShipping:
    """Ships missing files to all machines; `set_folder` is called with their graph folders."""

    def __init__(
        self,
        files: Sequence[WantedFiles],
        worker_group: WorkerGroup,
        set_folder: Callable[[int, str], None],
        calls: PendingActorCalls,
        log: Callable[[str], None],
        emit: Callable[[Event], None],
    ) -> None:
        self._files, self._worker_group, self._set_folder = files, worker_group, set_folder
        self._calls, self._log, self._emit = calls, log, emit
        self._num_shipped = 0

    def begin(self) -> None:
        """Find the missing files of each machine and send them."""
        if not self._files:
            self._emit(Shipped())
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

    def _wait(self, name: str, progress: str) -> None:
        self._emit(Waits(name, progress))

    def _end(self, machine: int, folder: str, shipped_bytes: int) -> None:
        self._set_folder(machine, folder)
        if shipped_bytes:
            where = self._worker_group.slot(f"store{machine}").task.machine
            self._log(f"{where} received {shipped_bytes / _MB:.1f} MB of the graph in {folder}")
        self._num_shipped += 1
        if self._num_shipped == len(self._files):
            self._emit(Shipped())

    def _fail(self, name: str, error: str | Exception) -> None:
        if isinstance(error, Exception):
            self._emit(self._worker_group.explain(name, error))
        else:
            problem = (
                f"cannot ship the graph to {self._worker_group.slot(name).task.machine}: {error}"
            )
            self._emit(Failed(problem, "copy the graph there, or free disk space"))
