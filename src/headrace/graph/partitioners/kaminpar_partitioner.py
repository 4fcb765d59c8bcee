"""KaMinPar, for graphs that METIS has no memory for."""

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
"""Up to which a graph is not compressed.

KaMinPar 3.7.3 cuts a compressed graph of at most 4,000 nodes as its memory happens to be: it copies
such a graph at once and forgets to say whether the copy's nodes are sorted. Measured: from 4,100 to
50,000 nodes both ways give the same answer; at 200,000 they give two, each of them every time.
"""


@dataclass(frozen=True)
class KaMinPar:
    """Multilevel partitioning in little memory; balances nodes and leaves the rest to `repair`.

    KaMinPar's binding takes Python lists or files. A file is written next to whatever else is
    temporary and removed again.

    Attributes:
        scratch: Folder for a file of about four bytes per arc.
        num_threads: More than one is faster, but then the same seed may give another answer.
        tightness: Share of the question's tolerance that KaMinPar itself may use.
    """

    scratch: Path
    num_threads: int = 1
    tightness: float = 0.6

    name = "kaminpar"

    def assign(self, question: Question, on_step: OnStep) -> np.ndarray:
        """Cut the graph; see `Partitioner`."""
        num_nodes, num_parts = question.adjacency.num_nodes, question.num_parts
        if num_parts > num_nodes:
            raise SpecError(
                f"{num_parts} parts were asked for, but the graph has {num_nodes} nodes",
                f"ask for at most {num_nodes} parts",
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

    The format: three 64-bit numbers (flags, nodes, arcs), the byte in the file where each node's
    neighbours begin, all neighbours, and the weights of arcs if there are any.
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
