"""Tasks that are forked by a fork server are what new processes would be, and end as they would."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.prefork.client import (
    ForkedProcess,
    ForkLease,
    ForkUnavailableError,
    socket_path,
    start_server,
)
from headrace.prefork.identity import identity_of
from headrace.prefork.server import ForkServer, short_name
from headrace.runtime.workers.task_process import SpawnedProcess, TaskProcess
from tests.support.waiting import LIMIT_S, eventually

pytestmark = pytest.mark.integration

SCRIPT = """
import json, os, random, sys, time
import numpy
words = open("/proc/self/cmdline", "rb").read().rstrip(b"\\0").decode().split("\\0")
print(json.dumps({
    "argv": sys.argv, "folder": os.getcwd(), "words": words, "name": __name__,
    "mark": os.environ.get("MARK"), "draws": [random.random(), numpy.random.random()],
    "session": os.getsid(0) == os.getpid(), "nice": os.nice(0),
    "files": sorted(os.listdir("/proc/self/fd"))[:3], "preloaded": "numba" in sys.modules,
}))
if sys.argv[1:] == ["wait"]:
    time.sleep(1000)
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def _own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "t"))
    (tmp_path / "t").mkdir()


@pytest.fixture
def lease(_own_place: None) -> Iterator[ForkLease]:
    made = ForkLease("graph")
    yield made
    made.close()
    assert eventually(lambda: not servers())


def servers() -> list[int]:
    """Fork servers of this test that live."""
    found = []
    for path in Path(tempfile.gettempdir()).glob("headrace-warm-*/*.lock"):
        done = subprocess.run(["flock", "-n", path, "true"], check=False)
        if done.returncode:
            found.append(done.returncode)
    return found


def start(folder: Path, *arguments: str, lease: ForkLease | None, **variables: str) -> TaskProcess:
    (folder / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "headrace.runtime.trainer", str(os.getpid()), "m0"]
    command += [str(folder / "script.py"), *arguments]
    environment = {**os.environ, "MARK": "x", "PYTHONUNBUFFERED": "1", **variables}
    log = folder / "log"
    return TaskProcess(command, log, environment, folder, end_by=signal.SIGINT, lease=lease)


def end_of(child: TaskProcess) -> int:
    assert eventually(lambda: child.code is not None)
    assert child.code is not None
    return child.code


def said(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "log").read_text().splitlines()]


def test_forked_task_is_what_a_new_process_is(lease: ForkLease, tmp_path: Path) -> None:
    for each in (lease, None, lease):
        child = start(tmp_path, "7", lease=each)
        assert isinstance(child._process, ForkedProcess if each else SpawnedProcess)
        assert end_of(child) == 7
    forked, spawned, again = said(tmp_path)
    assert forked.pop("preloaded")
    assert not spawned.pop("preloaded")
    draws = [each.pop("draws") for each in (forked, spawned, again)]
    assert len({number for pair in draws for number in pair}) == 6
    assert forked == spawned
    assert forked["words"][2] == "headrace.runtime.trainer"


@pytest.mark.parametrize("is_forked", [True, False], ids=["forked", "spawned"])
def test_an_interrupt_at_any_time_is_no_traceback(
    is_forked: bool, lease: ForkLease, tmp_path: Path
) -> None:
    for number in range(8):
        folder = tmp_path / str(number)
        folder.mkdir()
        child = start(folder, "wait", lease=lease if is_forked else None)
        # From the moment on in which it exists.
        time.sleep(0.01 * number)
        os.kill(child.pid, signal.SIGINT)
        assert end_of(child) == 130
        assert "Traceback" not in (folder / "log").read_text()


def test_interrupt_and_kill_reach_a_forked_task(lease: ForkLease, tmp_path: Path) -> None:
    asked = start(tmp_path, "wait", lease=lease)
    assert eventually(lambda: said(tmp_path))
    asked.stop()
    assert end_of(asked) == 130
    killed = start(tmp_path, "wait", lease=lease)
    os.kill(killed.pid, signal.SIGKILL)
    assert end_of(killed) == -signal.SIGKILL


@pytest.mark.usefixtures("_own_place")
def test_task_and_server_end_with_a_client_that_is_killed(tmp_path: Path) -> None:
    program = (
        "import sys, tempfile, time; from pathlib import Path\n"
        f"tempfile.tempdir = {tempfile.tempdir!r}\n"
        "from headrace.prefork.client import ForkLease\n"
        "from tests.integration.test_fork_server import start\n"
        f"child = start(Path({str(tmp_path)!r}), 'wait', lease=ForkLease('graph'))\n"
        "print(child.pid, flush=True); time.sleep(1000)\n"
    )
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=root, stdout=subprocess.PIPE, text=True
    ) as client:
        assert client.stdout is not None
        pid = int(client.stdout.readline())
        assert Path(f"/proc/{pid}").exists()
        client.kill()
    assert eventually(lambda: not Path(f"/proc/{pid}").exists())
    assert eventually(lambda: not servers())


def test_a_server_without_descriptors_keeps_its_tasks(lease: ForkLease, tmp_path: Path) -> None:
    child = start(tmp_path, "wait", lease=lease)
    server = int(Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[1])
    limits = resource.prlimit(server, resource.RLIMIT_NOFILE)
    resource.prlimit(server, resource.RLIMIT_NOFILE, (3, limits[1]))
    path = next(Path(tempfile.gettempdir()).glob("headrace-warm-*/*.lock")).with_suffix("")
    with socket.socket(socket.AF_UNIX) as waiting:
        with short_name(path) as name:
            waiting.connect(name)
        waiting.sendall(b"\0\0\0\2{}")
        time.sleep(0.2)
        assert child.code is None
        resource.prlimit(server, resource.RLIMIT_NOFILE, limits)
        waiting.settimeout(LIMIT_S)
        assert waiting.recv(1) == b""  # heard and refused
    child.stop()
    assert end_of(child) == 130


@pytest.mark.parametrize("data", [b"[" * 5000, b"{}", b"\xff"])
def test_a_server_outlives_any_request(tmp_path: Path, data: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        server = ForkServer(listener, {}, None)
        client.connect(str(tmp_path / "s"))
        client.sendall(len(data).to_bytes(4, "big") + data)
        server._accept()
        (accepted,) = server._clients
        assert server._receive(accepted) is None
        assert not server._clients
        server._selector.close()


def test_tasks_end_with_their_server(lease: ForkLease, tmp_path: Path) -> None:
    child = start(tmp_path, "wait", lease=lease)
    server = int(Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(server, signal.SIGKILL)
    assert end_of(child) == -signal.SIGKILL
    # The next one is started in the usual way.
    assert end_of(start(tmp_path, "0", lease=lease)) == 0


def test_a_server_serves_all_until_the_last_has_gone(lease: ForkLease, tmp_path: Path) -> None:
    other = ForkLease("graph")
    pids = set()
    for each in (lease, other):
        child = start(tmp_path, "0", lease=each)
        pids.add(Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[1])
        assert end_of(child) == 0
    assert len(pids) == 1
    other.close()
    assert end_of(start(tmp_path, "0", lease=lease)) == 0


def test_another_environment_is_not_forked(lease: ForkLease, tmp_path: Path) -> None:
    child = start(tmp_path, "0", lease=lease, NUMBA_DISABLE_JIT="1")
    assert isinstance(child._process, SpawnedProcess)
    assert end_of(child) == 0


@pytest.mark.usefixtures("_own_place")
def test_a_folder_of_others_is_not_used(tmp_path: Path) -> None:
    folder = Path(tempfile.gettempdir()) / f"headrace-warm-{os.getuid()}"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    with pytest.raises(ForkUnavailableError, match="not private to this user"):
        socket_path("graph", identity_of(os.environ))
    lease = ForkLease("graph")
    child = start(tmp_path, "0", lease=lease)
    assert isinstance(child._process, SpawnedProcess)
    assert end_of(child) == 0
    lease.close()


@pytest.mark.usefixtures("_own_place")
def test_servers_that_live_on_are_found(tmp_path: Path) -> None:
    start_server("graph", socket_path("graph", identity_of(os.environ)), keep_s=None)
    assert eventually(lambda: list(Path(tempfile.gettempdir()).glob("headrace-warm-*/graph-*")))
    lease = ForkLease("graph")
    child = start(tmp_path, "0", lease=lease)
    server = int(Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[1])
    assert end_of(child) == 0
    lease.close()
    assert servers()
    os.kill(server, signal.SIGKILL)
    assert eventually(lambda: not servers())
