"""Graphs that are shipped into a folder which several machines may share."""

from __future__ import annotations

import hashlib
import zlib
from pathlib import Path

import pytest

from headrace.runtime.workers.graph_cache import MANIFEST, GraphCache

FILES = {"part-0/ids.npy": b"a" * 10, MANIFEST: b"{}"}
SIZES = {name: len(data) for name, data in FILES.items()}
CHECKSUMS = {name: zlib.crc32(data) for name, data in FILES.items()}
FINGERPRINT = hashlib.sha256(FILES[MANIFEST]).hexdigest()[:16]


def test_two_machines_may_take_the_same_files_into_one_folder(tmp_path: Path) -> None:
    both = [GraphCache(str(tmp_path)) for _ in range(2)]
    for files in both:
        assert set(files.find("/nowhere", FINGERPRINT, SIZES)["missing"]) == set(FILES)
    for name, data in FILES.items():
        for begin in (0, 1):
            for files in both:
                files.receive(name, begin, data[begin : begin + 1] if not begin else data[1:])
    for files in both:
        assert files.seal(CHECKSUMS) == {"folder": str(tmp_path / FINGERPRINT)}
    assert GraphCache(str(tmp_path)).locate("/nowhere", FINGERPRINT, SIZES)["missing"] == []
    left = {str(path.relative_to(tmp_path / FINGERPRINT)) for path in tmp_path.rglob("*.*")}
    assert left == set(FILES)


def test_a_file_may_be_taken_again_from_its_beginning(tmp_path: Path) -> None:
    files = GraphCache(str(tmp_path))
    files.find("/nowhere", FINGERPRINT, SIZES)
    for name, data in FILES.items():
        files.receive(name, 0, b"a broken beginning")
        files.receive(name, 0, data)
    assert "error" not in files.seal(CHECKSUMS)


@pytest.mark.parametrize("name", ["../x", "/etc/x", "part-0/../../x"])
def test_only_files_of_the_graph_are_taken(tmp_path: Path, name: str) -> None:
    files = GraphCache(str(tmp_path))
    files.find("/nowhere", FINGERPRINT, SIZES)
    with pytest.raises(ValueError, match="not a file of a graph"):
        files.receive(name, 0, b"x")
