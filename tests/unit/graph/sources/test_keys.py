from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.core.errors import SpecError
from headrace.graph.kernels.hash_table import hash_texts
from headrace.graph.sources import keys as keys_module
from headrace.graph.sources.arrow_files import TableFiles
from headrace.graph.sources.keys import Keys

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

MASK = 2**64 - 1


def hash_one(text: bytes, seed: int) -> int:
    h = 0xCBF29CE484222325 ^ seed
    for byte in text:
        h = (h ^ byte) * 0x100000001B3 & MASK
    h = (h ^ h >> 30) * 0xBF58476D1CE4E5B9 & MASK
    h = (h ^ h >> 27) * 0x94D049BB133111EB & MASK
    return h ^ h >> 31


def table(folder: Path, name: str, values: Any, rows_per_group: int = 2) -> TableFiles:
    path = folder / f"{name}.parquet"
    pq.write_table(pa.table({"id": values}), path, row_group_size=rows_per_group)
    return TableFiles([path], f"table {name}")


@pytest.mark.parametrize("seed", [0, 3])
def test_the_kernel_hashes_like_its_twin(seed: int) -> None:
    texts = [b"", b"a", b"ab", b"ba", "päckchen".encode(), b"x" * 300]
    offsets = np.cumsum([0, *(len(text) for text in texts)])
    data = np.frombuffer(b"".join(texts), np.uint8)
    assert hash_texts(data, offsets, seed).tolist() == [hash_one(text, seed) for text in texts]


@pytest.mark.parametrize(
    "values",
    [
        pa.array([0, 1, 2, 3, 4]),
        pa.array([40, 10, -30, 2**40, 0]),
        pa.array([4, 1, 3, 2, 0], pa.int32()),
        pa.array([4, 1, 3, 2, 0], pa.uint8()),
        pa.array(["e", "", "ab", "ba", "ö"]),
        pa.array(["e", "", "ab", "ba", "ö"], pa.large_string()),
        pa.array(["e", "", "ab", "ba", "ö"]).dictionary_encode(),
    ],
)
def test_keys_of_any_kind_lead_to_their_rows(tmp_path: Path, values: Any) -> None:
    nodes = table(tmp_path, "nodes", values)
    edges = table(tmp_path, "edges", values)
    asked = np.array([3, 3, 0, 4, 1, 2])
    named = values.take(pa.array(asked))
    assert np.array_equal(Keys(nodes, "id").rows(named, edges, "id", 0), asked)
    part = named.slice(2, 3)
    assert np.array_equal(Keys(nodes, "id").rows(part, edges, "id", 0), asked[2:5])


def test_integers_that_count_up_are_not_kept(tmp_path: Path) -> None:
    keys = Keys(table(tmp_path, "nodes", pa.array(range(9))), "id")
    assert keys._sorted is None
    assert Keys(table(tmp_path, "nodes", pa.array(range(1, 9))), "id")._sorted is not None


def test_without_a_key_column_rows_are_named(tmp_path: Path) -> None:
    nodes = table(tmp_path, "nodes", pa.array(["a", "b"]))
    edges = table(tmp_path, "edges", pa.array([1, 0]))
    assert Keys(nodes, None).rows(pa.array([1, 0]), edges, "id", 0).tolist() == [1, 0]
    with pytest.raises(SpecError, match=r"row 6 .* has node 2"):
        Keys(nodes, None).rows(pa.array([1, 2]), edges, "id", 5)


def test_texts_with_one_hash_get_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def weak(data: np.ndarray, offsets: np.ndarray, seed: int) -> np.ndarray:
        hashes = hash_texts(data, offsets, seed)
        return np.zeros_like(hashes) if seed == 0 else hashes

    monkeypatch.setattr(keys_module, "hash_texts", weak)
    nodes = table(tmp_path, "nodes", pa.array(["a", "b", "c"]))
    keys = Keys(nodes, "id")
    assert keys.rows(pa.array(["c", "a"]), nodes, "id", 0).tolist() == [2, 0]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (pa.array([5, 7, 6, 7]), "has 7 in rows 1 and 3"),
        (pa.array([0, 1, 2, 1]), "has 1 in rows 1 and 3"),
        (pa.array(["x", "y", "z", "x"]), "has 'x' in rows 0 and 3"),
        (pa.array([0, 1, None, 2]), "null.* in row 2"),
        (pa.array(["x", "y", "z", None]), "null.* in row 3"),
        (pa.array([0.0, 1.0]), "keys of type double"),
        (pa.array([2**63 + 1, 0], pa.uint64()), "above 2\\^63"),
    ],
)
def test_wrong_keys_are_named(tmp_path: Path, values: Any, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        Keys(table(tmp_path, "nodes", values), "id")


@pytest.mark.parametrize(
    ("nodes", "named", "said"),
    [
        (pa.array([5, 7]), pa.array([7, 6]), "row 11 of table edges has node 6 in id"),
        (pa.array([0, 1]), pa.array([1, 2]), "row 11 of table edges has node 2"),
        (pa.array([0, 1]), pa.array([1, -1]), "row 11 of table edges has node -1"),
        (
            pa.array(["x", "y"]),
            pa.array(["x", "z"]),
            "has node 'z' in id, which table nodes lacks",
        ),
        (pa.array(["x", "y"]), pa.array(["x", None]), "null.* in row 11"),
        (pa.array(["x", "y"]), pa.array([0, 1]), "keys of table nodes are strings"),
        (pa.array([5, 7]), pa.array(["5"]), "keys of table nodes are integers"),
        (pa.array([], pa.string()), pa.array(["x", "y"]), "row 10 of table edges"),
    ],
)
def test_unknown_keys_are_named(tmp_path: Path, nodes: Any, named: Any, said: str) -> None:
    keys = Keys(table(tmp_path, "nodes", nodes), "id")
    with pytest.raises(SpecError, match=said):
        keys.rows(named, table(tmp_path, "edges", named), "id", 10)
