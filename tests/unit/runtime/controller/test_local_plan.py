"""The plan and the task configs of a run on one machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.core.errors import SpecError
from headrace.core.plan import Plan
from headrace.graph.format.partitioned_graph import open_graph
from headrace.runtime.cluster.local_actors import ADDRESS, LocalActors
from headrace.runtime.cluster.nodes import check_resources, find_nodes
from headrace.runtime.cluster.placement_group import slots_of
from headrace.runtime.controller.local_plan import local_config, local_plan
from headrace.runtime.controller.task_configs import TaskConfigs
from headrace.runtime.run_dir.attached_stores import AttachedStores
from headrace.runtime.run_dir.run_config import RunConfig
from headrace.runtime.run_dir.store_set import ServedStore, StoreSet, StoreSetState
from tests.unit.graph.small_graphs import homogeneous, write


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    write(homogeneous(), tmp_path / "parts", 3)
    return tmp_path / "parts"


def configs_of(config: RunConfig) -> TaskConfigs:
    plan = config.plan
    nodes = find_nodes(plan.cluster, LocalActors(plan.cluster.hosts[0].name).nodes())
    check_resources(nodes, plan.placed, plan.job)
    graph = None if config.graph is None else open_graph(config.graph)
    configs = TaskConfigs(config, plan, nodes, graph)
    if config.graph is not None:
        configs.set_folder(0, str(config.graph))
        configs.set_ports(0, {part: 100 + part for part in range(3)})
    return configs


def test_samplers_have_their_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)

    def threads(num_samplers: int) -> dict[str, str]:
        plan = local_plan("train", 2, num_samplers)
        config = RunConfig(plan=plan, script=Path("t.py"), graph=None, is_local=True)
        return configs_of(config).environment(0, 1, {})

    expected = [{"OMP_NUM_THREADS": number} for number in "8711"]
    assert [threads(num) for num in (0, 1, 7, 20)] == expected
    monkeypatch.setenv("OMP_NUM_THREADS", "4,2")
    assert threads(1) == {}


def test_a_plan_can_be_written_and_read() -> None:
    plan = local_plan("train", 3, 2)
    assert Plan.model_validate_json(plan.to_text()) == plan
    assert plan.part_machines == (0, 0, 0)
    assert plan.predicted is None


@pytest.mark.parametrize(("num_stores", "remote"), [(None, [0, 1, 2]), (2, [0, 1]), (0, [])])
def test_partitions_are_read_from_the_store_or_mapped(
    parts: Path, num_stores: int | None, remote: list[int]
) -> None:
    configs = configs_of(local_config(Path("train.py"), parts, num_stores, 1))
    assert configs.attached_ports(0) is None
    assert set(configs.store(0)["parts"]) == {0, 1, 2}
    context, seeds = configs.trainer(0)
    assert [at["part"] for at in context["stores"]] == remote
    assert [at["part"] for at in context["own_stores"]] == sorted({0, 1, 2} - set(remote))
    assert configs.sampler(0)[0]["stores"] == context["stores"]
    assert context["seeds_per_iteration"] == ()
    assert context["samplers"] == ["sampler0.0"]
    assert seeds == {}


def test_a_run_without_a_graph_has_no_store_and_may_have_no_samplers() -> None:
    configs = configs_of(local_config(Path("train.py"), None, None, 0))
    assert configs.attached_ports(0) == {}
    context, _ = configs.trainer(0)
    assert (context["parts"], context["stores"], context["samplers"]) == (None, [], [])
    assert configs.sampler(0)[0] == {"tls": True}


def test_stores_need_partitions(parts: Path) -> None:
    with pytest.raises(SpecError, match="has 3 partitions"):
        local_config(Path("train.py"), parts, 4, 1)
    with pytest.raises(SpecError, match="need a partitioned graph"):
        local_config(Path("train.py"), None, 1, 1)


def test_running_stores_are_read_and_none_is_started(parts: Path, tmp_path: Path) -> None:
    store_set = StoreSet(tmp_path / "set")
    store_set.path.mkdir()
    machine = local_plan("train", 3, 1).cluster.hosts[0].name
    ports = {part: 200 + part for part in range(3)}
    store = ServedStore(task="store0", machine=machine, host=ADDRESS, graph=str(parts), ports=ports)
    state = StoreSetState(
        name="set",
        graph=parts,
        graph_fingerprint="f",
        tls=True,
        is_local=True,
        since_s=0.0,
        stores=(store,),
    )
    store_set.keys("store0").write_text("keys")
    config = local_config(Path("train.py"), parts, None, 1, store_set=store_set.path)
    nodes = find_nodes(config.plan.cluster, LocalActors(machine).nodes())
    attached = AttachedStores(store_set, state, [(machine, ADDRESS)], config.plan.part_machines)
    configs = TaskConfigs(config, config.plan, nodes, open_graph(parts), attached=attached)
    assert configs.attached_ports(0) == ports
    assert configs.keys(0) == b"keys"
    configs.set_ports(0, ports)
    context, _ = configs.trainer(0)
    assert [at["port"] for at in context["stores"]] == [200, 201, 202]
    assert context["shares_stores"]
    (slot, *_) = slots_of(config.plan, nodes, starts_stores=False)
    assert set(slot.bundle) == {f"node:{ADDRESS}"}
