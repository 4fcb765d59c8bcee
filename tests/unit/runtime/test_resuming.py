"""What it takes to go on with a run: its folder, and what it was asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.api.plan import plan
from headrace.core.cluster import Cluster
from headrace.core.errors import SpecError
from headrace.core.job import Job
from headrace.runtime.run_dir.run_config import RunConfig, RunSettings
from headrace.runtime.run_dir.run_dir import RunDirectory

CLUSTER = Cluster.model_validate(
    {"version": 1, "machines": [{"name": "m", "count": 2, "nic": "1Gbps"}]}
)


@pytest.fixture
def folder(tmp_path: Path) -> RunDirectory:
    with RunDirectory.create(tmp_path / "runs", "job") as folder:
        return folder


def test_a_run_is_asked_for_again_as_it_was(folder: RunDirectory, tmp_path: Path) -> None:
    wanted = RunConfig(
        plan=plan(CLUSTER, Job(trainers=2, batch_size=4), method="colocate"),
        graph=tmp_path / "parts",
        script=tmp_path / "train.py",
        arguments=("--epochs", "3"),
        config={"lr": 0.1, "width": 8},
        tls=False,
        checkpoint_every=50,
    )
    folder.plan.write_text(wanted.plan.model_dump_json())
    wanted.settings.save(folder.path)
    assert RunConfig.resumed(folder) == wanted.model_copy(update={"resume": folder.path})
    changed = RunConfig.resumed(folder, config={"lr": 0.2}, checkpoint_every=7)
    assert changed.config == {"lr": 0.2, "width": 8}
    assert changed.checkpoint_every == 7
    folder.plan.write_text("{}")
    with pytest.raises(SpecError, match="cannot be read as a plan"):
        RunConfig.resumed(folder)
    assert RunConfig.resumed(folder, plan=wanted.plan).plan == wanted.plan


def test_a_folder_without_what_was_asked_for(folder: RunDirectory) -> None:
    with pytest.raises(SpecError, match=r"cannot be resumed: it has no run.json"):
        RunConfig.resumed(folder)
    (folder.path / "run.json").write_text('{"version": 2}')
    with pytest.raises(SpecError, match="version"):
        RunSettings.load(folder.path)


def test_only_one_process_drives_a_run(tmp_path: Path) -> None:
    said = r"is still running, driven by pid \d+ on"
    with RunDirectory.create(tmp_path, "job") as folder, pytest.raises(SpecError, match=said):
        RunDirectory(folder.path).reopen()
    with RunDirectory(folder.path).reopen(), pytest.raises(SpecError, match="is still running"):
        RunDirectory(folder.path).reopen()
    RunDirectory(folder.path).reopen().close()
    with pytest.raises(SpecError, match="cannot be resumed"):
        RunDirectory(tmp_path / "nowhere").reopen()
