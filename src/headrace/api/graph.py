"""Partitioning and opening of graphs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from headrace.core.cluster import Cluster
from headrace.core.errors import SpecError
from headrace.graph.build.layout import shares_of
from headrace.graph.build.partition import BALANCED, PartitionSpec, check_folder
from headrace.graph.build.partition import partition as make_parts
from headrace.graph.format.partitioned_graph import PartitionedGraph
from headrace.graph.format.verify import verify
from headrace.graph.schema import GraphSource, Watcher
from headrace.graph.sources.pyg import from_pyg
from headrace.graph.sources.resolve import open_source
from headrace.runtime.trainer.run_graph import open_graph

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData

__all__ = ["PartitionedGraph", "open_graph", "partition", "verify"]


def partition(
    source: str | Path | GraphSource | Data | HeteroData,
    folder: str | Path,
    parts: int | Cluster,
    method: str = "auto",
    balance: tuple[str, ...] = BALANCED,
    tolerance: float = 0.05,
    clusters: int = 1,
    features: str | None = None,
    seed: int = 0,
    watcher: Watcher | None = None,
) -> PartitionedGraph:
    """Partition a graph and write it in headrace's memory-mapped format.

    Args:
        source: A PyG `Data` or `HeteroData`, or any source of `headrace partition`: an OGB
            directory, a `graph.yaml` of Parquet tables, `generated:nodes=1e6,edges=25e6`, etc.
        folder: Output directory; must not exist yet.
        parts: Number of equal partitions, or a cluster: one partition per machine, sized by its
            memory and NIC bandwidth.
        method: `auto`, `metis`, `kaminpar`, `fennel`, `hash` or `range`.
        balance: Quantities to balance: `nodes`, `edges`, `train`, `val`, `test`.
        tolerance: Maximum relative excess of a partition over its target size.
        clusters: Second-level clusters per partition, one per sampler of a machine.
        features: How features `x` are stored: `auto` for the smallest lossless form, `float32`,
            `float16`, `bfloat16`, `int8` or `int4`; unchanged if not given.
        seed: Random seed.
        watcher: Receives progress callbacks.

    Raises:
        SpecError: The source or an argument is invalid.
        MissingExtraError: The partitioner is not installed.

    Example:
        >>> import headrace
        >>> source = "generated:nodes=1000,edges=5000"
        >>> graph = headrace.partition(source, "parts", parts=2, method="hash")
        >>> graph.num_parts
        2
        >>> headrace.open_graph("parts")
        <generated-1000-5000-0 in 2 parts at parts>
    """
    if isinstance(parts, Cluster):
        shares = shares_of(parts)
    elif parts >= 1:
        shares = np.full(parts, 1 / parts)
    else:
        raise SpecError(f"{parts} partitions were requested", "request at least 1")
    # Check before reading the source, which may take minutes.
    check_folder(Path(folder))
    if isinstance(source, str | Path):
        source = open_source(str(source), seed)
    elif not isinstance(source, GraphSource):
        source = from_pyg(source)
    wanted = PartitionSpec(
        shares=tuple(float(share) for share in shares),
        method=method,
        balance=balance,
        tolerance=tolerance,
        num_clusters=clusters,
        features=features,
        seed=seed,
    )
    make_parts(source, wanted, Path(folder), watcher)
    return open_graph(Path(folder))


def check_parts(graph: PartitionedGraph, cluster: Cluster) -> None:
    """Raise `SpecError` unless the graph has one partition per machine."""
    if graph.num_parts != cluster.num_machines:
        raise SpecError(
            f"the cluster has {cluster.num_machines} machines, but the graph has "
            f"{graph.num_parts} partitions",
            f"partition it with `--parts {cluster.num_machines}`, or pass --cluster with a file of "
            f"{graph.num_parts} machines",
        )
