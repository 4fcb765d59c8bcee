"""What many look at in one run on four Ray nodes: places, gradients, links, ports, trackers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import numpy as np
import pytest

# Now: PyG warns of what it imports, and warnings are errors in tests.
pytest.importorskip("torch_geometric.nn")

from headrace.core.job import Role
from headrace.core.trace import Trace
from headrace.observability.grafana import dashboard
from headrace.profiling import profile_trace
from headrace.testbed import Testbed
from tests.e2e.planned_run import (
    CONFIG,
    SERVERS,
    PlannedRun,
    check_can_watch,
    planned_run,
)
from tests.e2e.ports import (
    OURS,
    documented,
    in_files,
    in_processes,
    is_metrics,
    is_refusal,
)
from tests.support.cluster_checks import bytes_by_machine, gradient_difference, is_placed
from tests.support.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def planned(testbed: Testbed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlannedRun]:
    check_can_watch()
    with planned_run(testbed, tmp_path_factory.mktemp("planned")) as found:
        yield found


# --- the run -------------------------------------------------------------------------------------


def test_it_ends_well_and_leaves_nothing(planned: PlannedRun) -> None:
    code, said = planned.end
    assert code == 0, said
    assert planned.status["state"] == "done"
    assert planned.left == []


def test_tasks_are_where_the_plan_says(planned: PlannedRun) -> None:
    assert is_placed(planned.run, planned.folder)


def test_gradients_are_those_of_one_process(planned: PlannedRun) -> None:
    assert gradient_difference(planned.folder, planned.graph, CONFIG) <= 1e-5


def test_servers_take_part_in_every_step(planned: PlannedRun) -> None:
    trace, num_steps = planned.trace, planned.status["iterations"]
    num_bytes = 4 * sum(map(len, planned.gradients["parameters"]))
    names = np.array(trace.task_names)
    done = names[trace.executions.task].tolist()
    for p in range(len(SERVERS)):
        assert done.count(f"ps{p}") == num_steps
    assert trace.local is not None
    flows = [
        (names[flow.src[i]], names[flow.dst[i]], flow.num_bytes[i])
        for flow in (trace.flows, trace.local)
        for i in range(len(flow.src))
    ]
    for trainer in range(3):
        for p in range(len(SERVERS)):
            ends = (f"trainer{trainer}", f"ps{p}")
            for src, dst in (ends, ends[::-1]):
                moved = [size for a, b, size in flows if (a, b) == (src, dst)]
                assert len(moved) == num_steps
                assert np.mean(moved) == pytest.approx(num_bytes / len(SERVERS), rel=0.15, abs=1500)
    profile = profile_trace(trace, planned.run.plan)
    assert profile.model_bytes == pytest.approx(num_bytes, rel=0.15, abs=2000)
    assert all(0 < time.mean < 1 for time in profile.task_times[Role.SERVER].values())


def test_links_carry_what_the_trace_says(planned: PlannedRun) -> None:
    links = bytes_by_machine(planned.trace, planned.folder, *planned.snapshots)
    for name, each in links.items():
        assert each["counted"] > 1e6, name
        assert each["traced"] == pytest.approx(each["counted"], rel=0.03), (name, links)


def test_the_status_has_bytes_by_kind(planned: PlannedRun) -> None:
    by_kind, flows = planned.status["epoch_bytes"], planned.trace.flows
    assert {"features", "structure", "gradients"} <= set(by_kind)
    roles = np.array(planned.trace.task_roles)
    from_stores = (roles[flows.src] == Role.STORE) | (roles[flows.dst] == Role.STORE)
    expected = flows.num_bytes[from_stores].sum() / flows.num_bytes.sum()
    found = (by_kind["features"] + by_kind["structure"]) / sum(by_kind.values())
    assert found == pytest.approx(expected, rel=1e-3)


# --- who listens, and what strangers hear --------------------------------------------------------


def test_every_open_port_is_documented(planned: PlannedRun) -> None:
    known = documented()
    for listener, name in planned.seen.names.items():
        assert name in known, listener
    # A run has all of these, else this test shows nothing.
    expected = {"store", "sub-batches", "parameter server", "TCPStore", "gloo"}
    expected |= {"Ray head", "Ray node", "Ray worker", "Ray environments"}
    assert expected <= set(planned.seen.names.values())


def test_strangers_are_refused(planned: PlannedRun) -> None:
    known = documented()
    for listener, answer in planned.seen.answers.items():
        name = planned.seen.names[listener]
        if name in OURS:
            assert known[name] == "refused"
            for how, said in answer["tls"].items():
                # At most an alert of TLS, which is no answer to a call.
                assert b"grpc" not in bytes.fromhex(said), (listener, how)
                assert len(said) <= 2 * 16, (listener, how)
        elif is_metrics(answer):
            assert known["Ray metrics"].startswith("open")
        elif name == "Ray client":
            assert known[name].startswith("open")
        else:
            assert known[name] == "refused"
            assert is_refusal(answer), (listener, answer)


def test_strangers_do_not_disturb_a_run(planned: PlannedRun) -> None:
    before, after = planned.iterations
    assert after > before


def test_sockets_of_a_machine_are_for_its_user(planned: PlannedRun) -> None:
    assert planned.seen.sockets
    for each in planned.seen.sockets:
        # One that is no file (@) would be for everyone on the machine.
        assert each.address.startswith("/"), each
        above = Path(each.address).parents
        assert any(folder.exists() and not folder.stat().st_mode & 0o007 for folder in above), each


def test_no_secret_is_ever_shown(planned: PlannedRun) -> None:
    assert planned.seen.places == []
    assert not any(secret.decode() in planned.end[1] for secret in planned.seen.secrets)
    assert oct(planned.folder.stat().st_mode & 0o777) == "0o700"


def test_a_secret_that_is_shown_would_be_found(tmp_path: Path) -> None:
    secrets = [uuid4().hex.encode() for _ in range(2)]
    (tmp_path / "log").write_bytes(b"token: " + secrets[0])
    assert in_files(secrets, [tmp_path / "log"]) == [str(tmp_path / "log")]
    environment = {**os.environ, "TOKEN": secrets[0].decode()}
    with subprocess.Popen(["sleep", "1000"], env=environment) as shows:
        try:
            assert eventually(lambda: in_processes(secrets))
            assert all(f"/{shows.pid}/environ" in place for place in in_processes(secrets))
        finally:
            shows.kill()


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (["-u", "RAY_AUTH_MODE"], "requires a token, and RAY_AUTH_MODE is not set"),
        (["RAY_AUTH_TOKEN=wrong"], "rejects the token in RAY_AUTH_TOKEN"),
        (["RAY_AUTH_TOKEN_PATH=/none"], "requires a token, and there is none in /none"),
    ],
    ids=["none", "wrong", "gone"],
)
def test_a_missing_token_is_told(testbed: Testbed, settings: list[str], problem: str) -> None:
    words = ["env", *settings, sys.executable, "-m", "headrace", "cluster", "discover"]
    done = subprocess.run(
        testbed.command("m1", words), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 2
    assert f"the Ray cluster at {testbed.ray_address} {problem}" in done.stderr.replace("\n", " ")
    assert "RAY_AUTH_TOKEN_PATH" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_token_of_the_user_goes_nowhere(testbed: Testbed) -> None:
    words = testbed.command("m1", ["env"])
    done = subprocess.run(
        words,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "RAY_AUTH_TOKEN": "the user's", "RAY_AUTH_MODE": "disabled"},
    )
    assert "the user's" not in done.stdout
    assert "RAY_AUTH_MODE=token\n" in done.stdout


# --- who follows it: Prometheus, trackers, the log -----------------------------------------------


def test_prometheus_agrees_with_the_trace(planned: PlannedRun) -> None:
    prometheus, trace, reports = planned.prometheus, planned.trace, planned.reports

    def last(name: str) -> str:
        """Values are gone soon after the run."""
        return f'last_over_time(ray_headrace_{name}{{run="{planned.folder.name}"}}[30m])'

    num_iterations = max(n for (task,), n in _steps(trace).items() if task.startswith("trainer"))
    done = f"sum({last('iterations_total')})"
    # The last figures leave the driver when it ends; then they wait to be scraped.
    assert eventually(lambda: prometheus.query(done) == {(): num_iterations}), (
        prometheus.query(done),
        num_iterations,
    )
    assert num_iterations == planned.status["iterations"] > 40
    steps = prometheus.query(f"sum by (task) ({last('task_steps_total')})")
    assert steps == _steps(trace)
    moved = prometheus.query(f"sum by (source, target) ({last('link_bytes_total')})")
    expected = _moved(trace)
    assert len(expected) == 12
    assert moved == pytest.approx(expected, rel=1e-9)
    cards = prometheus.query(f"sum by (direction, machine) ({last('nic_bytes_total')})")
    for machine in ("m0", "m1", "m2", "m3"):
        received = sum(num for (_, target), num in expected.items() if target == machine)
        assert cards["in", machine] > received
    seeds = prometheus.query(f"sum({last('samples_total')})")
    assert seeds == {(): reports[-1]["num_seeds"]}
    checkpoints = [each for each in planned.events("checkpoint") if "problem" not in each]
    made = prometheus.query(f"sum({last('checkpoints_total')})")
    assert made == {(): len(checkpoints)}
    figures = prometheus.query(f"max by (figure) ({last('figure')})")
    assert figures == pytest.approx({(k,): v for k, v in reports[-1].items()})


def test_every_panel_of_the_dashboard_shows_something(planned: PlannedRun) -> None:
    prometheus, status = planned.prometheus, planned.status
    when = {"start": status["since_s"], "end": status["updated_s"] + 5, "step": 2}
    asked = []
    for panel in dashboard()["panels"]:
        for target in panel["targets"]:
            words = target["expr"].replace("$run", planned.folder.name)
            words = words.replace("$__rate_interval", "30s")
            asked.append((panel["title"], {"query": words, **when}))
    answers = prometheus.ask(*(("/api/v1/query_range", fields) for _, fields in asked))
    for (title, fields), answer in zip(asked, answers, strict=True):
        assert json.loads(answer)["data"]["result"], (title, fields)


def _steps(trace: Trace) -> dict[tuple[str, ...], float]:
    tasks = Counter(trace.task_names[task] for task in trace.executions.task)
    return {
        (name,): n for name, n in tasks.items() if name.startswith(("sampler", "trainer", "ps"))
    }


def _moved(trace: Trace) -> dict[tuple[str, ...], float]:
    names = np.array(trace.machine_names)[trace.task_machines]
    moved: dict[tuple[str, ...], float] = {}
    flows = trace.flows
    for src, dst, num_bytes in zip(flows.src, flows.dst, flows.num_bytes, strict=True):
        link = (str(names[src]), str(names[dst]))
        moved[link] = moved.get(link, 0.0) + float(num_bytes)
    return moved


def test_tensorboard_agrees_with_the_reports(planned: PlannedRun) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(planned.folder / "tensorboard"))
    read.Reload()
    norms = [(each.step, each.value) for each in read.Scalars("norm")]
    assert norms == [
        (each["epoch"], pytest.approx(each["norm"], rel=1e-6)) for each in planned.reports
    ]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # MLflow's and SQLAlchemy's own
def test_mlflow_agrees_with_the_reports(planned: PlannedRun) -> None:
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{planned.run.runs / 'mlflow.db'}")
    (found,) = client.search_runs([client.search_experiments(order_by=["name"])[-1].experiment_id])
    assert (found.info.run_name, found.info.status) == (planned.folder.name, "FINISHED")
    assert found.data.params["script"] == "cluster_job.py"
    norms = client.get_metric_history(found.info.run_id, "norm")
    assert [(each.step, each.value) for each in norms] == [
        (each["epoch"], each["norm"]) for each in planned.reports
    ]


def test_the_log_tells_who_and_where(planned: PlannedRun) -> None:
    lines = [json.loads(line) for line in (planned.folder / "log.jsonl").read_text().splitlines()]
    where = {task["name"]: task["machine"] for task in planned.status["tasks"]}
    said = {(line["task"], line["machine"]) for line in lines if line["task"] != "driver"}
    assert {("store2", "m2"), ("store3", "m3")} <= said
    assert said <= set(where.items())
    assert {"at_s", "task", "machine", "level", "text"} == set(lines[0])
    assert "the run ended: done" in lines[-1]["text"]
