"""Choice of trainers, gradient sum and bins of full-graph jobs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch_geometric")

import headrace
from headrace.api.full_graph_choice import FullGraphChooser, TracedMemory, parse_choices
from headrace.core.cluster import Cluster, Machine
from headrace.core.errors import InfeasibleError, SpecError
from headrace.core.job import Job, Role
from headrace.core.memory import MemoryEstimate, TaskMemory
from headrace.core.plan import Plan
from headrace.core.profile import Problem, Profile
from headrace.graph.format.partitioned_graph import PartitionedGraph, open_graph
from headrace.planner.planner import make_plan
from headrace.profiling.graph_parts import with_parts
from tests.unit.graph.small_graphs import homogeneous, write
from tests.unit.planner.test_full_graph import profile_of

STORE_BYTES = 10.0


def job(**fields: Any) -> Job:
    given = {"kind": "full-graph", "trainers": 3, "swaps": [8], "iterations": 4}
    return Job.model_validate(given | fields)


def cluster(memory: float | None = None, nic: float = 1e9) -> Cluster:
    resources = {} if memory is None else {"memory": memory}
    machines = (Machine(name="m", count=4, nic_in=nic, nic_out=nic, resources=resources),)
    return Cluster(machines=machines)


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> PartitionedGraph:
    folder = tmp_path_factory.mktemp("choice") / "graph"
    write(homogeneous(60, 400), folder, 3)
    return open_graph(folder)


def traced(job: Job, parts: Sequence[int]) -> TracedMemory:
    """A trainer with all parts and one bin needs 1200 bytes beside 100."""
    needs = 100 + 1200 / job.trainers / (job.bins or 1)
    tasks = [
        TaskMemory(role=Role.TRAINER, made_of={"activations": needs}),
        TaskMemory(role=Role.STORE, made_of={"process": STORE_BYTES}),
    ]
    if job.num_servers:
        tasks.append(TaskMemory(role=Role.SERVER, made_of={"process": 50.0}))
    return TracedMemory(tasks, MemoryEstimate(tasks=tasks, batch_size=0, shape=(1, 1)))


def chosen(
    graph: PartitionedGraph,
    choices: str,
    time_s: float = 0.0,
    memory: float | None = None,
    nic: float = 1e9,
    **fields: Any,
) -> Plan:
    known = profile_of(time_s).model_copy(update={"source": "measured"}) if time_s else None

    def profile_with(parts: Sequence[int] | None) -> Profile:
        found = with_parts(known, graph, parts)
        assert found.full_graph is not None
        # One trainer of three: its time holds for a third of the graph.
        figures = found.full_graph.model_copy(update={"work": 460 / 3})
        return found.model_copy(update={"full_graph": figures})

    trace = None if memory is None else traced
    names = parse_choices(choices) if choices else frozenset[str]()
    problem = Problem(cluster(memory, nic), job(**fields), profile_of())
    plan = FullGraphChooser(problem, profile_with, make_plan, names, trace).plan()
    assert Plan.model_validate_json(plan.to_text()) == plan
    return plan


def test_more_trainers_if_computing_takes_longer(graph: PartitionedGraph) -> None:
    plan = chosen(graph, "trainers", time_s=1.0)
    assert [each.trainers for each in plan.candidates] == [3, 2, 1]
    assert plan.candidates[0].time_s == pytest.approx(1.0, rel=0.2)
    assert plan.candidates[2].time_s == pytest.approx(3.0)
    assert plan.job.trainers == 3
    assert plan.version == 2


def test_fewer_trainers_if_exchanging_takes_longer(graph: PartitionedGraph) -> None:
    plan = chosen(graph, "trainers", time_s=1e-6, nic=1e3)
    assert plan.candidates[0].trainers == plan.job.trainers == 1
    # All partitions are on the machine of the trainer.
    assert plan.part_machines == (plan.placed.trainers[0],) * 3
    assert plan.network_bytes == 0


def test_trainers_have_several_partitions(graph: PartitionedGraph) -> None:
    plan = chosen(graph, "", trainers=2)
    assert plan.version == 1
    assert not plan.candidates
    assert len(plan.part_machines) == 3
    assert set(plan.part_machines) == set(plan.placed.trainers)
    figures = plan.profile.full_graph
    assert figures is not None
    owners = [plan.placed.trainers.index(m) for m in plan.part_machines]
    assert sum(figures.nodes) == 60
    assert figures.edges[0] == sum(
        graph.part(p).num_edges(("node", "to", "node")) for p in range(3) if owners[p] == 0
    )


def test_the_fewest_bins_that_fit(graph: PartitionedGraph) -> None:
    plan = chosen(graph, "bins", time_s=1.0, memory=100 + 60 + STORE_BYTES)
    # 400 bytes of 3 trainers: 8 bins need 50, 4 need 100.
    assert plan.job.bins == 8
    assert plan.time_s == pytest.approx(1.39, rel=0.1)
    assert plan.memory is not None
    assert all(machine.fits for machine in plan.memory.machines)
    assert plan.job.demand(Role.TRAINER)["memory"] == 150
    roomy = chosen(graph, "bins", time_s=1.0, memory=1e9)
    assert roomy.job.bins is None


def test_trainers_that_need_no_bins_are_faster(graph: PartitionedGraph) -> None:
    plan = chosen(graph, "all", time_s=1.0, memory=510 + STORE_BYTES)
    found = {(each.trainers, each.sync): each.bins for each in plan.candidates}
    assert found == {(3, "ring"): 1, (3, "ps"): 1, (2, "ring"): 2, (2, "ps"): 2, (1, "ring"): 4}
    assert plan.job.trainers == 3


def test_servers_have_an_estimate_of_their_own(graph: PartitionedGraph) -> None:
    plan = chosen(graph, "sync", time_s=1.0, memory=510 + STORE_BYTES, model_bytes=1e6)
    assert {each.sync for each in plan.candidates} == {"ring", "ps"}
    servers = [each for each in plan.candidates if each.sync == "ps"]
    assert servers[0].why_not.endswith("which has 520")


def test_what_does_not_fit_has_a_remedy(graph: PartitionedGraph) -> None:
    with pytest.raises(InfeasibleError, match="a trainer of 3 needs 500 B") as error:
        chosen(graph, "", memory=120.0)
    assert error.value.remedy == "let headrace choose more: `--choose bins,trainers`"
    with pytest.raises(InfeasibleError, match="with 64 bins") as error:
        chosen(graph, "all", memory=100.0)
    assert "add machines" in error.value.remedy


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"choose": "batch"}, "'batch' cannot be chosen"),
        ({"choose": "bins"}, "depends on memory"),
        ({"choose": "trainers", "graph": None}, "needs the graph"),
    ],
)
def test_choices_need_their_inputs(
    fields: dict[str, Any], words: str, graph: PartitionedGraph
) -> None:
    with pytest.raises(SpecError, match=words):
        headrace.plan(cluster(), job(), **{"graph": Path(graph.folder), **fields})


def test_sampled_jobs_have_nothing_to_choose() -> None:
    with pytest.raises(SpecError, match="full-graph jobs only"):
        headrace.plan(cluster(), Job(trainers=1, batch_size=1), choose="all")


def test_a_job_has_as_many_partitions_as_trainers(graph: PartitionedGraph) -> None:
    with pytest.raises(SpecError, match="4 trainers, the graph 3 partitions"):
        headrace.plan(cluster(), job(trainers=4), graph=graph.folder)
