"""What a plan chooses for a full-graph job runs: several partitions, bins, ring or servers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

from headrace.graph.format.partitioned_graph import open_graph  # noqa: E402
from headrace.training.full_graph.full_graph import FullGraph  # noqa: E402
from tests.integration import full_graph_planned_script as script  # noqa: E402
from tests.integration.plain_cluster import PlainCluster  # noqa: E402
from tests.unit.graph.small_graphs import homogeneous, write  # noqa: E402

pytestmark = pytest.mark.integration

NUM_PARTS, NUM_TRAINERS, NUM_BINS = 3, 2, 4


@pytest.mark.parametrize("num_servers", [0, 1])
def test_trainers_learn_what_one_process_learns(num_servers: int, tmp_path: Path) -> None:
    write(homogeneous(200, 900), tmp_path / "graph", NUM_PARTS)
    mix = np.full((NUM_TRAINERS, NUM_PARTS), 4.0)
    cluster = PlainCluster(tmp_path / "run", tmp_path / "graph", mix, bins=NUM_BINS)
    if num_servers:
        cluster.start_servers(num_servers)
    cluster.run(Path(script.__file__))
    found, num_bins, num_nodes = torch.load(tmp_path / "run" / "learnt.pt")
    assert num_bins == NUM_BINS
    sizes = [open_graph(tmp_path / "graph").part(p).num_nodes("node") for p in range(NUM_PARTS)]
    assert num_nodes in (max(sizes), sum(sizes) - max(sizes))
    model, optimizer = script.make()
    data = FullGraph(open_graph(tmp_path / "graph"))
    data.wrap(model)
    (batch,) = data
    for _ in range(script.NUM_EPOCHS):
        script.step(model, optimizer, batch)
    for name, value in model.named_parameters():
        torch.testing.assert_close(found[name], value.detach(), atol=1e-5, rtol=1e-4)
