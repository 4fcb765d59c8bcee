"""Compute every layer for all nodes, then write tables."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headrace.core.errors import SpecError
from headrace.graph.format.array_files import check_space, reporting_full_disk
from headrace.graph.format.partitioned_graph import PartitionedGraph, open_graph
from headrace.graph.schema import Nobody, Watcher
from headrace.graph.sources.arrays import EDGE, NODE
from headrace.training.inference.activations import RowsWriter, column_rows
from headrace.training.inference.layer_ops import Setting, Step
from headrace.training.inference.model_layers import Layers, layers_of, widest_of
from headrace.training.inference.node_chunks import cut
from headrace.training.inference.prediction_tables import predict, write_table

MEMORY_BYTES = 1 << 28
"""Default memory of a chunk."""

WRITABLE = ("prediction", "output", "embedding")
"""Columns of a table besides `node`."""

_WORK = ".activations"
_LABEL = "y"
_CHUNK_ROWS = 1 << 16


@dataclass(frozen=True)
class Inference:
    """Result of an inference.

    Attributes:
        tables: A Parquet file for each node type.
        num_nodes: Number of rows of each.
        widths: Output size of the last layer.
        accuracy: Accuracy of each split by node type, where nodes have classes `y`.
    """

    tables: Mapping[str, Path]
    num_nodes: Mapping[str, int]
    widths: Mapping[str, int]
    accuracy: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def summary(self) -> dict[str, Any]:
        """Plain values: the output of `headrace infer --json`."""
        return {
            "tables": {name: str(path) for name, path in self.tables.items()},
            "num_nodes": dict(self.num_nodes),
            "widths": dict(self.widths),
            "accuracy": {name: dict(shares) for name, shares in self.accuracy.items()},
        }


def infer(
    model: nn.Module,
    graph: PartitionedGraph | str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    write: Sequence[str] = ("prediction",),
    node_type: str | None = None,
    layers: Sequence[Callable[..., Any]] | None = None,
    column: str = "x",
    edge_weight: str | None = None,
    edge_attr: str | None = None,
    device: torch.device | str | None = None,
    memory_bytes: int = MEMORY_BYTES,
    watcher: Watcher | None = None,
) -> Inference:
    """Compute the output of a model for all nodes, from all their neighbours.

    Layers are computed one after the other for all nodes, in chunks. Activations are in files of
    the output directory while they are needed, so memory does not grow with the graph, except for a
    few bytes per node.

    Args:
        model: PyG's `GraphSAGE`, `GCN`, `GAT`, `GIN`, `PNA` or `EdgeCNN`; any other model with
            `inference_layers()`, or with `layers`.
        graph: A partitioned graph, with all partitions on this machine.
        output: Directory of `nodes.parquet`; for a heterogeneous graph one file per node type.
        write: Columns of the table: `prediction`, the class with the largest output; `output`, the
            output of the last layer; `embedding`, its input.
        node_type: Node type to write; None for all.
        layers: Functions that compute the next activations from `x` and `edge_index`, or from
            dictionaries of both by type. The target nodes come first; only these have all their
            neighbours. A layer also receives the following values if its parameters name them:
            `size` (numbers of all nodes and of targets), `n_id` (original ids), `edge_weight`,
            `edge_attr`.
        column: Node column that is the input of the first layer.
        edge_weight: Edge column passed to layers as `edge_weight`.
        edge_attr: Edge column passed to layers as `edge_attr`.
        device: Device of the computation; None for the model's device.
        memory_bytes: Approximate memory of a chunk.
        watcher: Receives progress.

    Raises:
        SpecError: The model cannot be computed layer by layer, or an input is missing.
        MissingExtraError: pyarrow is not installed.
    """
    opened = graph if isinstance(graph, PartitionedGraph) else open_graph(graph)
    _check(opened, write, node_type, memory_bytes)
    home = next((each.device for each in model.parameters()), torch.device("cpu"))
    setting = Setting(
        graph=opened,
        is_homogeneous=opened.node_types == (NODE,) and opened.edge_types == (EDGE,),
        device=home if device is None else torch.device(device),
        edge_weight=edge_weight,
        edge_attr=edge_attr,
        widest=widest_of(model),
    )
    planned = layers_of(model, layers, setting)
    if planned.needs_rows:
        opened.part(0).column_info(opened.node_types[0], column)
    wanted = opened.node_types if node_type is None else (node_type,)
    was_training = model.training
    model.to(setting.device).eval()
    folder = Path(output)
    try:
        with _work_folder(folder) as work, torch.no_grad():
            needed_bytes = _needed_bytes(opened, column, setting.widest, wanted, write)
            check_space(folder, needed_bytes)
            with reporting_full_disk(folder, needed_bytes):
                run = _Run(opened, work, column, memory_bytes, watcher or Nobody())
                before, after = run.through(planned, wanted)
                return _write(folder, opened, write, before, after, type(model).__name__)
    finally:
        model.to(home).train(was_training)


class _Run:
    """Computes one layer after the other, each from one file to another."""

    def __init__(
        self,
        graph: PartitionedGraph,
        work: Path,
        column: str,
        memory_bytes: int,
        watcher: Watcher,
    ) -> None:
        self._graph = graph
        self._work = work
        self._memory_bytes = memory_bytes
        self._watcher = watcher
        watcher.begin("features")
        self._inputs = self._each(lambda name, path: column_rows(graph, name, column, path), "in")

    def through(
        self, planned: Layers, wanted: Sequence[str]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Input and output of the last layer, by node type."""
        history = [self._inputs]
        for number, step in enumerate(planned.steps):
            is_last = number == len(planned.steps) - 1
            names = wanted if is_last and planned.join is None else self._graph.node_types
            total = sum(self._graph.num_nodes_of(name) for name in names)
            self._watcher.begin(f"layer {number + 1} of {len(planned.steps)}", total)
            history.append(self._layer(step, history[-1], names, f"layer-{number}"))
            if planned.join is None and number > 0:
                # The input of the previous layer is not needed any more.
                history[-3] = {}
                for path in self._work.glob(f"{'in' if number == 1 else f'layer-{number - 2}'}.*"):
                    path.unlink()
        if planned.join is None:
            return history[-2], history[-1]
        self._watcher.begin("joining layers")
        return history[-1], self._joined(planned.join, history[1:], wanted)

    def _layer(
        self, step: Step, inputs: Mapping[str, Tensor], names: Sequence[str], title: str
    ) -> dict[str, Tensor]:
        width = max((rows.shape[1] for rows in inputs.values()), default=1)

        def compute(name: str, path: Path) -> Tensor | None:
            writer = RowsWriter(path, self._graph.num_nodes_of(name))
            for chunk in cut(self._graph, name, *step.costs(width), self._memory_bytes):
                rows = step.rows(chunk, inputs)
                if rows is not None:
                    writer.append(rows)
                self._watcher.advance(chunk.num_targets)
            return writer.close()

        return self._each(compute, title, names)

    def _joined(
        self,
        join: Callable[[list[Tensor]], Tensor],
        history: Sequence[Mapping[str, Tensor]],
        wanted: Sequence[str],
    ) -> dict[str, Tensor]:
        def compute(name: str, path: Path) -> Tensor | None:
            writer = RowsWriter(path, self._graph.num_nodes_of(name))
            for chunk in zip(*(rows[name].split(_CHUNK_ROWS) for rows in history), strict=True):
                writer.append(join(list(chunk)))
            return writer.close()

        return self._each(compute, "joined", wanted)

    def _each(
        self,
        make: Callable[[str, Path], Tensor | None],
        title: str,
        names: Sequence[str] | None = None,
    ) -> dict[str, Tensor]:
        made = {}
        for name in self._graph.node_types if names is None else names:
            number = self._graph.manifest.node_index(name)
            rows = make(name, self._work / f"{title}.{number}.npy")
            if rows is not None:
                made[name] = rows
        return made


def _write(
    folder: Path,
    graph: PartitionedGraph,
    write: Sequence[str],
    before: Mapping[str, Tensor],
    after: Mapping[str, Tensor],
    model_name: str,
) -> Inference:
    tables, accuracy = {}, {}
    for name, rows in after.items():
        columns = {"prediction": rows, "output": rows, "embedding": before.get(name)}
        chosen = {each: found for each in write if (found := columns[each]) is not None}
        tables[name] = folder / _file_name(graph, name)
        notes = {"model": model_name, "graph": graph.manifest.name, "node_type": name}
        write_table(tables[name], graph, name, chosen, notes)
        shares = accuracies(graph, name, rows)
        if shares:
            accuracy[name] = shares
    return Inference(
        tables=tables,
        num_nodes={name: len(rows) for name, rows in after.items()},
        widths={name: rows.shape[1] for name, rows in after.items()},
        accuracy=accuracy,
    )


def accuracies(graph: PartitionedGraph, node_type: str, rows: Tensor) -> dict[str, float]:
    """Accuracy of each split against the class `y`; empty without classes. Rows are by new ids."""
    info = graph.manifest.nodes[graph.manifest.node_index(node_type)]
    labels = [each for each in info.columns if each.name == _LABEL and each.shape == ()]
    if not labels or "int" not in labels[0].dtype or rows.shape[1] < 2:
        return {}
    shares: dict[str, float] = {}
    for split in info.splits:
        num_right = num_nodes = 0
        for number in range(graph.num_parts):
            part = graph.part(number)
            ids = part.split(node_type, split)
            for begin in range(0, len(ids), _CHUNK_ROWS):
                own = ids[begin : begin + _CHUNK_ROWS]
                found = predict(rows[torch.from_numpy(own + part.start(node_type))]).numpy()
                num_right += int(np.sum(found == part.column(node_type, _LABEL)[own]))
                num_nodes += len(own)
        if num_nodes:
            shares[split] = num_right / num_nodes
    return shares


def _check(
    graph: PartitionedGraph, write: Sequence[str], node_type: str | None, memory_bytes: int
) -> None:
    unknown = [name for name in write if name not in WRITABLE]
    if unknown or not write:
        asked = f"unknown column {unknown[0]!r}" if unknown else "no column"
        raise SpecError(f"{asked} to write", f"choose from {', '.join(WRITABLE)}")
    if memory_bytes < 1:
        raise SpecError(f"{memory_bytes} bytes of memory are too little", "give some megabytes")
    if node_type is not None:
        graph.manifest.node_index(node_type)
    parts = range(graph.num_parts)
    elsewhere = [part for part in parts if not (graph.folder / f"part-{part}").is_dir()]
    if elsewhere:
        raise SpecError(
            f"partition {elsewhere[0]} of {graph.folder} is not on this machine",
            "run `headrace infer` on a machine with the whole graph",
        )


def _needed_bytes(
    graph: PartitionedGraph, column: str, widest: int, wanted: Sequence[str], write: Sequence[str]
) -> int:
    """Disk space of activations and tables."""
    num_floats = 0
    for info in graph.manifest.nodes:
        widths = [int(np.prod(each.shape)) for each in info.columns if each.name == column]
        num_floats += info.num_nodes * (sum(widths) + 2 * widest)
    tables = sum(graph.num_nodes_of(name) for name in wanted) * widest * len(write)
    return 4 * (num_floats + tables)


def _file_name(graph: PartitionedGraph, node_type: str) -> str:
    if len(graph.node_types) == 1:
        return "nodes.parquet"
    # Type names may be invalid in file names.
    is_plain = node_type.replace("_", "").replace("-", "").isalnum() and node_type.isascii()
    number = graph.manifest.node_index(node_type)
    return f"nodes-{node_type if is_plain else number}.parquet"


@contextmanager
def _work_folder(output: Path) -> Iterator[Path]:
    """A directory for activations; remains of a killed process are removed."""
    work = output / _WORK
    shutil.rmtree(work, ignore_errors=True)
    try:
        work.mkdir(parents=True)
    except OSError as error:
        raise SpecError(
            f"{work} cannot be created: {error.strerror}", "give another output directory"
        ) from None
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)
