"""One process traces the step of one of several trainers that do not exist."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

from torch_geometric.nn import GAT, GCN, GraphSAGE  # noqa: E402

from headrace.graph.format.partitioned_graph import PartitionedGraph, open_graph  # noqa: E402
from headrace.profiling.step_estimate.measured_step import measured_peak  # noqa: E402
from headrace.profiling.step_estimate.tracer import StepTracer, tensors_of  # noqa: E402
from headrace.training.full_graph.assumed import AssumedTrainers  # noqa: E402
from headrace.training.full_graph.full_graph import FullGraph  # noqa: E402
from headrace.training.full_graph.part import halo_sizes  # noqa: E402
from tests.unit.graph.small_graphs import NODE_TO_NODE, homogeneous, write  # noqa: E402

NUM_STEPS = 2


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> PartitionedGraph:
    folder = tmp_path_factory.mktemp("assumed") / "graph"
    write(homogeneous(300, 3000), folder, 3)
    return open_graph(folder)


def step(model: Any, optimizer: Any, batch: Any) -> None:
    optimizer.zero_grad()
    out = model(batch.x, batch.edge_index)
    torch.nn.functional.cross_entropy(out, batch.y).backward()
    optimizer.step()


def make(kind: Any, data: FullGraph) -> tuple[Any, Any]:
    model = kind(5, 32, 2, 7)
    data.wrap(model)
    return model, torch.optim.Adam(model.parameters())


@pytest.mark.parametrize(
    ("kind", "bins", "trainers"),
    [
        (GAT, 1, None),
        (GAT, 3, None),
        (GAT, 1, (0, 1, 0)),
        (GAT, 3, (0, 1, 2)),
        (GCN, 1, None),
        (GCN, 1, (0, 1, 1)),
        (GraphSAGE, 1, (0, 1, 2)),
    ],
)
def test_the_traced_peak_is_that_of_the_profiler(
    kind: Any, bins: int, trainers: tuple[int, ...] | None, graph: PartitionedGraph
) -> None:
    group = None if trainers is None else AssumedTrainers(graph, trainers, 1)
    data = FullGraph(graph, group, bins=bins)
    model, optimizer = make(kind, data)
    (batch,) = data
    tracer = StepTracer()
    tracer.add_batch(batch)
    with tracer:
        for _ in range(NUM_STEPS):
            step(model, optimizer, batch)
    data = FullGraph(graph, group, bins=bins)
    (batch,) = data

    def run() -> None:
        model, optimizer = make(kind, data)
        for _ in range(NUM_STEPS):
            step(model, optimizer, batch)

    peak = measured_peak(run, tensors_of(batch))
    # Lowest with bins and several trainers.
    assert 0.93 * peak <= tracer.result().peak_bytes <= 1.1 * peak


def test_others_need_as_many_rows_as_they_would(graph: PartitionedGraph) -> None:
    trainers = (0, 1, 0)
    sizes = halo_sizes(graph, trainers)[NODE_TO_NODE]
    for rank in range(2):
        data = FullGraph(graph, AssumedTrainers(graph, trainers, rank))
        exchange = data.halos.by_type[NODE_TO_NODE].exchange
        assert exchange.num_sent == sizes[:, rank].tolist()
        assert exchange.num_halo == sizes[rank].sum()
        (batch,) = data
        model, optimizer = make(GAT, data)
        step(model, optimizer, batch)
        # The features' halo once; then rows of a layer and their gradients.
        assert data.sent_bytes > 4 * 32 * sizes[:, rank].sum()
