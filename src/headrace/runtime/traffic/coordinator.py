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
from headrace.rpc.admission import Admission, admission
from headrace.runtime.traffic.flows import role_of
from headrace.runtime.traffic.messages import AgentReport, Authenticator, Line, Message
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
_BACKLOG = 1024
_MAX_ACCEPTS = 32
_RETRY_ACCEPT_S = 0.05
_SELECT_TIMEOUT_S = 0.5
_CLOSE_TIMEOUT_S = 5.0
_WARM_UP_TIMEOUT_S = 10.0


class _Candidate:
    """A connection that is not authenticated yet."""

    def __init__(self, sock: socket.socket, token: bytes, deadline_s: float) -> None:
        sock.setblocking(False)
        self.socket, self.deadline_s = sock, deadline_s
        self.line = Line(sock)
        self.authenticator = Authenticator(self.line, token)

    def evict(self) -> None:
        """Disconnect; the thread closes the socket."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)


class TrafficControl:
    """Applies a plan's policy to a run; its methods are for the driver's main thread.

    Args:
        plan: Plan of the run.
        notify: Called with notes for the user.
        clock: Returns seconds.
        admitting: Connections that are not authenticated; those of the process by default.
    """

    def __init__(
        self,
        plan: Plan,
        notify: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        admitting: Admission | None = None,
    ) -> None:
        self._plan, self._notify, self._clock = plan, notify, clock
        self._admission = admission() if admitting is None else admitting
        # In the order of their deadlines.
        self._candidates: dict[_Candidate, None] = {}
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
        self._listener: socket.socket | None = None
        self._thread: threading.Thread | None = None
        # Compiling the policy may take 30 s; agents connect meanwhile.
        self._warm_up = threading.Thread(target=self._allocator.warm, daemon=True)
        self._warm_up.start()
        self._waker, self._woken = socket.socketpair()

    def begin(self, address: str) -> int:
        """Listen for agents on the driver's address; return the port."""
        self._listener = socket.create_server((address, 0), backlog=_BACKLOG)
        self._listener.setblocking(False)
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
                now_s = self._clock()
                if self._allocator.is_dirty and now_s >= next_s:
                    if not self._warm_up.is_alive():
                        self._allocator.decide(now_s)
                    next_s = now_s + self._poll_s
                wait_s = max(0.0, next_s - now_s) if self._allocator.is_dirty else _SELECT_TIMEOUT_S
                for key, _ in selector.select(wait_s):
                    self._handle(selector, key.fileobj, key.data)
                self._expire(selector)
                self._cpu_s = time.thread_time() - began_s
            self._shut_down(selector)
        self._listener.close()

    def _handle(self, selector: selectors.BaseSelector, source: Any, data: Any) -> None:
        if source is self._listener:
            self._accept(selector)
        elif source is self._woken:
            self._woken.recv(64)
        elif isinstance(data, _Candidate):
            self._authenticate(selector, data)
        else:
            try:
                for message in source.receive():
                    self._process(data, message)
            except (EOFError, OSError, ValueError):
                self._drop(selector, data)

    def _process(self, machine: str, message: Message) -> None:
        report = AgentReport.model_validate(message)
        if report.used is not None:
            self._used[machine] = report.used
        elif report.problem is not None:
            if not self._is_off:
                self._is_off = True
                self._notes.put(f"no traffic control: {machine}: {report.problem}")
                for other in self._lines:
                    self._send(other, {"bye": True})
        else:
            self._allocator.update(machine, report, self._clock())

    def _drop(self, selector: selectors.BaseSelector, machine: str) -> None:
        line = self._lines.pop(machine)
        selector.unregister(line)
        line.close()
        self._allocator.forget(machine)
        if not (self._is_off or self._ends.is_set()):
            self._notes.put(f"traffic control on {machine} has stopped")

    def _accept(self, selector: selectors.BaseSelector) -> None:
        """Accept some of the connections that wait."""
        assert self._listener is not None
        for _ in range(_MAX_ACCEPTS):
            try:
                sock, address = self._listener.accept()
            except (BlockingIOError, ConnectionError):
                return
            except OSError:
                # Too few descriptors: without a connection to close, others have to be.
                if not self._admission.evict():
                    self._ends.wait(_RETRY_ACCEPT_S)
                return
            try:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                deadline_s = self._clock() + _REGISTER_TIMEOUT_S
                candidate = _Candidate(sock, self._token.encode(), deadline_s)
            except OSError:
                sock.close()
                continue
            self._candidates[candidate] = None
            selector.register(candidate.line, selectors.EVENT_READ, candidate)
            self._admission.add(candidate, address[0])

    def _authenticate(self, selector: selectors.BaseSelector, candidate: _Candidate) -> None:
        """Receive what a peer sends; never waits, as unauthenticated peers may be slow."""
        line = candidate.line
        try:
            machine = candidate.authenticator.receive()
            if machine is None:
                return
            if machine in self._lines:
                raise EOFError
            candidate.socket.settimeout(_SEND_TIMEOUT_S)
        except BlockingIOError:
            return
        except (EOFError, OSError):
            self._reject(selector, candidate)
            return
        del self._candidates[candidate]
        self._admission.remove(candidate)
        self._lines[machine] = line
        selector.modify(line, selectors.EVENT_READ, machine)

    def _expire(self, selector: selectors.BaseSelector) -> None:
        """Close connections that are not authenticated in time."""
        now_s = self._clock()
        while self._candidates:
            oldest = next(iter(self._candidates))
            if oldest.deadline_s > now_s:
                return
            self._reject(selector, oldest)

    def _reject(self, selector: selectors.BaseSelector, candidate: _Candidate) -> None:
        del self._candidates[candidate]
        selector.unregister(candidate.line)
        candidate.line.close()
        self._admission.remove(candidate)

    def _send(self, machine: str, message: Message) -> None:
        line = self._lines.get(machine)
        if line is not None:
            # A lost agent is detected when its connection is read.
            with suppress(OSError):
                line.send(message)

    def _shut_down(self, selector: selectors.BaseSelector) -> None:
        """Wait until agents have restored their NICs and sent their usage."""
        for candidate in list(self._candidates):
            self._reject(selector, candidate)
        for machine in self._lines:
            self._send(machine, {"bye": True})
        end_s = self._clock() + _CLOSE_TIMEOUT_S
        while self._lines and self._clock() < end_s:
            for key, _ in selector.select(0.1):
                if isinstance(key.fileobj, Line):
                    self._handle(selector, key.fileobj, key.data)
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
