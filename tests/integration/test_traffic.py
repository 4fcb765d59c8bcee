"""Traffic control with real packets: namespaces, agents and a controller, without Ray."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.integration import traffic_tasks
from tests.integration.traffic_tasks import NIC_BYTES_PER_S
from tests.support.traffic_flows import figures, two_machines

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("testbed")]

DEADLINE_S = 300.0


@pytest.fixture(autouse=True)
def _can_control() -> None:
    pytest.importorskip("pyroute2")
    if os.geteuid() != 0 or shutil.which("ip") is None:
        reason = "namespaces need root and iproute2"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)


@pytest.mark.campaign  # measures for 20 s
def test_three_flows_get_the_shares_that_policies_give_them() -> None:
    found = figures(quick=True, congestion="cubic")
    assert found["largest_error"] <= 0.05
    assert found["strict_top"] >= 0.94
    assert min(found["strict_floors"]) >= 0.015


class Process:
    """A process in a namespace, which answers lines with lines."""

    def __init__(self, namespace: str, *command: str) -> None:
        self.process = subprocess.Popen(
            # A sender that gets no processor leaves its share of the card to others.
            ["ip", "netns", "exec", namespace, "nice", "-n", "-20", sys.executable, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )

    def hear(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "it has ended"
        return line

    def ask(self) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return json.loads(self.hear())

    def end(self) -> tuple[int, str]:
        said, _ = self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode, said

    def kill(self) -> None:
        self.process.kill()
        if self.process.stdin is not None and not self.process.stdin.closed:
            self.end()


class Run:
    """A sender and a receiver with two flows between them, whose traffic is controlled."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self.folder = folder
        self.here, self.there = stack.enter_context(two_machines())
        self.driver = self.start(stack, self.here, "drive", str(folder), "priority")
        self.agents = [
            Process(namespace, "-m", "headrace.runtime.traffic", str(folder / f"{machine}.json"))
            for machine, namespace in (("m0", self.here), ("m1", self.there))
        ]
        for agent in self.agents:
            stack.callback(agent.kill)
        tasks = ("store0", "sampler1.0", 5201), ("trainer0", "trainer1", 5202)
        self.sending: dict[str, Process] = {}
        self.taking: dict[str, Process] = {}
        for sender, receiver, port in tasks:
            self.taking[sender] = self.start(stack, self.there, "take", str(port), task=receiver)
            self.sending[sender] = self.start(stack, self.here, "send", str(port), task=sender)

    def start(self, stack: ExitStack, namespace: str, *words: str, task: str = "") -> Process:
        process = Process(namespace, str(traffic_tasks.__file__), *words)
        stack.callback(process.kill)
        if task:
            (self.folder / f"{task}.pid").write_text(str(process.process.pid))
        assert process.hear() == "ready\n"
        return process

    def rates(self, length_s: float = 1.0) -> dict[str, float]:
        """What arrives from every sender, of what a card can do."""
        begun = {sender: process.ask() for sender, process in self.taking.items()}
        time.sleep(length_s)
        rates = {}
        for sender, process in self.taking.items():
            end_s, taken = process.ask()
            rate = (taken - begun[sender][1]) / (end_s - begun[sender][0])
            rates[sender] = rate / NIC_BYTES_PER_S
        return rates

    def queues(self) -> str:
        command = ["tc", "-n", self.here, "qdisc", "show", "dev", "eth0"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with ExitStack() as stack:
        yield Run(stack, tmp_path)


def until(is_so: Callable[[], bool]) -> None:
    end_s = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < end_s
        time.sleep(0.1)


def _gradients_go_first(rates: dict[str, float]) -> bool:
    return rates["trainer0"] / sum(rates.values()) >= 0.94 and rates["store0"] >= 0.01


@pytest.mark.skipif(shutil.which("tc") is None, reason="looks at queues with tc")
def test_flows_of_tasks_are_found_and_shared_by_the_plans_policy(run: Run) -> None:
    until(lambda: run.driver.ask()["flows"] >= 2)
    # Gradients go first, graph data goes on. A sender without a core leaves others its share.
    until(lambda: _gradients_go_first(run.rates(2.0)))
    assert "htb" in run.queues()
    run.sending["trainer0"].end()
    # Senders without a core get such shares too: wait for those that were given.
    until(lambda: run.rates()["store0"] > 0.9 and run.driver.ask()["changes"] > 0)
    code, said = run.driver.end()
    figures = json.loads(said)
    assert code == 0
    assert figures["said"] == []
    assert figures["agents"] == 2
    assert figures["changes"] > 0
    # Nothing is left of it, and agents end by themselves.
    assert [agent.end()[0] for agent in run.agents] == [0, 0]
    assert "htb" not in run.queues()


@pytest.mark.skipif(shutil.which("tc") is None, reason="looks at queues with tc")
def test_an_agent_whose_parent_is_gone_gives_the_card_back(run: Run) -> None:
    until(lambda: "htb" in run.queues())
    assert run.agents[0].end()[0] == 0
    assert "htb" not in run.queues()
    until(lambda: run.driver.ask()["said"] == ["traffic control on m0 has stopped"])
