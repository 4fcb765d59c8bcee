"""Runs of small plans on a testbed, as a user starts them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace.runtime.run_dir.temp_dirs import PREFIX
from headrace.testbed import Testbed
from headrace.testbed.machines import tmp_folder
from tests.support.waiting import eventually

START_S = 240.0
"""A start takes some ten seconds; tests share two cores."""


class Run:
    """A `headrace run` on the first machine of a testbed.

    Args:
        bed: Where it runs.
        folder: With `plan.json` and `parts`.
        script: To train with.
        options: More of them.
        before: Command that runs it.
    """

    def __init__(
        self,
        bed: Testbed,
        folder: Path,
        script: Path,
        options: Sequence[str] = (),
        before: Sequence[str] = (),
        graph: Path | None = None,
    ) -> None:
        self.bed, self.runs = bed, folder / "runs"
        self._known = {path.name for path in self.runs.glob("2*")}
        words = [sys.executable, "-m", "headrace", "run", "--plan", str(folder / "plan.json")]
        words += ["--graph", str(graph or folder / "parts"), "--runs", str(self.runs)]
        words += ["--json", *options, str(script)]
        # Its own session: what is sent to its group reaches the driver alone.
        self.process = subprocess.Popen(
            bed.command("m0", [*before, *words]),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    @property
    def folder(self) -> Path:
        """The run's folder, once it has one."""
        assert eventually(self._new)
        return self.runs / self._new()[0]

    def _new(self) -> list[str]:
        return sorted({path.name for path in self.runs.glob("2*")} - self._known)

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = json.loads((self.folder / "status.json").read_text())
        return status

    def task(self, name: str) -> dict[str, Any]:
        (task,) = [task for task in self.status()["tasks"] if task["name"] == name]
        return dict(task)

    def events(self, kind: str) -> list[dict[str, Any]]:
        lines = (self.folder / "events.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["kind"] == kind]

    def wait_for(self, state: str) -> None:
        def is_there() -> bool:
            return self.process.poll() is not None or self.status()["state"] == state

        assert eventually(is_there)
        assert self.process.poll() is None, self.process.communicate()[1]

    def end(self, timeout_s: float = START_S) -> tuple[int, str, str]:
        """Wait for its end; exit code, output and errors."""
        out, err = self.process.communicate(timeout=timeout_s)
        return self.process.returncode, out, err


def left_in(bed: Testbed) -> list[str]:
    """Processes of headrace on the machines of a testbed, and actors that Ray keeps for it."""
    found = []
    for host in bed.hosts:
        words = bed.command(host.name, ["ps", "-eo", "pid,args"])
        for line in subprocess.run(
            words, capture_output=True, text=True, check=True
        ).stdout.splitlines():
            if "headrace." in line or "Actor" in line:
                found.append(f"{host.name}: {line}")
    return found


def machine_folders(bed: Testbed) -> set[Path]:
    """Folders that shells have made on the machines of a testbed."""
    temporary = [tmp_folder(host) for host in bed.hosts]
    return {path for folder in temporary for path in folder.glob(f"{PREFIX}*")}
