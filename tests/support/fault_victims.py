"""Who can be killed on a testbed, how a network is cut, and what is left of runs afterwards."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from headrace.core.errors import RunError
from headrace.testbed import Testbed, machines, ray_nodes

KINDS = ("store", "sampler", "trainer", "ps", "raylet", "driver")

_MODULES = {
    "headrace.graph.store": "store",
    "headrace.graph.sampler_worker": "sampler",
    "headrace.training.parameter_server": "ps",
    "headrace.runtime.trainer": "trainer",
    "headrace": "driver",
}
_COMMANDS = {"raylet": "raylet", "head": "gcs_server"}
# Every shell has a folder that is named after its task.
_TASK = re.compile(r"/headrace-run-\d+\.\d+-([a-z]+[\d.]+)-")
_RAY_START_S = 120.0
_RAY_TRIES = 3
_OF_OTHERS = ("ray", "torch_geometric.")
_NOWHERE = "02:00:00:00:00:99"


@dataclass(frozen=True)
class Victim:
    """A process on a machine of a testbed.

    Attributes:
        kind: One of `KINDS`.
        name: Of the task; else its kind.
        machine: Where it is.
        pid: As this machine counts.
    """

    kind: str
    name: str
    machine: str
    pid: int

    def __str__(self) -> str:
        return f"{self.name} on {self.machine}"


def victims(bed: Testbed, kind: str) -> list[Victim]:
    """All that live now, in the order of their names."""
    networks = {
        os.stat(f"/proc/{host.init.pid}/ns/net").st_ino: host.name
        for host in bed.hosts
        if host.init is not None
    }
    found: dict[str, Victim] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            machine = networks.get(os.stat(entry / "ns" / "net").st_ino)
            if machine is None:
                continue
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            name = _name(entry, words, kind)
        except OSError:
            continue
        if name is not None:
            victim = Victim(kind, name, machine, int(entry.name))
            found[str(victim)] = victim
    return [found[name] for name in sorted(found)]


def _name(entry: Path, words: list[str], kind: str) -> str | None:
    if kind in _COMMANDS:
        return kind if (entry / "comm").read_text().strip() == _COMMANDS[kind] else None
    if kind == "actor":
        name = words[0].removeprefix("ray::").partition("Actor")[0]
        return f"{name} actor {entry.name}" if words[0].startswith(f"ray::{name}Actor") else None
    if words[1:2] != ["-m"] or _MODULES.get(words[2]) != kind:
        return None
    if kind == "driver":
        return kind
    # Trainers work in their folder, all others are given a file in theirs.
    match = _TASK.search(" ".join(words)) or _TASK.search(os.readlink(entry / "cwd"))
    return None if match is None else match[1]


def start_raylet(bed: Testbed, machine: str) -> None:
    """Give a machine a Ray node again."""
    command = ray_nodes.node_command(bed.layout, bed.layout.host(machine))
    for _ in range(_RAY_TRIES):
        if machines.run_on(bed.layout, machine, command).wait(_RAY_START_S) == 0:
            return
        # Ray gives up after half a minute, whatever the machine has to do.
        for victim in victims(bed, "raylet"):
            if victim.machine == machine:
                os.kill(victim.pid, signal.SIGKILL)
    raise RuntimeError(f"Ray on {machine} does not start: {machines.tail(bed.layout, machine)}")


def start_head(bed: Testbed) -> None:
    """Start Ray anew on all machines: nodes do not outlive their head."""
    for kind in ("head", "raylet"):
        for victim in victims(bed, kind):
            os.kill(victim.pid, signal.SIGKILL)
    for _ in range(_RAY_TRIES):
        bed.layout.ray_token.unlink()
        try:
            ray_nodes.start_nodes(bed.layout, lambda line: None, _RAY_START_S)
        except RunError:
            continue
        return
    raise RuntimeError("Ray does not start again")


def cut(bed: Testbed, one: str, other: str, is_cut: bool) -> None:
    """Cut the network between two machines, or mend it; others reach both of them."""
    for here, there in ((one, other), (other, one)):
        address = bed.layout.host(there).address
        if is_cut:
            how = ["replace", address, "lladdr", _NOWHERE, "nud", "permanent", "dev", "eth0"]
        else:
            how = ["del", address, "dev", "eth0"]
        words = ["ip", "-n", bed.layout.host(here).namespace, "neigh", *how]
        subprocess.run(words, check=True, timeout=30)


def left_files(bed: Testbed) -> set[str]:
    """Temporary files on the machines of a testbed, but those that Ray and PyG leave anyway."""
    found = set()
    for host in bed.hosts:
        names = os.listdir(machines.tmp_folder(host))
        found |= {f"{host.name}: {name}" for name in names if not name.startswith(_OF_OTHERS)}
    return found
