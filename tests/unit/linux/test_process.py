"""What processes do, read from real ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from headrace.linux.process import is_stopped, session_activity
from tests.support.waiting import eventually

WORKS = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"


@pytest.fixture
def worker() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", WORKS], start_new_session=True)
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_the_children_of_a_process_count(worker: subprocess.Popen[bytes]) -> None:
    before = session_activity(worker.pid)
    assert eventually(lambda: session_activity(worker.pid).cpu_s > before.cpu_s + 0.1)


def test_who_is_stopped(worker: subprocess.Popen[bytes]) -> None:
    assert not is_stopped(worker.pid)
    worker.send_signal(signal.SIGSTOP)
    assert eventually(lambda: is_stopped(worker.pid))
    worker.send_signal(signal.SIGCONT)
    assert eventually(lambda: not is_stopped(worker.pid))
    assert not is_stopped(2**22 + 1)
    assert session_activity(2**22 + 1).cpu_s == 0
