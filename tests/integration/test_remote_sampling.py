"""Scores of remote nodes in a run with stores and samplers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch_geometric")
pytest.importorskip("ray")

import headrace

pytestmark = pytest.mark.integration

SCRIPT = Path(__file__).parent / "scored_script.py"
HANG_S = 240


def run(folder: Path, score: str, epochs: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headrace", "run", "--local", str(SCRIPT)]
    options = ["--parts", str(folder / "parts"), "--samplers", "1"]
    rest = ["--", str(folder / "parts"), score, str(epochs)]
    return subprocess.run(
        [*command, *options, *rest], capture_output=True, text=True, timeout=HANG_S, check=False
    )


def sampler_log(runs: Path) -> str:
    return "".join(path.read_text() for path in runs.rglob("sampler0.0*.log"))


def test_samplers_score_with_the_newest_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_RUNS", str(tmp_path / "runs"))
    headrace.partition("generated:nodes=2000,edges=20000,features=20", tmp_path / "parts", parts=2)
    # More epochs than the explanation process needs to start.
    done = run(tmp_path, "explained", 150)
    assert done.returncode == 0, done.stderr
    assert "1 samplers" in done.stdout
    assert "17 of 20 features" in sampler_log(tmp_path / "runs")
    failed = run(tmp_path, "wrong", 10_000)
    assert failed.returncode != 0
    assert "these scores cannot be computed" in failed.stderr
    assert "Traceback" not in failed.stderr
