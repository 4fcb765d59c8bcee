"""Who listens during a run on a testbed, what strangers hear there, and where secrets show."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.testbed import Testbed, processes
from tests.e2e.listeners import Listener, listeners_of
from tests.e2e.strangers import HEALTH, UNAUTHENTICATED, UNIMPLEMENTED, ray_methods

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "explanation" / "security.md"
OWNERS = (
    (r"headrace\.graph\.store\b", "store"),
    (r"headrace\.graph\.sampler_worker\b", "sub-batches"),
    (r"headrace\.training\.parameter_server\b", "parameter server"),
    (r"headrace\.runtime\.trainer\b", "torch"),
    (r"/gcs_server ", "Ray head"),
    (r"/raylet ", "Ray node"),
    (r"ray::RuntimeEnvAgent", "Ray environments"),
    (r"ray::DashboardAgent|dashboard/agent\.py", "Ray agent"),
    (r"dashboard/dashboard\.py", "Ray dashboard"),
    (r"ray\.util\.client\.server", "Ray client"),
    (r"ray::|headrace run ", "Ray worker"),
)
OURS = ("store", "sub-batches", "parameter server")
PATIENCE_S = 600.0
RENDEZVOUS_PORTS = range(20_000, 32_000)
"""Those of `linux.network.free_port`."""


@dataclass(frozen=True)
class Seen:
    """A run, as somebody sees it who only looks.

    Attributes:
        names: What every listening socket is, by the documents' names; empty if nobody knows.
        answers: What a stranger got from each TCP port.
        secrets: Whoever knows one of these gets in.
        places: Where a secret was found, files and processes.
        sockets: Unix sockets that take connections.
    """

    names: dict[Listener, str]
    answers: dict[Listener, dict[str, Any]]
    secrets: list[bytes]
    places: list[str]
    sockets: list[Listener]


def look(testbed: Testbed) -> Seen:
    """Look at a run that goes on, and try to get in everywhere."""
    found = listeners_of(testbed)
    names = {each: name_of(each) for each in found if each.kind != "unix"}
    secrets = secrets_of(testbed)
    answers = ask_all(testbed, names)
    places = [*in_processes(secrets), *in_files(secrets, files_of(testbed))]
    return Seen(names, answers, secrets, places, [each for each in found if each.kind == "unix"])


def name_of(listener: Listener) -> str:
    """What the documents call it."""
    for pattern, name in OWNERS:
        if re.search(pattern, listener.command):
            if name == "torch":
                return "TCPStore" if is_meeting_point(listener) else "gloo"
            return name
    return ""


def is_meeting_point(listener: Listener) -> bool:
    """Whether it is where trainers meet: the one port that is chosen, not given by Linux."""
    return listener.port in RENDEZVOUS_PORTS


def ask_all(bed: Testbed, names: dict[Listener, str]) -> dict[Listener, dict[str, Any]]:
    """Try all TCP ports but those of torch, from another machine if it can reach them."""
    machines = [host.name for host in bed.hosts]
    addresses = {host.name: host.address for host in bed.hosts}
    methods = ray_methods()
    jobs: dict[str, list[tuple[Listener, dict[str, Any]]]] = defaultdict(list)
    for listener, name in names.items():
        if listener.kind != "tcp" or name in ("TCPStore", "gloo", ""):
            continue
        host, home = listener.address, listener.machine
        where = home
        if host not in ("127.0.0.1", "::1"):
            where = machines[(machines.index(home) + 1) % len(machines)]
            host = addresses[home] if host in ("0.0.0.0", "::") else host
        protocol = "tls" if name in OURS else "ray"
        target = {"host": host, "port": listener.port, "protocol": protocol, "methods": methods}
        jobs[where].append((listener, target))
    answers: dict[Listener, dict[str, Any]] = {}
    for where, asked in jobs.items():
        done = subprocess.run(
            bed.command(where, [sys.executable, "-m", "tests.e2e.strangers"]),
            input=json.dumps([target for _, target in asked]),
            capture_output=True,
            text=True,
            cwd=ROOT,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        answers |= dict(zip([each for each, _ in asked], json.loads(done.stdout), strict=True))
    return answers


def secrets_of(bed: Testbed) -> list[bytes]:
    """Ray's token, and all that tasks of the run have in their files of credentials."""
    found = {bed.layout.ray_token.read_bytes()}
    keys = [path for path in files_of(bed) if path.name == "keys"]
    assert keys
    for path in keys:
        assert path.stat().st_mode & 0o077 == 0
        fields = json.loads(path.read_text())
        # The first line of a key says mainly what kind of key it is.
        found |= {fields["token"].encode(), fields["key"].splitlines()[2].encode()}
    return sorted(found)


def files_of(bed: Testbed) -> list[Path]:
    """Files of the testbed and of all its tasks; Ray's logs are among them."""
    return [path for path in bed.layout.folder.rglob("*") if path.is_file()]


def in_files(secrets: list[bytes], paths: list[Path]) -> list[str]:
    found = []
    for path in paths:
        if path.name not in ("keys", "ray-token"):
            with suppress(FileNotFoundError):
                data = path.read_bytes()
                found += [str(path) for secret in secrets if secret in data]
    return found


def in_processes(secrets: list[bytes]) -> list[str]:
    found = []
    for each in processes.list_processes():
        for listing in ("cmdline", "environ"):
            path = Path(f"/proc/{each.process.pid}/{listing}")
            with suppress(OSError):
                data = path.read_bytes()
                found += [f"{path} {each.command}" for secret in secrets if secret in data]
    return found


def documented() -> dict[str, str]:
    """Endpoints of the documents' table, and what each does with strangers."""
    table = DOCUMENT.read_text().partition("## Ports of a run")[2].partition("\n## ")[0]
    rows = [line.split("|") for line in table.splitlines() if line.startswith("| ")]
    return {row[1].strip(): row[-2].strip() for row in rows[2:]}


def is_metrics(answer: dict[str, Any]) -> bool:
    return bool(answer["http"]["GET /metrics"] == 200)


def is_refusal(answer: dict[str, Any]) -> bool:
    """Whether neither HTTP nor gRPC did anything; that a process lives, gRPC tells everyone."""
    http = set(answer["http"].values())
    calls = {status for method, status in answer["grpc"].items() if method != HEALTH}
    if http != {0}:
        return http <= {401, 403}
    return UNAUTHENTICATED in calls and calls <= {UNAUTHENTICATED, UNIMPLEMENTED}
