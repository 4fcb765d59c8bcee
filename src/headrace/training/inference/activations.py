"""Activations of all nodes, in files."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import numpy as np
from torch import Tensor

from headrace.core.errors import SpecError
from headrace.graph.format.partitioned_graph import PartitionedGraph, as_tensor

_COPY_BYTES = 1 << 24


class RowsWriter:
    """Writes the rows of all nodes of a type sequentially to a `.npy` file.

    It does not use a mapping, because with that a full disk kills the process.
    """

    def __init__(self, path: Path, num_rows: int) -> None:
        self._path = path
        self._num_rows = num_rows
        self._num_written = 0
        self._width: int | None = None
        self._file: BinaryIO = path.open("wb", buffering=0)

    def append(self, rows: Tensor) -> None:
        """Write the next rows, as `float32`."""
        if rows.dim() != 2 or self._width not in (None, rows.shape[1]):
            raise SpecError(
                f"a layer returned a tensor of shape {tuple(rows.shape)}",
                "return one row per node, with the same width for all nodes",
            )
        values = np.ascontiguousarray(rows.detach().float().cpu().numpy())
        if self._width is None:
            self._width = values.shape[1]
            shape = (self._num_rows, self._width)
            header = {"descr": "<f4", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(self._file, header)
        memory = values.reshape(-1).view(np.uint8).data
        while memory:
            memory = memory[self._file.write(memory) :]
        self._num_written += len(values)

    def close(self) -> Tensor | None:
        """Map all rows; None if none were written."""
        self._file.close()
        if self._width is None:
            return None
        if self._num_written != self._num_rows:
            raise SpecError(
                f"a layer returned {self._num_written} rows for {self._num_rows} nodes",
                "return one row for each target node, in their order",
            )
        return as_tensor(np.load(self._path, mmap_mode="r").view(np.ndarray))


def column_rows(graph: PartitionedGraph, node_type: str, column: str, path: Path) -> Tensor | None:
    """A column of all partitions as one `float32` array, by new ids; None if there is none.

    A copy is written to `path`, unless the column is already stored in this form.
    """
    info = graph.manifest.nodes[graph.manifest.node_index(node_type)]
    columns = {each.name: each for each in info.columns}
    if column not in columns:
        return None
    dtype, shape = columns[column].dtype, columns[column].shape
    is_plain = columns[column].encoding is None
    if graph.num_parts == 1 and dtype == "float32" and len(shape) == 1 and is_plain:
        return graph.part(0).tensor(node_type, column)
    writer = RowsWriter(path, info.num_nodes)
    step = max(_COPY_BYTES // (4 * max(int(np.prod(shape)), 1)), 1)
    for number in range(graph.num_parts):
        part = graph.part(number)
        num_rows = part.num_nodes(node_type)
        for start in range(0, num_rows, step):
            values = part.rows(node_type, column, start, min(start + step, num_rows))
            writer.append(as_tensor(values, dtype).reshape(len(values), -1))
    return writer.close()
