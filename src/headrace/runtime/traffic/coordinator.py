"""Controller of a run's traffic: a thread of the driver that all agents connect to."""

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
from headrace.runtime.traffic.messages import Line, Message, authenticate
from headrace.runtime.traffic.policy_rates import BY_ITERATION, BY_KIND, UNSHAPED
from headrace.runtime.traffic.rate_allocation import RateAllocator

# Interval of polls and of decisions. Classes borrow from each other in between, so little bandwidth
# is lost. Measured: a poll of an agent takes 0.1 ms, a decision 1 ms.
_POLL_S = 0.1
_LARGE_POLL_S = 0.2
_BY_KIND_POLL_S = 0.5
_MAX_SMALL_CLUSTER = 4
_SEND_TIMEOUT_S = 1.0
_REGISTER_TIMEOUT_S = 15.0
_MAX_UNAUTHENTICATED = 16
_SELECT_TIMEOUT_S = 0.5
_CLOSE_TIMEOUT_S = 5.0
_WARM_UP_TIMEOUT_S = 10.0


class TrafficControl:
    """Applies a plan's policy to a run; its methods are for the driver's main thread."""

    def __init__(self, plan: Plan, notify: Callable[[str], None]) -> None:
        self._plan, self._notify = plan, notify
        is_large = plan.cluster.num_machines > _MAX_SMALL_CLUSTER
        self._poll_s = _LARGE_POLL_S if is_large else _POLL_S
        if plan.policy in BY_KIND:
            self._poll_s = _BY_KIND_POLL_S
        self._token = secrets.token_hex(32)
        self._lines: dict[str, Line] = {}
        self._notes: SimpleQueue[str] = SimpleQueue()
        self._used: dict[str, Mapping[str, float]] = {}
        self._allocator = RateAllocator(plan, self._send)
        self._ends = threading.Event()
        self._is_off = False
        self._cpu_s = 0.0
        self._unauthenticated = threading.BoundedSemaphore(_MAX_UNAUTHENTICATED)
        self._registered: SimpleQueue[tuple[str, Line]] = SimpleQueue()
        self._listener: socket.socket | None = None
        self._thread: threading.Thread | None = None
        # Compiling the policy may take 30 s; agents connect meanwhile.
        self._warm_up = threading.Thread(target=self._allocator.warm, daemon=True)
        self._warm_up.start()
        self._waker, self._woken = socket.socketpair()

    def begin(self, address: str) -> int:
        """Listen for agents on the driver's address; return the port."""
        self._listener = socket.create_server((address, 0), backlog=128)
        self._thread = threading.Thread(target=self._run, name="traffic control", daemon=True)
        self._thread.start()
        port: int = self._listener.getsockname()[1]
        return port

    def order(
        self, machine: str, interface: str, folders: Mapping[str, str], address: str, port: int
    ) -> dict[str, Any]:
        """Fields of a machine's `AgentConfig`; `folders` are those of its task actors, by task."""
        spec = next(each for each in self._plan.cluster.hosts if each.name == machine)
        by_iteration = self._plan.policy in BY_ITERATION
        samplers = [task for task in folders if by_iteration and role_of(task) == "sampler"]
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

    def poll(self) -> None:
        """Pass the thread's notes to the user."""
        while not self._notes.empty():
            self._notify(self._notes.get())

    def close(self) -> None:
        """Let all agents restore their NICs, and stop."""
        self._warm_up.join(_WARM_UP_TIMEOUT_S)
        if self._thread is None:
            return
        self._ends.set()
        self._wake()
        self._thread.join(_CLOSE_TIMEOUT_S + _SELECT_TIMEOUT_S)
        if not self._thread.is_alive():
            self._waker.close()
            self._woken.close()
        self.poll()

    def figures(self) -> dict[str, Any]:
        """Counters and CPU time of the controller and all agents."""
        agents = self._used.values()
        return {
            "policy": self._plan.policy,
            "agents": len(self._used),
            "agents_cpu_s": round(sum(each.get("cpu_s", 0.0) for each in agents), 4),
            "controller_cpu_s": round(self._cpu_s, 4),
            "polls": sum(each.get("polls", 0) for each in agents),
            "decisions": self._allocator.num_decisions,
            "changes": sum(each.get("changes", 0) for each in agents),
            "flows": self._allocator.num_flows,
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
                if self._allocator.is_dirty and now_s >= next_s:
                    if not self._warm_up.is_alive():
                        self._allocator.decide(now_s)
                    next_s = now_s + self._poll_s
                wait_s = max(0.0, next_s - now_s) if self._allocator.is_dirty else _SELECT_TIMEOUT_S
                for key, _ in selector.select(wait_s):
                    self._handle(selector, key.fileobj)
                self._cpu_s = time.thread_time() - began_s
            self._shut_down(selector)
        self._listener.close()

    def _handle(self, selector: selectors.BaseSelector, source: Any) -> None:
        if source is self._listener:
            self._accept()
        elif source is self._woken:
            self._woken.recv(64)
            while not self._registered.empty():
                machine, line = self._registered.get()
                self._lines[machine] = line
                selector.register(line, selectors.EVENT_READ, machine)
        else:
            machine = selector.get_key(source).data
            try:
                for message in source.receive():
                    self._process(machine, message)
            except (EOFError, OSError, ValueError, KeyError, TypeError):
                self._drop(selector, machine)

    def _process(self, machine: str, message: Message) -> None:
        if "used" in message:
            self._used[machine] = message["used"]
        elif "problem" in message:
            if not self._is_off:
                self._is_off = True
                self._notes.put(f"no traffic control: {machine}: {message['problem']}")
                for other in self._lines:
                    self._send(other, {"bye": True})
        else:
            self._allocator.update(machine, message, time.monotonic())

    def _drop(self, selector: selectors.BaseSelector, machine: str) -> None:
        line = self._lines.pop(machine)
        selector.unregister(line)
        line.close()
        self._allocator.forget(machine)
        if not (self._is_off or self._ends.is_set()):
            self._notes.put(f"traffic control on {machine} has stopped")

    def _accept(self) -> None:
        assert self._listener is not None
        with suppress(OSError):
            sock, _ = self._listener.accept()
            if not self._unauthenticated.acquire(blocking=False):
                sock.close()
                return
            threading.Thread(target=self._authenticate, args=(sock,), daemon=True).start()

    def _authenticate(self, sock: socket.socket) -> None:
        """Authenticate a peer; in its own thread, as unauthenticated peers may be slow."""
        line = Line(sock)
        try:
            sock.settimeout(_REGISTER_TIMEOUT_S)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            machine = authenticate(line, self._token.encode())
            if machine in self._lines:
                raise EOFError
            sock.settimeout(_SEND_TIMEOUT_S)
        except (EOFError, OSError):
            line.close()
            return
        finally:
            self._unauthenticated.release()
        self._registered.put((machine, line))
        self._wake()

    def _send(self, machine: str, message: Message) -> None:
        line = self._lines.get(machine)
        if line is not None:
            # A lost agent is detected when its connection is read.
            with suppress(OSError):
                line.send(message)

    def _shut_down(self, selector: selectors.BaseSelector) -> None:
        """Wait until agents have restored their NICs and sent their usage."""
        for machine in self._lines:
            self._send(machine, {"bye": True})
        end_s = time.monotonic() + _CLOSE_TIMEOUT_S
        while self._lines and time.monotonic() < end_s:
            for key, _ in selector.select(0.1):
                if isinstance(key.fileobj, Line):
                    self._handle(selector, key.fileobj)
        for line in self._lines.values():
            line.close()

    def _wake(self) -> None:
        with suppress(OSError):
            self._waker.send(b"!")


def control_of(plan: Plan, notify: Callable[[str], None]) -> TrafficControl | None:
    """Return the controller for a plan; none, with a note, if its policy needs no shaping."""
    if plan.policy in UNSHAPED:
        notify(f"policy {plan.policy} needs no traffic control: the kernel's queueing is used")
        return None
    return TrafficControl(plan, notify)
