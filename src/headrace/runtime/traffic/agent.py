"""Agent of one machine: finds connections, detects open flows and applies rates."""

from __future__ import annotations

import select
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.core.errors import MissingExtraError
from headrace.linux import htb
from headrace.linux.netlink import Counters, Sockets
from headrace.runtime.traffic.class_shares import ClassShare
from headrace.runtime.traffic.connections import End, end_to
from headrace.runtime.traffic.htb_tree import Tree, netlink_errors, shaped
from headrace.runtime.traffic.marks import Marks
from headrace.runtime.traffic.messages import AgentOrder, Line, Message, register
from headrace.runtime.traffic.socket_owners import SocketOwners

_FIND_INTERVAL_S = 0.5
_IDLE_FIND_INTERVAL_S = 5.0
_IDLE_AFTER_S = 10.0
_USAGE_INTERVAL_S = 2.0
_REGISTER_TIMEOUT_S = 30.0
_REGISTER_RETRY_S = 0.5
_NIC_CHANGE = 0.01
# Fractions of the NIC bandwidth. Below _OPEN, a closed flow sends only acknowledgements. An open
# flow stays open down to _CLOSED, because it may be starved.
_OPEN = 0.004
_CLOSED = 0.001


@dataclass(frozen=True)
class AgentConfig:
    """Config of an agent.

    Attributes:
        machine: Name of the machine.
        interface: Controlled network interface.
        nic_out_bytes_per_s: Outgoing NIC bandwidth in the plan.
        tasks: PID file of each task of the machine.
        marks: Mark file of each task whose iteration the policy uses.
        host: Host of the controller.
        port: Port of the controller.
        token: Shared secret for authentication.
        poll_s: Poll interval of flows.
    """

    machine: str
    interface: str
    nic_out_bytes_per_s: float
    tasks: Mapping[str, str]
    marks: Mapping[str, str]
    host: str
    port: int
    token: str
    poll_s: float


@dataclass
class _FlowState:
    sent_bytes: int
    began_bytes: int = 0
    is_open: bool = False


class OpenFlows:
    """Detects open flows from the byte counters of their classes."""

    def __init__(self, nic_bytes_per_s: float) -> None:
        self._nic_bytes_per_s = nic_bytes_per_s
        self._seen: dict[int, _FlowState] = {}
        self._polled_s: float | None = None

    def update(self, counters: dict[int, Counters], now_s: float) -> bool:
        """Update the counters; return whether the set of open flows has changed."""
        passed_s = 0.0 if self._polled_s is None else now_s - self._polled_s
        self._polled_s = now_s
        possible_bytes = self._nic_bytes_per_s * passed_s
        has_changed = False
        for number, now in counters.items():
            seen = self._seen.get(number)
            if seen is None:
                seen = self._seen[number] = _FlowState(now.sent_bytes)
            least = (_CLOSED if seen.is_open else _OPEN) * possible_bytes
            moves = now.waiting_bytes > 0 or now.sent_bytes - seen.sent_bytes > least
            if moves and not seen.is_open:
                seen.began_bytes = seen.sent_bytes
            has_changed |= moves != seen.is_open
            seen.is_open, seen.sent_bytes = moves, now.sent_bytes
        return has_changed

    def open(self) -> list[list[int]]:
        """Numbers of open flows, and bytes sent since each opened."""
        return [
            [number, seen.sent_bytes - seen.began_bytes]
            for number, seen in self._seen.items()
            if seen.is_open
        ]


class Agent:
    """Exchanges messages with the controller; `find` returns opened and closed connections."""

    def __init__(
        self,
        config: AgentConfig,
        line: Line,
        tree: Tree,
        find: Callable[[], tuple[list[End], list[End]]],
        marks: Marks,
    ) -> None:
        self._line, self._tree, self._find, self._marks = line, tree, find, marks
        self._poll_s = config.poll_s
        self._nic_bytes_per_s = tree.nic_bytes_per_s
        self._flows = OpenFlows(tree.nic_bytes_per_s)
        self._next_find_s = self._found_s = self._next_usage_s = 0.0
        self._num_polls = self._num_changes = 0
        self._began_cpu_s = time.process_time()
        line.send({"nic_out": tree.nic_bytes_per_s})

    def run(self, parent: Any = None) -> None:
        """Run until the controller disconnects or `parent`, a file, is closed."""
        waits_for = [self._line] if parent is None else [self._line, parent]
        next_s = time.monotonic()
        while True:
            now_s = time.monotonic()
            if now_s >= next_s:
                self._poll(now_s)
                next_s = max(next_s + self._poll_s, now_s)
            ready, _, _ = select.select(waits_for, [], [], max(0.0, next_s - time.monotonic()))
            if parent in ready and not parent.read(1):
                return
            if self._line in ready:
                for message in self._line.receive():
                    if self.apply(message):
                        self._line.send({"used": self._used()})
                        return

    def _poll(self, now_s: float) -> None:
        if now_s >= self._next_find_s:
            self._marks.find()
            opened, closed = self._find()
            if opened or closed:
                self._found_s = now_s
                gone = [end_to(end) for end in closed]
                self._line.send({"ends": [end_to(end) for end in opened], "gone": gone})
            is_idle = now_s - self._found_s > _IDLE_AFTER_S
            self._next_find_s = now_s + (_IDLE_FIND_INTERVAL_S if is_idle else _FIND_INTERVAL_S)
        message: dict[str, Any] = {}
        iterations = self._marks.poll()
        if iterations:
            message["at"] = iterations
        if self._tree.num_filters:
            self._num_polls += 1
            if self._flows.update(self._tree.counters(), now_s):
                message["open"] = self._flows.open()
            trunk = self._tree.trunk_bytes_per_s
            if abs(trunk - self._nic_bytes_per_s) > _NIC_CHANGE * self._nic_bytes_per_s:
                message["nic"] = self._nic_bytes_per_s = trunk
        if message:
            self._line.send(message)
        if now_s >= self._next_usage_s:
            self._next_usage_s = now_s + _USAGE_INTERVAL_S
            self._line.send({"used": self._used()})

    def _used(self) -> dict[str, float]:
        return {
            "cpu_s": round(time.process_time() - self._began_cpu_s, 4),
            "polls": self._num_polls,
            "changes": self._num_changes,
        }

    def apply(self, message: Message) -> bool:
        """Do what the controller says; returns whether to end.

        Raises `EOFError`, and changes nothing, if the message is invalid.
        """
        try:
            order = AgentOrder.model_validate(message)
        except ValueError:
            raise EOFError from None
        for connected in order.remove:
            self._tree.remove(connected)
        for number, prio, own, host, peer in order.add:
            self._tree.add(number, prio, (own, host, peer))
        shares = {number: ClassShare(*each) for number, *each in order.shares}
        self._num_changes += len(shares)
        self._tree.change(shares)
        return order.bye


def serve(config: AgentConfig) -> None:
    """Control a machine's traffic until the controller or the parent process has exited."""
    with ExitStack() as stack:
        line = _connect(config)
        stack.callback(line.close)
        tree = _shape(stack, config, line)
        if tree is None:
            return
        sockets = stack.enter_context(Sockets())
        files = {task: Path(name) for task, name in config.tasks.items()}
        finder = SocketOwners(files, sockets.connections)
        marks = Marks({task: Path(name) for task, name in config.marks.items()})
        stack.callback(marks.close)
        with suppress(EOFError, OSError):
            Agent(config, line, tree, finder.poll, marks).run(sys.stdin)


def _connect(config: AgentConfig) -> Line:
    """Register with the controller, which closes connections beside a crowd of others."""
    end_s = time.monotonic() + _REGISTER_TIMEOUT_S
    while True:
        with ExitStack() as failed:
            try:
                sock = socket.create_connection((config.host, config.port), _REGISTER_TIMEOUT_S)
                failed.callback(sock.close)
                line = Line(sock)
                # A controller that does not accept a line in this time is treated as lost.
                sock.settimeout(_REGISTER_TIMEOUT_S)
                register(line, config.token.encode(), config.machine)
            except (EOFError, OSError):
                if time.monotonic() >= end_s:
                    raise
            else:
                failed.pop_all()
                return line
        time.sleep(_REGISTER_RETRY_S)


def _shape(stack: ExitStack, config: AgentConfig, line: Line) -> Tree | None:
    """Take control of the NIC; on failure, report it to the controller and return none."""
    own = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
    try:
        # An abstract socket: released when this process exits, and local to the network namespace.
        own.bind(f"\0headrace-traffic-{config.interface}")
    except OSError:
        line.send({"problem": f"{config.interface} is controlled by another run"})
        return None
    try:
        route = stack.enter_context(htb.open_route())
        index = htb.number_of(route, config.interface)
        return stack.enter_context(shaped(route, index, config.nic_out_bytes_per_s))
    except MissingExtraError as error:
        line.send({"problem": f"{error.problem}; {error.remedy}"})
    except LookupError:
        line.send({"problem": f"there is no interface {config.interface}"})
    except netlink_errors() as error:
        line.send({"problem": f"cannot control {config.interface}: {error}"})
    return None
