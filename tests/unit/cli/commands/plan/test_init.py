"""`headrace init` writes files that can be planned with at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from headrace.api.documents.load import load_cluster, load_job
from headrace.cli import app


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def init(*words: str, answers: str | None = None) -> Result:
    return CliRunner().invoke(app, ["init", *words], input=answers)


def plan() -> Result:
    words = "plan --cluster cluster.yaml --job job.yaml --method ifs --policy maxmin"
    return CliRunner().invoke(app, words.split())


def test_from_options() -> None:
    result = init("--machines", "3", "--gpus", "2", "--bandwidth", "25Gbps", "--name", "sage")
    assert result.exit_code == 0, result.output
    assert "next: headrace plan --cluster cluster.yaml --job job.yaml" in result.stdout
    assert result.stderr == ""
    cluster, job = load_cluster("cluster.yaml"), load_job("job.yaml")
    assert [host.name for host in cluster.hosts] == ["m-0", "m-1", "m-2"]
    assert cluster.hosts[0].nic_out == 25e9 / 8
    assert (job.name, job.trainers) == ("sage", 6)


def test_without_a_terminal_the_usual_is_taken_and_said() -> None:
    result = init("--machines", "2")
    assert result.exit_code == 0, result.output
    assert result.stderr == "note: no terminal, using --gpus 0, --bandwidth 10Gbps\n"
    assert load_cluster("cluster.yaml").num_machines == 2
    assert init("--quiet", "--force").stderr == ""


def test_by_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.cli.commands.plan.init.can_ask", lambda: True)
    result = init(answers="2\n1\n40Gbps\n")
    assert result.exit_code == 0, result.output
    assert "How many machines? [4]" in result.stderr
    assert load_cluster("cluster.yaml").hosts[1].nic_in == 5e9
    assert load_job("job.yaml").trainers == 2


def test_only_what_no_option_answers_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.cli.commands.plan.init.can_ask", lambda: True)
    result = init("--gpus", "0", "--bandwidth", "1Gbps", answers="\n")
    assert result.exit_code == 0, result.output
    assert "GPUs" not in result.stderr
    assert load_cluster("cluster.yaml").num_machines == 4


@pytest.mark.parametrize(
    "words",
    [
        "--machines 1",
        "--machines 4 --gpus 2",
        "--machines 3 --gpus 8 --cpus 4",
        "--machines 2 --cpus 1 --trainers 5",
        "--machines 3 --gpus 2 --trainers 5",
    ],
)
def test_what_it_writes_goes_through_plan_and_simulate(words: str) -> None:
    result = init(*words.split())
    assert result.exit_code == 0, result.output
    result = plan()
    assert result.exit_code == 0, result.output
    words = "simulate --cluster cluster.yaml --job job.yaml --iterations 5"
    result = CliRunner().invoke(app, words.split())
    assert result.exit_code == 0, result.output


def test_a_job_for_a_cluster_file_that_is_there(folder: Path) -> None:
    text = (
        "machines:\n"
        "  - {name: big, count: 2, resources: {cpu: 16, gpu: 4}, nic: 100Gbps}\n"
        "  - {name: disk, resources: {cpu: 4}, nic: 10Gbps}\n"
    )
    (folder / "cluster.yaml").write_text(text)
    result = init("--cluster", "cluster.yaml", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == {"cluster": "cluster.yaml", "job": "job.yaml"}
    assert (folder / "cluster.yaml").read_text() == text
    assert load_job("job.yaml").trainers == 8
    assert plan().exit_code == 0


def test_a_cluster_that_counts_no_cores(folder: Path) -> None:
    (folder / "cluster.yaml").write_text("machines: [{name: a, count: 2, nic: 1Gbps}]\n")
    assert init("--cluster", "cluster.yaml").exit_code == 0
    assert plan().exit_code == 0


@pytest.mark.parametrize("name", ["cluster.yaml", "job.yaml"])
def test_nothing_is_overwritten(folder: Path, name: str) -> None:
    (folder / name).write_text("mine")
    result = init("--machines", "2")
    assert result.exit_code == 2
    assert f"{name} exists already" in result.stderr
    assert "add --force" in result.stderr
    assert [path.name for path in folder.iterdir()] == [name]
    assert (folder / name).read_text() == "mine"
    assert init("--machines", "2", "--force").exit_code == 0
    assert (folder / name).read_text() != "mine"


def test_a_folder_that_is_not_there_is_made(folder: Path) -> None:
    assert init("--machines", "2", "-o", "new/one").exit_code == 0
    assert (folder / "new" / "one" / "cluster.yaml").is_file()


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("--bandwidth 10GB", "'10GB' is not a bandwidth"),
        ("--memory much", "'much' is not a size"),
        ("--bandwidth 0Gbps", "bandwidth and memory must be above 0"),
        ("--gpus 1 --machines 2 --trainers 3", "3 trainers need a GPU each, the machines have 2"),
        ("--cluster c.yaml --gpus 1", "--cluster and --gpus both define the machines"),
        ("--cluster c.yaml", "the cluster file c.yaml does not exist"),
        ("--bandwidth 10", "the bandwidth 10 has no unit"),
    ],
)
def test_mistakes(folder: Path, words: str, problem: str) -> None:
    result = init(*words.split())
    assert result.exit_code == 2
    assert problem in result.stderr
    assert not list(folder.iterdir())
