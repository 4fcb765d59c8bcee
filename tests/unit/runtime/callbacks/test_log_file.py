"""All lines of a run, with who said them and how bad they are."""

from __future__ import annotations

import json
import socket
from pathlib import Path

from headrace.runtime.callbacks.log_file import LogFile
from headrace.runtime.run_dir.status import Failure, RunState
from tests.unit.runtime.listened import small_plan, status


def test_every_line_has_its_task_and_machine(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "log.jsonl", clock=lambda: 12.3456)
    log.began(*small_plan())
    log.log("starting 2 stores")
    log.printed("trainer1", b"epoch 1\nUserWarning: sl")
    log.printed("trainer1", "ow\nTraceback (most recent call last):\n  x\nValueError: é".encode())
    error = Failure(problem="trainer1 on m1 exited with code 1", remedy="see its log")
    log.finished(status(state=RunState.FAILED, error=error))
    found = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert all(entry.pop("at_s") == 12.346 for entry in found)
    here = socket.gethostname()
    assert [(entry["task"], entry["machine"]) for entry in found] == [
        ("driver", here),
        *[("trainer1", "m1")] * 5,
        ("driver", here),
    ]
    assert [(entry["level"], entry["text"]) for entry in found[:-1]] == [
        ("info", "starting 2 stores"),
        ("info", "epoch 1"),
        ("warning", "UserWarning: slow"),
        ("error", "Traceback (most recent call last):"),
        ("error", "  x"),
        ("error", "ValueError: é"),
    ]
    assert found[-1]["level"] == "error"
    assert "the run ended: failed; error: trainer1 on m1" in found[-1]["text"]
