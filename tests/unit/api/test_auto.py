"""The loop, with runs that are rehearsals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.api.auto import Loop, run_loop, usual_job
from headrace.api.documents.load import load_plan, load_profile
from headrace.api.graph import check_parts
from headrace.api.profile import save_trace
from headrace.api.simulate import simulate
from headrace.core.cluster import Cluster, Machine
from headrace.core.errors import SpecError
from headrace.core.job import Job, Role
from headrace.core.plan import Plan
from headrace.graph.format.partitioned_graph import open_graph
from headrace.runtime.run_dir.run_config import RunConfig
from headrace.runtime.run_dir.run_dir import RunDirectory
from tests.unit.graph.small_graphs import homogeneous, write

# NICs that bind, one of them half as fast.
CLUSTER = Cluster(
    machines=tuple(
        Machine(name=f"m{i}", nic_in=nic, nic_out=nic, resources={"cpu": 4})
        for i, nic in enumerate((1e8, 1e8, 0.5e8))
    )
)
JOB = Job(
    trainers=2,
    batch_size=50,
    iterations=60,
    demands={Role.TRAINER: {"cpu": 1}, Role.SAMPLER: {"cpu": 1}},
)


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("graph") / "parts"
    write(homogeneous(num_nodes=900, num_edges=3000), folder, 3)
    return folder


class Rehearsals:
    """Runs plans by rehearsing them."""

    def __init__(self, runs: Path) -> None:
        self.runs = runs
        self.done: list[RunConfig] = []

    def __call__(self, wanted: RunConfig) -> dict[str, Any]:
        self.done.append(wanted)
        plan = wanted.plan
        with RunDirectory.create(self.runs, wanted.name or plan.job.name) as folder:
            folder.plan.write_text(plan.model_dump_json())
            for name, text in wanted.files.items():
                (folder.path / name).write_text(text)
        found = simulate(plan.cluster, plan.job, plan.profile, plan, record=True)
        save_trace(found.trace(), folder.path / "trace.npz")
        return {"folder": str(folder.path), "elapsed_s": found.makespan_s}


@pytest.mark.slow
def test_all_four_steps_are_done_and_leave_their_files(graph: Path, tmp_path: Path) -> None:
    run = Rehearsals(tmp_path)
    said: list[str] = []

    def run_of(plan: Plan) -> RunConfig:
        return RunConfig(
            plan=plan, graph=graph, script=Path("train.py"), checkpoint_every=7, replan=True
        )

    found = run_loop(Loop(graph, run_of, cluster=CLUSTER, job=JOB), run, said.append)
    short, real = run.done
    assert (short.name, short.iterations, short.checkpoint_every) == ("job-profile", 40, 0)
    assert (real.iterations, real.checkpoint_every, real.replan) == (None, 7, True)
    assert not short.replan
    folder = Path(found["run"]["folder"])
    assert load_profile(folder / "profile.yaml").source == "measured"
    plan = load_plan(folder / "plan.json")
    assert plan.method == "anneal"
    assert plan.profile == load_profile(folder / "profile.yaml")
    assert found["plan"]["policy"] == plan.policy
    assert found["profile"]["predicted_over_measured"] == pytest.approx(1, abs=0.2)
    assert [line.partition(":")[0] for line in said] == [
        "cluster",
        "profile",
        "plan",
        "run",
        "report",
    ]
    assert (folder / "report.html").is_file()
    assert found["report"]["page"] == str(folder / "report.html")


class ScriptOf(Rehearsals):
    """Runs of a script that has a batch size."""

    def __init__(self, runs: Path, batch_size: int) -> None:
        super().__init__(runs)
        self._batch_size = batch_size

    def __call__(self, wanted: RunConfig) -> dict[str, Any]:
        if not wanted.follows_script or wanted.plan.job.batch_size == self._batch_size:
            return super().__call__(wanted)
        self.done.append(wanted)
        with RunDirectory.create(self.runs, wanted.name) as folder:
            folder.append_event("batch_size", asked=self._batch_size)
        return {"folder": str(folder.path), "elapsed_s": 0.0}


@pytest.mark.slow
def test_a_scripts_batch_size_is_kept_unless_there_is_a_job(graph: Path, tmp_path: Path) -> None:
    def run_of(plan: Plan) -> RunConfig:
        return RunConfig(plan=plan, graph=graph, script=Path("train.py"))

    usual = usual_job(CLUSTER, open_graph(graph)).batch_size
    said: list[str] = []
    run = ScriptOf(tmp_path / "runs", usual + 3)
    found = run_loop(Loop(graph, run_of, cluster=CLUSTER), run, said.append)
    sizes = [each.plan.job.batch_size for each in run.done]
    assert sizes == [usual, usual + 3, usual + 3]
    assert found["job"]["batch_size"] == usual + 3
    assert f"job: {usual + 3} seeds per trainer and iteration, the script's batch_size" in said

    run = ScriptOf(tmp_path / "more", usual)
    run_loop(Loop(graph, run_of, cluster=CLUSTER), run, said.append)
    assert [each.plan.job.batch_size for each in run.done] == [usual, usual]

    run = ScriptOf(tmp_path / "given", usual)
    run_loop(Loop(graph, run_of, cluster=CLUSTER, job=JOB), run, said.append)
    assert [each.plan.job.batch_size for each in run.done] == [50, 50]


def test_a_usual_job_fits_its_machines(graph: Path) -> None:
    opened = open_graph(graph)
    job = usual_job(CLUSTER, opened)
    assert (job.trainers, job.samplers_per_trainer) == (3, 1)
    num_seeds = sum(opened.manifest.nodes[0].splits["train"])
    assert job.batch_size == num_seeds // (3 * 20)
    gpus = Cluster(
        machines=(Machine(name="g", count=2, nic_in=1, nic_out=1, resources={"cpu": 8, "gpu": 4}),)
    )
    assert usual_job(gpus, opened).trainers == 8
    assert usual_job(gpus, opened).demand(Role.TRAINER) == {"cpu": 1, "gpu": 1}
    bare = Cluster(machines=(Machine(name="b", count=3, nic_in=1, nic_out=1),))
    assert usual_job(bare, opened).trainers == 3
    assert usual_job(bare, opened).demand(Role.SAMPLER) == {}


def test_every_machine_needs_a_part(graph: Path) -> None:
    opened = open_graph(graph)
    check_parts(opened, CLUSTER)
    with pytest.raises(
        SpecError, match="the cluster has 2 machines, but the graph has 3 partitions"
    ):
        check_parts(opened, Cluster(machines=CLUSTER.machines[:2]))
