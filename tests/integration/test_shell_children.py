"""Processes of shells: how they end, what they said, what they leave."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.linux.network import free_port, interface_of, nic_bytes, rss_bytes
from headrace.runtime.cluster.local_actors import LocalActors
from headrace.runtime.workers.base import TaskActor
from headrace.runtime.workers.task_process import TaskProcess, how_ended
from tests.support.disks import fill, small_disk
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

WAITS = "import sys; print('up', flush=True); sys.stdin.read()"
SAVES = """
import time
try:
    print("up", flush=True)
    time.sleep(1000)
except KeyboardInterrupt:
    print("saved")
"""
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
print("up", child.pid, flush=True)
time.sleep(1000)
"""
FAILS = "import sys; print('hello'); sys.exit('ValueError: no')"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def _ignored() -> Iterator[None]:
    """As in a process of Ray, which ignores Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


def is_up(log: Path) -> bool:
    return eventually(lambda: "up" in log.read_text())


def has_ended(child: TaskProcess) -> bool:
    return eventually(lambda: child.code is not None)


def test_a_closed_input_ends_it(log: Path) -> None:
    child = TaskProcess([sys.executable, "-c", WAITS], log)
    assert is_up(log)
    assert child.code is None
    assert rss_bytes(child.pid) > 1e6
    child.stop(60)
    assert has_ended(child)
    assert child.code == 0
    assert child.ended_ago_s >= 0


@pytest.mark.usefixtures("_ignored")
def test_a_script_may_save_what_it_has(log: Path) -> None:
    child = TaskProcess([sys.executable, "-c", SAVES], log, end_by=signal.SIGINT)
    assert is_up(log)
    child.stop(60)
    assert has_ended(child)
    assert child.code == 0
    assert log.read_text().split() == ["up", "saved"]
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_whoever_does_not_listen_is_killed_with_all_it_started(log: Path) -> None:
    child = TaskProcess([sys.executable, "-c", STUBBORN], log, end_by=signal.SIGINT)
    assert is_up(log)
    beside = int(log.read_text().split()[1])
    child.end(0.1)
    assert child.code == -signal.SIGKILL
    assert how_ended(-9) == "was ended by SIGKILL, possibly out of memory"
    assert eventually(lambda: rss_bytes(beside) == 0)


ASKED_TWICE = """
import signal, time
asked = []
def ask(number, frame):
    asked.append(number)
    print("asked", flush=True)
signal.signal(signal.SIGINT, ask)
print("up", flush=True)
while len(asked) < 2:
    time.sleep(0.01)
"""


def test_it_is_asked_again_before_it_is_killed(log: Path) -> None:
    child = TaskProcess([sys.executable, "-c", ASKED_TWICE], log, end_by=signal.SIGINT)
    assert is_up(log)
    child.stop(1000)
    assert eventually(lambda: "asked" in log.read_text())
    assert child.code is None
    # Told again with less time, it has less.
    child.stop(60)
    child._repeat_s = 0.0
    assert has_ended(child)
    assert child.code == 0


def test_last_words_are_those_of_the_newest_process(log: Path) -> None:
    log.write_text("Error: of another one\n")
    child = TaskProcess([sys.executable, "-c", FAILS], log)
    assert has_ended(child)
    assert (child.code, child.last_error_line()) == (1, "ValueError: no")
    quiet = TaskProcess([sys.executable, "-c", ""], log)
    assert has_ended(quiet)
    assert quiet.last_error_line() == ""
    warned = TaskProcess(
        [sys.executable, "-c", "print('begins\\n[W1115 13:40:00 socket.cpp] hm')"], log
    )
    assert has_ended(warned)
    assert warned.last_error_line() == "begins"


def test_a_machine_knows_its_card() -> None:
    name = interface_of("127.0.0.1")
    assert name is not None
    assert nic_bytes(name) is not None
    assert nic_bytes("none") is None
    assert interface_of("192.0.2.1") is None
    assert 0 < free_port("127.0.0.1") < 65536


def test_a_stopped_process_is_killed_and_tells_why(log: Path) -> None:
    actor = TaskActor("store0", "m0", LocalActors("m0"))
    try:
        actor._process = child = TaskProcess([sys.executable, "-c", WAITS], log)
        actor.kill_hung("does nothing", only_stopped=True)
        assert actor.state().pid == child.pid
        os.kill(child.pid, signal.SIGSTOP)
        assert eventually(lambda: actor.state().is_stopped)
        actor.kill_hung("does nothing", only_stopped=True)
        assert eventually(lambda: actor.state().code == -signal.SIGKILL)
        assert actor.state().how == "does nothing, and was killed"
    finally:
        actor.close()


def test_a_task_whose_disk_is_full_says_so(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        actor = TaskActor("trainer0", "m0", LocalActors("m0"))
        actor.folder.rmdir()
        actor.folder, actor.log_path = disk, disk / "trainer0.log"
        code = "import sys; sys.stdin.read(); sys.exit(3)"
        actor._process = TaskProcess([sys.executable, "-c", code], actor.log_path)
        filler = fill(disk)
        actor._process.stop()
        assert eventually(lambda: actor.state().code == 3)
        assert actor.state().last_error == f"error: no space left on the disk of {tmp_path}"
        filler.unlink()
        assert actor.state().last_error == ""
        actor.close()
