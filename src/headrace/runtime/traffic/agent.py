"""The agent of one machine: finds connections, sees which flows are open, applies rates."""

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
from headrace.runtime.traffic.messages import Line, Said, register
from headrace.runtime.traffic.socket_owners import SocketOwners

_FIND_S = 0.5
_CALM_FIND_S = 5.0
_CALM_AFTER_S = 10.0
_TELL_S = 2.0
_GREETING_S = 30.0
_OTHER = 0.01
# Of what the card can do. Whoever sends less has not begun: those are acknowledgements. Whoever has
# begun and sends less has not ended as long as it sends at all: it is starved.
_OPEN = 0.004
_CLOSED = 0.001


@dataclass(frozen=True)
class AgentConfig:
    """What an agent is told.

    Attributes:
        machine: Name of its machine.
        interface: Whose traffic is controlled.
        nic_out_bytes_per_s: What the plan takes the card for.
        tasks: For each task of the machine the file that names its process.
        marks: For tasks whose iterations matter the files in which they tell them.
        host: Of the controller.
        port: Of the controller.
        token: What both show each other.
        poll_s: How often flows are looked at.
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
class _Seen:
    """A flow at the last look."""

    sent_bytes: int
    began_bytes: int = 0
    is_open: bool = False


class OpenFlows:
    """Tells which flows are open, from how the counters of their classes move.

    Args:
        nic_bytes_per_s: Of the card.
    """

    def __init__(self, nic_bytes_per_s: float) -> None:
        self._nic_bytes_per_s = nic_bytes_per_s
        self._seen: dict[int, _Seen] = {}
        self._looked_s: float | None = None

    def look(self, counters: dict[int, Counters], now_s: float) -> bool:
        """Take new counters; whether other flows are open than before."""
        passed_s = 0.0 if self._looked_s is None else now_s - self._looked_s
        self._looked_s = now_s
        possible_bytes = self._nic_bytes_per_s * passed_s
        has_changed = False
        for number, now in counters.items():
            seen = self._seen.get(number)
            if seen is None:
                seen = self._seen[number] = _Seen(now.sent_bytes)
            least = (_CLOSED if seen.is_open else _OPEN) * possible_bytes
            moves = now.waiting_bytes > 0 or now.sent_bytes - seen.sent_bytes > least
            if moves and not seen.is_open:
                seen.began_bytes = seen.sent_bytes
            has_changed |= moves != seen.is_open
            seen.is_open, seen.sent_bytes = moves, now.sent_bytes
        return has_changed

    def open(self) -> list[list[int]]:
        """Numbers of open flows, and what each has sent since it opened."""
        return [
            [number, seen.sent_bytes - seen.began_bytes]
            for number, seen in self._seen.items()
            if seen.is_open
        ]


class Agent:
    """Speaks with the controller until one of them has enough.

    Args:
        config: See there.
        line: To the controller, which knows it.
        tree: Classes of the network card.
        find: Connections that have come and gone since the last call.
        marks: Iterations of the machine's tasks.
    """

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
        self._next_find_s = self._found_s = self._next_tell_s = 0.0
        self._num_polls = self._num_changes = 0
        self._began_cpu_s = time.process_time()
        line.say({"nic_out": tree.nic_bytes_per_s})

    def run(self, parent: Any = None) -> None:
        """Work until the controller or the parent is gone.

        Args:
            parent: A file that closes when whoever started this process is gone.
        """
        waits_for = [self._line] if parent is None else [self._line, parent]
        next_s = time.monotonic()
        while True:
            now_s = time.monotonic()
            if now_s >= next_s:
                self._look(now_s)
                next_s = max(next_s + self._poll_s, now_s)
            ready, _, _ = select.select(waits_for, [], [], max(0.0, next_s - time.monotonic()))
            if parent in ready and not parent.read(1):
                return
            if self._line in ready:
                for said in self._line.hear():
                    if "bye" in said:
                        self._line.say({"used": self._used()})
                        return
                    self._obey(said)

    def _look(self, now_s: float) -> None:
        if now_s >= self._next_find_s:
            self._marks.find()
            opened, closed = self._find()
            if opened or closed:
                self._found_s = now_s
                gone = [end_to(end) for end in closed]
                self._line.say({"ends": [end_to(end) for end in opened], "gone": gone})
            is_calm = now_s - self._found_s > _CALM_AFTER_S
            self._next_find_s = now_s + (_CALM_FIND_S if is_calm else _FIND_S)
        said: dict[str, Any] = {}
        iterations = self._marks.look()
        if iterations:
            said["at"] = iterations
        if self._tree.num_filters:
            self._num_polls += 1
            if self._flows.look(self._tree.counters(), now_s):
                said["open"] = self._flows.open()
            trunk = self._tree.trunk_bytes_per_s
            if abs(trunk - self._nic_bytes_per_s) > _OTHER * self._nic_bytes_per_s:
                said["nic"] = self._nic_bytes_per_s = trunk
        if said:
            self._line.say(said)
        if now_s >= self._next_tell_s:
            self._next_tell_s = now_s + _TELL_S
            self._line.say({"used": self._used()})

    def _used(self) -> dict[str, float]:
        return {
            "cpu_s": round(time.process_time() - self._began_cpu_s, 4),
            "polls": self._num_polls,
            "changes": self._num_changes,
        }

    def _obey(self, said: Said) -> None:
        for own, host, peer in said.get("remove", ()):
            self._tree.remove((own, host, peer))
        for number, prio, own, host, peer in said.get("add", ()):
            self._tree.add(number, prio, (own, host, peer))
        shares = {number: ClassShare(*rest) for number, *rest in said.get("shares", ())}
        self._num_changes += len(shares)
        self._tree.change(shares)


def serve(config: AgentConfig) -> None:
    """Control a machine's traffic until the controller or the parent process has ended."""
    with ExitStack() as stack:
        sock = socket.create_connection((config.host, config.port), _GREETING_S)
        line = Line(sock)
        stack.callback(line.close)
        register(line, config.token.encode(), config.machine)
        # Whoever cannot even take a line in this time is as good as gone.
        sock.settimeout(_GREETING_S)
        tree = _shape(stack, config, line)
        if tree is None:
            return
        sockets = stack.enter_context(Sockets())
        files = {task: Path(name) for task, name in config.tasks.items()}
        finder = SocketOwners(files, sockets.connections)
        marks = Marks({task: Path(name) for task, name in config.marks.items()})
        stack.callback(marks.close)
        with suppress(EOFError, OSError):
            Agent(config, line, tree, finder.look, marks).run(sys.stdin)


def _shape(stack: ExitStack, config: AgentConfig, line: Line) -> Tree | None:
    """Take the card over; none, and said to the controller, if that cannot be done."""
    own = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
    try:
        # A name that is free again when this process ends, and known in this network alone.
        own.bind(f"\0headrace-traffic-{config.interface}")
    except OSError:
        line.say({"problem": f"another run controls {config.interface}"})
        return None
    try:
        route = stack.enter_context(htb.open_route())
        index = htb.number_of(route, config.interface)
        return stack.enter_context(shaped(route, index, config.nic_out_bytes_per_s))
    except MissingExtraError as error:
        line.say({"problem": f"{error.problem}; {error.remedy}"})
    except LookupError:
        line.say({"problem": f"there is no interface {config.interface}"})
    except netlink_errors() as error:
        line.say({"problem": f"{config.interface} cannot be controlled: {error}"})
    return None
