"""The examples for several trainers run with them, and learn."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

from torch_geometric.data import Data  # noqa: E402
from torch_geometric.nn import GraphSAGE  # noqa: E402

from headrace.graph.sources.pyg import from_pyg  # noqa: E402
from tests.integration.plain_cluster import PlainCluster  # noqa: E402
from tests.unit.graph.small_graphs import write  # noqa: E402

pytestmark = pytest.mark.integration

EXAMPLES = Path(__file__).parents[2] / "examples"
NUM_NODES = 90


@pytest.fixture
def cluster(tmp_path: Path) -> PlainCluster:
    """Two trainers, and a graph like Pubmed in which features tell the class."""
    torch.manual_seed(0)
    y = torch.randint(3, (NUM_NODES,))
    x = torch.rand(NUM_NODES, 500) + torch.nn.functional.one_hot(y, 500)
    numbers = torch.arange(NUM_NODES)
    data = Data(
        x=x,
        y=y,
        edge_index=torch.randint(NUM_NODES, (2, 300)),
        train_mask=numbers < 40,
        val_mask=numbers >= 60,
    )
    write(from_pyg(data), tmp_path / "graph", 2)
    torch.save(numbers[:40], tmp_path / "train_idx.pt")
    return PlainCluster(
        tmp_path / "run",
        tmp_path / "graph",
        np.array([[4.0, 4.0], [8.0, 0.0]]),
        config={"epochs": 2},
    )


def test_a_training_function(cluster: PlainCluster) -> None:
    cluster.run(EXAMPLES / "headrace_ddp.py")
    best = torch.load(cluster.folder / "best.pt", weights_only=True)
    GraphSAGE(500, hidden_channels=64, num_layers=2, out_channels=3).load_state_dict(best)


def test_a_script_for_torchrun(cluster: PlainCluster) -> None:
    said = cluster.run(
        EXAMPLES / "pyg_ddp.py",
        str(cluster.graph),
        str(cluster.graph.parent / "train_idx.pt"),
        "15",
    )
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", said[0])]
    assert len(losses) == 15
    assert losses[-1] < losses[0]
    assert "loss" not in said[1]
    # Seeds that the script divided itself were given to the samplers.
    given = [np.load(cluster.folder / f"given-sampler{trainer}.0.npy") for trainer in range(2)]
    assert [seeds.tolist() for seeds in given] == [list(range(20)), list(range(20, 40))]
