"""A run on one machine is not done before its graph is verified."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.core.errors import DamagedGraphError, RunError
from headrace.runtime.controller import local_backend
from headrace.runtime.controller.local_backend import LocalRun
from tests.unit.graph.small_graphs import homogeneous, write


class Nobody:
    output: int | None = None

    def log(self, line: str) -> None: ...

    def notify(self, message: Any) -> None: ...

    def show(self, line: str) -> None: ...


def run(folder: Path, fails: bool, monkeypatch: pytest.MonkeyPatch) -> int:
    def stands_for_a_run(*_: Any) -> int:
        if fails:
            raise RunError("store 0 is gone", "run again")
        return 0

    monkeypatch.setattr(local_backend, "_run", stands_for_a_run)
    monkeypatch.setattr(Path, "home", lambda: folder)
    wanted = LocalRun(folder / "train.py", parts=folder / "parts")
    return local_backend._run_verified(wanted, 2, "m0", folder, Nobody())


@pytest.mark.parametrize("fails", [False, True])
def test_a_damaged_file_is_why_a_run_fails(
    fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(homogeneous(), tmp_path / "parts", 2)
    if not fails:
        assert run(tmp_path, fails, monkeypatch) == 0
    else:
        with pytest.raises(RunError, match="store 0 is gone"):
            run(tmp_path, fails, monkeypatch)
    path = tmp_path / "parts" / "part-1" / "node-0" / "x.bin"
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(DamagedGraphError, match=r"part-1/node-0/x\.bin has the checksum"):
        run(tmp_path, fails, monkeypatch)
