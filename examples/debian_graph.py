"""Make a graph of Debian or Ubuntu from the machine's own package index.

    python examples/debian_graph.py -o debian
    python examples/debian_graph.py -o debian-files --files
    headrace partition debian/graph.yaml --parts 4 -o parts

Packages are nodes; Depends, Recommends and so on are edges of one type each; the task is to tell a
package's section from its description and its neighbours. With `--files` every file and directory
that packages install is a node, too: a real graph of about 8 million nodes and 15 million edges
(30 million with their reverses). That index is not on most machines and is downloaded first, into
the output folder, by apt itself; nothing of the machine's own index changes.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import math
import re
import subprocess
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

RELATIONS = (
    "Pre-Depends",
    "Depends",
    "Recommends",
    "Suggests",
    "Enhances",
    "Breaks",
    "Conflicts",
    "Replaces",
    "Provides",
)
WIDTH = 128
SUFFIX_BUCKETS = 1024
CHUNK_ROWS = 1 << 18
SHARES = {"train": 0.5, "val": 0.1, "test": 0.4}
CAT_FILE = "/usr/lib/apt/apt-helper"
CONTENTS = "Acquire::IndexTargets::deb::Contents-deb"
CONTENTS_OPTIONS = {
    "MetaKey": "$(COMPONENT)/Contents-$(ARCHITECTURE)",
    "ShortDescription": "Contents-$(ARCHITECTURE)",
    "Description": "$(RELEASE)/$(COMPONENT) $(ARCHITECTURE) Contents (deb)",
    "DefaultEnabled": "true",
    "KeepCompressed": "true",
    "PDiffs": "false",
}


class Package(NamedTuple):
    """What the index says of a package."""

    section: str
    words: tuple[str, ...]
    relations: dict[str, set[str]]


class TableWriter:
    """Writes rows to a Parquet file in chunks, so that a table need not fit in memory."""

    def __init__(self, path: Path, schema: dict[str, Any]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._schema = pa.schema(list(schema.items()))
        self._writer = pq.ParquetWriter(path, self._schema, compression="zstd")
        self._columns: list[list[object]] = [[] for _ in schema]
        self.num_rows = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._flush()
        self._writer.close()

    def add(self, *row: object) -> None:
        """Append one row."""
        for column, value in zip(self._columns, row, strict=True):
            column.append(value)
        self.num_rows += 1
        if len(self._columns[0]) == CHUNK_ROWS:
            self._flush()

    def _flush(self) -> None:
        arrays = [
            pa.array(column, field.type)
            for column, field in zip(self._columns, self._schema, strict=True)
        ]
        self._writer.write_table(pa.Table.from_arrays(arrays, schema=self._schema))
        for column in self._columns:
            column.clear()


def read_packages(lines: Iterable[str]) -> dict[str, Package]:
    """Packages by name, from the text of an index; of several versions the first."""
    packages: dict[str, Package] = {}
    fields: dict[str, str] = {}
    last = ""
    for line in itertools.chain(lines, [""]):
        line = line.rstrip("\n")
        if line.startswith((" ", "\t")):
            fields[last] += " " + line.strip()
        elif ":" in line:
            last, value = line.split(":", 1)
            fields[last] = value.strip()
        elif not line and "Package" in fields:
            packages.setdefault(fields["Package"], _package(fields))
            fields = {}
    return packages


def _package(fields: dict[str, str]) -> Package:
    text = f"{fields['Package']} {fields.get('Description', '')}".lower()
    relations = {}
    for relation in RELATIONS:
        alternatives = re.split(r"[,|]", fields.get(relation, ""))
        # "libc6:any (>= 2.34)" is about libc6.
        names = {re.split(r"[\s(:\[]", each.strip())[0] for each in alternatives}
        relations[relation] = names - {"", fields["Package"]}
    section = fields.get("Section", "unknown").rsplit("/", 1)[-1]
    return Package(section, tuple(sorted(set(re.findall(r"[a-z0-9]+", text)))), relations)


def features(packages: dict[str, Package]) -> np.ndarray:
    """Words of name and description, weighted by rarity and hashed into a row per package."""
    counts = Counter(word for package in packages.values() for word in package.words)
    x = np.zeros((len(packages), WIDTH), np.float32)
    for row, package in enumerate(packages.values()):
        for word in package.words:
            digest = zlib.crc32(word.encode())
            sign = 1 if digest & 1 else -1
            x[row, (digest >> 1) % WIDTH] += sign * math.log(len(packages) / counts[word])
    lengths = np.linalg.norm(x, axis=1, keepdims=True)
    x *= np.float32(WIDTH**0.5) / np.maximum(lengths, 1e-6)
    return x


def write_packages(folder: Path, packages: dict[str, Package], seed: int) -> dict[str, Any]:
    """Write tables of packages and their relations; returns their description."""
    rows = {name: row for row, name in enumerate(packages)}
    sections = {name: i for i, name in enumerate(sorted({p.section for p in packages.values()}))}
    order = np.random.default_rng(seed).permutation(len(packages))
    ends = np.round(np.cumsum(list(SHARES.values())) * len(packages)).astype(int)
    splits = np.array(list(SHARES))[np.searchsorted(ends, np.argsort(order), side="right")]
    schema = {
        "name": pa.string(),
        "x": pa.list_(pa.float32(), WIDTH),
        "section": pa.int64(),
        "split": pa.string(),
    }
    x = features(packages)
    with TableWriter(folder / "packages.parquet", schema) as table:
        for row, (name, package) in enumerate(packages.items()):
            table.add(name, x[row].tolist(), sections[package.section], str(splits[row]))
    edges = []
    for relation in RELATIONS:
        word = relation.lower().replace("-", "_")
        with TableWriter(folder / f"{word}.parquet", _ends()) as table:
            for name, package in packages.items():
                for target in sorted(package.relations[relation] & rows.keys()):
                    table.add(rows[name], rows[target])
        if table.num_rows:
            edges.append(_edges("package", word, "package", f"rev_{word}"))
            _log(f"{relation}: {table.num_rows:,}")
    nodes = {
        "package": {
            "path": "packages.parquet",
            "features": "x",
            "label": "section",
            "split": "split",
        }
    }
    _log(f"{len(packages):,} packages in {len(sections)} sections")
    return {"version": 1, "name": "debian", "nodes": nodes, "edges": edges}


def read_contents(lines: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """Paths and the packages that install them, from the text of a Contents index."""
    for line in filter(str.strip, lines):
        # A path may have blanks inside; what follows the last one are its packages.
        path, *owners = line.rsplit(None, 1)
        if owners and path != "FILE":
            yield path, [owner.rsplit("/", 1)[-1] for owner in owners[0].split(",")]


def write_files(
    folder: Path, packages: dict[str, Package], contents: Sequence[Iterable[tuple[str, list[str]]]]
) -> dict[str, Any]:
    """Write tables of files and directories; returns their description.

    Indices are sorted by path, so merging them finds a file that is in several.
    """
    rows = {name: row for row, name in enumerate(packages)}
    directories: dict[str, int] = {}
    with (
        TableWriter(folder / "files.parquet", {"path": pa.string(), "suffix": pa.int32()}) as files,
        TableWriter(folder / "ships.parquet", _ends()) as ships,
        TableWriter(folder / "file_in.parquet", _ends()) as file_in,
        TableWriter(folder / "directory_in.parquet", _ends()) as directory_in,
    ):
        merged = heapq.merge(*contents, key=lambda entry: entry[0])
        for path, entries in itertools.groupby(merged, lambda entry: entry[0]):
            owners = {rows[name] for _, names in entries for name in names if name in rows}
            if not owners:
                continue
            file = files.num_rows
            parent, _, name = path.rpartition("/")
            suffix = name.rpartition(".")[2] if "." in name else ""
            files.add(path, zlib.crc32(suffix.encode()) % SUFFIX_BUCKETS)
            for owner in sorted(owners):
                ships.add(owner, file)
            child, is_new = _number(directories, parent)
            file_in.add(file, child)
            while is_new and parent:
                parent = parent.rpartition("/")[0]
                above, is_new = _number(directories, parent)
                directory_in.add(child, above)
                child = above
    schema = {"path": pa.string(), "depth": pa.int32()}
    with TableWriter(folder / "directories.parquet", schema) as table:
        for directory in directories:
            table.add(directory, directory.count("/") + 1 if directory else 0)
    num_edges = ships.num_rows + file_in.num_rows + directory_in.num_rows
    _log(f"{files.num_rows:,} files, {len(directories):,} directories, {num_edges:,} edges")
    return {
        "nodes": {
            "file": {"path": "files.parquet", "columns": ["suffix"]},
            "directory": {"path": "directories.parquet", "columns": ["depth"]},
        },
        "edges": [
            _edges("package", "ships", "file", "shipped_by"),
            _edges("file", "file_in", "directory", "holds_file"),
            _edges("directory", "directory_in", "directory", "holds_directory"),
        ],
    }


def _number(directories: dict[str, int], path: str) -> tuple[int, bool]:
    """The number of a directory, and whether it is new."""
    num_known = len(directories)
    number = directories.setdefault(path, num_known)
    return number, number == num_known


def _ends() -> dict[str, Any]:
    return {"src": pa.int64(), "dst": pa.int64()}


def _edges(src: str, relation: str, dst: str, reverse: str) -> dict[str, Any]:
    return {
        "type": [src, relation, dst],
        "path": f"{relation}.parquet",
        "src": "src",
        "dst": "dst",
        "reverse": reverse,
    }


def _log(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _lines(*command: str) -> Iterator[str]:
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, errors="replace") as process:
        assert process.stdout is not None
        yield from process.stdout
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed with code {process.returncode}")


def _download(folder: Path) -> list[str]:
    """Let apt fetch the Contents index into the folder; returns the options that find it there."""
    (folder / "lists" / "partial").mkdir(parents=True, exist_ok=True)
    settings = {
        "Dir::State::Lists": f"{folder.absolute()}/lists",
        "Dir::Cache": str(folder.absolute()),
    }
    settings |= {f"{CONTENTS}::{key}": value for key, value in CONTENTS_OPTIONS.items()}
    options = [f"-o{key}={value}" for key, value in settings.items()]
    for line in _lines("apt-get", "update", *options):
        sys.stderr.write(line)
    return options


def main() -> None:
    """Write tables and their description."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder to write to")
    parser.add_argument("--files", action="store_true", help="also files and directories")
    parser.add_argument("--seed", type=int, default=0, help="of the split")
    arguments = parser.parse_args()
    folder: Path = arguments.output
    folder.mkdir(parents=True, exist_ok=True)
    options = _download(folder / "apt") if arguments.files else []
    packages = read_packages(_lines("apt-cache", "dumpavail", *options))
    if not packages:
        raise SystemExit("the package index is empty: run `apt-get update` first")
    packages = dict(sorted(packages.items()))
    graph = write_packages(folder, packages, arguments.seed)
    if arguments.files:
        wanted = ["--format", "$(FILENAME)", "Created-By: Contents-deb"]
        paths = [line.strip() for line in _lines("apt-get", "indextargets", *options, *wanted)]
        if not paths:
            raise SystemExit("apt fetched no Contents index: check the machine's package sources")
        contents = [read_contents(_lines(CAT_FILE, "cat-file", path)) for path in paths]
        more = write_files(folder, packages, contents)
        graph["nodes"] |= more["nodes"]
        graph["edges"] += more["edges"]
    (folder / "graph.yaml").write_text(yaml.safe_dump(graph, sort_keys=False))


if __name__ == "__main__":
    main()
