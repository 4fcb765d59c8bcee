"""Start a Ray node on each emulated machine, with the cluster file's resources."""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from subprocess import Popen

from headrace.core.errors import MissingExtraError, RunError, SpecError
from headrace.prefork.client import start_alone
from headrace.prefork.identity import python_path
from headrace.prefork.server import PADDING, PRELOADS
from headrace.testbed import machines, processes
from headrace.testbed.layout import RAY_PORT, Host, HostLayout

_OBJECT_STORE_BYTES = 100_000_000
"""Small, since data does not go through Ray; Ray requires at least 75 MB."""

_POLL_EVERY_S = 0.05

_WARM_SERVERS = "headrace.testbed.warm_servers"

_LISTENS = "0A"
"""TCP_LISTEN in /proc/net/tcp."""

_SETTINGS = {
    # Otherwise every node starts one Python process per CPU for the first driver.
    "RAY_prestart_worker_first_driver": "0",
}


def check_ray() -> None:
    """Raise `MissingExtraError` if Ray is not installed."""
    from importlib.util import find_spec

    if find_spec("ray") is None:
        raise MissingExtraError(
            "Ray, which runs on the machines of a testbed, is not installed",
            "pip install 'headrace[train]', or use --without-ray",
        )


def node_command(layout: HostLayout, host: Host) -> list[str]:
    """Command that starts a Ray node and waits until it has started."""
    rest = dict(host.resources)
    options = [
        f"--node-ip-address={host.address}",
        f"--num-cpus={_whole(host, 'cpu', rest.pop('cpu', 0))}",
        f"--num-gpus={_whole(host, 'gpu', rest.pop('gpu', 0))}",
        f"--labels=host={host.name}",
        f"--object-store-memory={_OBJECT_STORE_BYTES}",
        f"--temp-dir={host.folder / 'ray'}",
        "--include-log-monitor=false",
        "--disable-usage-stats",
    ]
    if "memory" in rest:
        options.append(f"--memory={int(rest.pop('memory'))}")
    if rest:
        options.append(f"--resources={json.dumps(rest)}")
    if host == layout.hosts[0]:
        role = ["--head", f"--port={RAY_PORT}", "--include-dashboard=false", "--no-monitor"]
    else:
        role = [f"--address={layout.ray_address}"]
    settings = [f"{name}={value}" for name, value in _SETTINGS.items()]
    start = [sys.executable, "-m", "ray.scripts.scripts", "start"]
    clean = [
        "env",
        "-u",
        "RAY_ADDRESS",
        "-u",
        "RAY_TMPDIR",
        f"PYTHONPATH={os.pathsep.join(python_path(os.environ))}",
    ]
    return [*clean, *settings, *start, *role, *options]


def warm(layout: HostLayout) -> None:
    """Start fork servers for every machine in the background, so that tasks start faster.

    They end with their machine. Tasks also start without them, but more slowly.
    """
    for preload in PRELOADS:
        log = layout.folder / f"{preload}.log"
        start_alone(_WARM_SERVERS, [preload, layout.name, PADDING], log)


def _whole(host: Host, resource: str, amount: float) -> int:
    if amount != int(amount):
        raise SpecError(
            f"machine {host.name} has {amount:g} {resource}, but Ray requires a whole number",
            f"use a whole number of {resource} in the cluster file",
        )
    return int(amount)


def write_token(layout: HostLayout) -> None:
    """Create a new token for Ray, in a file that only this user can read."""
    file = os.open(layout.ray_token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(file, "w", encoding="ascii") as token:
        token.write(secrets.token_hex(32))


def start_nodes(layout: HostLayout, log: Callable[[str], None], deadline_s: float) -> None:
    """Start Ray with a new token: first the head node, then all others in parallel."""
    end_s = time.monotonic() + deadline_s
    head, *others = layout.hosts
    nodes: dict[str, Popen[bytes]] = {}
    write_token(layout)
    try:
        log(f"starting Ray's head on {head.name}")
        nodes[head.name] = _start(layout, head)
        while not _is_listening(head):
            _check(layout, nodes)
            _check_time(layout, [head.name], "Ray's head to listen", end_s)
            time.sleep(_POLL_EVERY_S)
        if others:
            log(f"starting Ray on {', '.join(host.name for host in others)}")
        nodes |= {host.name: _start(layout, host) for host in others}
        while waiting := [name for name, node in nodes.items() if node.poll() is None]:
            _check(layout, nodes)
            _check_time(layout, waiting, "its Ray node to join", end_s)
            time.sleep(_POLL_EVERY_S)
        _check(layout, nodes)
    except BaseException:
        for node in nodes.values():
            node.kill()
            node.wait()
        raise


def _start(layout: HostLayout, host: Host) -> Popen[bytes]:
    return machines.run_on(layout, host.name, node_command(layout, host))


def _check(layout: HostLayout, nodes: Mapping[str, Popen[bytes]]) -> None:
    for name, node in nodes.items():
        if node.poll():
            tail = machines.tail(layout, name)
            raise RunError(
                f"Ray on machine {name} exited with code {node.returncode}: {tail}",
                "check that this machine has free memory and that Ray works outside of a testbed",
            )


def _check_time(layout: HostLayout, waiting: Sequence[str], what: str, end_s: float) -> None:
    if time.monotonic() > end_s:
        first = waiting[0]
        also = f" (also {', '.join(waiting[1:])})" if waiting[1:] else ""
        raise RunError(
            f"machine {first}{also} timed out waiting for {what}: {machines.tail(layout, first)}",
            "retry when this machine has less load, or with fewer machines",
        )


def _is_listening(host: Host) -> bool:
    assert host.init is not None
    try:
        lines = Path(f"/proc/{host.init.pid}/net/tcp").read_text().splitlines()[1:]
        lines += Path(f"/proc/{host.init.pid}/net/tcp6").read_text().splitlines()[1:]
    except OSError:
        return False
    sockets = (line.split() for line in lines)
    return any(each[3] == _LISTENS and each[1].endswith(f":{RAY_PORT:04X}") for each in sockets)


def names_without_ray(layout: HostLayout) -> list[str]:
    """Machines whose Ray node has exited."""
    homes = {
        processes.namespace_of(host.init.pid, "pid"): host.name
        for host in layout.hosts
        if processes.is_alive(host.init) and host.init is not None
    }
    numbers: Sequence[int] = [number for number in homes if number is not None]
    found: dict[str, set[str]] = {host.name: set() for host in layout.hosts}
    for number, seen in processes.living_in(numbers, "pid"):
        found[homes[number]].add(seen.command)
    head = layout.hosts[0].name
    return [
        name
        for name, commands in found.items()
        if "raylet" not in commands or (name == head and "gcs_server" not in commands)
    ]
