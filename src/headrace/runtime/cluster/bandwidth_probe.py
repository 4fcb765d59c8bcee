"""Hardware facts of a machine, and bandwidth measurement between machines.

Pickled to the nodes by value, so that they do not need headrace: standard library only.
"""

from __future__ import annotations

import fcntl
import hmac
import os
import selectors
import socket
import struct
import subprocess
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

TOKEN_BYTES = 32
"""Length of the token that a sender must send first."""

_BUFFER_BYTES = 1 << 20
_BACKLOG = 1024
_MAX_UNAUTHENTICATED = 64
_POLL_S = 0.05
_TIMEOUT_S = 30.0
_SIOCGIFADDR = 0x8915
_MBPS_BYTES_PER_S = 1e6 / 8
_COUNT_INTERVAL_S = 0.05
_PEAK_S = 0.4


class Probe:
    """Actor that runs the functions of this module on a machine."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._receiver: Receiver | None = None
        self._counter: NicCounter | None = None

    def facts(self) -> dict[str, Any]:
        """See `facts`."""
        return facts(self._address)

    def listen(self, token: bytes, num_streams: int, duration_s: float) -> int:
        """Start a receiver; return its port."""
        self._receiver = Receiver(self._address, token, num_streams, duration_s)
        return self._receiver.port

    def bytes_per_s(self) -> float:
        """See `Receiver.bytes_per_s`."""
        return self._receiver.bytes_per_s() if self._receiver is not None else 0.0

    def send(
        self, address: str, port: int, token: bytes, num_streams: int, duration_s: float
    ) -> str:
        """See `send`."""
        return send(address, port, token, num_streams, duration_s)

    def count(self) -> None:
        """Start counting all bytes of the NIC."""
        self._counter = NicCounter(self._address)

    def peaks(self) -> tuple[float, float]:
        """See `NicCounter.peaks`."""
        return self._counter.peaks() if self._counter is not None else (0.0, 0.0)


class NicCounter:
    """Samples the byte counters of the NIC with an address, in a thread."""

    def __init__(self, address: str) -> None:
        names = [name for _, name in socket.if_nameindex()]
        self._name = next((name for name in names if _address_of(name) == address), "")
        self._seen: list[tuple[float, int, int]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._count, daemon=True)
        self._thread.start()

    def peaks(self) -> tuple[float, float]:
        """Stop, and return the peak receive and send rates in bytes per second."""
        self._ended.set()
        self._thread.join()
        return peaks_of(self._seen)

    def _count(self) -> None:
        while True:
            counted = nic_bytes(self._name)
            if counted is not None:
                self._seen.append((time.monotonic(), *counted))
            if self._ended.wait(_COUNT_INTERVAL_S):
                return


def peaks_of(seen: list[tuple[float, int, int]]) -> tuple[float, float]:
    """Peak receive and send rates over windows longer than any buffering."""
    most_in = most_out = 0.0
    first = 0
    for at_s, in_bytes, out_bytes in seen:
        while first + 1 < len(seen) and at_s - seen[first + 1][0] >= _PEAK_S:
            first += 1
        begin_s, begin_in, begin_out = seen[first]
        if at_s - begin_s >= _PEAK_S:
            most_in = max(most_in, (in_bytes - begin_in) / (at_s - begin_s))
            most_out = max(most_out, (out_bytes - begin_out) / (at_s - begin_s))
    return most_in, most_out


def nic_bytes(name: str) -> tuple[int, int] | None:
    """Received and sent bytes of a NIC; None if it does not exist."""
    # Not /sys: it may show the interfaces of another network namespace.
    with suppress(OSError):
        for line in Path("/proc/net/dev").read_text().splitlines():
            found, colon, counters = line.partition(":")
            if colon and found.strip() == name:
                fields = counters.split()
                return int(fields[0]), int(fields[8])
    return None


def facts(address: str) -> dict[str, Any]:
    """CPU model, cores, GPU model, and link speed (0 if unknown) of the NIC at `address`."""
    return {
        "cpu_model": _cpu_model(Path("/proc/cpuinfo")),
        "num_cores": os.cpu_count() or 1,
        "gpu_model": _gpu_model(),
        "link_bytes_per_s": _link_bytes_per_s(address, Path("/sys/class/net")),
    }


class Receiver:
    """Measures the rate of `num_streams` connections; closes those without the token.

    The first quarter of the duration is discarded because of TCP slow start. Of connections without
    the token, the oldest of the host with the most is closed for a new one.
    """

    def __init__(self, address: str, token: bytes, num_streams: int, duration_s: float) -> None:
        self._token = token
        self._num_streams = num_streams
        self._duration_s = duration_s
        self._lock = threading.Lock()
        self._begins: list[float] = []
        self._came: list[tuple[float, int]] = []
        self._all_began = threading.Event()
        self._closed = threading.Event()
        # In the order of their deadlines.
        self._unauthenticated: dict[socket.socket, _Sender] = {}
        self._listener = socket.create_server((address, 0), backlog=_BACKLOG)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._acceptor = threading.Thread(target=self._accept, daemon=True)
        self._acceptor.start()

    def bytes_per_s(self) -> float:
        """Wait for the measurement, close, and return the rate; 0 if no sender connected."""
        try:
            if not self._all_began.wait(_TIMEOUT_S):
                return 0.0
            begin_s = max(self._begins) + self._duration_s / 4
            end_s = max(self._begins) + self._duration_s
            time.sleep(max(0.0, end_s - time.monotonic()))
            with self._lock:
                return rate_of([each for each in self._came if begin_s < each[0] <= end_s])
        finally:
            self.close()

    def close(self) -> None:
        """Close the listener and all connections."""
        self._closed.set()
        self._acceptor.join()
        self._token = b""

    def _accept(self) -> None:
        """Accept connections and receive their tokens; runs in a thread, which never waits."""
        with selectors.DefaultSelector() as selector, self._listener:
            selector.register(self._listener, selectors.EVENT_READ)
            while not self._closed.is_set():
                for key, _ in selector.select(_POLL_S):
                    if key.fileobj is self._listener:
                        self._accept_some(selector)
                    elif key.fileobj in self._unauthenticated:
                        self._authenticate(selector, key.data)
                for sender in list(self._unauthenticated.values()):
                    if sender.deadline_s > time.monotonic():
                        break
                    self._close(selector, sender)
            for sender in list(self._unauthenticated.values()):
                self._close(selector, sender)

    def _accept_some(self, selector: selectors.BaseSelector) -> None:
        for _ in range(_MAX_UNAUTHENTICATED):
            try:
                connection, address = self._listener.accept()
            except (BlockingIOError, ConnectionError):
                return
            except OSError:
                # Too few descriptors.
                if not self._evict(selector):
                    self._closed.wait(_POLL_S)
                return
            connection.setblocking(False)
            sender = _Sender(connection, address[0], time.monotonic() + _TIMEOUT_S)
            self._unauthenticated[connection] = sender
            selector.register(connection, selectors.EVENT_READ, sender)
            if len(self._unauthenticated) > _MAX_UNAUTHENTICATED:
                self._evict(selector)

    def _evict(self, selector: selectors.BaseSelector) -> bool:
        """Close a connection without the token; whether there was one."""
        senders = list(self._unauthenticated.values())
        if not senders:
            return False
        num = Counter(each.host for each in senders)
        self._close(selector, max(senders, key=lambda each: num[each.host]))
        return True

    def _authenticate(self, selector: selectors.BaseSelector, sender: _Sender) -> None:
        try:
            piece = sender.connection.recv(TOKEN_BYTES - len(sender.shown))
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        sender.shown += piece
        if piece and len(sender.shown) < TOKEN_BYTES:
            return
        if not piece or not hmac.compare_digest(sender.shown, self._token):
            self._close(selector, sender)
            return
        selector.unregister(sender.connection)
        del self._unauthenticated[sender.connection]
        threading.Thread(target=self._receive, args=(sender.connection,), daemon=True).start()

    def _close(self, selector: selectors.BaseSelector, sender: _Sender) -> None:
        selector.unregister(sender.connection)
        del self._unauthenticated[sender.connection]
        sender.connection.close()

    def _receive(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.settimeout(_TIMEOUT_S)
            with self._lock:
                self._begins.append(time.monotonic())
                if len(self._begins) == self._num_streams:
                    self._all_began.set()
            buffer = bytearray(_BUFFER_BYTES)
            while self._token:
                size = connection.recv_into(buffer)
                if not size:
                    return
                with self._lock:
                    self._came.append((time.monotonic(), size))


class _Sender:
    """A connection that has not sent the token yet."""

    def __init__(self, connection: socket.socket, host: str, deadline_s: float) -> None:
        self.connection, self.host, self.deadline_s = connection, host, deadline_s
        self.shown = b""


def rate_of(came: list[tuple[float, int]]) -> float:
    """Bytes per second, from times and sizes; the first entry only marks the start."""
    came = sorted(came)
    if len(came) < 2 or came[-1][0] <= came[0][0]:
        return 0.0
    return sum(size for _, size in came[1:]) / (came[-1][0] - came[0][0])


def send(address: str, port: int, token: bytes, num_streams: int, duration_s: float) -> str:
    """Send zeros until the receiver closes; return an error message, empty on success."""
    streams: list[socket.socket] = []
    try:
        for _ in range(num_streams):
            streams.append(socket.create_connection((address, port), timeout=_TIMEOUT_S))
            streams[-1].sendall(token)
    except OSError as error:
        for stream in streams:
            stream.close()
        return f"{type(error).__name__}: {error}"
    # Twice the duration: the receiver starts a little later and closes when it is done.
    end_s = time.monotonic() + 2 * duration_s + 1
    threads = [
        threading.Thread(target=_flood, args=(stream, end_s), daemon=True) for stream in streams
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ""


def _flood(stream: socket.socket, end_s: float) -> None:
    zeros = bytes(_BUFFER_BYTES)
    with stream, suppress(OSError):
        stream.settimeout(_TIMEOUT_S)
        while time.monotonic() < end_s:
            stream.send(zeros)


def _cpu_model(path: Path) -> str:
    with suppress(OSError):
        for line in path.read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            # x86 has `model name`, others have `Processor` or `CPU part`.
            if key.strip().lower() in ("model name", "processor", "cpu part", "cpu"):
                value = value.strip()
                if value and not value.isdigit():
                    return value
    return os.uname().machine


def _gpu_model() -> str:
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip().partition("\n")[0].strip()


def _link_bytes_per_s(address: str, cards: Path) -> float:
    for card in sorted(cards.iterdir()) if cards.is_dir() else ():
        if _address_of(card.name) == address:
            with suppress(OSError, ValueError):
                return max(0.0, float((card / "speed").read_text()) * _MBPS_BYTES_PER_S)
    return 0.0


def _address_of(card: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker, suppress(OSError):
        request = struct.pack("256s", card.encode()[:15])
        answer: bytes = fcntl.ioctl(asker.fileno(), _SIOCGIFADDR, request)
        return socket.inet_ntoa(answer[20:24])
    return ""
