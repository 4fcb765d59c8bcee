"""Knowledge graphs: archives of tab-separated triples, such as FB15k-237 and WN18RR."""

from __future__ import annotations

import tarfile
import zlib
from pathlib import Path, PurePosixPath

import numpy as np

from headrace.core.errors import SpecError
from headrace.graph.schema import GraphSource, LinkTable, NodeTable
from headrace.graph.sources.arrays import edge_table
from headrace.graph.sources.validate import check_names

ENTITY = "entity"
_FILES = {"train": "train.txt", "val": "valid.txt", "test": "test.txt"}


def from_triples(path: Path) -> GraphSource:
    """Read a tar archive with train.txt, valid.txt and test.txt: head, relation, tail.

    Training triples are edges, the others are held-out links. Entities are numbered in alphabetical
    order; every relation is an edge type.
    """
    tables = _read(path)
    triples = [triple for table in tables.values() for triple in table]
    if not triples:
        raise SpecError(f"{path} has no triples", "write head, relation and tail on every line")
    entities = _numbered({head for head, _, _ in triples} | {tail for _, _, tail in triples})
    relations = _numbered({relation for _, relation, _ in triples})
    edges, links = [], []
    for split, table in tables.items():
        src = np.array([entities[head] for head, _, _ in table], np.int64)
        dst = np.array([entities[tail] for _, _, tail in table], np.int64)
        kind = np.array([relations[relation] for _, relation, _ in table], np.int64)
        order = np.argsort(kind, kind="stable")
        ends = np.searchsorted(kind[order], np.arange(1, len(relations)))
        for relation, rows in zip(relations, np.split(order, ends), strict=True):
            edge_type = (ENTITY, relation, ENTITY)
            if split == "train":
                edges.append(edge_table(edge_type, src[rows], dst[rows]))
            elif rows.size:
                links.append(LinkTable(split, edge_type, src[rows], dst[rows]))
    nodes = NodeTable(ENTITY, len(entities))
    source = GraphSource(path.name.split(".")[0], (nodes,), tuple(edges), tuple(links))
    check_names(source)
    return source


def _numbered(names: set[str]) -> dict[str, int]:
    return {name: number for number, name in enumerate(sorted(names))}


def _read(path: Path) -> dict[str, list[list[str]]]:
    try:
        with tarfile.open(path) as archive:
            members = {PurePosixPath(each.name).name: each for each in archive.getmembers()}
            missing = [name for name in _FILES.values() if name not in members]
            if missing:
                raise SpecError(f"{path} lacks {', '.join(missing)}", "give an archive of triples")
            texts = {}
            for split, name in _FILES.items():
                file = archive.extractfile(members[name])
                texts[split] = file.read().decode() if file else ""
    except FileNotFoundError:
        raise SpecError(f"{path} does not exist", "check the path") from None
    except (tarfile.TarError, EOFError, OSError, zlib.error, UnicodeDecodeError) as error:
        raise SpecError(
            f"{path} cannot be read as an archive ({error})",
            "download the file again; it may be truncated",
        ) from None
    return {split: _fields(path, _FILES[split], text) for split, text in texts.items()}


def _fields(path: Path, name: str, text: str) -> list[list[str]]:
    rows = [line.split("\t") for line in text.splitlines()]
    for number, row in enumerate(rows, 1):
        if len(row) != 3:
            raise SpecError(
                f"line {number:,} of {name} in {path} has {len(row)} fields",
                "write head, relation and tail, separated by tabs",
            )
    return rows
