"""Three trainers learn what one PyG process learns, whatever seeds they have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

from torch.nn.functional import cross_entropy  # noqa: E402
from torch_geometric.data import Data  # noqa: E402

from headrace.graph.sampler_worker.schedule import schedule  # noqa: E402
from headrace.graph.sampler_worker.seed_assignment import GlobalBatches  # noqa: E402
from tests.integration.noting_script import NUM_EPOCHS, make_model  # noqa: E402
from tests.integration.plain_cluster import PlainCluster  # noqa: E402
from tests.unit.graph.small_graphs import endpoints, homogeneous, write  # noqa: E402

pytestmark = pytest.mark.integration

SCRIPT = Path(__file__).with_name("noting_script.py")
EXACT = {"atol": 1e-5, "rtol": 1e-5}
EQUAL = np.full((3, 2), 4.0)
UNEQUAL = np.array([[2.0, 1.0], [5.0, 4.0], [3.0, 4.0]])
TWO_EACH = np.repeat(UNEQUAL / 2, 2, axis=0)


def learn(
    folder: Path, mix: np.ndarray, **settings: Any
) -> tuple[PlainCluster, list[Any], list[dict[str, Any]], Any]:
    """Train with some trainers; what each noted, and the graph as PyG has it."""
    source = homogeneous(200, 900, keep_ids=False)
    write(source, folder / "graph", 2)
    cluster = PlainCluster(folder / "run", folder / "graph", mix, **settings)
    cluster.run(SCRIPT)
    files = [torch.load(folder / "run" / f"noted{rank}.pt") for rank in range(cluster.num_trainers)]
    columns = {column.name: column for column in source.nodes[0].columns}
    x, y = (torch.tensor(columns[name].read(0, 200)) for name in ("x", "y"))
    edges = torch.stack([torch.tensor(ends) for ends in endpoints(source.edges[0])]).long()
    whole = Data(x=x, y=y, edge_index=edges)
    return cluster, [noted for noted, _ in files], [checks for _, checks in files], whole


def assert_as_alone(noted: list[Any], whole: Any) -> None:
    """Gradients of every step are those of one process with the seeds of all trainers."""
    torch.manual_seed(0)
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for steps in zip(*noted, strict=True):
        seeds = torch.cat([seeds for seeds, _ in steps])
        optimizer.zero_grad()
        # With all neighbours, a batch is the whole graph as its seeds see it.
        out = model(whole.x, whole.edge_index)[seeds]
        cross_entropy(out, whole.y[seeds]).backward()
        for _, gradients in steps:
            for ours, theirs in zip(gradients, model.parameters(), strict=True):
                torch.testing.assert_close(ours, theirs.grad, **EXACT)
        optimizer.step()


@pytest.mark.parametrize(
    ("mix", "settings"),
    [
        pytest.param(EQUAL, {}, marks=pytest.mark.campaign),
        (TWO_EACH, {"samplers_per_trainer": 2, "far": True}),
        (UNEQUAL, {"config": {"alone": True}}),
    ],
    ids=["equal", "unequal and far", "without samplers"],
)
def test_gradients_are_those_of_one_process(
    mix: np.ndarray, settings: dict[str, Any], tmp_path: Path
) -> None:
    cluster, noted, checks, whole = learn(tmp_path, mix, **settings)
    per_trainer = settings.get("samplers_per_trainer", 1)
    num_samplers = 0 if "config" in settings else per_trainer
    assert [found["samplers"] for found in checks] == [num_samplers] * 3
    every = np.sort(np.concatenate(cluster.assignment["train"]))
    counts = tuple(map(len, cluster.assignment["train"]))
    num_steps = GlobalBatches(cluster.seeds_per_iteration, counts, per_trainer).num_iterations
    assert [found["steps"] for found in checks] == [num_steps] * 3
    assert len(every) % sum(cluster.seeds_per_iteration) != 0, (
        "the end of an epoch must not be whole"
    )
    for epoch in range(NUM_EPOCHS):
        own = slice(epoch * num_steps, (epoch + 1) * num_steps)
        seen = torch.cat([seeds for steps in noted for seeds, _ in steps[own]])
        np.testing.assert_array_equal(seen.sort().values.numpy(), every)
    assert_as_alone(noted, whole)
    for found in checks:
        assert found["sum"] == 6
        assert found["mean"] == pytest.approx(5 / 3)
        assert found["stops"] == [False, False, False, True]
    val = torch.cat([found["val"] for found in checks]).sort().values.numpy()
    np.testing.assert_array_equal(val, np.sort(np.concatenate(cluster.assignment["val"])))
    best = torch.load(tmp_path / "run" / "best.pt", weights_only=True)
    make_model().load_state_dict(best)


def test_all_trainers_may_leave_an_epoch_early(tmp_path: Path) -> None:
    cluster, noted, checks, whole = learn(tmp_path, UNEQUAL, config={"stop_after": 2})
    # The second loop takes what the first one left.
    assert [len(steps) for steps in noted] == [3] * 3 == [found["steps"] for found in checks]
    seen = torch.cat([seeds for steps in noted for seeds, _ in steps]).sort().values
    np.testing.assert_array_equal(seen, np.sort(np.concatenate(cluster.assignment["train"])))
    assert_as_alone(noted, whole)


@pytest.mark.parametrize(
    ("shards", "per_trainer"),
    [((3, 1, 1, 1), 2), pytest.param((6,), 1, marks=pytest.mark.campaign)],
    ids=str,
)
def test_fewer_trainers_learn_the_same_from_the_same_lanes(
    shards: tuple[int, ...], per_trainer: int, tmp_path: Path
) -> None:
    settings = {"samplers_per_trainer": per_trainer, "shards": shards, "far": per_trainer == 2}
    cluster, noted, checks, whole = learn(tmp_path, TWO_EACH, **settings)
    assert len(noted) == len(shards) // per_trainer
    counts = tuple(map(len, cluster.assignment["train"]))
    num_steps = GlobalBatches(cluster.seeds_per_iteration, counts, per_trainer).num_iterations
    assert [found["steps"] for found in checks] == [num_steps] * len(noted)
    task_configs = [
        schedule(own, num_seeds, num_steps, 0, num_epochs=NUM_EPOCHS, ends=ends)
        for own, num_seeds, ends in zip(
            cluster.assignment["train"],
            cluster.seeds_per_iteration,
            map(GlobalBatches(cluster.seeds_per_iteration, counts, per_trainer).ends, range(6)),
            strict=True,
        )
    ]
    # As if each shard had a sampler of its own.
    for steps, jobs in zip(zip(*noted, strict=True), zip(*task_configs, strict=True), strict=True):
        seen = torch.cat([seeds for seeds, _ in steps])
        assert seen.tolist() == np.concatenate([job.seeds for job in jobs]).tolist()
    assert_as_alone(noted, whole)
