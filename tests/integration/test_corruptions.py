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


def test_damage_is_never_silent() -> None:
    words = ["benchmarks/corruptions.py", "--json"]
    words += ["--store", "42", "--formats", "70", "--local", "1"]
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert json.loads(done.stdout)["store"]["refused"] == 42
