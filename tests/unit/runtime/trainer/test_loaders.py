"""Loaders of scripts: alone, and in a run that has samplers."""

from __future__ import annotations

import inspect
import subprocess
import sys
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

import torch_geometric.loader  # noqa: E402

import headrace  # noqa: E402
from headrace.core.errors import SpecError  # noqa: E402
from headrace.graph.sampler_worker.config import StoreAddress  # noqa: E402
from headrace.rpc.credentials import Credentials, Secret  # noqa: E402
from headrace.runtime.protocol.run_context import CONTEXT_VARIABLE, RunContext  # noqa: E402
from headrace.runtime.protocol.trainer_messages import BatchRequested  # noqa: E402
from headrace.runtime.trainer import loaders, sampler_client, step_trace  # noqa: E402
from tests.unit.graph.loader.loading_graphs import assert_same  # noqa: E402
from tests.unit.graph.small_graphs import heterogeneous, homogeneous, write  # noqa: E402

SAMPLERS = ("sampler0.0", "sampler0.1", "sampler0.2")


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(CONTEXT_VARIABLE, raising=False)
    write(homogeneous(keep_ids=False), tmp_path / "parts", 2)
    return tmp_path / "parts"


def enter_run(parts: Path, monkeypatch: pytest.MonkeyPatch, **fields: Any) -> None:
    folder = parts.parent
    context = RunContext(machine="m1", messages=folder / "messages", parts=parts, **fields)
    path = folder / f"context-{context.fingerprint()}.json"
    path.write_text(context.model_dump_json())
    monkeypatch.setenv(CONTEXT_VARIABLE, str(path))


def test_the_last_step_counts_in_the_speed(parts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now_s=0.0)
    sent: list[Any] = []
    monkeypatch.setattr(step_trace, "time", SimpleNamespace(perf_counter=lambda: clock.now_s))
    monkeypatch.setattr(step_trace, "send", lambda path, message: sent.append(message))

    def batches() -> Iterator[str]:
        clock.now_s += 1.0
        yield "batch"

    run = RunContext(machine="m1", messages=parts.parent / "messages")
    for _ in step_trace.watched(run, batches(), trains=False, size=(30, 32, 1)):
        clock.now_s += 3.0
    asked, message = sent
    assert asked == BatchRequested()
    assert (message.elapsed_s, message.waited_s) == (4.0, 1.0)
    assert message.num_samples == 30


@pytest.mark.parametrize("name", ["NeighborLoader", "LinkNeighborLoader"])
def test_signatures_begin_as_those_of_pyg(name: str) -> None:
    ours = inspect.signature(getattr(headrace, name)).parameters
    theirs = inspect.signature(getattr(torch_geometric.loader, name)).parameters
    positional = [n for n, p in ours.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert positional == [n for n in theirs if n != "kwargs"]


def test_alone_and_in_a_run_without_samplers_batches_are_the_same(
    parts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"input_nodes": "train", "batch_size": 4, "shuffle": True}
    alone = list(headrace.NeighborLoader(str(parts), [3, 2], **settings))
    enter_run(parts, monkeypatch)
    loader = headrace.NeighborLoader(headrace.open_graph(parts), [3, 2], **settings)
    assert loader.num_samplers == 0
    for left, right in zip(alone, loader, strict=True):
        assert_same(left, right)


def test_links_in_a_run(parts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings: dict[str, Any] = {"neg_sampling": "binary", "batch_size": 50}
    alone = list(headrace.LinkNeighborLoader(parts, [3, 2], **settings))
    enter_run(parts, monkeypatch)
    for left, right in zip(
        alone, headrace.LinkNeighborLoader(parts, [3, 2], **settings), strict=True
    ):
        assert_same(left, right)


def test_samplers_feed_loaders_that_shuffle(parts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enter_run(parts, monkeypatch, samplers=SAMPLERS[:3])

    def num_samplers(**settings: Any) -> int:
        settings = {"batch_size": 4, "shuffle": True, **settings}
        return headrace.NeighborLoader(parts, [3, 2], **settings).num_samplers

    assert num_samplers() == 3
    assert num_samplers(batch_size=2) == 2
    assert num_samplers(subgraph_type=torch_geometric.sampler.base.SubgraphType.directional) == 3
    # What samplers cannot make, or must not: a script may count on the order of its seeds.
    assert num_samplers(shuffle=False) == 0
    assert num_samplers(subgraph_type="bidirectional") == 0
    assert num_samplers(transform_sampler_output=lambda out: out) == 0
    assert len(headrace.NeighborLoader(parts, [3], batch_size=4, shuffle=True)) == 10


@pytest.mark.parametrize(
    ("given", "far", "cache_bytes"),
    [
        ({}, 0.25, 1000),
        ({"far": 1.0, "cache_bytes": 0}, 1.0, 0),
        ({"cache_bytes": 77}, 0.25, 77),
        ({"labor": True}, 1.0, 1000),
    ],
)
def test_a_loader_that_trains_has_the_traffic_settings_of_the_plan(
    parts: Path,
    monkeypatch: pytest.MonkeyPatch,
    given: dict[str, Any],
    far: float,
    cache_bytes: int,
) -> None:
    started: list[Any] = []

    def request(run: RunContext, configs: Sequence[Any], *_: Any) -> list[Any]:
        started.extend(configs)
        raise SpecError("no samplers here", "none needed")

    monkeypatch.setattr(sampler_client, "_request_samplers", request)
    monkeypatch.setattr(loaders, "_PLANNED", weakref.WeakSet())
    mask = headrace.open_graph(parts).train_mask
    np.save(parts.parent / "train-trainer0.npy", np.flatnonzero(mask))
    enter_run(
        parts,
        monkeypatch,
        far=0.25,
        cache_bytes=1000,
        seeds=parts.parent,
        seeds_per_iteration=(4,),
        counts={"train": (20,)},
        samplers=SAMPLERS[:1],
    )
    settings: dict[str, Any] = {"input_nodes": "train", "batch_size": 4, "shuffle": True}
    loader = headrace.NeighborLoader(parts, [3, 2], **settings, **given)
    with pytest.raises(SpecError, match="no samplers here"):
        next(iter(loader))
    (config,) = started
    assert config.far == far
    assert config.labor is given.get("labor", False)
    assert (0 if config.cache is None else config.cache.num_bytes) == cache_bytes
    evaluating = headrace.NeighborLoader(parts, [3, 2], input_nodes="test", batch_size=4)
    assert evaluating._settings.get("far") is None


def test_samplers_make_batches_with_columns_of_edges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(homogeneous(), tmp_path / "parts", 2)
    enter_run(tmp_path / "parts", monkeypatch, samplers=SAMPLERS[:2])
    settings: dict[str, Any] = {"batch_size": 4, "shuffle": True}
    loader = headrace.NeighborLoader(tmp_path / "parts", [3], **settings)
    assert loader.num_samplers == 2
    loader = headrace.NeighborLoader(tmp_path / "parts", [3], weight_attr="edge_weight", **settings)
    assert loader.num_samplers == 2


def test_graphs_in_memory_stay_there(monkeypatch: pytest.MonkeyPatch, parts: Path) -> None:
    enter_run(parts, monkeypatch, samplers=SAMPLERS[:2])
    data = torch_geometric.data.Data(x=torch.randn(4, 2), edge_index=torch.tensor([[0, 1], [2, 3]]))
    loader = headrace.NeighborLoader(data, [2], batch_size=2, shuffle=True)
    assert loader.num_samplers == 0
    assert sum(batch.batch_size for batch in loader) == 4


def test_types_are_found_here_though_stores_serve_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = tmp_path / "parts"
    write(heterogeneous(), parts, 2)
    Credentials(Secret.random()).save(tmp_path / "keys")
    store = StoreAddress(part=1, task="store 1", machine="m1", host="127.0.0.1", port=7)
    enter_run(parts, monkeypatch, stores=(store,), credentials=tmp_path / "keys")
    seeds = ("paper", "train")
    loader = headrace.NeighborLoader(parts, [2], input_nodes=seeds, batch_size=2)
    monkeypatch.delenv(CONTEXT_VARIABLE)
    alone = headrace.NeighborLoader(parts, [2], input_nodes=seeds, batch_size=2)
    assert loader.input_data.node.tolist() == alone.input_data.node.tolist()
    assert loader._access.stores.parts == (1,)


def test_stores_do_not_know_times_of_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = tmp_path / "parts"
    write(homogeneous(), parts, 2)
    Credentials(Secret.random()).save(tmp_path / "keys")
    store = StoreAddress(part=1, task="store 1", machine="m1", host="127.0.0.1", port=7)
    enter_run(parts, monkeypatch, stores=(store,), credentials=tmp_path / "keys")
    with pytest.raises(SpecError, match="--stores 0"):
        headrace.NeighborLoader(parts, [2], time_attr="y", batch_size=2)


IN_PROCESS = ("collate", "buffer_pool", "pyg_sampler", "pyg_stores", "in_memory_view")


@pytest.mark.slow
def test_loaders_with_samplers_do_not_sample_themselves(
    parts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter_run(parts, monkeypatch, samplers=SAMPLERS[:2])
    code = f"""
import sys, headrace
loader = headrace.NeighborLoader({str(parts)!r}, [2], batch_size=4, shuffle=True)
assert loader.num_samplers == 2
print(*sys.modules)
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "headrace.graph.loader.neighbor_loader" in out.stdout.split()
    assert not {f"headrace.graph.loader.{name}" for name in IN_PROCESS} & set(out.stdout.split())


def test_loaders_with_samplers_are_those_of_pyg(
    parts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 3}
    alone = headrace.NeighborLoader(parts, [2], "train", **settings)
    enter_run(parts, monkeypatch, samplers=SAMPLERS[:2])
    loader = headrace.NeighborLoader(parts, [2], "train", **settings)
    assert loader.num_samplers == 2
    assert isinstance(loader, torch_geometric.loader.NodeLoader)
    assert vars(alone).keys() - vars(loader).keys() == {"data", "node_sampler", "_keyed", "_maker"}
    assert not hasattr(loader, "nothing")
    assert (loader.batch_size, loader.epoch) == (4, 0)
    assert loader.input_data.node.tolist() == alone.input_data.node.tolist()
    # A call samples here, as in PyG.
    assert_same(loader([0, 1]), alone([0, 1]))
    assert type(loader.node_sampler) is type(alone.node_sampler)
    assert list(map(type, loader.data)) == list(map(type, alone.data))


@pytest.mark.parametrize(
    "wrong",
    [
        {"temporal_strategy": "first"},
        {"weight_attr": "nothing"},
        {"weight_attr": "y"},
        {"input_time": torch.arange(3)},
        {"input_nodes": [10_000]},
        {"timeout": -1},
        {"unknown": 1},
    ],
)
def test_loaders_with_samplers_refuse_the_same(
    parts: Path, monkeypatch: pytest.MonkeyPatch, wrong: dict[str, Any]
) -> None:
    settings: dict[str, Any] = {"num_neighbors": [2], "batch_size": 4, "shuffle": True, **wrong}
    with pytest.raises(Exception) as alone:  # noqa: PT011
        headrace.NeighborLoader(parts, **settings)
    enter_run(parts, monkeypatch, samplers=SAMPLERS[:2])
    with pytest.raises(type(alone.value)) as fed:
        headrace.NeighborLoader(parts, **settings)
    assert str(fed.value) == str(alone.value)
