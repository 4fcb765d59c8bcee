from __future__ import annotations

import errno
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from headrace.cli import app
from headrace.cli.output.progress import COMPILING
from headrace.policies.flow import FLOW_POLICIES

CLUSTER = """\
machines:
  - {name: a, nic: 10Gbps, resources: {gpu: 1}}
  - {name: b, nic: 1Gbps, resources: {gpu: 1}}
"""
JOB = """\
name: tiny
trainers: 2
samplers_per_trainer: 1
sync: ps
batch_size: 100
model_bytes: 1MB
iterations: 6
window: 2
demands:
  trainer: {gpu: 1}
"""
PROFILE = """\
note: round figures
task_times:
  store: {default: 1ms}
  sampler: {default: 2ms}
  trainer: {default: 3ms}
  ps: {default: 1ms}
store_traffic: {bytes_per_seed: 100KB}
batch_traffic: {bytes_per_seed: 50KB}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_text(CLUSTER)
    Path("j.yaml").write_text(JOB)
    Path("p.yaml").write_text(PROFILE)
    return tmp_path


def run(*more: str, profile: bool = True) -> Result:
    given = ["simulate", "--cluster", "c.yaml", "--job", "j.yaml"]
    return CliRunner().invoke(app, [*given, *(["--profile", "p.yaml"] if profile else []), *more])


def run_json(*more: str) -> dict[str, Any]:
    result = run(*more, "--json")
    assert result.exit_code == 0, result.output
    assert result.stdout.count("\n") == 1
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return found


@pytest.mark.usefixtures("folder")
class TestForPeople:
    def test_headline_machines_and_bottleneck(self) -> None:
        result = run()
        assert result.exit_code == 0, result.output
        assert " for 6 iterations\n" in result.stdout
        assert " in steady state (mean of all: " in result.stdout
        for line in ("policy              priority", "window              2"):
            assert line in result.stdout
        assert "placement           colocate" in result.stdout
        rows = [line.split() for line in result.stdout.splitlines() if line[:2] in ("a ", "b ")]
        assert [row[:4] for row in rows] == [["a", "1", "1", "1"], ["b", "1", "1", "1"]]
        assert result.stdout.rstrip().endswith(".")
        assert "b sends at " in result.stdout or "b receives at " in result.stdout

    def test_steps_go_to_stderr_as_plain_lines(self) -> None:
        for more, steps in (
            ((), ["simulating 6 iterations under priority"]),
            (("--compare", "oes,maxmin"), ["[1/2] oes", "[2/2] maxmin"]),
        ):
            lines = run(*more).stderr.splitlines()
            assert [line for line in lines if line != COMPILING] == steps

    def test_without_a_profile_it_says_that_all_is_synthetic(self) -> None:
        result = run(profile=False)
        assert result.exit_code == 0, result.output
        note = "note: no --profile; all times and volumes are synthetic: GraphSAGE on "
        (line,) = [line for line in result.stderr.splitlines() if line.startswith("note: ")]
        assert line.startswith(note)
        assert len(line) < 100
        told = run("--verbose", profile=False).stderr
        assert "93.5 KB per seed" in told
        assert "28 ms" in told

    def test_comparison_is_one_table(self) -> None:
        result = run("--compare", "all")
        assert result.exit_code == 0, result.output
        assert result.stdout.startswith("6 iterations, window 2, placement colocate\n")
        for policy in FLOW_POLICIES:
            assert f"\n{policy} " in result.stdout
        assert result.stdout.count(" best") == 2  # the heading "vs best" and one row

    def test_many_machines_show_the_busiest(self) -> None:
        Path("c.yaml").write_text("machines: [{name: m, count: 40, nic: 1Gbps}]\n")
        Path("j.yaml").write_text("trainers: 2\nbatch_size: 100\niterations: 2\n")
        result = run()
        assert result.exit_code == 0, result.output
        assert "... and 8 less busy machines (--json lists all)" in result.stdout


@pytest.mark.usefixtures("folder")
class TestJson:
    def test_stable_keys(self) -> None:
        found = run_json()
        assert list(found) == [
            "policy",
            "placement",
            "iterations",
            "window",
            "seed",
            "makespan_s",
            "iteration_time_s",
            "mean_iteration_time_s",
            "num_events",
            "bottleneck",
            "machines",
            "tasks",
            "profile",
            "trace",
            "gantt",
        ]
        assert (found["policy"], found["placement"]) == ("priority", "colocate")
        assert (found["iterations"], found["window"], found["seed"]) == (6, 2, 0)
        assert 0 < found["iteration_time_s"] < found["makespan_s"]
        assert set(found["bottleneck"]) == {"nic", "utilisation"}
        assert [machine["name"] for machine in found["machines"]] == ["a", "b"]
        assert set(found["machines"][0]) == {
            "name",
            "tasks",
            "in_bytes",
            "out_bytes",
            "in_utilisation",
            "out_utilisation",
        }
        assert found["machines"][0]["tasks"]["store"] == 1
        assert sorted(found["tasks"]["trainers"]) == ["a", "b"]
        assert found["profile"] == {"source": "synthetic", "note": "round figures"}
        assert found["trace"] is found["gantt"] is None

    def test_comparison(self) -> None:
        found = run_json("--compare", "oes, priority,oes")
        assert [each["policy"] for each in found["policies"]] == ["oes", "priority"]
        assert min(each["relative_makespan"] for each in found["policies"]) == 1.0
        assert found["best"] in ("oes", "priority")
        assert set(found["policies"][0]) == {
            "policy",
            "makespan_s",
            "iteration_time_s",
            "mean_iteration_time_s",
            "num_events",
            "bottleneck",
            "relative_makespan",
        }
        assert (found["iterations"], found["window"], found["placement"]) == (6, 2, "colocate")

    def test_settings_arrive(self) -> None:
        given = ("--iterations", "3", "--window", "unlimited", "--seed", "7", "--policy", "oes")
        found = run_json(*given, "--placement", "ifs")
        assert (found["iterations"], found["window"], found["seed"]) == (3, "unlimited", 7)
        assert (found["policy"], found["placement"]) == ("oes", "ifs")

    def test_a_placement_file(self) -> None:
        Path("where.yaml").write_text("samplers: [b, b]\ntrainers: [b, a]\nservers: [a]\n")
        found = run_json("--placement", "where.yaml")
        assert found["placement"] == "where.yaml"
        assert found["tasks"] == {"samplers": ["b", "b"], "trainers": ["b", "a"], "servers": ["a"]}

    def test_a_smaller_window_is_never_faster_here(self) -> None:
        found = [run_json("--window", window)["makespan_s"] for window in ("1", "2", "unlimited")]
        assert found[0] >= found[1] >= found[2]


@pytest.mark.usefixtures("folder")
class TestPictures:
    def test_trace_and_gantt(self) -> None:
        pytest.importorskip("matplotlib")
        result = run("--iterations", "2", "--trace", "t.json", "--gantt", "g.png")
        assert result.exit_code == 0, result.output
        assert "The trace is in t.json" in result.stdout
        assert "The Gantt chart is in g.png." in result.stdout
        json.loads(Path("t.json").read_text())
        assert Path("g.png").read_bytes().startswith(b"\x89PNG")

    def test_json_names_the_files(self) -> None:
        assert run_json("--iterations", "2", "--trace", "t.json")["trace"] == "t.json"

    @pytest.mark.parametrize(
        ("path", "message"), [("no/t.json", "no is not a directory"), (".", "is a directory")]
    )
    def test_paths_that_cannot_be(self, path: str, message: str) -> None:
        result = run("--trace", path)
        assert result.exit_code == 2
        assert message in result.stderr
        assert "simulating" not in result.stderr

    def test_a_full_disk(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(trace: object, path: Path) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr("headrace.observability.perfetto.write_perfetto", fail)
        result = run("--trace", "t.json")
        assert result.exit_code == 2
        assert "error: t.json cannot be written (No space left on device)" in result.stderr


@pytest.mark.usefixtures("folder")
class TestMistakes:
    @pytest.mark.parametrize(
        ("options", "exit_code", "problem", "remedy"),
        [
            (["--policy", "prority"], 2, "no flow policy 'prority'", "did you mean priority?"),
            (["--policy", "zzz"], 2, "no flow policy 'zzz'", "use one of oes, maxmin"),
            (["--compare", "oes,zzz"], 2, "no flow policy 'zzz'", "use one of"),
            (["--compare", ","], 2, "no flow policy to compare", "name some of oes"),
            (["--compare", "oes", "--policy", "oes"], 2, "exclude each other", "keep one"),
            (["--compare", "oes", "--trace", "t.json"], 2, "shows one policy", "--policy"),
            (["--placement", "colocat"], 2, "'colocat'", "did you mean colocate?"),
            (["--placement", "zzz"], 2, "'zzz'", "ifs or a placement file"),
            (["--placement", "no.yaml"], 2, "no.yaml does not exist", "check the path"),
            (["--window", "0"], 2, "--window 0", "unlimited"),
            (["--window", "many"], 2, "--window many", "unlimited"),
            (
                ["--cluster", "j.yaml"],
                2,
                "j.yaml, line 1: this looks like a job file",
                "as the job",
            ),
            (["--job", "c.yaml"], 2, "this looks like a cluster file", "as the cluster"),
            (["--profile", "no.yaml"], 2, "no.yaml does not exist", "check the path"),
        ],
    )
    def test_one_message_and_an_exit_code(
        self, options: list[str], exit_code: int, problem: str, remedy: str
    ) -> None:
        result = run(*options)
        assert result.exit_code == exit_code
        assert result.stdout == ""
        error = result.stderr[result.stderr.index("error: ") :]
        assert problem in error.splitlines()[0]
        assert error.splitlines()[1].startswith("  try: ")
        assert remedy in error.splitlines()[1]
        assert "Traceback" not in result.output

    def test_a_job_that_does_not_fit(self) -> None:
        Path("j.yaml").write_text(JOB.replace("gpu: 1", "gpu: 2"))
        result = run()
        assert result.exit_code == 3
        assert result.stderr.count("error: ") == 1
        assert "gpu" in result.stderr

    def test_a_profile_without_a_role(self) -> None:
        Path("p.yaml").write_text(PROFILE.replace("  sampler: {default: 2ms}\n", ""))
        result = run()
        assert result.exit_code == 2
        assert "try: add task_times.sampler.default" in result.stderr

    def test_a_missing_extra_is_named_before_anything_is_rehearsed(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
        result = run("--gantt", "g.png")
        assert result.exit_code == 4
        assert result.stderr.startswith(
            "error: charts need matplotlib, which is not installed\n"
            "  try: pip install 'headrace[report]'\n"
        )

    def test_numbers_out_of_range_are_named(self) -> None:
        for option, number in (("--iterations", "0"), ("--seed", "-1")):
            result = run(option, number)
            assert result.exit_code == 2
            assert option in result.stderr
            assert "simulating" not in result.stderr

    def test_missing_options_are_named(self) -> None:
        result = CliRunner().invoke(app, ["simulate", "--cluster", "c.yaml"])
        assert result.exit_code == 2
        assert "--job" in result.stderr
        result = CliRunner().invoke(app, ["simulate"])
        assert result.exit_code == 2
        assert "try: add --cluster FILE, or --coflows FILE instead" in result.stderr


COFLOWS = """\
machines: [{name: m, count: 2, nic: 8Gbps}]
types: [expert, data]
tasks:
  - {name: a, machine: m-0, time: 1s}
  - {name: b, machine: m-1}
  - {name: c, machine: m-1, time: 1s}
coflows:
  - {name: slow, type: data, flows: [{src: a, dst: b, bytes: 1GB}]}
  - {name: fast, type: expert, flows: [{src: a, dst: c, bytes: 1GB}]}
"""


class TestCoflows:
    @pytest.fixture(autouse=True)
    def file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        Path("f.yaml").write_text(COFLOWS)

    def run(self, *more: str) -> Result:
        return CliRunner().invoke(app, ["simulate", "--coflows", "f.yaml", *more])

    def test_one_policy(self) -> None:
        result = self.run()
        assert result.exit_code == 0, result.output
        assert (
            "makespan            3 s for 3 tasks\npolicy              priority\n" in result.stdout
        )
        rows = [line.split() for line in result.stdout.splitlines()]
        assert ["data", "1", "1", "GB", "2", "s", "3", "s"] in rows
        assert "m-1 receives at 67% of its 8 Gbps" in result.stdout

    def test_json(self) -> None:
        result = self.run("--json", "--policy", "matching")
        assert result.stdout.count("\n") == 1
        found = json.loads(result.stdout)
        assert list(found) == [
            *("name", "policy", "makespan_s", "num_events", "bottleneck", "machines", "coflows"),
            "tasks",
        ]
        assert (found["policy"], found["makespan_s"]) == ("matching", 3.0)
        assert [each["rank"] for each in found["coflows"]] == [1, 0]
        assert [each["end_s"] for each in found["coflows"]] == [3.0, 2.0]
        assert found["tasks"][2] == {"name": "c", "machine": "m-1", "start_s": 2.0, "end_s": 3.0}

    def test_comparison(self) -> None:
        found = json.loads(self.run("--compare", "maxmin,priority", "--json").stdout)
        assert found["best"] == "priority"
        assert [each["makespan_s"] for each in found["policies"]] == [4.0, 3.0]
        assert found["policies"][0]["relative_makespan"] == pytest.approx(4 / 3)
        result = self.run("--compare", "all")
        assert result.stdout.startswith("3 tasks, 2 coflows, 2 flows\n")
        for policy in FLOW_POLICIES:
            assert f"\n{policy} " in result.stdout

    @pytest.mark.parametrize(
        ("options", "problem"),
        [
            (["--job", "j.yaml"], "--job does not apply to --coflows"),
            (["--window", "2"], "--window does not apply to --coflows"),
            (["--trace", "t.json"], "--trace does not apply to --coflows"),
            (["--policy", "zzz"], "no flow policy 'zzz'"),
            (["--compare", ","], "no flow policy to compare"),
            (["--coflows", "no.yaml"], "no.yaml does not exist"),
        ],
    )
    def test_mistakes(self, options: list[str], problem: str) -> None:
        result = self.run(*options)
        assert result.exit_code == 2
        assert problem in result.stderr

    def test_a_mistake_in_the_file_has_its_line(self) -> None:
        Path("f.yaml").write_text(COFLOWS.replace("dst: c", "dst: d"))
        result = self.run()
        assert result.exit_code == 2
        assert "f.yaml, line 9: coflows[1].flows[0].dst: there is no task 'd'" in result.stderr
