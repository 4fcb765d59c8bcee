"""KaMinPar, for graphs that are too large for METIS."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headrace.core.errors import MissingExtraError, SpecError
from headrace.graph.adjacency import Adjacency
from headrace.graph.partitioners._base import OnStep, Question

_MOST_SEED = 2**31
_CHUNK = 1 << 24
_FEW_NODES = 1 << 15
"""Up to this size a graph is not compressed.

KaMinPar 3.7.3 is nondeterministic for compressed graphs of at most 4,000 nodes: it copies such a
graph without initialising the copy's "nodes are sorted" flag. Measured: from 4,100 to 50,000 nodes
both modes give the same result; at 200,000 nodes the results differ, but each is deterministic."""


@dataclass(frozen=True)
class KaMinPar:
    """Multilevel partitioning with little memory; balances nodes, other constraints need `repair`.

    KaMinPar's binding accepts Python lists or files; a temporary file is used.

    Attributes:
        scratch: Folder for a file of about four bytes per arc.
        num_threads: More than one is faster, but the result is then not deterministic.
        tightness: Fraction of the problem's tolerance that KaMinPar may use.
    """

    scratch: Path
    num_threads: int = 1
    tightness: float = 0.6

    name = "kaminpar"

    def assign(self, question: Question, on_step: OnStep) -> np.ndarray:
        """Partition the graph; see `Partitioner`."""
        num_nodes, num_parts = question.adjacency.num_nodes, question.num_parts
        if num_parts > num_nodes:
            raise SpecError(
                f"{num_parts} partitions requested, but the graph has {num_nodes} nodes",
                f"request at most {num_nodes} partitions",
            )
        if num_parts == 1:
            return np.zeros(num_nodes, np.int32)
        try:
            import kaminpar
        except ImportError:
            raise MissingExtraError(
                "kaminpar is not installed", "pip install 'headrace[partition]'"
            ) from None
        path = self.scratch / "kaminpar.parhip"
        is_large = num_nodes > _FEW_NODES
        try:
            on_step("convert")
            write_parhip(question.adjacency, path)
            on_step("read")
            graph = kaminpar.load_graph(
                str(path), kaminpar.GraphFileFormat.PARHIP, compress=is_large
            )
        finally:
            path.unlink(missing_ok=True)
        on_step("cut")
        kaminpar.reseed(question.seed % _MOST_SEED)
        # TeraPart's context crashes on a graph that is not compressed.
        context = kaminpar.terapart_context() if is_large else kaminpar.default_context()
        solver = kaminpar.KaMinPar(self.num_threads, context)
        shares = num_nodes * question.shares
        most = np.maximum(
            np.ceil(shares), np.floor(shares * (1 + self.tightness * question.tolerance))
        )
        parts = solver.compute_partition(graph, max_block_weights=most.astype(int).tolist())
        return np.array(parts, np.int32)


def write_parhip(adjacency: Adjacency, path: Path) -> None:
    """Write a graph in ParHIP's binary format with 32-bit ids, in chunks.

    The format: three 64-bit numbers (flags, nodes, arcs), the file offset of each node's
    neighbours, all neighbours, and the arc weights if there are any.
    """
    if adjacency.num_nodes >= 2**32:
        raise SpecError(
            f"a graph of {adjacency.num_nodes} nodes does not fit 32-bit ids", "use method fennel"
        )
    without_edge_weights, without_node_weights = 1, 2
    narrow_ids, narrow_node_weights, narrow_edge_weights = 8, 16, 32
    flags = without_node_weights | narrow_ids | narrow_node_weights | narrow_edge_weights
    if adjacency.weights is None:
        flags |= without_edge_weights
    header = np.array([flags, adjacency.num_nodes, adjacency.num_arcs], np.uint64)
    begin = header.nbytes + 8 * len(adjacency.indptr)
    with path.open("wb") as file:
        file.write(header.data)
        for first in range(0, len(adjacency.indptr), _CHUNK):
            offsets = adjacency.indptr[first : first + _CHUNK].astype(np.uint64)
            file.write((offsets * np.uint64(4) + np.uint64(begin)).data)
        for values in (adjacency.indices, adjacency.weights):
            if values is not None:
                for first in range(0, len(values), _CHUNK):
                    file.write(values[first : first + _CHUNK].astype(np.uint32, copy=False).data)
