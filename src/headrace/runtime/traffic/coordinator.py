"""The controller of a run's traffic: a thread of the driver, to which all agents report."""

from __future__ import annotations

import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from headrace.core.plan import Plan
from headrace.runtime.traffic.flows import role_of
from headrace.runtime.traffic.messages import Line, Said, welcome
from headrace.runtime.traffic.policy_rates import BY_ITERATION, BY_KIND, UNSHAPED
from headrace.runtime.traffic.rate_allocation import RateAllocator

# How often flows are looked at, and rates are decided at most. Classes borrow from each other in
# between, so that little is lost; measured: each look of an agent takes 0.1 ms, a decision 1 ms.
_POLL_S = 0.1
_CALM_POLL_S = 0.2
_RARE_POLL_S = 0.5
_SMALL = 4
_ANSWER_S = 1.0
_GREETING_S = 15.0
_MOST_STRANGERS = 16
_LOOK_S = 0.5
_ENDING_S = 5.0
_WARMING_S = 10.0


class TrafficControl:
    """Applies a plan's policy to a run; its methods are for the driver's main thread.

    Args:
        plan: The plan.
        say: Told what the user should know.
    """

    def __init__(self, plan: Plan, say: Callable[[str], None]) -> None:
        self._plan, self._say = plan, say
        is_large = plan.cluster.num_machines > _SMALL
        self._poll_s = _CALM_POLL_S if is_large else _POLL_S
        if plan.policy in BY_KIND:
            self._poll_s = _RARE_POLL_S
        self._token = secrets.token_hex(32)
        self._lines: dict[str, Line] = {}
        self._words: SimpleQueue[str] = SimpleQueue()
        self._used: dict[str, Mapping[str, float]] = {}
        self._decider = RateAllocator(plan, self._tell)
        self._ends = threading.Event()
        self._is_off = False
        self._cpu_s = 0.0
        self._strangers = threading.BoundedSemaphore(_MOST_STRANGERS)
        self._newcomers: SimpleQueue[tuple[str, Line]] = SimpleQueue()
        self._listener: socket.socket | None = None
        self._thread: threading.Thread | None = None
        # Compiling the policy's rule may take half a minute, and agents do not wait for that.
        self._warming = threading.Thread(target=self._decider.warm, daemon=True)
        self._warming.start()
        self._waker, self._woken = socket.socketpair()

    def begin(self, address: str) -> int:
        """Listen for agents; the port.

        Args:
            address: Of the driver, as all machines know it.
        """
        self._listener = socket.create_server((address, 0), backlog=128)
        self._thread = threading.Thread(target=self._run, name="traffic control", daemon=True)
        self._thread.start()
        port: int = self._listener.getsockname()[1]
        return port

    def order(
        self, machine: str, interface: str, folders: Mapping[str, str], address: str, port: int
    ) -> dict[str, Any]:
        """Fields of an `AgentConfig`.

        Args:
            machine: Its machine.
            interface: Whose traffic it controls.
            folders: Of the shells of the machine's tasks.
            address: See `begin`.
            port: See `begin`.
        """
        spec = next(each for each in self._plan.cluster.hosts if each.name == machine)
        heeds = self._plan.policy in BY_ITERATION
        samplers = [task for task in folders if heeds and role_of(task) == "sampler"]
        return {
            "machine": machine,
            "interface": interface,
            "nic_out_bytes_per_s": spec.nic_out,
            "tasks": {task: f"{folder}/{task}.pid" for task, folder in folders.items()},
            "marks": {task: f"{folders[task]}/trace-{task}.at" for task in samplers},
            "host": address,
            "port": port,
            "token": self._token,
            "poll_s": self._poll_s,
        }

    def look(self) -> None:
        """Say what the thread has to say."""
        while not self._words.empty():
            self._say(self._words.get())

    def close(self) -> None:
        """Have all agents give back what they took, and end."""
        self._warming.join(_WARMING_S)
        if self._thread is None:
            return
        self._ends.set()
        self._wake()
        self._thread.join(_ENDING_S + _LOOK_S)
        if not self._thread.is_alive():
            self._waker.close()
            self._woken.close()
        self.look()

    def figures(self) -> dict[str, Any]:
        """What it did, and what it took."""
        agents = self._used.values()
        return {
            "policy": self._plan.policy,
            "agents": len(self._used),
            "agents_cpu_s": round(sum(each.get("cpu_s", 0.0) for each in agents), 4),
            "controller_cpu_s": round(self._cpu_s, 4),
            "polls": sum(each.get("polls", 0) for each in agents),
            "decisions": self._decider.num_decisions,
            "changes": sum(each.get("changes", 0) for each in agents),
            "flows": self._decider.num_flows,
        }

    # --- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        began_s = time.thread_time()
        next_s = 0.0
        with selectors.DefaultSelector() as selector:
            assert self._listener is not None
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            while not self._ends.is_set():
                now_s = time.monotonic()
                if self._decider.is_dirty and now_s >= next_s:
                    if not self._warming.is_alive():
                        self._decider.decide(now_s)
                    next_s = now_s + self._poll_s
                wait_s = max(0.0, next_s - now_s) if self._decider.is_dirty else _LOOK_S
                for key, _ in selector.select(wait_s):
                    self._handle(selector, key.fileobj)
                self._cpu_s = time.thread_time() - began_s
            self._part(selector)
        self._listener.close()

    def _handle(self, selector: selectors.BaseSelector, source: Any) -> None:
        if source is self._listener:
            self._accept()
        elif source is self._woken:
            self._woken.recv(64)
            while not self._newcomers.empty():
                machine, line = self._newcomers.get()
                self._lines[machine] = line
                selector.register(line, selectors.EVENT_READ, machine)
        else:
            machine = selector.get_key(source).data
            try:
                for said in source.hear():
                    self._hear(machine, said)
            except (EOFError, OSError, ValueError, KeyError, TypeError):
                self._lose(selector, machine)

    def _hear(self, machine: str, said: Said) -> None:
        if "used" in said:
            self._used[machine] = said["used"]
        elif "problem" in said:
            if not self._is_off:
                self._is_off = True
                self._words.put(f"no traffic control: {machine}: {said['problem']}")
                for other in self._lines:
                    self._tell(other, {"bye": True})
        else:
            self._decider.hear(machine, said, time.monotonic())

    def _lose(self, selector: selectors.BaseSelector, machine: str) -> None:
        line = self._lines.pop(machine)
        selector.unregister(line)
        line.close()
        self._decider.forget(machine)
        if not (self._is_off or self._ends.is_set()):
            self._words.put(f"traffic control on {machine} has ended")

    def _accept(self) -> None:
        assert self._listener is not None
        with suppress(OSError):
            sock, _ = self._listener.accept()
            if not self._strangers.acquire(blocking=False):
                sock.close()
                return
            threading.Thread(target=self._welcome, args=(sock,), daemon=True).start()

    def _welcome(self, sock: socket.socket) -> None:
        """See whether a stranger is an agent; in a thread of its own, as strangers may be slow."""
        line = Line(sock)
        try:
            sock.settimeout(_GREETING_S)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            machine = welcome(line, self._token.encode())
            if machine in self._lines:
                raise EOFError
            sock.settimeout(_ANSWER_S)
        except (EOFError, OSError):
            line.close()
            return
        finally:
            self._strangers.release()
        self._newcomers.put((machine, line))
        self._wake()

    def _tell(self, machine: str, said: Said) -> None:
        line = self._lines.get(machine)
        if line is not None:
            # Whoever is gone is missed when it is listened to.
            with suppress(OSError):
                line.say(said)

    def _part(self, selector: selectors.BaseSelector) -> None:
        """Wait until agents have said what they took, which is after they have given it back."""
        for machine in self._lines:
            self._tell(machine, {"bye": True})
        end_s = time.monotonic() + _ENDING_S
        while self._lines and time.monotonic() < end_s:
            for key, _ in selector.select(0.1):
                if isinstance(key.fileobj, Line):
                    self._handle(selector, key.fileobj)
        for line in self._lines.values():
            line.close()

    def _wake(self) -> None:
        with suppress(OSError):
            self._waker.send(b"!")


def control_of(plan: Plan, say: Callable[[str], None]) -> TrafficControl | None:
    """What a plan's policy needs; none, and said, if it needs nothing.

    Args:
        plan: The plan.
        say: Told what the user should know.
    """
    if plan.policy in UNSHAPED:
        say(f"policy {plan.policy} is what the system does by itself: traffic is left alone")
        return None
    return TrafficControl(plan, say)
