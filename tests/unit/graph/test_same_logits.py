"""A model sees the same graph before and after."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headrace.graph.format.partitioned_graph import open_graph
from headrace.graph.schema import GraphSource
from tests.support.reassemble import reassemble
from tests.unit.graph.small_graphs import endpoints, homogeneous, write


@pytest.mark.parametrize("keep_ids", [True, False])
def test_graphsage_gives_the_same_logits(keep_ids: bool, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    nn = pytest.importorskip("torch_geometric.nn")
    source = homogeneous(num_nodes=60, num_edges=400, keep_ids=keep_ids)
    write(source, tmp_path, num_parts=4)
    torch.manual_seed(0)
    model = nn.GraphSAGE(5, 16, num_layers=2, out_channels=7, dropout=0.0)

    def logits(graph: GraphSource) -> np.ndarray:
        x = torch.tensor(graph.nodes[0].columns[0].read(0, 60))
        edge_index = torch.from_numpy(np.stack(endpoints(graph.edges[0])))
        with torch.no_grad():
            return np.asarray(model(x, edge_index))

    again = reassemble(open_graph(tmp_path))
    np.testing.assert_allclose(logits(again), logits(source), atol=1e-4, rtol=0)
