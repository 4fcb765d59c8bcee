"""Trackers write what their own tools read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headrace.observability.trackers import make_tracker

pytestmark = pytest.mark.integration

CONFIG = {"script": "train.py", "config.lr": 0.01}


def test_tensorboard_reads_back_what_was_tracked(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tracker = make_tracker(f"tensorboard:{tmp_path}", tmp_path / "run", "job")
    tracker.start("run-1", CONFIG, 100.0)
    tracker.log(1, {"loss": 0.5, "accuracy": 0.25}, 101.0)
    tracker.log(2, {"loss": 0.25}, 102.0)
    tracker.finish("done", 103.0)
    # After a break the run goes on in the same folder.
    again = make_tracker(f"tensorboard:{tmp_path}", tmp_path / "run", "job")
    again.start("run-1", CONFIG, 200.0)
    again.log(3, {"loss": 0.125}, 201.0)
    again.finish("done", 202.0)
    read = EventAccumulator(str(tmp_path / "run-1"))
    read.Reload()
    assert [(each.step, each.value) for each in read.Scalars("accuracy")] == [(1, 0.25)]
    losses = [(each.wall_time, each.step, each.value) for each in read.Scalars("loss")]
    assert losses == [(101.0, 1, 0.5), (102.0, 2, 0.25), (201.0, 3, 0.125)]
    (text,) = read.Tensors("config")[0].tensor_proto.string_val
    assert b"config.lr: 0.01" in text


def test_without_a_folder_tensorboard_files_lie_in_the_runs(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    tracker = make_tracker("tensorboard", tmp_path / "run", "job")
    tracker.start("run-1", CONFIG, 100.0)
    tracker.finish("done", 103.0)
    assert len(list((tmp_path / "run" / "tensorboard").glob("events.out.tfevents.*"))) == 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # MLflow's and SQLAlchemy's own
def test_mlflow_reads_back_what_was_tracked(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    tracker = make_tracker("mlflow", tmp_path / "run", "cora")
    tracker.start("run-1", CONFIG, 100.0)
    tracker.log(1, {"loss": 0.5, "run/samples_per_s": 7.0}, 101.0)
    tracker.finish("failed", 103.0)
    again = make_tracker("mlflow", tmp_path / "run", "cora")
    again.start("run-1", {**CONFIG, "config.lr": 0.02, "trainers": 2}, 200.0)
    again.log(2, {"loss": 0.25}, 201.0)
    again.finish("done", 202.0)
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("cora")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_name == "run-1"
    times = (run.info.status, run.info.start_time, run.info.end_time)
    assert times == ("FINISHED", 100_000, 202_000)
    assert run.data.params == {"script": "train.py", "config.lr": "0.01", "trainers": "2"}
    losses = client.get_metric_history(run.info.run_id, "loss")
    assert [(each.timestamp, each.step, each.value) for each in losses] == [
        (101_000, 1, 0.5),
        (201_000, 2, 0.25),
    ]
    assert run.data.metrics["run/samples_per_s"] == 7.0


def test_a_run_on_one_machine_is_tracked(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    script = tmp_path / "train.py"
    script.write_text(
        "import headrace\nfor n in range(3):\n    headrace.report(epoch=n, loss=n / 4)"
    )
    words = [sys.executable, "-m", "headrace", "run", "--local", "--set", "lr=0.5"]
    words += ["--track", f"tensorboard:{tmp_path / 'figures'}", str(script)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "figures are logged to TensorBoard" in done.stderr
    (folder,) = (tmp_path / "figures").iterdir()
    read = EventAccumulator(str(folder))
    read.Reload()
    losses = [(each.step, each.value) for each in read.Scalars("loss")]
    assert losses == [(0, 0.0), (1, 0.25), (2, 0.5)]
    (text,) = read.Tensors("config")[0].tensor_proto.string_val
    assert b"config.lr: 0.5" in text
