"""Explanation graphs, and scores of remote nodes and features."""

from __future__ import annotations

import io
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

from torch_geometric.nn import GAT, GCN, GraphSAGE  # noqa: E402

from headrace.core.errors import SpecError  # noqa: E402
from headrace.graph.format.partitioned_graph import open_graph  # noqa: E402
from headrace.graph.loader.graph_view import PartitionedGraphView  # noqa: E402
from headrace.graph.sampling.remote_scores import RemoteScores  # noqa: E402
from headrace.training.remote_sampling.explanation_graph import (  # noqa: E402
    ExplanationGraph,
    build,
)
from headrace.training.remote_sampling.scores import SCORES, Scores, compute  # noqa: E402
from headrace.training.remote_sampling.settings import RemoteSampling  # noqa: E402
from tests.unit.graph.small_graphs import heterogeneous, homogeneous, write  # noqa: E402


@pytest.fixture(scope="module")
def access(tmp_path_factory: pytest.TempPathFactory) -> PartitionedGraphView:
    folder = tmp_path_factory.mktemp("graph")
    write(homogeneous(60, 300), folder, 3)
    return PartitionedGraphView(open_graph(folder))


@pytest.fixture(scope="module")
def graph(access: PartitionedGraphView) -> ExplanationGraph:
    return build(access, 1, "x")


def test_the_partition_is_one_node_and_remote_neighbours_link_to_it(
    access: PartitionedGraphView, graph: ExplanationGraph
) -> None:
    part = access.graph.part(1)
    low, high = (int(end) for end in access.graph.offsets("node")[1:3])
    edge_type = access.edge_types[0]
    sources = np.asarray(part.indices(edge_type))
    assert set(graph.remote) == {int(each) for each in sources if not low <= each < high}
    rows = np.asarray(part.column("node", "x"))
    np.testing.assert_allclose(graph.x[0], rows.mean(axis=0), rtol=1e-5)
    first = int(graph.remote[0])
    (owner,) = access.graph.owner("node", np.array([first]))
    other = access.graph.part(int(owner))
    np.testing.assert_array_equal(
        graph.x[1], other.column("node", "x")[first - other.start("node")]
    )
    assert graph.edge_index.tolist() == [list(range(len(graph.x))), [0] * len(graph.x)]
    # The edges of the partition are those of the files.
    ids = np.concatenate([np.arange(low, high), graph.remote])
    assert np.array_equal(ids[graph.part_edge_index[0]], sources)


@pytest.mark.parametrize("score", sorted(SCORES))
@pytest.mark.parametrize("kind", [GraphSAGE, GCN, GAT])
def test_scores_are_fractions_and_leave_the_model_alone(
    graph: ExplanationGraph, score: str, kind: Any
) -> None:
    torch.manual_seed(0)
    model = kind(5, 8, num_layers=2, out_channels=7)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found, again = compute(score, model, graph), compute(score, model, graph)
    assert found.nodes.shape == graph.remote.shape
    assert found.features.shape == (5,)
    for values, same in ((found.nodes, again.nodes), (found.features, again.features)):
        assert ((values >= 0) & (values <= 1)).all()
        assert torch.equal(values, same)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(each.requires_grad and each.grad is None for each in model.parameters())


def test_a_feature_without_effect_has_the_least_score(graph: ExplanationGraph) -> None:
    torch.manual_seed(0)
    model = GraphSAGE(5, 8, num_layers=2, out_channels=7)
    with torch.no_grad():
        for each in model.parameters():
            if each.ndim == 2 and each.shape[1] == 5:
                each[:, 3] = 0
    for score in ("norms", "saliency"):
        assert int(compute(score, model, graph).features.argmin()) == 3


def test_shuffled_scores_are_those_of_other_nodes(graph: ExplanationGraph) -> None:
    torch.manual_seed(0)
    model = GraphSAGE(5, 8, num_layers=2, out_channels=7)
    real, placebo = compute("explained", model, graph), compute("shuffled", model, graph)
    assert not torch.equal(real.nodes, placebo.nodes)
    assert torch.equal(real.nodes.sort().values, placebo.nodes.sort().values)
    assert torch.equal(real.features, placebo.features)


def test_a_function_may_score_and_mistakes_are_named(graph: ExplanationGraph) -> None:
    num = len(graph.remote)

    def own(_model: Any, given: ExplanationGraph) -> Scores:
        return Scores(torch.full((len(given.remote),), 7.0), torch.arange(5))

    def given(nodes: Any, _model: Any, _graph: ExplanationGraph) -> Scores:
        return Scores(nodes, torch.ones(5))

    model = torch.nn.Identity()
    assert compute(own, model, graph).nodes.tolist() == [1.0] * num
    for nodes in (torch.ones(num + 1), torch.full((num,), float("nan"))):
        with pytest.raises(SpecError, match=f"must be {num} finite"):
            compute(partial(given, nodes), model, graph)
    with pytest.raises(SpecError, match="no weight"):
        compute("norms", model, graph)
    for wrong in ({"score": "magic"}, {"every": 0}, {"features": 0}, {"least": 0.0}):
        with pytest.raises(SpecError):
            RemoteSampling(model, **wrong)


def test_typed_graphs_are_refused(tmp_path: Path) -> None:
    write(heterogeneous(), tmp_path, 2)
    with pytest.raises(SpecError, match="one node type"):
        build(PartitionedGraphView(open_graph(tmp_path)), 0, "x")


def test_scores_become_weights_and_the_best_dimensions() -> None:
    remote, nodes = np.array([2, 5]), np.array([0.0, 1.0])
    features = np.array([0.1, 0.9, 0.3, 0.9])
    scores = RemoteScores.of(0, "node", 6, remote, nodes, "x", features, 0.5, 0.1)
    assert scores.far == pytest.approx(0.55)
    np.testing.assert_allclose(scores.weights, [0.55, 0.55, 0.1, 0.55, 0.55, 1.0], rtol=1e-6)
    assert scores.dims is not None
    assert scores.dims.tolist() == [1, 3]
    none = np.empty(0)
    whole = RemoteScores.of(0, "node", 6, none.astype(int), none, "x", features, 1.0, 0.1)
    assert (whole.far, whole.dims) == (1.0, None)
    least = RemoteScores.of(0, "node", 6, remote, np.zeros(2), "x", features, 1.0, 0.01)
    assert least.far == 0.01


def test_a_model_of_the_script_is_pickled_by_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib
    import sys

    pytest.importorskip("ray")
    from headrace.runtime.trainer.remote_model import pickle_model

    (tmp_path / "own_model.py").write_text(
        "import torch\nclass Own(torch.nn.Linear):\n    def double(self, x):\n"
        "        return 2 * self(x)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("own_model")
    data = pickle_model(RemoteSampling(module.Own(2, 1)))
    monkeypatch.delitem(sys.modules, "own_model")
    (tmp_path / "own_model.py").unlink()
    model, score = pickle.load(io.BytesIO(data))
    assert score == "explained"
    assert model.double(torch.zeros(2)).shape == (1,)
