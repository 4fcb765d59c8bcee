"""Start and end emulated machines, and run commands on them."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from headrace.core.errors import RunError
from headrace.testbed import nsenter, processes
from headrace.testbed.layout import Host, HostLayout, Process, hosts_file
from headrace.testbed.network import NAMESPACES

_START_S = 30.0

# Process 1 of a machine. It ignores SIGCHLD, so that the kernel reaps orphans (not possible with a
# shell's `trap`). Its own /dev/shm ends with the machine.
_HOLD = """
cd /
echo "$1" > /proc/sys/kernel/hostname &&
mount --bind "$2" /etc/hosts &&
mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs /dev/shm &&
echo ready &&
exec env --ignore-signal=CHLD sleep infinity > /dev/null 2>&1
"""

# Joins a control group and executes the rest.
_JOIN = 'echo $$ > "$1" && shift && exec "$@"'


def hold_command(host: Host, names: Path) -> list[str]:
    """Command that starts process 1 of a machine; `names` becomes its `/etc/hosts`."""
    # Unmounts must propagate into the machine (slave); otherwise it keeps removed namespaces alive.
    unshare = "unshare --uts --pid --mount --propagation slave --fork --kill-child --mount-proc"
    script = ["sh", "-c", _HOLD, "hold", host.name, str(names)]
    hold = ["ip", "netns", "exec", host.namespace, *unshare.split(), *script]
    return [*join_command(host), *hold]


def join_command(host: Host) -> list[str]:
    """Prefix of a command that runs within the machine's CPU limit."""
    if host.cgroup is None:
        return []
    return ["/bin/sh", "-c", _JOIN, "join", str(host.cgroup / "cgroup.procs")]


def start_machine(layout: HostLayout, host: Host) -> Host:
    """Start a machine in its namespaces; its network exists already."""
    tmp_folder(host).mkdir(parents=True)
    names = layout.folder / "hosts"
    if not names.exists():
        names.write_text(hosts_file(layout))
    command = hold_command(host, names)
    log = host.folder / "log"
    output, given = os.pipe()
    try:
        # Not a Popen: it outlives this process and is never waited for.
        pid = os.posix_spawnp(
            command[0],
            command,
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, given, 1),
                (os.POSIX_SPAWN_OPEN, 2, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
            ],
            setsid=True,
        )
        os.close(given)
        given = -1
        text = _read(output, time.monotonic() + _START_S)
    finally:
        os.close(output)
        if given >= 0:
            os.close(given)
    holder = processes.read_process(pid)
    inits = [each.process for each in processes.list_processes() if each.parent == pid]
    if text != b"ready\n" or holder is None or len(inits) != 1:
        raise RunError(
            f"machine {host.name} did not start within {_START_S:g} s: {tail(layout, host.name)}",
            "check whether `unshare --pid --mount --fork true` works here",
        )
    return host.model_copy(update={"holder": holder.process, "init": inits[0]})


def _read(pipe: int, end_s: float) -> bytes:
    ready, _, _ = select.select([pipe], [], [], max(0.0, end_s - time.monotonic()))
    return os.read(pipe, 64) if ready else b""


def enter_command(layout: HostLayout, name: str, command: Sequence[str]) -> list[str]:
    """Command that runs `command` on an emulated machine."""
    host = layout.host(name)
    if host.init is None or not processes.is_alive(host.init):
        raise RunError(
            f"machine {name} of testbed {layout.name!r} is not running",
            f"bring it up again: headrace testbed up --name {layout.name} --cluster ...",
        )
    numbers = (str(host.init.pid), str(host.init.start_ticks))
    variables = json.dumps(variables_of(layout, host))
    enter_it = [sys.executable, "-I", "-S", str(nsenter.__file__), *numbers, variables]
    return [*join_command(host), *enter_it, *command]


def variables_of(layout: HostLayout, host: Host) -> dict[str, str | None]:
    """Changed environment variables of a machine's processes; None unsets one."""
    variables: dict[str, str | None] = {
        "GLOO_SOCKET_IFNAME": "eth0",
        "RAY_USAGE_STATS_ENABLED": "0",
        # The file system is shared, process IDs are not: files named after one would collide.
        "TMPDIR": str(tmp_folder(host)),
    }
    if layout.ray_address is not None:
        variables |= {
            "RAY_ADDRESS": layout.ray_address,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(layout.ray_token),
            # Takes precedence over the token file, and processes would inherit it.
            "RAY_AUTH_TOKEN": None,
        }
    return variables


def tmp_folder(host: Host) -> Path:
    """Directory of temporary files of a machine's processes."""
    return host.folder / "tmp"


def end_machines(layout: HostLayout, deadline_s: float) -> list[Process]:
    """Kill all processes of the machines; returns those still alive after `deadline_s`."""
    if layout.boot_id != processes.boot_id():
        return []
    known = [each for host in layout.hosts for each in (host.init, host.holder) if each is not None]
    left = processes.end(known, deadline_s)
    # A crash while starting leaves unrecorded processes; they are found by their network namespace.
    unrecorded = [seen.process for _, seen in processes.living_in(_networks(layout), "net")]
    return left + processes.end(unrecorded, deadline_s)


def _networks(layout: HostLayout) -> list[int]:
    own = processes.namespace_of(os.getpid(), "net")
    numbers = []
    for host in layout.hosts:
        try:
            number = os.stat(NAMESPACES / host.namespace).st_ino
        except OSError:
            continue
        if number != own:
            numbers.append(number)
    return numbers


def tail(layout: HostLayout, name: str, num_lines: int = 12) -> str:
    """The last lines of a machine's log, for a message."""
    log = layout.host(name).folder / "log"
    try:
        lines = log.read_text(errors="replace").strip().splitlines()[-num_lines:]
    except OSError:
        lines = []
    return "\n    ".join(["", *lines]) if lines else "it wrote nothing"


def run_on(layout: HostLayout, name: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a command on a machine; its output is appended to the machine's log."""
    with (layout.host(name).folder / "log").open("ab") as log:
        return subprocess.Popen(
            enter_command(layout, name, command),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
