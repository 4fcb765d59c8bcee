"""A machine uses a graph where it lies, or gets what it needs of it once."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.graph.format.manifest import MANIFEST
from headrace.graph.format.partitioned_graph import open_graph
from headrace.runtime.cluster.local_actors import LocalActors
from headrace.runtime.controller import graph_shipping
from headrace.runtime.controller.graph_shipping import Shipment, WantedFiles
from headrace.runtime.controller.worker_group import PendingActorCalls
from headrace.runtime.workers.graph_cache import GraphCache
from tests.unit.graph.small_graphs import homogeneous, write


class Answered(PendingActorCalls):
    """Calls that were answered when they were made."""

    def __init__(self) -> None:
        super().__init__(LocalActors("m0"))
        self._answers: list[tuple[Any, Any]] = []

    def add(self, ref: Any, then: Any, failed: Any) -> None:
        self._answers.append((then, ref))

    def collect(self, timeout_s: float = 0.0) -> None:
        while self._answers:
            then, answer = self._answers.pop(0)
            then(answer)


class Method:
    def __init__(self, method: Any) -> None:
        self.remote = method


class Machine:
    """A machine's shell, without Ray."""

    def __init__(self, cache: Path, damage: bool = False) -> None:
        self._files = GraphCache(str(cache))
        self._damage = damage
        self.find_graph = Method(self._files.find)
        self.receive = Method(self._receive)
        self.seal = Method(self._files.seal)
        self.num_pieces = 0

    def _receive(self, name: str, offset: int, data: bytes) -> None:
        self.num_pieces += 1
        is_last = self._damage and name.endswith("indices.bin")
        self._files.receive(name, offset, bytes(len(data)) if is_last else data)


class Result:
    def __init__(self) -> None:
        self.folder, self.shipped_bytes, self.error = "", 0, ""
        self.steps: list[str] = []

    def end(self, folder: str, shipped_bytes: int) -> None:
        self.folder, self.shipped_bytes = folder, shipped_bytes

    def fail(self, error: Any) -> None:
        self.error = str(error)


def ship(graph: Path, machine: Machine, part: int = 1) -> Result:
    return ship_wanted(WantedFiles.of(graph, [part]), machine)


def ship_wanted(wanted: WantedFiles, machine: Machine) -> Result:
    result, calls = Result(), Answered()
    Shipment(wanted, machine, calls, result.steps.append, result.end, result.fail)
    calls.collect()
    return result


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    write(homogeneous(), tmp_path / "parts", 3)
    return tmp_path / "parts"


def test_a_graph_that_is_there_is_used(graph: Path, tmp_path: Path) -> None:
    shutil.rmtree(graph / "part-0")
    result = ship(graph, Machine(tmp_path / "cache"))
    assert (result.folder, result.shipped_bytes) == (str(graph), 0)
    assert not (tmp_path / "cache").exists()


def test_what_is_missing_is_shipped_once(
    graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_shipping, "PIECE_BYTES", 100)
    wanted = WantedFiles.of(graph, [1])
    here = tmp_path / "driver"
    shutil.copytree(graph, here)
    # The machine has another graph at the same place.
    (graph / MANIFEST).write_text("{}")
    machine = Machine(tmp_path / "cache")
    monkeypatch.setattr(GraphCache, "locate", elsewhere(graph, here))
    wanted = replace(wanted, folder=here)
    result = ship_wanted(wanted, machine)
    assert result.error == ""
    assert result.shipped_bytes == sum(wanted.sizes.values())
    assert result.folder == str(tmp_path / "cache" / wanted.fingerprint)
    assert machine.num_pieces > len(wanted.sizes)
    shipped = open_graph(result.folder)
    edge = shipped.edge_types[0]
    want = open_graph(here).part(1).indices(edge)
    assert (shipped.part(1).indices(edge) == want).all()
    names = {path.name for path in Path(result.folder).iterdir()}
    assert names == {MANIFEST, "ids", "part-1"}
    again = ship(here, Machine(tmp_path / "cache"))
    assert (again.folder, again.shipped_bytes) == (result.folder, 0)


def test_damage_is_found(graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GraphCache, "locate", elsewhere(tmp_path / "nowhere", graph))
    result = ship(graph, Machine(tmp_path / "cache", damage=True))
    assert "indices.bin is corrupt after the transfer" in result.error
    assert result.folder == ""


def elsewhere(given: Path, here: Path) -> Any:
    """A machine that does not see the driver's folder."""
    locate = GraphCache.locate

    def looked(files: GraphCache, path: str, *rest: Any) -> dict[str, Any]:
        return locate(files, str(given) if Path(path) == here else path, *rest)

    return looked
