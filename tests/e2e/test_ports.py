"""During a run nobody without credentials gets in anywhere, but where the documents say so."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

# Now: PyG warns of what it imports, and warnings are errors in tests.
pytest.importorskip("torch_geometric.nn")

from benchmarks.cluster_bed import Layout, Run, make_plan
from headrace.api.graph import partition
from headrace.api.planning import plan
from headrace.core.job import Sync
from headrace.core.plan import Plan
from headrace.runtime.testbed import Testbed, processes
from tests.e2e.listeners import Listener, listeners_of
from tests.e2e.strangers import HEALTH, UNAUTHENTICATED, UNIMPLEMENTED, ray_methods
from tests.leftovers import patient

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "security.md"
OWNERS = (
    (r"headrace\.graph\.service\b", "store"),
    (r"headrace\.graph\.feeding\b", "parts"),
    (r"headrace\.training\.servers\b", "server"),
    (r"headrace\.runtime\.trainer\b", "torch"),
    (r"/gcs_server ", "Ray head"),
    (r"/raylet ", "Ray node"),
    (r"ray::RuntimeEnvAgent", "Ray environments"),
    (r"ray::DashboardAgent|dashboard/agent\.py", "Ray agent"),
    (r"dashboard/dashboard\.py", "Ray dashboard"),
    (r"ray\.util\.client\.server", "Ray client"),
    (r"ray::|headrace run ", "Ray worker"),
)
OURS = ("store", "parts", "server")
PATIENCE_S = 600.0


@dataclass(frozen=True)
class Seen:
    """A run, as somebody sees it who only looks.

    Attributes:
        names: What every listening socket is, by the documents' names; empty if nobody knows.
        answers: What a stranger got from each TCP port.
        secrets: Whoever knows one of these gets in.
        places: Where a secret was found, files and processes.
        sockets: Unix sockets that take connections.
        folder: Of the run.
        iterations: Done when strangers began, and some time after they were gone.
        end: Of the run: exit code, and what it told the terminal.
    """

    names: dict[Listener, str]
    answers: dict[Listener, dict[str, Any]]
    secrets: list[bytes]
    places: list[str]
    sockets: list[Listener]
    folder: Path
    iterations: tuple[int, int]
    end: tuple[int, str]


@pytest.fixture(scope="module")
def seen(testbed: Testbed, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """A run with everything that a run may have, while it trains and after its end."""
    scratch = tmp_path_factory.mktemp("ports")
    partition("generated:nodes=2e4,edges=4e5,features=16", scratch / "parts", 4)
    config = {"features": 16, "classes": 16, "width": 8, "fanouts": [5, 5], "task": "steps"}
    run = Run(
        testbed, plan_with_server(), scratch / "parts", scratch / "run",
        {**config, "steps": 10**9},
    )  # fmt: skip
    try:
        run.wait_for_iteration(5)
        assert run.process.poll() is None, run.errors()
        found = listeners_of(testbed)
        names = {each: name_of(each) for each in found if each.kind != "unix"}
        secrets = secrets_of(testbed)
        before = run.status()["iterations"]
        answers = ask_all(testbed, names)
        places = [*in_processes(secrets), *in_files(secrets, files_of(testbed))]
        assert patient(lambda: run.status()["iterations"] > before, PATIENCE_S)
        iterations = before, run.status()["iterations"]
        folder = run.folder
        assert folder is not None
    finally:
        run.process.send_signal(signal.SIGINT)
        out, _ = run.process.communicate(timeout=PATIENCE_S)
        run.log.close()
    places += in_files(secrets, [path for path in folder.rglob("*") if path.is_file()])
    return Seen(
        names, answers, secrets, places, [each for each in found if each.kind == "unix"], folder,
        iterations, (run.process.returncode, out + run.errors()),
    )  # fmt: skip


def plan_with_server() -> Plan:
    """A plan with a parameter server: what trainers open for a ring, they open anyway."""
    ring = make_plan(Layout(), 96)
    job = ring.job.model_copy(update={"sync": Sync.PS, "parameter_servers": 1})
    made = plan(ring.cluster, job, method="colocate", policy="maxmin", seed_mix="uniform")
    placement = ring.placement.model_copy(update={"servers": ("m1",)})
    return Plan.model_validate(made.model_dump() | {"placement": placement})


def name_of(listener: Listener) -> str:
    """What the documents call it."""
    for pattern, name in OWNERS:
        if re.search(pattern, listener.command):
            if name == "torch":
                return "TCPStore" if is_meeting_point(listener) else "gloo"
            return name
    return ""


def is_meeting_point(listener: Listener) -> bool:
    """Whether trainers were told to meet at this port."""
    environment = Path(f"/proc/{listener.pids[0]}/environ").read_bytes().split(b"\0")
    return f"MASTER_PORT={listener.port}".encode() in environment


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
    for each in processes.look_around():
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


def test_every_open_port_is_documented(seen: Seen) -> None:
    known = documented()
    for listener, name in seen.names.items():
        assert name in known, listener
    # A run has all of these, else this test shows nothing.
    expected = {"store", "parts", "server", "TCPStore", "gloo"}
    expected |= {"Ray head", "Ray node", "Ray worker", "Ray environments"}
    assert expected <= set(seen.names.values())


def test_strangers_are_refused(seen: Seen) -> None:
    known = documented()
    for listener, answer in seen.answers.items():
        name = seen.names[listener]
        if name in OURS:
            assert known[name] == "refused"
            for how, said in answer["tls"].items():
                # At most an alert of TLS, which is no answer to a call.
                assert b"grpc" not in bytes.fromhex(said), (listener, how)
                assert len(said) <= 2 * 16, (listener, how)
        elif is_metrics(answer):
            assert known["Ray metrics"].startswith("open")
        elif name == "Ray client":
            assert known[name].startswith("open")
        else:
            assert known[name] == "refused"
            assert is_refusal(answer), (listener, answer)


def is_metrics(answer: dict[str, Any]) -> bool:
    return bool(answer["http"]["GET /metrics"] == 200)


def is_refusal(answer: dict[str, Any]) -> bool:
    """Whether neither HTTP nor gRPC did anything; that a process lives, gRPC tells everyone."""
    http = set(answer["http"].values())
    calls = {status for method, status in answer["grpc"].items() if method != HEALTH}
    if http != {0}:
        return http <= {401, 403}
    return UNAUTHENTICATED in calls and calls <= {UNAUTHENTICATED, UNIMPLEMENTED}


def test_strangers_do_not_disturb_a_run(seen: Seen) -> None:
    before, after = seen.iterations
    assert after > before
    assert seen.end[0] == 130, seen.end[1]


def test_sockets_of_a_machine_are_for_its_user(seen: Seen) -> None:
    assert seen.sockets
    for each in seen.sockets:
        # One that is no file (@) would be for everyone on the machine.
        assert each.address.startswith("/"), each
        above = Path(each.address).parents
        assert any(folder.exists() and not folder.stat().st_mode & 0o007 for folder in above), each


def test_no_secret_is_ever_shown(seen: Seen) -> None:
    assert seen.places == []
    assert not any(secret.decode() in seen.end[1] for secret in seen.secrets)
    assert oct(seen.folder.stat().st_mode & 0o777) == "0o700"


def test_a_secret_that_is_shown_would_be_found(tmp_path: Path) -> None:
    secrets = [b"something that only this test knows", b"another"]
    (tmp_path / "log").write_bytes(b"token: " + secrets[0])
    assert in_files(secrets, [tmp_path / "log"]) == [str(tmp_path / "log")]
    environment = {**os.environ, "TOKEN": secrets[0].decode()}
    with subprocess.Popen(["sleep", "1000"], env=environment) as shows:
        try:
            assert patient(lambda: in_processes(secrets))
            assert all(f"/{shows.pid}/environ" in place for place in in_processes(secrets))
        finally:
            shows.kill()


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (["-u", "RAY_AUTH_MODE"], "asks for a token, and RAY_AUTH_MODE is not set"),
        (["RAY_AUTH_TOKEN=wrong"], "does not take the token in RAY_AUTH_TOKEN"),
        (["RAY_AUTH_TOKEN_PATH=/none"], "asks for a token, and there is none in /none"),
    ],
    ids=["none", "wrong", "gone"],
)
def test_a_missing_token_is_told(testbed: Testbed, settings: list[str], problem: str) -> None:
    words = ["env", *settings, sys.executable, "-m", "headrace", "cluster", "discover"]
    done = subprocess.run(
        testbed.command("m1", words), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 2
    assert f"the Ray cluster at {testbed.ray_address} {problem}" in done.stderr.replace("\n", " ")
    assert "RAY_AUTH_TOKEN_PATH" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_token_of_the_user_goes_nowhere(testbed: Testbed) -> None:
    words = testbed.command("m1", ["env"])
    done = subprocess.run(
        words,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "RAY_AUTH_TOKEN": "the user's", "RAY_AUTH_MODE": "disabled"},
    )
    assert "the user's" not in done.stdout
    assert "RAY_AUTH_MODE=token\n" in done.stdout
