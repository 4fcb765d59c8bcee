"""Files of a graph are compared with their checksums while they are used."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.core.errors import DamagedGraphError
from headrace.graph.format import array_files, checksums, manifest
from headrace.graph.format.array_files import damage_of, write_array
from headrace.graph.format.checksums import (
    Verification,
    VerifiedFiles,
    check_file,
    files_of,
)
from headrace.graph.format.partitioned_graph import open_graph
from tests.unit.graph.small_graphs import homogeneous, write

np = pytest.importorskip("numpy")


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    write(homogeneous(40, 160), tmp_path / "parts", 2)
    return tmp_path / "parts"


@pytest.fixture
def known(tmp_path: Path) -> VerifiedFiles:
    return VerifiedFiles(tmp_path / "verified")


def flip(path: Path, at: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def verified(folder: Path, known: VerifiedFiles) -> Verification:
    made = Verification(folder, open_graph(folder).manifest.files, known=known)
    made.start()
    assert made.wait(60)
    return made


def test_an_intact_graph_is_complete_and_remembered(
    parts: Path, known: VerifiedFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = verified(parts, known)
    assert (found.is_complete, found.problem) == (True, "")
    found.check()
    monkeypatch.setattr(checksums, "damage_of", lambda *_: pytest.fail("was read again"))
    assert verified(parts, known).is_complete


def test_every_file_is_compared(parts: Path, known: VerifiedFiles) -> None:
    for name, info in open_graph(parts).manifest.files.items():
        if info.bytes:
            before = (parts / name).read_bytes()
            flip(parts / name, info.bytes // 2)
            found = verified(parts, known)
            assert not found.is_complete
            assert name in found.problem
            with pytest.raises(DamagedGraphError, match=name):
                found.check()
            (parts / name).write_bytes(before)
    assert verified(parts, known).is_complete


def test_a_file_that_was_changed_is_compared_again_even_with_its_old_time(
    parts: Path, known: VerifiedFiles
) -> None:
    assert verified(parts, known).is_complete
    path = parts / "part-0/edge-0/indices.bin"
    stat = path.stat()
    flip(path)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert "part-0/edge-0/indices.bin" in verified(parts, known).problem


def test_wrong_offsets_are_found_before_they_are_used(parts: Path) -> None:
    path = parts / "part-1/edge-0/indptr.bin"
    path.write_bytes(bytes(path.stat().st_size))
    graph = open_graph(parts)
    graph.part(0).indptr(graph.edge_types[0])
    with pytest.raises(DamagedGraphError, match=r"part-1/edge-0/indptr\.bin has the checksum"):
        graph.part(1).indptr(graph.edge_types[0])


def test_a_machine_compares_what_it_has(parts: Path) -> None:
    names = set(files_of(open_graph(parts).manifest, [1]))
    assert "ids/node-0.bin" in names
    assert "part-1/edge-0/indptr.bin" in names
    assert not any(name.startswith("part-0/") for name in names)


def test_a_large_file_is_damaged_in_a_chunk(
    tmp_path: Path, known: VerifiedFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(array_files, "CHUNK_BYTES", 64)
    monkeypatch.setattr(array_files, "_READ_BYTES", 16)
    (info,) = write_array(tmp_path, "x.bin", np.arange(25)).values()
    assert len(info.chunks) == 4
    assert damage_of(tmp_path / "x.bin", "x.bin", info) == ""
    flip(tmp_path / "x.bin", 130)
    with pytest.raises(DamagedGraphError, match=r"x\.bin has a wrong checksum from byte 128 to"):
        check_file(tmp_path, "x.bin", info, known)
    assert manifest.CHUNK_BYTES % (1 << 22) == 0


def test_nothing_is_remembered_where_nothing_can_be_written(parts: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert verified(parts, VerifiedFiles(tmp_path / "file")).is_complete


def test_old_entries_are_removed(
    parts: Path, known: VerifiedFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checksums, "_MOST_REMEMBERED", 3)
    assert verified(parts, known).is_complete
    assert len(list((tmp_path / "verified").iterdir())) <= 3
