from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from headrace.core.errors import SpecError
from headrace.graph.sources import npz
from headrace.graph.sources.npz import names_of, open_column, read_npz, stream_rows

X = np.arange(60, dtype=np.float32).reshape(20, 3)
EDGES = np.arange(40).reshape(2, 20)


@pytest.fixture(params=[np.savez, np.savez_compressed])
def path(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # Pieces of seven rows of x.
    monkeypatch.setattr(npz, "_PIECE_BYTES", 84)
    file = tmp_path / "graph.npz"
    request.param(file, x=X, edge_index=EDGES, count=np.int64(3), turned=np.asfortranarray(X))
    return file


def test_arrays_are_read_or_named(path: Path) -> None:
    assert names_of(path) == ["x", "edge_index", "count", "turned"]
    assert np.array_equal(read_npz(path)["x"], X)


@pytest.mark.parametrize("step", [1, 6, 20])
def test_a_column_gives_any_rows(path: Path, step: int) -> None:
    column = open_column(path, "x", "features")
    assert (column.name, column.dtype, column.shape) == ("features", np.dtype(np.float32), (3,))
    rows = [column.read(start, min(start + step, 20)) for start in range(0, 20, step)]
    assert np.array_equal(np.concatenate(rows), X)
    assert np.array_equal(column.read(4, 9), X[4:9])


def test_a_plain_file_is_mapped(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=X)
    assert isinstance(open_column(tmp_path / "a.npz", "x", "x").read(0, 2), np.memmap)


@pytest.mark.parametrize("row", [0, 1])
def test_long_rows_come_in_pieces(path: Path, row: int) -> None:
    length, pieces = stream_rows(path, "edge_index", row)
    assert length == 20
    assert np.array_equal(np.concatenate(list(pieces)), EDGES[row])


@pytest.mark.parametrize(
    ("read", "said"),
    [
        (lambda path: open_column(path, "z", "z"), "has no array z.* x, edge_index"),
        (lambda path: open_column(path, "count", "z"), "is a scalar"),
        (lambda path: open_column(path, "turned", "z"), "row-major"),
        (lambda path: stream_rows(path, "count", 0), r"shape \(\)"),
        (lambda path: stream_rows(path, "edge_index", 2), "give shape"),
        (lambda path: read_npz(path.parent / "none.npz"), "does not exist"),
        (lambda path: names_of(path.parent / "none.npz"), "does not exist"),
    ],
)
def test_wrong_questions_are_named(path: Path, read: Callable[[Path], object], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        read(path)


@pytest.mark.parametrize("kept", [0, 10, 200])
def test_a_truncated_file_is_named(path: Path, kept: int) -> None:
    path.write_bytes(path.read_bytes()[:kept])
    for read in (read_npz, names_of):
        with pytest.raises(SpecError, match=r"graph.npz cannot be read as npz"):
            read(path)


def test_damaged_bytes_are_named(tmp_path: Path) -> None:
    path = tmp_path / "graph.npz"
    np.savez_compressed(path, x=np.random.default_rng(0).random(1000))
    data = bytearray(path.read_bytes())
    data[1000:1100] = bytes(100)
    path.write_bytes(data)
    with pytest.raises(SpecError, match="cannot be read as npz"):
        open_column(path, "x", "x").read(0, 1000)


def test_pickled_objects_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.array([{}], dtype=object))
    with pytest.raises(SpecError, match="cannot be read as npz"):
        read_npz(tmp_path / "a.npz")
    with pytest.raises(SpecError, match="plain numbers"):
        open_column(tmp_path / "a.npz", "x", "x")
