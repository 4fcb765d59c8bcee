"""Commands, options, public names and file formats are those of `surface.json`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def test_commands_names_and_formats_are_as_recorded() -> None:
    pytest.importorskip("torch_geometric")
    command = [sys.executable, "-m", "tests.support.surface"]
    # A process of its own: PyG warns when it is imported, and here warnings are errors.
    done = subprocess.run(command, cwd=HERE.parents[1], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    recorded = json.loads((HERE / "surface.json").read_text())
    assert found["commands"] == recorded["commands"]
    assert found["names"] == recorded["names"]
    assert found["formats"] == recorded["formats"]
