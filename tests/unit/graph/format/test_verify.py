"""A good directory has no problems; every kind of damage is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from headrace.graph.format import verify as verifying
from headrace.graph.format.array_files import crc32_of
from headrace.graph.format.manifest import load_manifest, save_manifest
from headrace.graph.format.verify import verify
from headrace.graph.schema import GraphSource
from tests.unit.graph.small_graphs import heterogeneous, homogeneous, write


@pytest.mark.parametrize("make", [homogeneous, heterogeneous])
def test_good_graphs_have_no_problems(
    make: Callable[[], GraphSource], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verifying, "_CHUNK", 3)
    write(make(), tmp_path)
    assert verify(tmp_path) == []


def test_every_flipped_bit_is_found(tmp_path: Path) -> None:
    manifest = write(heterogeneous(), tmp_path)
    for name, info in manifest.files.items():
        if info.bytes > 0:
            data = bytearray((tmp_path / name).read_bytes())
            data[info.bytes // 2] ^= 4
            (tmp_path / name).write_bytes(data)
            assert [problem.split()[0] for problem in verify(tmp_path)] == [name]
            data[info.bytes // 2] ^= 4
            (tmp_path / name).write_bytes(data)


def change(folder: Path, name: str, change_array: Callable[[np.ndarray], None]) -> None:
    """Change an array and its checksum, as a wrong program would."""
    manifest = load_manifest(folder)
    info = manifest.files[name]
    array = np.fromfile(folder / name, info.dtype).reshape(info.shape)
    change_array(array)
    array.tofile(folder / name)
    fixed = info.model_copy(update={"crc32": crc32_of(folder / name)})
    save_manifest(manifest.model_copy(update={"files": {**manifest.files, name: fixed}}), folder)


def swap_ends(array: np.ndarray) -> None:
    array[[0, -1]] = array[[-1, 0]]


def set_last(value: int) -> Callable[[np.ndarray], None]:
    def assign(array: np.ndarray) -> None:
        array[..., -1] = value

    return assign


@pytest.mark.parametrize(
    ("name", "how", "message"),
    [
        ("ids/node-0.bin", swap_ends, "does not agree with ids/node-0.bin"),
        ("part-1/node-0/ids.bin", swap_ends, "part-1/node-0/ids.bin does not agree"),
        ("part-1/node-0/ids.bin", set_last(20), "part-1/node-0/ids.bin does not agree"),
        ("part-0/node-0/clusters.bin", set_last(99), "clusters.bin does not ascend"),
        ("part-0/node-0/train.bin", set_last(20), "train.bin does not ascend within"),
        ("part-0/node-0/train.bin", swap_ends, "train.bin does not ascend within"),
        ("part-0/edge-1/indptr.bin", swap_ends, "indptr.bin does not ascend"),
        ("part-0/edge-1/indices.bin", set_last(20), "has node ids outside 0 to 19"),
        ("part-0/edge-1/indices.bin", set_last(-1), "has node ids outside 0 to 19"),
        ("part-0/edge-1/ids.bin", set_last(50), "has edge ids outside 0 to 49"),
        ("part-0/edge-1/halo.bin", swap_ends, "halo.bin does not list"),
        ("links/test-0.bin", set_last(9), "has author ids that do not exist"),
    ],
)
def test_wrong_arrays_with_right_checksums(
    name: str, how: Callable[[np.ndarray], None], message: str, tmp_path: Path
) -> None:
    write(heterogeneous(), tmp_path)
    change(tmp_path, name, how)
    assert message in verify(tmp_path)[0]
