"""What every task of a run is told."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cryptography")

from headrace.api.plan import plan
from headrace.core.cluster import Cluster
from headrace.core.full_graph import RowSwap
from headrace.core.job import Job, Role, Sync
from headrace.core.placement import PlacementFile
from headrace.core.plan import Plan
from headrace.graph.format.partitioned_graph import open_graph
from headrace.graph.sampler_worker.config import SamplerConfig
from headrace.graph.store.config import StoreConfig
from headrace.runtime.cluster.nodes import Node
from headrace.runtime.cluster.placement_group import slots_of
from headrace.runtime.controller.task_configs import TaskConfigs, make_keys
from headrace.runtime.protocol.run_context import RunContext
from headrace.runtime.run_dir.run_config import RunConfig
from headrace.training.parameter_server.types import ServerConfig
from tests.unit.graph.small_graphs import homogeneous, write

NODES = tuple(Node(f"m{m}", f"id{m}", f"10.0.0.{m + 1}", {"CPU": 8}) for m in range(3))
CLUSTER = Cluster.model_validate(
    {
        "version": 1,
        "machines": [
            {"name": node.machine, "nic": "1Gbps", "resources": {"cpu": 8}} for node in NODES
        ],
    }
)


def run_of(plan: Plan, **fields: Any) -> RunConfig:
    return RunConfig(plan=plan, graph=Path("parts"), script=Path("train.py"), **fields)


@pytest.fixture(scope="module")
def made() -> Plan:
    job = Job(
        trainers=3,
        samplers_per_trainer=2,
        batch_size=4,
        demands={Role.TRAINER: {"cpu": 2}, Role.SAMPLER: {"cpu": 1}},
    )
    whole = plan(CLUSTER, job, method="colocate")
    # Two trainers on the last machine, so that ranks and names differ.
    placement = PlacementFile(
        samplers=("m2", "m0", "m1", "m1", "m0", "m0"), trainers=("m2", "m1", "m2")
    )
    return whole.model_copy(update={"placement": placement})


@pytest.fixture
def task_configs(made: Plan, tmp_path: Path) -> TaskConfigs:
    write(homogeneous(), tmp_path / "parts", 3)
    task_configs = TaskConfigs(
        run_of(made, config={"lr": 0.1}), made, NODES, open_graph(tmp_path / "parts")
    )
    for machine in range(3):
        task_configs.set_folder(machine, f"/parts{machine}")
        task_configs.set_ports(machine, {machine: 100 + machine})
    return task_configs


def test_tasks_go_where_the_plan_says(made: Plan) -> None:
    slots = {slot.task.name: slot for slot in slots_of(made, NODES)}
    where = {name: slot.node.machine for name, slot in slots.items()}
    assert where == {
        **{f"store{m}": f"m{m}" for m in range(3)},
        **{"sampler0.0": "m2", "sampler0.1": "m0", "sampler1.0": "m1", "sampler1.1": "m1"},
        **{"sampler2.0": "m0", "sampler2.1": "m0"},
        **{"trainer0": "m2", "trainer1": "m1", "trainer2": "m2"},
    }
    assert slots["trainer0"].bundle == {"CPU": 2}
    assert slots["store1"].bundle == {"node:10.0.0.2": 0.001}


def test_trainers_know_what_the_plan_divides_by_features(
    made: Plan, task_configs: TaskConfigs
) -> None:
    assert task_configs.trainer(0)[0]["features"] == []
    swaps = [
        {"row_bytes": 8, "slices": "columns"}, {"row_bytes": 8, "slices": "rows"}, {"row_bytes": 4},
    ]  # fmt: skip
    job = made.job.model_copy(update={"swaps": tuple(map(RowSwap.model_validate, swaps))})
    task_configs._plan = made.model_copy(update={"job": job})
    context = RunContext(**task_configs.trainer(0)[0], machine="m", messages=Path("m"))
    assert context.features == (("", 8.0),)


def test_parameter_servers_are_told_what_they_understand(tmp_path: Path) -> None:
    job = Job(
        trainers=2, batch_size=2, sync=Sync.PS, parameter_servers=2, demands={"ps": {"cpu": 1}}
    )
    made = plan(CLUSTER, job, method="colocate")
    placement = made.placement.model_copy(update={"servers": ("m2", "m0")})
    made = made.model_copy(update={"placement": placement})
    slots = {slot.task.name: slot for slot in slots_of(made, NODES)}
    assert [slots[name].node.machine for name in ("ps0", "ps1")] == ["m2", "m0"]
    assert slots["ps1"].bundle == {"CPU": 1}
    write(homogeneous(), tmp_path / "parts", 3)
    task_configs = TaskConfigs(run_of(made), made, NODES, open_graph(tmp_path / "parts"))
    for machine in range(3):
        task_configs.set_folder(machine, "/parts")
        task_configs.set_ports(machine, {machine: 100 + machine})
        task_configs.set_server_port(machine, 200 + machine)
    server = ServerConfig(**task_configs.server(0), credentials=Path("c"), ready=Path("r"))
    assert (server.host, server.num_trainers, server.tls) == ("10.0.0.3", 2, True)
    context = RunContext(**task_configs.trainer(1)[0], machine="m", messages=Path("m"))
    assert [(at.task, at.machine, at.host, at.port) for at in context.servers] == [
        ("ps0", "m2", "10.0.0.3", 200),
        ("ps1", "m0", "10.0.0.1", 201),
    ]


def test_stores_and_samplers_are_told_what_they_understand(task_configs: TaskConfigs) -> None:
    store = StoreConfig(**task_configs.store(1), credentials=Path("c"), ready=Path("r"))
    assert (store.ports, store.host, store.graph) == ({1: 0}, "10.0.0.2", Path("/parts1"))
    settings, seeds = task_configs.sampler(1)
    fields = {
        "node_type": "node",
        "seeds": "s",
        "seeds_per_iteration": 1,
        "batches_per_epoch": 1,
        "fanouts": (),
    }
    sampler = SamplerConfig.model_validate({**settings, **fields})
    assert [at.part for at in sampler.stores] == [1, 2]
    assert [at.port for at in sampler.stores] == [101, 102]
    assert set(seeds) == {"train", "val", "test"}


def test_parts_are_asked_for_where_they_lie(made: Plan, tmp_path: Path) -> None:
    moved = made.model_copy(update={"parts": (2, 1, 2)})
    write(homogeneous(), tmp_path / "parts", 3)
    task_configs = TaskConfigs(run_of(moved), moved, NODES, open_graph(tmp_path / "parts"))
    for machine in range(3):
        task_configs.set_folder(machine, "/parts")
    assert [set(task_configs.store(machine)["parts"]) for machine in range(3)] == [
        set(),
        {1},
        {0, 2},
    ]
    task_configs.set_ports(0, {})
    task_configs.set_ports(1, {1: 101})
    task_configs.set_ports(2, {0: 100, 2: 102})
    # Sampler 1 is on m0, which has no part; sampler 0 on m2, which has two.
    stores = [(at["part"], at["task"], at["port"]) for at in task_configs.sampler(1)[0]["stores"]]
    assert stores == [(0, "store2", 100), (1, "store1", 101), (2, "store2", 102)]
    assert [at["part"] for at in task_configs.sampler(0)[0]["stores"]] == [1]


def test_trainers_are_told_what_they_understand(task_configs: TaskConfigs) -> None:
    seen = []
    for trainer in range(3):
        fields, files = task_configs.trainer(trainer)
        context = RunContext(**fields, machine="m", messages=Path("m"), task=f"trainer{trainer}")
        assert context.rank == (1, 0, 2)[trainer]
        assert context.samplers == (f"sampler{trainer}.0", f"sampler{trainer}.1")
        assert sum(context.seeds_per_iteration) == 12
        assert context.config == {"lr": 0.1}
        assert sorted(at.part for at in context.stores + context.own_stores) == [0, 1, 2]
        assert len({at.machine for at in context.own_stores}) == 1
        own = np.load(io.BytesIO(files[f"train-trainer{trainer}.npy"]))
        parts = [np.load(io.BytesIO(files[f"train-sampler{trainer}.{i}.npy"])) for i in range(2)]
        np.testing.assert_array_equal(own, np.sort(np.concatenate(parts)))
        counts = context.counts["train"][2 * trainer : 2 * trainer + 2]
        assert counts == tuple(map(len, parts))
        seen.append(own)
    ids = np.concatenate(seen)
    assert len(np.unique(ids)) == len(ids)


def test_a_run_that_goes_on_elsewhere_keeps_its_lanes(made: Plan, tmp_path: Path) -> None:
    write(homogeneous(), tmp_path / "parts", 3)
    graph = open_graph(tmp_path / "parts")
    first = TaskConfigs(run_of(made), made, NODES, graph)
    job = made.job.model_copy(update={"trainers": 2, "batch_size": 6})
    placement = PlacementFile(samplers=("m0", "m1", "m1", "m2"), trainers=("m0", "m1"))
    fewer = made.model_copy(update={"job": job, "placement": placement})
    later = TaskConfigs(run_of(made, max_restarts=0), fewer, NODES, graph)
    for task_configs in (first, later):
        for machine in range(3):
            task_configs.set_folder(machine, "/parts")
            task_configs.set_ports(machine, {machine: 100 + machine})
    began = [shard for s in range(6) for shard in first.sampler(s)[1]["train"]]
    assert [shard for s in range(4) for shard in later.sampler(s)[1]["train"]] == began
    seen, contexts = [], []
    for trainer in range(2):
        fields, files = later.trainer(trainer)
        context = RunContext(**fields, machine="m", messages=Path("m"), task=f"trainer{trainer}")
        seen.append(np.load(io.BytesIO(files[f"train-trainer{trainer}.npy"])))
        contexts.append(context)
        assert context.retry_budget_s == 0
        assert context.batches_of("train").num_trainers == 2
        assert sum(context.own_shards) == len(
            range(6)[context.batches_of("train").shards_of(trainer)]
        )
    whole = RunContext(**first.trainer(0)[0], machine="m", messages=Path("m"))
    assert whole.retry_budget_s > 0
    assert contexts[0].assignment == whole.assignment
    assert len(np.unique(np.concatenate(seen))) == sum(whole.counts["train"])
    for split in ("train", "val"):
        one, other = whole.batches_of(split), contexts[0].batches_of(split)
        assert one.num_seeds().sum(1).tolist() == other.num_seeds().sum(1).tolist()


def test_the_environment_is_that_of_torchrun(task_configs: TaskConfigs) -> None:
    found = [task_configs.environment(w, 777, {0: ["3"], 1: ["0"], 2: ["1"]}) for w in range(3)]
    assert {each["MASTER_ADDR"] for each in found} == {"10.0.0.2"}
    assert {each["MASTER_PORT"] for each in found} == {"777"}
    assert [each["RANK"] for each in found] == ["1", "0", "2"]
    assert [each["LOCAL_RANK"] for each in found] == ["0", "0", "1"]
    assert [each["LOCAL_WORLD_SIZE"] for each in found] == ["2", "1", "2"]
    assert [each["NODE_RANK"] for each in found] == ["1", "0", "1"]
    assert [each["CUDA_VISIBLE_DEVICES"] for each in found] == ["3,1", "0", "3,1"]
    assert {each["OMP_NUM_THREADS"] for each in found} == {"2"}


def test_every_machine_has_its_own_key_and_the_same_token() -> None:
    with_tls = [json.loads(key) for key in make_keys(NODES, True)]
    assert len({key["key"] for key in with_tls}) == 3
    assert len({key["token"] for key in with_tls}) == 1
    assert len({key["authority"] for key in with_tls}) == 1
    assert set(json.loads(make_keys(NODES, False)[0])) == {"token"}


def test_trainers_of_the_full_graph_have_several_partitions_and_bins(tmp_path: Path) -> None:
    write(homogeneous(60, 200), tmp_path / "graph", 3)
    graph = open_graph(tmp_path / "graph")
    given = {"kind": "full-graph", "trainers": 2, "swaps": [8], "iterations": 2, "bins": 4}
    made = plan(CLUSTER, Job.model_validate(given), graph=tmp_path / "graph")
    assert len(set(made.part_machines)) == 2
    configs = TaskConfigs(run_of(made), made, NODES, graph)
    found = [configs.trainer(number)[0] for number in range(2)]
    assert [each["bins"] for each in found] == [4, 4]
    assert found[0]["world_size"] == 2
    assert sum(found[0]["counts"]["train"]) == sum(
        len(graph.part(number).split("node", "train")) for number in range(3)
    )
