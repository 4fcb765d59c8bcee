from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from headrace.core.errors import SpecError
from headrace.graph.sources.triples import from_triples
from headrace.graph.sources.validate import check

FILES = {
    "train.txt": "rome\tin\titaly\nitaly\tin\teurope\nrome\tlikes\trome\n",
    "valid.txt": "bern\tin\teurope\n",
    "test.txt": "bern\tlikes\trome\nrome\tin\teurope\n",
}


def save(folder: Path, files: dict[str, str]) -> Path:
    path = folder / "towns.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            info = tarfile.TarInfo(f"towns/{name}")
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    return path


def test_training_triples_are_edges_and_the_rest_links(tmp_path: Path) -> None:
    source = from_triples(save(tmp_path, FILES))
    check(source)
    # Alphabetical: bern, europe, italy, rome.
    assert (source.name, source.num_nodes, source.num_edges) == ("towns", 4, 3)
    edges = {table.edge_type[1]: next(iter(table.chunks())) for table in source.edges}
    assert [ids.tolist() for ids in edges["in"]] == [[3, 2], [2, 1]]
    assert [ids.tolist() for ids in edges["likes"]] == [[3], [3]]
    links = [(link.split, link.edge_type[1], link.src.tolist()) for link in source.links]
    assert links == [("val", "in", [0]), ("test", "in", [3]), ("test", "likes", [0])]


def test_a_relation_may_be_missing_from_training(tmp_path: Path) -> None:
    source = from_triples(save(tmp_path, FILES | {"train.txt": "rome\tin\titaly\n"}))
    check(source)
    assert [table.num_edges for table in source.edges] == [1, 0]


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"train.txt": FILES["train.txt"]}, "lacks valid.txt, test.txt"),
        (FILES | {"test.txt": "a\tb\tc\na b c\n"}, "line 2 of test.txt .* has 1 fields"),
        (dict.fromkeys(FILES, ""), "has no triples"),
    ],
)
def test_wrong_archives_are_named(tmp_path: Path, files: dict[str, str], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        from_triples(save(tmp_path, files))


def test_a_truncated_archive_is_named(tmp_path: Path) -> None:
    path = save(tmp_path, FILES)
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(SpecError, match=r"towns.tar.gz cannot be read"):
        from_triples(path)
    with pytest.raises(SpecError, match="does not exist"):
        from_triples(tmp_path / "none.tar.gz")
