from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from headrace.cli import app
from headrace.cli.output.progress import COMPILING

CLUSTER = """\
machines:
  - {name: a, nic: 10Gbps, resources: {gpu: 2, cpu: 4}}
  - {name: b, nic: 1Gbps, resources: {gpu: 2, cpu: 4}}
"""
JOB = """\
name: tiny
trainers: 2
samplers_per_trainer: 2
sync: ps
batch_size: 100
model_bytes: 1MB
iterations: 6
window: 2
demands:
  trainer: {gpu: 1}
  sampler: {cpu: 1}
"""
PROFILE = """\
note: round figures
task_times:
  store: {default: 1ms}
  sampler: {default: 2ms}
  trainer: {default: 3ms}
  ps: {default: 1ms}
store_traffic: {bytes_per_seed: 100KB, locality: 0.5}
batch_traffic: {bytes_per_seed: 50KB}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_text(CLUSTER)
    Path("j.yaml").write_text(JOB)
    Path("p.yaml").write_text(PROFILE)
    return tmp_path


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def plan(*more: str) -> Result:
    return invoke("plan", "--cluster", "c.yaml", "--job", "j.yaml", "--profile", "p.yaml", *more)


def in_json(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    assert result.stdout.count("\n") == 1
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return found


class TestPlan:
    def test_for_people(self) -> None:
        result = plan("-o", "plan.json")
        assert result.exit_code == 0, result.output
        for line in (
            "method              anneal (seed 0)\n",
            "seed mix            local-first: ",
            " for 6 iterations, window 2\n",
            "NIC  ",
            "The plan is in plan.json: headrace explain plan.json shows improvements.\n",
        ):
            assert line in result.stdout
        assert [line for line in result.stderr.splitlines() if line != COMPILING] == [
            "[1/3] placing tasks with anneal",
            "[2/3] choosing by simulation",
            "[3/3] predicting",
        ]

    def test_json_has_stable_keys(self) -> None:
        found = in_json(plan("--json", "-o", "plan.json"))
        assert list(found) == [
            "method",
            "policy",
            "seed_mix",
            "traffic",
            "shares",
            "trainer_steps",
            "memory",
            "seed",
            "rounds",
            "predicted",
            "terms",
            "limit",
            "bound_s",
            "gap",
            "proven",
            "network_bytes",
            "uniform_network_bytes",
            "placement",
            "parts",
            "epoch",
            "candidates",
            "shortlist",
            "fingerprints",
            "output",
        ]
        assert found["output"] == "plan.json"
        assert found["predicted"]["iterations"] == 6
        assert set(found["placement"]["trainers"]) <= {"a", "b"}

    @pytest.mark.parametrize("method", ["anneal", "colocate", "exact", "ifs"])
    def test_methods(self, method: str) -> None:
        found = in_json(plan("--method", method, "--policy", "oes", "--seed", "3", "--json"))
        assert (found["method"], found["policy"], found["seed"]) == (method, "oes", 3)

    def test_equal_seeds_write_equal_files(self) -> None:
        for name in ("one.json", "two.json"):
            assert plan("-o", name, "--seed", "5").exit_code == 0
        assert Path("one.json").read_text() == Path("two.json").read_text()

    def test_a_budget(self) -> None:
        found = in_json(plan("--budget", "50ms", "--json"))
        assert found["rounds"] >= 1

    def test_a_plan_is_a_placement_to_simulate(self) -> None:
        planned = in_json(plan("-o", "plan.json", "--json"))
        given = ("--cluster", "c.yaml", "--job", "j.yaml", "--profile", "p.yaml")
        found = in_json(invoke("simulate", *given, "--placement", "plan.json", "--json"))
        assert found["makespan_s"] == planned["predicted"]["makespan_s"]
        assert found["policy"] == planned["policy"]

    @pytest.mark.parametrize(
        ("more", "code", "problem", "remedy"),
        [
            (["--method", "best"], 2, "no placement method 'best'", "use one of anneal"),
            (["--policy", "best"], 2, "no flow policy 'best'", "use auto or one of"),
            (["--seed-mix", "best"], 2, "no seed mix 'best'", "auto, uniform or local-first"),
            (["--budget", "soon"], 2, "'soon' is not a duration", "20ms"),
            (["--budget", "1s", "--method", "ifs"], 2, "ifs does not support", "anneal"),
            (["-o", "no/plan.json"], 2, "no is not a directory", "create it"),
            (["--diff", "a.json", "b.json"], 2, "--diff only compares", "omit the other files"),
        ],
    )
    def test_mistakes(self, more: list[str], code: int, problem: str, remedy: str) -> None:
        result = plan(*more)
        assert result.exit_code == code, result.output
        assert problem in result.stderr
        assert remedy in result.stderr
        assert "Traceback" not in result.output

    def test_a_file_is_missing(self) -> None:
        result = invoke("plan", "--cluster", "c.yaml")
        assert result.exit_code == 2
        assert "--job is missing" in result.stderr

    def test_a_job_that_does_not_fit(self) -> None:
        Path("j.yaml").write_text(JOB.replace("trainers: 2", "trainers: 5"))
        result = plan("-o", "plan.json")
        assert result.exit_code == 3
        assert "short" in result.stderr
        assert "lower trainers from 5 to 4" in result.stderr
        assert not Path("plan.json").exists()


class TestExplain:
    def test_for_people(self) -> None:
        assert plan("-o", "plan.json").exit_code == 0
        result = invoke("explain", "plan.json")
        assert result.exit_code == 0, result.output
        assert "The bottleneck is the network: " in result.stdout
        assert "Changes that would help, each planned again" in result.stdout
        assert "  doubling the NIC of b saves " in result.stdout

    def test_json(self) -> None:
        assert plan("-o", "plan.json").exit_code == 0
        found = in_json(invoke("explain", "plan.json", "--json"))
        assert found["limit"] == "nic"
        savings = [remedy["saving"] for remedy in found["remedies"]]
        assert savings == sorted(savings, reverse=True)

    def test_a_file_that_is_no_plan(self) -> None:
        result = invoke("explain", "c.yaml")
        assert result.exit_code == 2
        assert "this looks like a cluster file, not a plan file" in result.stderr
        assert invoke("explain", "nowhere.json").exit_code == 2


class TestDiff:
    def test_for_people_and_programs(self) -> None:
        assert plan("-o", "old.json", "--method", "ifs", "--seed-mix", "uniform").exit_code == 0
        assert plan("-o", "new.json").exit_code == 0
        result = invoke("plan", "--diff", "old.json", "new.json")
        assert result.exit_code == 0, result.output
        assert "The second saves " in result.stdout
        assert " -> " in result.stdout
        found = in_json(invoke("plan", "--diff", "old.json", "new.json", "--json"))
        assert list(found) == ["changed_inputs", "moves", "saving", "epochs", "before", "after"]
        assert found["before"]["method"] == "ifs"
        assert found["changed_inputs"] == []

    def test_the_same_plan(self) -> None:
        assert plan("-o", "old.json").exit_code == 0
        result = invoke("plan", "--diff", "old.json", "old.json")
        assert "No task moves." in result.stdout
