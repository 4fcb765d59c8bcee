"""Write predictions and embeddings as Parquet, one row per node, by original ids."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.core.errors import MissingExtraError
from headrace.graph.format.partitioned_graph import PartitionedGraph
from headrace.linux.atomic_write import atomic_path

_GROUP_BYTES = 1 << 26
_MOST_ROWS = 1 << 17


def write_table(
    path: Path,
    graph: PartitionedGraph,
    node_type: str,
    columns: Mapping[str, Tensor],
    notes: Mapping[str, str],
) -> None:
    """Write a table atomically.

    Args:
        path: The file.
        graph: The graph.
        node_type: The node type.
        columns: Rows by new ids. `prediction` becomes the index of the largest value, or the value
            if there is only one; every other column is a list of numbers.
        notes: Metadata of the schema.

    Raises:
        MissingExtraError: pyarrow is not installed.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingExtraError(
            "pyarrow is not installed", "pip install 'headrace[train]'"
        ) from None
    fields = [pa.field("node", pa.int64(), nullable=False)]
    for name, rows in columns.items():
        fields.append(pa.field(name, _type_of(pa, name, rows), nullable=False))
    schema = pa.schema(fields, {f"headrace.{key}": value for key, value in notes.items()})
    row_bytes = 8 + sum(4 * rows.shape[1] for rows in columns.values())
    step = max(min(_MOST_ROWS, _GROUP_BYTES // row_bytes), 1)
    # Model outputs hardly compress; ids and classes do.
    settings = {"compression": {"node": "zstd", "prediction": "zstd"}, "use_dictionary": False}
    with atomic_path(path) as partial, pq.ParquetWriter(partial, schema, **settings) as writer:
        num_nodes = graph.num_nodes_of(node_type)
        for begin in range(0, num_nodes, step):
            ids = np.arange(begin, min(begin + step, num_nodes))
            at = torch.from_numpy(graph.to_new(node_type, ids))
            arrays = [pa.array(ids)]
            for name, rows in columns.items():
                arrays.append(_array_of(pa, schema.field(name).type, rows[at]))
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema), row_group_size=step)


def predict(rows: Tensor) -> Tensor:
    """The class of every row, or its only value."""
    return rows.argmax(1) if rows.shape[1] > 1 else rows[:, 0]


def _type_of(pa: Any, name: str, rows: Tensor) -> Any:
    if name != "prediction":
        return pa.list_(pa.float32(), rows.shape[1])
    return pa.int64() if rows.shape[1] > 1 else pa.float32()


def _array_of(pa: Any, wanted: Any, rows: Tensor) -> Any:
    if not pa.types.is_fixed_size_list(wanted):
        return pa.array(predict(rows).numpy(), wanted)
    return pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1).numpy()), type=wanted)
