"""Testbeds come up, carry traffic and commands, and leave nothing behind, whatever happens."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.core.cluster import Cluster
from headrace.core.errors import SpecError
from headrace.testbed import Testbed, cgroups, processes, take_down
from headrace.testbed.layout import FOLDER

pytestmark = [pytest.mark.e2e]

NUM_ROUNDS = int(os.environ.get("HEADRACE_TESTBED_ROUNDS", "3"))
PATIENCE_S = 120.0
SEND = """
import socket, sys
receiver = socket.create_server(("", 20000)) if sys.argv[1] == "receive" else None
if receiver:
    print("ready", flush=True)
    link, _ = receiver.accept()
    print(sum(iter(lambda: len(link.recv(1 << 20)), 0)))
else:
    socket.create_connection((sys.argv[1], 20000)).sendall(bytes(10_000_000))
"""


def headrace(*words: str | Path) -> list[str]:
    return [sys.executable, "-m", "headrace", "testbed", *map(str, words)]


def answer(*words: str | Path, code: int = 0) -> dict[str, Any]:
    done = subprocess.run(headrace(*words, "--json"), capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def run(words: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def left_of(name: str) -> dict[str, list[str]]:
    """Everything of a testbed that is still there."""
    folder = FOLDER / name
    names = run(["ip", "netns", "list"]).stdout.split()
    found = {
        "namespaces": [each for each in names if each.split(".")[:2] == ["hr", name]],
        "files": [str(folder)] if folder.exists() else [],
        "control groups": [str(path) for path in cgroups.find_top().glob(f"hr.{name}.*")],
        "processes": [],
    }
    for seen in processes.list_processes():
        try:
            text = Path(f"/proc/{seen.process.pid}/environ").read_bytes()
            text += Path(f"/proc/{seen.process.pid}/cmdline").read_bytes()
        except OSError:
            continue
        if f"{folder}/".encode() in text or f"hr.{name}".encode() in text:
            found["processes"].append(f"{seen.process.pid} {seen.command}")
    return {kind: things for kind, things in found.items() if things}


def things() -> list[set[str]]:
    """What a testbed could have left to the machine itself."""
    links = {line.split()[1] for line in run(["ip", "-o", "link"]).stdout.splitlines()}
    queues = set(run(["tc", "qdisc", "show"]).stdout.splitlines())
    groups = {path.name for path in cgroups.find_top().glob("hr.*")}
    return [links, queues, groups, {path.name for path in Path("/tmp").glob("ray*")}]


@pytest.fixture
def bed(cluster: Cluster, name: str) -> Iterator[Testbed]:
    yield Testbed.up(cluster, name, with_ray=False)
    take_down(name)
    assert left_of(name) == {}


def test_coming_and_going_leaves_everything_as_it_was(cluster: Cluster, name: str) -> None:
    before = things()
    for i in range(NUM_ROUNDS):
        bed = Testbed.up(cluster, name, with_ray=i == 0, shaped=i % 2 == 0)
        assert bed.problems() == []
        bed.down()
        assert left_of(name) == {}
        bed.down()
    assert things() == before


def test_every_machine_has_a_ray_node_with_its_resources(testbed: Testbed) -> None:
    script = "import json, ray; ray.init(log_to_driver=False); print(json.dumps(ray.nodes()))"
    done = run(testbed.command("m2", [sys.executable, "-c", script]))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    # Other tests have ended nodes, which Ray remembers.
    nodes = {each["Labels"]["host"]: each for each in found if each["Alive"]}
    assert set(nodes) == {host.name for host in testbed.hosts}
    for host in testbed.hosts:
        node = nodes[host.name]
        assert node["NodeManagerAddress"] == host.address
        assert node["NodeManagerHostname"] == host.name
        assert node["Resources"]["CPU"] == 8
        assert node["Resources"]["memory"] == 8e9


def test_up_again_finds_it_up(testbed: Testbed, cluster_file: Path) -> None:
    again = answer("up", "--cluster", cluster_file, "--name", testbed.layout.name)
    assert again["was_up"]
    assert [each["pid"] for each in again["machines"]] == [
        host.init and host.init.pid for host in testbed.hosts
    ]
    status = answer("status", "--name", testbed.layout.name)
    assert status["state"] == "up"
    assert status["ray_address"] == testbed.ray_address


def test_a_name_is_for_one_cluster(bed: Testbed, cluster: Cluster) -> None:
    smaller = Cluster(machines=cluster.machines[:2])
    with pytest.raises(SpecError, match="other machines"):
        Testbed.up(smaller, bed.layout.name, with_ray=False)


def test_commands_run_where_they_should(bed: Testbed) -> None:
    words = ["exec", "--name", bed.layout.name, "m1", "--", "sh", "-c"]
    script = "hostname; pwd; echo $GLOO_SOCKET_IFNAME; cat /proc/net/dev; exit 3"
    done = run(headrace(*words, script))
    assert done.returncode == 3, done.stderr
    host, folder, interface, *devices = done.stdout.splitlines()
    assert (host, folder, interface) == ("m1", os.getcwd(), "eth0")
    assert {line.split(":")[0].strip() for line in devices[2:]} == {"lo", "eth0"}


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 7), (signal.SIGTERM, 8)])
def test_signals_reach_the_command_once(bed: Testbed, number: int, code: int) -> None:
    script = """
trap 'echo heard; exit 7' INT; trap 'echo heard; exit 8' TERM; echo ready
while true; do sleep 0.05; done
"""
    words = headrace("exec", "--name", bed.layout.name, "m0", "--", "sh", "-c", script)
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as command:
        assert command.stdout is not None
        assert command.stdout.readline() == "ready\n"
        command.send_signal(number)
        assert command.stdout.read() == "heard\n"
        assert command.wait() == code


def test_a_command_ends_with_whoever_runs_it(bed: Testbed) -> None:
    script = "echo ready; exec sleep 1000"
    words = bed.command("m0", ["sh", "-c", script])
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as command:
        assert command.stdout is not None
        assert command.stdout.readline() == "ready\n"
        command.kill()
        # Both held the pipe's other end.
        assert command.stdout.read() == ""


def test_orphans_are_cleared_away(bed: Testbed) -> None:
    run(bed.command("m0", ["sh", "-c", "(sleep 0.1 &) ; exit 0"]))
    home = bed.hosts[0].init
    assert home is not None
    end_s = time.monotonic() + PATIENCE_S
    children = Path(f"/proc/{home.pid}/task/{home.pid}/children")
    while children.read_text().split():
        assert time.monotonic() < end_s
        time.sleep(0.05)


def test_traffic_is_counted_and_stays_inside(bed: Testbed, cluster_file: Path) -> None:
    other = f"{bed.layout.name[:-4]}-two"
    try:
        answer("up", "--cluster", cluster_file, "--name", other, "--without-ray")
        before, quiet = bed.traffic(), Testbed.find(other).traffic()
        assert Testbed.find(other).layout.subnet != bed.layout.subnet
        words = bed.command("m1", [sys.executable, "-c", SEND, "receive"])
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as receiver:
            assert receiver.stdout is not None
            assert receiver.stdout.readline() == "ready\n"
            # By name: machines know each other's.
            done = run(bed.command("m0", [sys.executable, "-c", SEND, "m1"]))
            assert done.returncode == 0, done.stderr
            assert receiver.stdout.read() == "10000000\n"
        sent = bed.link_bytes("m0").sent - before["m0"].sent
        received = bed.link_bytes("m1").received - before["m1"].received
        assert 10_000_000 < sent < 10_500_000
        assert 10_000_000 < received < 10_500_000
        assert bed.link_bytes("m2").sent == before["m2"].sent
        assert Testbed.find(other).traffic() == quiet
    finally:
        take_down(other)
    assert left_of(other) == {}
    assert bed.problems() == []


def test_what_was_killed_is_seen_and_repaired(bed: Testbed, cluster_file: Path) -> None:
    victim = bed.hosts[2].init
    assert victim is not None
    assert processes.end([victim], PATIENCE_S) == []
    status = answer("status", "--name", bed.layout.name, code=1)
    assert status["state"] == "broken"
    assert status["problems"] == ["machine m2 has exited"]
    repaired = answer("up", "--cluster", cluster_file, "--name", bed.layout.name, "--without-ray")
    assert not repaired["was_up"]
    assert Testbed.find(bed.layout.name).problems() == []


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        ("starting Ray on", signal.SIGKILL),
        ("connecting", signal.SIGINT),
        *(
            pytest.param(moment, number, marks=pytest.mark.campaign)
            for moment, number in (
                ("connecting", signal.SIGKILL),
                ("starting Ray's head", signal.SIGKILL),
                ("starting Ray's head", signal.SIGINT),
                ("starting Ray on", signal.SIGINT),
            )
        ),
    ],
)
def test_killed_while_it_comes_up(name: str, cluster_file: Path, moment: str, number: int) -> None:
    words = headrace("up", "--cluster", cluster_file, "--name", name, "--shaped")
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as command:
        assert command.stderr is not None
        for line in command.stderr:
            if line.startswith(moment):
                break
        command.send_signal(number)
        # Not read to its end: what the killed one has started may keep the pipe open.
        command.wait()
    if number == signal.SIGINT:
        assert command.returncode == 130
        assert left_of(name) == {}
    again = answer("up", "--cluster", cluster_file, "--name", name, "--without-ray")
    assert not again["was_up"]
    assert answer("down", "--name", name)["was_up"]
    assert left_of(name) == {}
    assert not answer("down", "--name", name)["was_up"]


def test_two_at_once_make_one(name: str, cluster_file: Path) -> None:
    words = headrace("up", "--cluster", cluster_file, "--name", name, "--without-ray", "--json")
    both = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    answers = [json.loads(each.communicate()[0]) for each in both]
    assert sorted(each["was_up"] for each in answers) == [False, True]
    assert answers[0]["machines"][0]["pid"] == answers[1]["machines"][0]["pid"]


def test_what_others_made_is_left_alone(cluster: Cluster, name: str) -> None:
    strange = f"hr.{name}.m1"
    subprocess.run(["ip", "netns", "add", strange], check=True)
    try:
        with pytest.raises(SpecError, match="belongs to no testbed"):
            Testbed.up(cluster, name, with_ray=False)
        take_down(name)
        assert left_of(name) == {"namespaces": [strange]}
    finally:
        subprocess.run(["ip", "netns", "del", strange], check=True)
