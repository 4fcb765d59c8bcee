"""Damaged files are never used without a word: a sample of `benchmarks/corruptions.py`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch_geometric")

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("num_store", "num_formats", "num_local"),
    [(28, 49, 0), pytest.param(140, 210, 14, marks=pytest.mark.campaign)],
)
def test_damage_is_never_silent(num_store: int, num_formats: int, num_local: int) -> None:
    words = ["benchmarks/corruptions.py", "--json", "--store", str(num_store)]
    words += ["--formats", str(num_formats), "--local", str(num_local)]
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert json.loads(done.stdout)["store"]["refused"] == num_store
