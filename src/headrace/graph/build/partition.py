"""The partitioning pipeline: read, partition, balance, renumber, write.

Every stage stores its result in a work directory next to the output, so that a restarted run
resumes after the last completed stage. The output directory is renamed into place at the end.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headrace.core.errors import SpecError
from headrace.graph.adjacency import Adjacency, Csc
from headrace.graph.build.csc import build_adjacency, build_csc, open_adjacency, open_csc
from headrace.graph.build.cut_quality import Quality, measure
from headrace.graph.build.encoding_choice import check_features
from headrace.graph.build.node_writer import write_parts
from headrace.graph.build.resume_log import ResumeLog
from headrace.graph.format.array_files import reporting_full_disk
from headrace.graph.format.manifest import Manifest
from headrace.graph.partitioners._base import Constraint, Question
from headrace.graph.partitioners.g3_communication import balance_communication
from headrace.graph.partitioners.rebalance import repair
from headrace.graph.partitioners.select import check_method, choose_method, find_partitioner
from headrace.graph.partitioners.subclusters import second_level
from headrace.graph.schema import SPLITS, GraphSource, Nobody, Watcher, watched
from headrace.graph.sources.validate import checked

BALANCED = ("nodes", "edges", "train")
"""Quantities that are balanced by default."""

_CAN_BALANCE = (*BALANCED, "val", "test")


@dataclass(frozen=True)
class PartitionSpec:
    """Parameters of a partitioning.

    Attributes:
        shares: Fraction of the graph per partition; sums to one.
        method: Name of a partitioner, or `auto`.
        balance: Quantities to balance: `nodes`, `edges`, `train`, `val`, `test`.
        tolerance: Allowed relative excess of a partition over its share.
        num_clusters: Second-level clusters per partition, one per sampler of its machine.
        features: How features are stored, see `write_parts`; unchanged if `None`.
        seed: Random seed.
    """

    shares: tuple[float, ...]
    method: str = "auto"
    balance: tuple[str, ...] = BALANCED
    tolerance: float = 0.05
    num_clusters: int = 1
    features: str | None = None
    seed: int = 0


def partition(
    source: GraphSource, spec: PartitionSpec, folder: Path, watcher: Watcher | None = None
) -> Manifest:
    """Partition a graph and write the partitions.

    Args:
        source: The graph.
        spec: Parameters.
        folder: Output directory; must not exist.
        watcher: Receives progress.

    Raises:
        SpecError: The source is invalid, or the parameters cannot be satisfied.
        MissingExtraError: The partitioner is not installed.
    """
    _check(source, spec, folder)
    source = checked(source)
    partial = folder.with_name(folder.name + ".partial")
    work = folder.with_name(folder.name + ".work")
    try:
        # Disk space of the neighbour lists, which are written before the partitions.
        with reporting_full_disk(folder.parent, 8 * source.num_edges + 16 * source.num_nodes):
            made = _PartitionRun(source, spec, partial, work, watcher or Nobody()).run()
    except SpecError:
        # An invalid input cannot be resumed; after a full disk the space is freed.
        shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(work, ignore_errors=True)
        raise
    partial.rename(folder)
    shutil.rmtree(work)
    return made


def check_folder(folder: Path) -> None:
    """Raise SpecError if the output directory exists or cannot be created."""
    if folder.exists():
        raise SpecError(f"{folder} exists already", "choose another name or remove it")
    above = next(each for each in folder.absolute().parents if each.exists())
    if not above.is_dir():
        raise SpecError(f"{folder} cannot be created, {above} is a file", "choose another path")
    if not os.access(above, os.W_OK | os.X_OK):
        raise SpecError(
            f"{folder} cannot be created, {above} is not writable", "choose another path"
        )


def _check(source: GraphSource, spec: PartitionSpec, folder: Path) -> None:
    check_method(spec.method)
    check_features(spec.features)
    check_folder(folder)
    num_parts = len(spec.shares)
    if num_parts < 1:
        raise SpecError("no partitions requested", "request at least 1")
    if num_parts > source.num_nodes:
        raise SpecError(
            f"{num_parts} partitions requested, but the graph has {source.num_nodes} nodes",
            "request fewer partitions",
        )
    if spec.num_clusters < 1:
        raise SpecError(f"{spec.num_clusters} clusters requested", "request at least 1")
    for name in spec.balance:
        if name not in _CAN_BALANCE:
            raise SpecError(
                f"{name!r} cannot be balanced", f"use some of {', '.join(_CAN_BALANCE)}"
            )


class _PartitionRun:
    """One run of the pipeline."""

    def __init__(
        self,
        source: GraphSource,
        spec: PartitionSpec,
        partial: Path,
        work: Path,
        watcher: Watcher,
    ) -> None:
        self.source = source
        self.spec = spec
        self.partial = partial
        self.work = work
        self.watcher = watcher
        work.mkdir(parents=True, exist_ok=True)
        self.progress = ResumeLog(work / "progress.json", _fingerprint(source, spec))

    def run(self) -> Manifest:
        cscs = self._read()
        adjacency = self._join(cscs)
        method = self.spec.method
        if method == "auto":
            method = choose_method(adjacency.num_arcs)
        question = Question(
            adjacency,
            np.array(self.spec.shares),
            constraints(self.source, cscs, self.spec.balance),
            self.spec.tolerance,
            self.spec.seed,
        )
        parts = self._cut(question, method)
        clusters = self._cluster(question, parts, method)
        quality = self._measure(question, parts)
        return write_parts(
            watched(self.source, self.watcher),
            cscs,
            parts,
            clusters,
            self.partial,
            features=self.spec.features,
            num_parts=len(self.spec.shares),
            method=method,
            seed=self.spec.seed,
            shares=self.spec.shares,
            quality=quality,
            watcher=self.watcher,
        )

    def _read(self) -> list[Csc]:
        cscs = []
        source = watched(self.source, self.watcher)
        for e, table in enumerate(source.edges):
            folder = self.work / f"edges-{e}"
            if not self.progress.is_done(folder.name):
                src, relation, dst = table.edge_type
                # Rows are read twice: for counting and for scattering.
                self.watcher.begin(f"reading {src} {relation} {dst}", 2 * table.num_edges)
                sizes = [source.nodes[source.type_index(name)].num_nodes for name in (src, dst)]
                build_csc(table, sizes[0], sizes[1], folder)
                self.progress.finish(folder.name)
            cscs.append(open_csc(folder))
        return cscs

    def _join(self, cscs: Sequence[Csc]) -> Adjacency:
        folder = self.work / "adjacency"
        if self.progress.is_done(folder.name):
            return open_adjacency(folder)
        self.watcher.begin("joining all types")
        adjacency = build_adjacency(self.source, cscs, folder)
        # An undirected homogeneous graph is not copied and has no folder.
        if folder.exists():
            self.progress.finish(folder.name)
        return adjacency

    def _cut(self, question: Question, method: str) -> np.ndarray:
        def cut() -> np.ndarray:
            self.watcher.begin(f"cutting by {method}")
            partitioner = find_partitioner(method, self.work)
            return partitioner.assign(question, lambda name: None)

        def repair_balance() -> np.ndarray:
            self.watcher.begin("repairing balance")
            return repair(question, parts)

        def even_out() -> np.ndarray:
            self.watcher.begin("balancing communication")
            return balance_communication(question, parts)

        parts = self._load_or_compute("cut", cut)
        if method not in ("hash", "range"):
            parts = self._load_or_compute("repaired", repair_balance)
            parts = self._load_or_compute("balanced", even_out)
        return parts

    def _cluster(self, question: Question, parts: np.ndarray, method: str) -> np.ndarray | None:
        if self.spec.num_clusters == 1:
            return None

        def cluster() -> np.ndarray:
            self.watcher.begin("clustering inside parts")
            partitioner = find_partitioner(method, self.work)
            return second_level(question, parts, self.spec.num_clusters, partitioner)

        return self._load_or_compute("clusters", cluster)

    def _measure(self, question: Question, parts: np.ndarray) -> Quality:
        self.watcher.begin("measuring the cut")
        return measure(question, parts)

    def _load_or_compute(self, name: str, make: Callable[[], np.ndarray]) -> np.ndarray:
        """Compute the array of a stage, or load it from an earlier run."""
        path = self.work / f"{name}.bin"
        if not self.progress.is_done(name):
            make().astype(np.int32, copy=False).tofile(path)
            self.progress.finish(name)
        return np.fromfile(path, np.int32)


def constraints(
    source: GraphSource, cscs: Sequence[Csc], balance: Sequence[str]
) -> tuple[Constraint, ...]:
    """Balance constraints as node weights; splits by node type in heterogeneous graphs."""
    offsets = source.node_offsets()
    found = [Constraint("nodes")]
    if "edges" in balance:
        found.append(Constraint("edges", _num_in_edges(source, cscs)))
    for split in SPLITS:
        for t, table in enumerate(source.nodes):
            ids = table.splits.get(split)
            if split in balance and ids is not None and len(ids) > 0:
                weights = np.zeros(source.num_nodes, np.uint8)
                weights[offsets[t] + ids] = 1
                name = split if len(source.nodes) == 1 else f"{split} {table.name}"
                found.append(Constraint(name, weights))
    return tuple(found)


def _num_in_edges(source: GraphSource, cscs: Sequence[Csc]) -> np.ndarray:
    """Number of in-edges per node: the storage and sampling cost of a partition."""
    offsets = source.node_offsets()
    weights = np.zeros(source.num_nodes, np.int32)
    for table, csc in zip(source.edges, cscs, strict=True):
        t = source.type_index(table.edge_type[2])
        weights[offsets[t] : offsets[t + 1]] += np.diff(csc.indptr).astype(np.int32)
    return weights


def _fingerprint(source: GraphSource, spec: PartitionSpec) -> str:
    """Identifies the source and parameters, so that only an equal run is resumed."""
    nodes = [
        (table.name, table.num_nodes, [column.name for column in table.columns])
        for table in source.nodes
    ]
    edges = [(table.edge_type, table.num_edges) for table in source.edges]
    return repr((source.name, nodes, edges, spec))
