"""A loader's seeds of the plan."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

import headrace  # noqa: E402
from headrace.core.errors import SpecError  # noqa: E402
from headrace.graph.format.partitioned_graph import open_graph  # noqa: E402
from headrace.runtime.protocol.run_context import CONTEXT_VARIABLE, RunContext, current_run  # noqa: E402
from headrace.runtime.protocol.trainer_messages import BatchSizeRequest, Inbox, Note  # noqa: E402
from headrace.runtime.trainer import loaders  # noqa: E402
from headrace.runtime.trainer.context import TrainContext  # noqa: E402
from headrace.runtime.trainer.seed_shards import check_assignment  # noqa: E402
from headrace.training.ddp import STEP  # noqa: E402
from tests.unit.graph.small_graphs import heterogeneous, homogeneous, write  # noqa: E402

SEEDS = np.array([3, 5, 7, 11, 13])


@pytest.fixture
def graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A graph, in a run of two trainers of which this is the second."""
    write(homogeneous(), tmp_path / "graph", 2)
    np.save(tmp_path / "train-trainer1.npy", SEEDS)
    context = RunContext(
        machine="m1",
        messages=tmp_path / "nobody",
        parts=tmp_path / "graph",
        task="trainer1",
        rank=0,
        world_size=2,
        requests=tmp_path / "requests",
        samplers=("sampler1.0",),
        seeds_per_iteration=(6, 2),
        counts={"train": (15, 5)},
        seeds=tmp_path,
    )
    (tmp_path / "context").write_text(context.model_dump_json())
    monkeypatch.setenv(CONTEXT_VARIABLE, str(tmp_path / "context"))
    # It would watch the optimizers of all tests that follow.
    monkeypatch.setattr(loaders, "send_parameters", lambda run: None)
    return tmp_path / "graph"


def loader(graph: Path, **settings: Any) -> Any:
    settings = {"input_nodes": "train", "shuffle": True, **settings}
    # Samplers do not change samples: batches are made here.
    return headrace.NeighborLoader(graph, [2, 2], transform_sampler_output=same, **settings)


def same(sample: Any) -> Any:
    return sample


def test_batches_are_those_of_the_plan_and_steps_know_them(graph: Path) -> None:
    batches = loader(graph)
    assert len(batches) == 3
    for _ in range(2):
        seen, weights = [], []
        for batch in batches:
            seen.append(batch.n_id[: batch.batch_size])
            weights.append((STEP.num_seeds, STEP.num_all_seeds))
            assert batch.batch_size == STEP.num_seeds
        assert STEP.num_seeds is None
        assert weights == [(2, 8), (1, 6), (2, 6)]
        assert torch.cat(seen).sort().values.tolist() == SEEDS.tolist()


def test_epochs_differ(graph: Path) -> None:
    batches = loader(graph)
    first, second = ([batch.n_id[:2].tolist() for batch in batches] for _ in range(2))
    assert first != second


def test_who_leaves_a_loop_is_in_no_step(graph: Path) -> None:
    batches = loader(graph)
    for _ in batches:
        break
    assert STEP.num_seeds is None
    assert next(iter(batches)).batch_size == 2


def test_a_loader_that_contradicts_the_plan_is_refused(graph: Path) -> None:
    assert len(loader(graph, batch_size=2)) == 3
    # The job's batch size is accepted: the plan gives this trainer another share.
    assert next(iter(loader(graph, batch_size=4))).batch_size == 2
    with pytest.raises(SpecError, match="trainer1 batches of 2 seeds, its loader has 5"):
        loader(graph, batch_size=5)
    with pytest.raises(SpecError, match="assigns no seeds of split 'val'"):
        loader(graph, input_nodes="val")
    assert len(loader(graph, drop_last=True)) == 2


def test_seeds_of_a_type_that_the_run_does_not_deal_are_refused(tmp_path: Path) -> None:
    write(heterogeneous(), tmp_path / "graph", 2)
    graph = open_graph(tmp_path / "graph")
    assignment = next(node.name for node in graph.manifest.nodes if node.splits)
    check_assignment(graph, assignment)
    check_assignment(graph, None)
    with pytest.raises(SpecError, match=f"assigns seeds of '{assignment}'"):
        check_assignment(graph, "nobody")


def test_seeds_of_its_own_and_loaders_that_do_not_shuffle_are_as_in_pyg(graph: Path) -> None:
    own = loader(graph, input_nodes=torch.arange(9), batch_size=4)
    assert [batch.batch_size for batch in own] == [4, 4, 1]
    every = loader(graph, shuffle=False, batch_size=100)
    num_train = sum(open_graph(graph).part(p).split("node", "train").size for p in range(2))
    assert [batch.batch_size for batch in every] == [num_train]


def test_a_split_too_small_for_all_trainers(graph: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = graph.parent / "context"
    few = RunContext.model_validate_json(path.read_text())
    few = few.model_copy(update={"counts": {"train": (1, 0)}})
    (graph.parent / "few").write_text(few.model_dump_json())
    monkeypatch.setenv(CONTEXT_VARIABLE, str(graph.parent / "few"))
    with pytest.raises(SpecError, match="1 seeds of train make no batch of 8 for 2 trainers"):
        loader(graph)


def test_a_copy_of_the_graph_is_the_graph_of_the_run(graph: Path) -> None:
    shutil.copytree(graph, graph.parent / "copy")
    batches = loader(graph.parent / "copy")
    assert batches._graph.folder == graph
    assert len(batches) == 3
    write(homogeneous(seed=1), graph.parent / "other", 2)
    other = loader(graph.parent / "other", shuffle=False, batch_size=9)
    assert other._graph.folder == graph


def messages_to(graph: Path, **changes: Any) -> Inbox:
    """Where messages of the run arrive, in which these fields are different."""
    path = graph.parent / "context"
    inbox = Inbox(graph.parent / "messages")
    context = RunContext.model_validate_json(path.read_bytes())
    changed = context.model_copy(update={"messages": graph.parent / "messages", **changes})
    path.with_name("changed").write_text(changed.model_dump_json())
    return inbox


def train_loader(graph: Path, monkeypatch: pytest.MonkeyPatch, batch_size: int | None) -> Any:
    monkeypatch.setenv(CONTEXT_VARIABLE, str(graph.parent / "changed"))
    settings = {} if batch_size is None else {"batch_size": batch_size}
    return TrainContext(current_run()).loader("train", [2, 2], **settings)


@pytest.mark.parametrize("batch_size", [None, 4])
def test_a_script_with_the_plans_batch_size_is_told_nothing(
    graph: Path, monkeypatch: pytest.MonkeyPatch, batch_size: int | None
) -> None:
    inbox = messages_to(graph, follows_script=True)
    assert len(train_loader(graph, monkeypatch, batch_size)) == 3
    assert list(inbox.receive(0)) == []
    inbox.close()


def test_a_run_that_follows_its_script_ends_at_another_batch_size(
    graph: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox = messages_to(graph, follows_script=True)
    with pytest.raises(SystemExit) as ended:
        train_loader(graph, monkeypatch, 5)
    assert ended.value.code == 0
    with pytest.raises(SystemExit):
        loader(graph, batch_size=7)
    assert list(inbox.receive(1)) == [BatchSizeRequest(5), BatchSizeRequest(7)]
    inbox.close()


def test_a_script_is_told_that_its_batch_size_is_not_used(
    graph: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox = messages_to(graph)
    assert len(train_loader(graph, monkeypatch, 5)) == 3
    told = [each.text for each in inbox.receive(1) if isinstance(each, Note)]
    assert told == [
        "the plan has batches of 4 seeds, the script's 5 is not used; "
        "to use it, set batch_size in the job file and plan again"
    ]
    inbox.close()
