"""What a run sends to Prometheus."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.core.job import Role
from headrace.observability import metrics
from headrace.observability.metrics import METRICS, Labels, Metric
from headrace.runtime.callbacks.metrics import RunMetrics
from headrace.runtime.cluster.prometheus import endpoints
from headrace.runtime.protocol.actor_state import ActorState
from headrace.runtime.protocol.trainer_messages import BatchProgress, CheckpointWrite, Resumed
from headrace.runtime.run_dir.status import TaskState, TaskStatus
from tests.unit.runtime.callbacks.test_work_totals import recorded
from tests.unit.runtime.listened import small_plan, status


class Prometheus:
    """Keeps what is sent, as Prometheus would."""

    def __init__(self) -> None:
        self.values: dict[tuple[Metric, Labels], float] = {}

    def __call__(self, metric: Metric, labels: Labels, value: float) -> None:
        assert metric in METRICS
        assert len(labels) == len(metric.labels)
        self.values[metric, labels] = value

    def get(self, metric: Metric, *labels: str) -> float:
        return self.values[metric, labels]


@pytest.fixture
def sent() -> Prometheus:
    return Prometheus()


@pytest.fixture
def run(sent: Prometheus) -> RunMetrics:
    clock = iter(range(0, 10_000, 10))
    made = RunMetrics(sent, lambda: float(next(clock)))
    made.began(*small_plan())
    return made


def batches(batch: int, num_samples: int, trains: bool = True) -> BatchProgress:
    return BatchProgress(trains, batch, 4, num_samples, 2.0, 0.5, {})


def test_what_tasks_do_is_counted(run: RunMetrics, sent: Prometheus) -> None:
    for n in range(3):
        for task, data in recorded(n).items():
            run.traced(task, data)
        run.updated(status(iterations=n + 1, samples_per_s=8.0, figures={"loss": 0.5, "on": "m0"}))
    assert sent.get(metrics.ITERATIONS) == 3
    assert sent.get(metrics.ITERATION_SECONDS) == 1.0
    assert sent.get(metrics.SPEED) == 8.0
    assert sent.get(metrics.FIGURE, "loss") == 0.5
    assert (metrics.FIGURE, ("on",)) not in sent.values
    assert sent.get(metrics.STEPS, "trainer1", "trainer", "m1") == 3
    assert sent.get(metrics.BUSY, "store0", "store", "m0") == pytest.approx(0.375)
    assert sent.get(metrics.LINK_BYTES, "m0", "m1") > 3000


def test_samples_of_all_trainers_and_epochs_are_counted_once(
    run: RunMetrics, sent: Prometheus
) -> None:
    told = [batches(1, 10), batches(3, 30), batches(4, 38), batches(2, 20)]
    run.polled("trainer0", ActorState(messages=(*told, batches(9, 99, trains=False))))
    run.polled("trainer1", ActorState(messages=(batches(4, 40), batches(4, 40))))
    run.finished(status())
    assert sent.get(metrics.SAMPLES) == 38 + 20 + 40 + 40
    assert sent.get(metrics.IDLE_SHARE, "trainer0", "trainer", "m0") == 0.25


def test_network_cards_are_counted_from_the_beginning(run: RunMetrics, sent: Prometheus) -> None:
    # The machine was away before its last look.
    for count in (1000, 1500, 1700, 40):
        run.polled("store1", ActorState(nic=(count, 2 * count)))
    run.finished(status())
    assert sent.get(metrics.NIC_BYTES, "m1", "in") == 740
    assert sent.get(metrics.NIC_BYTES, "m1", "out") == 1480


def test_checkpoints_are_counted(run: RunMetrics, sent: Prometheus) -> None:
    made = CheckpointWrite(100, stall_s=0.25)
    run.polled("trainer0", ActorState(messages=(made, replace(made, problem="no room"))))
    run.finished(status())
    assert sent.get(metrics.CHECKPOINTS) == 1
    assert sent.get(metrics.CHECKPOINT_SECONDS) == 0.5


def test_states_and_memory_of_tasks_are_told(run: RunMetrics, sent: Prometheus) -> None:
    tasks = [
        TaskStatus(name="store0", role=Role.STORE, machine="m0", state=TaskState.LOST),
        TaskStatus(name="trainer1", role=Role.TRAINER, machine="m1", rss_bytes=2e9),
    ]
    run.updated(status(tasks=tuple(tasks)))
    assert sent.get(metrics.TASKS, "lost") == sent.get(metrics.TASKS, "waiting") == 1
    assert sent.get(metrics.TASKS, "running") == 0
    assert sent.get(metrics.MEMORY, "trainer1", "trainer", "m1") == 2e9


def test_a_process_that_resumes_counts_what_it_does_itself(
    run: RunMetrics, sent: Prometheus
) -> None:
    run.polled("trainer0", ActorState(messages=(Resumed(400, 4, 0, False, False),)))
    run.updated(status(attempt=2, iterations=0))
    run.finished(status(attempt=2, iterations=450))
    assert sent.get(metrics.ITERATIONS) == 50
    assert sent.get(metrics.RESUMES) == 1


def test_a_resume_in_the_same_process_is_counted(run: RunMetrics, sent: Prometheus) -> None:
    run.traced("trainer0", recorded(0)["trainer0"])
    run.updated(status(iterations=40))
    run.began(*small_plan())
    run.polled("trainer0", ActorState(messages=(Resumed(30, 3, 0, False, False),)))
    run.updated(status(attempt=2, iterations=31))
    assert sent.get(metrics.ITERATIONS) == 40
    run.updated(status(attempt=2, iterations=45, restarts=3))
    assert (sent.get(metrics.ITERATIONS), sent.get(metrics.RESUMES)) == (45, 1)
    assert sent.get(metrics.RESTARTS) == 3


def test_nothing_is_sent_too_often(sent: Prometheus) -> None:
    clock = iter([0.0, 1.0, 1.9, 2.0])
    run = RunMetrics(sent, lambda: next(clock))
    run.began(*small_plan())
    for iterations in (1, 2, 3):
        run.updated(status(iterations=iterations))
        assert sent.get(metrics.ITERATIONS) == 1
    run.updated(status(iterations=4))
    assert sent.get(metrics.ITERATIONS) == 4


def test_only_nodes_that_export_are_endpoints() -> None:
    node = {"NodeID": "a", "Alive": True, "NodeManagerAddress": "10.0.0.1", "MetricsExportPort": 80}
    gone = {**node, "NodeID": "b", "Alive": False}
    plain = {**node, "NodeID": "c", "MetricsExportPort": -1}
    assert endpoints([node, gone, plain]) == {"a": "10.0.0.1:80"}
