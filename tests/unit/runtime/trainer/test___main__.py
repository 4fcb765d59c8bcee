"""What a script's own errors look like."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.core.errors import LOST_PEER_CODE

FAILS = "def fail(*_):\n    raise ValueError('not today')\n"


def said(folder: Path, script: str, code: int = 1) -> str:
    (folder / "train.py").write_text(script)
    (folder / "mine.py").write_text(FAILS)
    words = [sys.executable, "-m", "headrace.runtime.trainer", str(os.getpid()), "here", "train.py"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == code
    return done.stderr


def test_a_traceback_begins_in_the_script(tmp_path: Path) -> None:
    lines = said(tmp_path, f"{FAILS}fail()\n").splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1] == '  File "train.py", line 3, in <module>'
    assert lines[-1] == "ValueError: not today"


def test_a_lost_trainer_is_one_line(tmp_path: Path) -> None:
    what = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer"
    text = said(tmp_path, f"raise RuntimeError({what!r})\n", LOST_PEER_CODE)
    assert text == "error: trainer on here: lost another trainer: Connection closed by peer\n"


def test_an_interrupted_script_says_nothing_at_its_exit(tmp_path: Path) -> None:
    script = """
import atexit
atexit.register(lambda: {}["as if a thread disturbed it"])
raise KeyboardInterrupt
"""
    assert said(tmp_path, script, 130) == ""


@pytest.mark.integration
def test_or_in_the_users_function_wherever_that_is(tmp_path: Path) -> None:
    pytest.importorskip("torch_geometric")
    text = said(tmp_path, "from mine import fail as train_func\n")
    assert text.splitlines()[1] == f'  File "{tmp_path}/mine.py", line 2, in fail'
    assert "headrace" not in text
