"""Scores of remote nodes in a run with stores and samplers."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch_geometric")
pytest.importorskip("ray")

import headrace
from headrace.graph.sampler_worker.config import SamplerConfig, ScoringConfig
from headrace.graph.sampler_worker.scoring import read_message, write_message

pytestmark = pytest.mark.integration

SCRIPT = Path(__file__).parent / "scored_script.py"
HANG_S = 240


def run(folder: Path, scored: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headrace", "run", "--local", str(SCRIPT)]
    options = ["--parts", str(folder / "parts"), "--samplers", "1"]
    rest = ["--", str(folder / "parts"), str(scored)]
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
    done = run(tmp_path, tmp_path / "scored")
    assert done.returncode == 0, done.stderr
    assert "1 samplers" in done.stdout
    assert "17 of 20 features" in sampler_log(tmp_path / "runs")


def test_a_model_that_cannot_be_loaded_is_reported(tmp_path: Path) -> None:
    graph = headrace.partition(
        "generated:nodes=200,edges=2000,features=4", tmp_path / "parts", parts=2
    )
    config = SamplerConfig(
        graph=graph.folder,
        node_type="node",
        seeds=tmp_path / "none.npy",
        seeds_per_iteration=1,
        batches_per_epoch=1,
        fanouts=tuple((edge_type, (2,)) for edge_type in graph.edge_types),
        scoring=ScoringConfig(),
    )
    first = json.dumps({"config": config.model_dump(mode="json"), "home": 0}).encode()
    command = [sys.executable, "-m", "headrace.training.remote_sampling"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for message in (first, b"not a model"):
            write_message(process.stdin, message)
        reply = read_message(process.stdout)
        assert reply is not None
        with np.load(io.BytesIO(reply)) as found:
            assert "UnpicklingError" in str(found["error"])
        process.stdin.close()
        assert process.wait(HANG_S) == 0
