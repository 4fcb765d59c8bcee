from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from headrace.core.errors import SpecError
from headrace.graph.schema import Column
from headrace.graph.sources import arrow_files
from headrace.graph.sources.arrow_files import TableFiles
from headrace.graph.sources.tables import from_tables
from headrace.graph.sources.validate import check

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
feather = pytest.importorskip("pyarrow.feather")

USERS = pa.table(
    {
        "user_id": ["u0", "u1", "u2"],
        "embedding": pa.array([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]], pa.list_(pa.float64())),
    }
)
ITEMS = pa.table(
    {
        "sku": [100, 300, 200],
        "price": [1.5, 2.5, 3.5],
        "size": [1, 2, 3],
        "kind": [0, 1, -1],
        "part": ["train", "valid", None],
    }
)
SALES = pa.table(
    {
        "user": ["u2", "u0", "u0"],
        "sku": [300, 100, 200],
        "sold_at": pa.array([10, 20, 30], pa.timestamp("s")),
        "amount": [1.0, 2.0, 3.0],
    }
)
SPEC: dict[str, Any] = {
    "version": 1,
    "name": "shop",
    "nodes": {
        "user": {"path": "users.parquet", "id": "user_id", "features": "embedding"},
        "item": {
            "path": "items/*.parquet",
            "id": "sku",
            "features": ["price", "size"],
            "label": "kind",
            "split": "part",
            "columns": ["price"],
        },
    },
    "edges": [
        {
            "type": ["user", "bought", "item"],
            "path": ["sales.feather"],
            "src": "user",
            "dst": "sku",
            "weight": "amount",
            "columns": {"time": "sold_at"},
            "reverse": "bought_by",
        }
    ],
}


def write(folder: Path, spec: Any = SPEC, users: Any = USERS, items: Any = ITEMS) -> Path:
    (folder / "items").mkdir()
    pq.write_table(users, folder / "users.parquet", row_group_size=2)
    pq.write_table(items.slice(0, 2), folder / "items" / "0.parquet")
    pq.write_table(items.slice(2), folder / "items" / "1.parquet")
    feather.write_feather(SALES, str(folder / "sales.feather"), chunksize=2)
    path = folder / "graph.yaml"
    path.write_text(yaml.safe_dump(spec) if isinstance(spec, dict) else spec)
    return path


def by_name(columns: tuple[Column, ...]) -> dict[str, Column]:
    return {column.name: column for column in columns}


def test_tables_make_a_graph(tmp_path: Path) -> None:
    source = from_tables(write(tmp_path))
    check(source)
    assert (source.name, source.num_nodes, source.num_edges) == ("shop", 6, 6)
    item, user = source.nodes
    assert by_name(user.columns)["x"].dtype == np.float32
    assert by_name(user.columns)["x"].read(1, 3).tolist() == [[2, 3], [4, 5]]
    columns = by_name(item.columns)
    assert columns["x"].read(0, 3).tolist() == [[1.5, 1], [2.5, 2], [3.5, 3]]
    assert columns["y"].read(0, 3).tolist() == [0, 1, -1]
    assert columns["price"].dtype == np.float64
    assert {name: ids.tolist() for name, ids in item.splits.items()} == {"train": [0], "val": [1]}
    bought, bought_by = source.edges
    assert bought_by.edge_type == ("item", "bought_by", "user")
    pairs = [(s.tolist(), d.tolist()) for s, d in bought.chunks()]
    assert pairs == [([2, 0], [1, 0]), ([0], [2])]
    assert [(s.tolist(), d.tolist()) for s, d in bought_by.chunks()] == [(d, s) for s, d in pairs]
    assert by_name(bought.columns)["time"].read(0, 3).tolist() == [10, 20, 30]
    assert by_name(bought.columns)["edge_weight"].read(2, 3).tolist() == [3]


def test_a_graph_is_called_after_its_folder(tmp_path: Path) -> None:
    spec = {key: value for key, value in SPEC.items() if key != "name"}
    assert from_tables(write(tmp_path, spec)).name == tmp_path.name


def test_paths_may_be_absolute(tmp_path: Path) -> None:
    nodes = SPEC["nodes"] | {
        "item": SPEC["nodes"]["item"] | {"path": str(tmp_path / "items" / "*.parquet")}
    }
    assert from_tables(write(tmp_path, SPEC | {"nodes": nodes})).num_nodes == 6


def changed(where: list[Any], value: Any) -> dict[str, Any]:
    spec: Any = yaml.safe_load(yaml.safe_dump(SPEC))
    at = spec
    for key in where[:-1]:
        at = at[key]
    at[where[-1]] = value
    return spec  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("nodes: [unclosed", "graph.yaml, line 1"),
        ("just text", "has no keys"),
        ("", "has no keys"),
        (changed(["version"], 2), "version 2, this headrace reads version 1"),
        (changed(["nodes"], {}), "graph.yaml, nodes: "),
        (changed(["edges"], []), "graph.yaml, edges: "),
        (changed(["nodes", "user", "key"], "x"), "unknown key nodes.user.key"),
        (changed(["edges", 0, "type"], ["user", "item"]), "graph.yaml, edges.0.type"),
        (changed(["edges", 0, "src"], None), "graph.yaml, edges.0.src"),
        (changed(["edges", 0, "type"], ["buyer", "b", "item"]), "the node type buyer"),
        (changed(["nodes", "user", "path"], "none.parquet"), "none.parquet does not exist"),
        (changed(["nodes", "user", "path"], "none*.parquet"), r"no file matches none\*"),
        (changed(["nodes", "user", "path"], "graph.yaml"), "neither a Parquet nor an Arrow"),
        (changed(["nodes", "user", "id"], "userid"), "no column userid: did you mean user_id"),
        (changed(["nodes", "item", "label"], "class"), "no column class: it has sku, price"),
        (changed(["nodes", "item", "features"], ["price", "cost"]), "no column cost"),
        (
            changed(["nodes", "user", "features"], "user_id"),
            "user_id of table user has type string",
        ),
        (changed(["nodes", "item", "split"], "kind"), "kind of table item is '0' in row 0"),
        (changed(["edges", 0, "src"], "buyer"), "table user-bought-item has no column buyer"),
        (changed(["edges", 0, "weight"], "user"), "user of table user-bought-item has type string"),
    ],
)
def test_wrong_descriptions_are_named(tmp_path: Path, spec: Any, said: str) -> None:
    path = write(tmp_path, spec)
    with pytest.raises(SpecError, match=said):
        from_tables(path)


def with_column(table: Any, name: str, values: Any) -> Any:
    return table.set_column(table.schema.names.index(name), name, values)


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        (
            {"users": with_column(USERS, "user_id", pa.array(["u0", "u1", "u1"]))},
            "user_id of table user has 'u1' in rows 1 and 2",
        ),
        (
            {"users": with_column(USERS, "user_id", pa.array(["u0", "u1", "u9"]))},
            "row 0 of table user-bought-item has node 'u2' in user",
        ),
        (
            {"items": with_column(ITEMS, "sku", pa.array([100, 300, 201]))},
            "row 2 of table user-bought-item has node 200 in sku, which table item lacks",
        ),
        (
            {"items": with_column(ITEMS, "price", pa.array([1.0, None, 2.0]))},
            "price of table item has no value .* in row 1",
        ),
        (
            {"items": with_column(ITEMS, "price", pa.array([1.0, 2.0, float("nan")]))},
            "column x of item nodes is nan in row 2, entry 0",
        ),
        (
            {"users": with_column(USERS, "embedding", pa.array([[0.0, 1.0], [2.0, 3.0], [4.0]]))},
            "embedding of table user has 1 numbers in row 2, others have 2",
        ),
        (
            {
                "users": with_column(
                    USERS, "embedding", pa.array([[0.0, 1.0], [2.0, None], [4.0, 5.0]])
                )
            },
            "embedding of table user has no value",
        ),
    ],
)
def test_wrong_tables_are_named(tmp_path: Path, tables: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        check(from_tables(write(tmp_path, **tables)))


def test_a_truncated_table_is_named(tmp_path: Path) -> None:
    path = write(tmp_path)
    for name in ("users.parquet", "sales.feather"):
        file = tmp_path / name
        whole = file.read_bytes()
        for kept in (3, 6, len(whole) // 2, len(whole) - 2):
            file.write_bytes(whole[:kept])
            with pytest.raises(SpecError, match=name):
                check(from_tables(path))
        file.write_bytes(whole)


def test_damaged_pages_are_named(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"a": np.random.default_rng(0).integers(0, 9, 10_000)}), path)
    data = bytearray(path.read_bytes())
    data[10:600] = b"\xff" * 590
    path.write_bytes(data)
    with pytest.raises(SpecError, match=r"t.parquet cannot be read"):
        TableFiles([path], "t").column("a", ["a"]).read(0, 10_000)


def test_files_of_one_table_agree_on_types(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1], "b": [1]}), tmp_path / "0.parquet")
    pq.write_table(pa.table({"b": [2], "c": [1]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"b": ["x"]}), tmp_path / "2.parquet")
    paths = [tmp_path / f"{i}.parquet" for i in range(3)]
    both = TableFiles(paths[:2], "t")
    assert both.column("b", ["b"]).read(0, 2).tolist() == [1, 2]
    with pytest.raises(SpecError, match="t has no column a"):
        both.column("a", ["a"])
    with pytest.raises(SpecError, match=r"b is string in .*2.parquet, but int64"):
        TableFiles(paths, "t")


@pytest.mark.parametrize("kind", ["parquet", "arrow", "fixed"])
def test_any_rows_can_be_read(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_files, "_BATCH_ROWS", 7)
    values = np.arange(300.0).reshape(100, 3)
    flat = pa.array(values.ravel())
    lists = pa.FixedSizeListArray.from_arrays(flat, 3)
    if kind != "fixed":
        lists = lists.cast(pa.list_(pa.float64()))
    table = pa.table({"other": pa.array(range(100)), "x": lists})
    paths = [tmp_path / "a", tmp_path / "b"]
    for path, part in zip(paths, (table.slice(0, 60), table.slice(60)), strict=True):
        if kind == "arrow":
            feather.write_feather(part, str(path), chunksize=25)
        else:
            pq.write_table(part, path, row_group_size=25)
    column = TableFiles(paths, "t").column("x", ["x"])
    assert np.array_equal(column.read(0, 100), values)
    rng = np.random.default_rng(0)
    for _ in range(30):
        start, stop = sorted(rng.integers(0, 101, 2).tolist())
        assert np.array_equal(column.read(start, stop), values[start:stop])


def test_rows_in_order_are_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"a": np.arange(1000)}), path, row_group_size=100)
    opened: list[int] = []
    read = arrow_files._read_fragments

    def counted(path: Path, fragments: list[Any], columns: list[str]) -> Any:
        opened.append(fragments[0].index)
        return read(path, fragments, columns)

    monkeypatch.setattr(arrow_files, "_read_fragments", counted)
    monkeypatch.setattr(arrow_files, "_BATCH_ROWS", 50)
    column = TableFiles([path], "t").column("a", ["a"])
    for start in range(0, 1000, 30):
        column.read(start, min(start + 30, 1000))
    assert opened == [0]
    assert column.read(250, 260).tolist() == list(range(250, 260))
    assert opened == [0, 2]
