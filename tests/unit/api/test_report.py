"""A folder of a run, made of a rehearsal, and what can be said when things are missing."""

from __future__ import annotations

import json
import webbrowser
from dataclasses import replace
from pathlib import Path

import pytest

import headrace
from headrace.api.report import FILE_NAME, RunReport, find_folder, report_on
from headrace.core.cluster import Cluster, Machine
from headrace.core.errors import SpecError
from headrace.core.job import Job, Role
from headrace.core.memory import MemoryEstimate, TaskMemory
from headrace.core.plan import LOCAL_METHOD, Plan
from headrace.core.report import Report
from headrace.core.trace import Trace
from headrace.observability.trace_file import save_trace
from headrace.runtime.run_dir.run_dir import RunDirectory
from headrace.runtime.run_dir.status import Failure, RunState, Status, TaskStatus

BEGAN_S = 1_794_700_800.0


@pytest.fixture(scope="module")
def plan() -> Plan:
    nics = {"m0": 1.25e8, "m1": 1.25e8, "m2": 2.5e7}
    machines = tuple(
        Machine(name=name, nic_in=nic, nic_out=nic, resources={"cpu": 8})
        for name, nic in nics.items()
    )
    job = Job(name="sage", trainers=2, samplers_per_trainer=2, batch_size=100, model_bytes=1e5)
    return headrace.plan(Cluster(machines=machines), job, method="colocate", policy="maxmin")


@pytest.fixture(scope="module")
def trace(plan: Plan) -> Trace:
    found = headrace.simulate(
        plan.cluster, plan.job, plan.profile, plan, iterations=60, seed=3, record=True
    )
    return found.trace()


@pytest.fixture
def folder(tmp_path: Path, plan: Plan, trace: Trace) -> RunDirectory:
    """A run that went well."""
    path = tmp_path / "20261115-0830-sage"
    path.mkdir()
    run = RunDirectory(path)
    run.write_status(
        Status(
            run_id=path.name,
            state=RunState.DONE,
            since_s=BEGAN_S,
            updated_s=BEGAN_S + 90,
            job="sage",
            iterations=60,
        )
    )
    run.plan.write_text(plan.model_dump_json())
    save_trace(trace, path / "trace.npz")
    run.append_event("attempt", BEGAN_S, number=1, versions={"ray": "2.52"})
    run.append_event("phase", BEGAN_S + 20, phase="running")
    for step in (10, 20, 30):
        run.append_report({"step": step, "loss": 1 / step}, BEGAN_S + step)
    asked = {"graph": str(tmp_path / "parts"), "script": "train.py", "config": {}}
    (path / "run.json").write_text(json.dumps(asked))
    return run


def test_a_run_as_predicted(folder: RunDirectory, plan: Plan) -> None:
    found = report_on(folder.path)
    pace = found.report.pace
    assert pace.num_iterations == 60
    assert pace.excess == pytest.approx(0.0, abs=0.05)
    assert pace.rehearsed_s == pytest.approx(pace.measured_s, rel=0.05)
    assert found.report.missing == ()
    assert [trainer.name for trainer in found.report.trainers] == ["trainer0", "trainer1"]
    assert [name for name, _ in found.stretches] == ["Predicted", "Measured"]
    measured = found.stretches[1][1]
    assert (measured.first, measured.last) == (found.stretches[0][1].first, measured.last)
    assert found.report.advice is not None
    assert found.report.advice.profile == "run"
    assert len(found.report.advice.best()) == 3
    assert found.report.plan is not None
    assert [machine.name for machine in found.report.plan.machines] == ["m0", "m1", "m2"]
    assert found.report.versions == {"ray": "2.52"}
    assert found.report.command.endswith("--graph " + str(folder.path.parent / "parts train.py"))
    assert found.report.assumptions[0].assumed == pytest.approx(0.028)
    assert found.report.curves[0].axis == "step"
    assert found.sentence in found.html().replace("\N{NO-BREAK SPACE}", " ")


def test_estimated_memory_is_beside_measured(folder: RunDirectory, plan: Plan) -> None:
    assert report_on(folder.path, advise=False).report.memory == ()
    trainer = TaskMemory(role=Role.TRAINER, made_of={"process": 3e8, "activations": 1e8})
    memory = MemoryEstimate(tasks=(trainer,), batch_size=100, shape=(10, 20))
    folder.plan.write_text(plan.model_copy(update={"memory": memory, "version": 2}).to_text())
    tasks = (
        TaskStatus(name="trainer0", role=Role.TRAINER, machine="m1", peak_bytes=5e8),
        TaskStatus(name="store0", role=Role.STORE, machine="m0", peak_bytes=1e8),
        TaskStatus(name="store1", role=Role.STORE, machine="m1"),
    )
    folder.write_status(folder.read_status().model_copy(update={"tasks": tasks}))
    found = report_on(folder.path, advise=False)
    shown = [(each.name, each.estimated_bytes, each.measured_bytes) for each in found.report.memory]
    assert shown == [("trainer0", 4e8, 5e8), ("store0", None, 1e8)]
    assert found.summary()["memory"][0]["measured_bytes"] == 5e8
    page = found.html().replace("\N{NO-BREAK SPACE}", " ")
    row = page[page.index('id="memory"') :].partition("</section>")[0]
    assert "400 MB" in row
    assert "+25" in row


def test_page_and_figures_are_written_and_shown(
    folder: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = report_on(folder.path, advise=False)
    page, figures = found.save(folder.path / FILE_NAME)
    assert page.read_text().startswith("<!doctype html>")
    assert Report.model_validate_json(figures.read_bytes()) == found.report
    assert found.summary()["version"] == 1
    assert found._repr_html_().startswith("<iframe srcdoc=")
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    found.show()
    (address,) = opened
    shown = Path(address.removeprefix("file://"))
    assert shown.read_text() == page.read_text()
    shown.unlink()
    with pytest.raises(SpecError, match="cannot be written"):
        found.save(folder.path / "no" / "page.html")
    with pytest.raises(SpecError, match="is the JSON file"):
        found.save(folder.path / "page.json")


def said(folder: RunDirectory) -> tuple[RunReport, str]:
    found = report_on(folder.path, advise=False)
    assert found.html()
    return found, " ".join(found.report.missing)


def test_accuracy_is_shown_over_the_bytes_between_machines(
    folder: RunDirectory, trace: Trace
) -> None:
    for num in (20, 60):
        folder.append_report({"accuracy": num / 100}, BEGAN_S + num, num)
    status = folder.read_status().model_copy(update={"epoch_bytes": {"features": 3e6}})
    folder.write_status(status)
    found = report_on(folder.path, advise=False)
    over_bytes = found.report.curves[-1]
    assert (over_bytes.name, over_bytes.axis) == ("accuracy", "MB between machines")
    assert over_bytes.values == (0.2, 0.6)
    early = trace.flows.num_bytes[trace.flows.iteration < 20].sum()
    expected = [early / 1e6, trace.flows.num_bytes.sum() / 1e6]
    assert over_bytes.at == pytest.approx(expected)
    page = found._repr_html_()
    assert "between machines per epoch: features" in page


def test_a_run_without_reports(folder: RunDirectory) -> None:
    folder.reports.unlink()
    assert "reported no metrics" in said(folder)[1]


def test_a_run_without_a_plan_is_still_measured(folder: RunDirectory) -> None:
    folder.plan.write_text("{")
    found, missing = said(folder)
    assert "The plan cannot be read" in missing
    assert found.report.pace.predicted_s is None
    assert found.report.pace.measured_s is not None
    assert [name for name, _ in found.stretches] == ["Measured"]


def test_a_local_run_is_measured_without_a_prediction(folder: RunDirectory, plan: Plan) -> None:
    local = plan.model_copy(update={"method": LOCAL_METHOD, "predicted": None})
    folder.plan.write_text(local.model_dump_json())
    asked = {"graph": "/parts", "script": "train.py", "is_local": True, "num_samplers": 2}
    (folder.path / "run.json").write_text(json.dumps(asked))
    folder.write_status(folder.read_status().model_copy(update={"samples_per_s": 7.0}))
    found = report_on(folder.path).report
    assert found.missing == ("A run on one machine has no prediction.",)
    assert (found.pace.predicted_s, found.plan, found.advice) == (None, None, None)
    assert found.pace.measured_s
    assert found.samples_per_s == 7.0
    assert found.command == "headrace run --local --graph /parts --samplers 2 train.py"


def test_a_run_that_failed_at_once(folder: RunDirectory) -> None:
    (folder.path / "trace.npz").unlink()
    folder.reports.unlink()
    folder.events.unlink()
    (folder.path / "run.json").unlink()
    status = folder.read_status()
    trouble = Failure(problem="m1 <is> gone", remedy="start it")
    changed = {"state": RunState.FAILED, "error": trouble, "iterations": 0}
    folder.write_status(status.model_copy(update=changed))
    found, missing = said(folder)
    assert "there are no measurements" in missing
    assert found.report.pace.predicted_s is not None
    assert "m1 &lt;is&gt; gone" in found.html()
    assert [name for name, _ in found.stretches] == ["Predicted"]


def test_attempts_under_other_plans_are_told(folder: RunDirectory, plan: Plan) -> None:
    records = [
        ["exec", name, n, 0.1 * n, 0.1 * n + 0.05]
        for n in range(20)
        for name in ("trainer0", "trainer1")
    ]
    lines = "".join(json.dumps(record) + "\n" for record in records)
    folder.set_aside(1, plan.model_dump_json())
    (folder.path / "attempt-1" / "trace-trainer0.jsonl").write_text(lines)
    (folder.path / "attempt-2").mkdir()
    (earlier,) = said(folder)[0].report.earlier
    assert (earlier.attempt, earlier.num_machines, earlier.num_iterations) == (1, 3, 20)
    assert earlier.measured_s == pytest.approx(0.1)


def test_a_damaged_trace_is_none(folder: RunDirectory) -> None:
    (folder.path / "trace.npz").write_bytes(b"PK\x03\x04 no archive")
    assert "there are no measurements" in said(folder)[1]


def test_a_run_of_one_iteration(folder: RunDirectory, trace: Trace) -> None:
    rows = trace.executions
    first = rows.iteration == 0
    few = replace(
        trace,
        executions=replace(
            rows,
            task=rows.task[first],
            iteration=rows.iteration[first],
            start_s=rows.start_s[first],
            end_s=rows.end_s[first],
        ),
    )
    save_trace(few, folder.path / "trace.npz")
    found, missing = said(folder)
    assert "1 iterations are too few" in missing
    assert found.report.pace.measured_s is None


def test_a_folder_that_was_copied_is_found(folder: RunDirectory, tmp_path: Path) -> None:
    assert find_folder(folder.path).path == folder.path
    with pytest.raises(SpecError, match="there is no run"):
        find_folder("nobody", tmp_path)


def test_the_front_door() -> None:
    assert headrace.report_on is report_on
