"""What a machine says of itself, and how fast bytes go from one machine to another.

This module travels to the nodes by value, so that they need Ray but not headrace: it imports the
standard library alone.
"""

from __future__ import annotations

import fcntl
import hmac
import os
import socket
import struct
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

TOKEN_BYTES = 32
"""What whoever sends must show first."""

_BUFFER_BYTES = 1 << 20
_MAX_CONNECTIONS = 64
_PATIENCE_S = 30.0
_SIOCGIFADDR = 0x8915
_MBPS_BYTES_PER_S = 1e6 / 8
_COUNT_EVERY_S = 0.05
_PEAK_S = 0.4


class Probe:
    """Stands on a machine and does what this module can do, as an actor.

    Args:
        address: Of the machine.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._receiver: Receiver | None = None
        self._counter: NicCounter | None = None

    def facts(self) -> dict[str, Any]:
        """See `facts`."""
        return facts(self._address)

    def listen(self, token: bytes, num_streams: int, duration_s: float) -> int:
        """Begin to receive; returns the port."""
        self._receiver = Receiver(self._address, token, num_streams, duration_s)
        return self._receiver.port

    def bytes_per_s(self) -> float:
        """How fast bytes came; see `Receiver.bytes_per_s`."""
        return self._receiver.bytes_per_s() if self._receiver is not None else 0.0

    def send(
        self, address: str, port: int, token: bytes, num_streams: int, duration_s: float
    ) -> str:
        """See `send`."""
        return send(address, port, token, num_streams, duration_s)

    def count(self) -> None:
        """Begin to count what goes through the network card, whoever sends it."""
        self._counter = NicCounter(self._address)

    def peaks(self) -> tuple[float, float]:
        """See `NicCounter.peaks`."""
        return self._counter.peaks() if self._counter is not None else (0.0, 0.0)


class NicCounter:
    """Counts bytes of a network card until somebody asks.

    Args:
        address: Of the card.
    """

    def __init__(self, address: str) -> None:
        names = [name for _, name in socket.if_nameindex()]
        self._name = next((name for name in names if _address_of(name) == address), "")
        self._seen: list[tuple[float, int, int]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._count, daemon=True)
        self._thread.start()

    def peaks(self) -> tuple[float, float]:
        """The most that came in and went out, in bytes per second; counts no longer."""
        self._ended.set()
        self._thread.join()
        return peaks_of(self._seen)

    def _count(self) -> None:
        while True:
            counted = nic_bytes(self._name)
            if counted is not None:
                self._seen.append((time.monotonic(), *counted))
            if self._ended.wait(_COUNT_EVERY_S):
                return


def peaks_of(seen: list[tuple[float, int, int]]) -> tuple[float, float]:
    """Largest rates in and out over a time that no buffer can make up, from counters."""
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
    """Bytes that came in and went out since a network card is there; none if it is not."""
    # Not /sys: in a network namespace it may show the interfaces of another one.
    with suppress(OSError):
        for line in Path("/proc/net/dev").read_text().splitlines():
            found, colon, counters = line.partition(":")
            if colon and found.strip() == name:
                fields = counters.split()
                return int(fields[0]), int(fields[8])
    return None


def facts(address: str) -> dict[str, Any]:
    """CPU model, cores, GPU model and link speed (bytes per second, 0 if unknown) of this machine.

    Args:
        address: Of the network card that is meant.
    """
    return {
        "cpu_model": _cpu_model(Path("/proc/cpuinfo")),
        "num_cores": os.cpu_count() or 1,
        "gpu_model": _gpu_model(),
        "link_bytes_per_s": _link_bytes_per_s(address, Path("/sys/class/net")),
    }


class Receiver:
    """Takes bytes for a while and tells how fast they came.

    Only a connection that begins with the token counts; all others are closed.

    Args:
        address: To listen on.
        token: What a sender must show first.
        num_streams: Connections that make up one measurement.
        duration_s: For how long; the first quarter does not count, for TCP needs a moment.
    """

    def __init__(self, address: str, token: bytes, num_streams: int, duration_s: float) -> None:
        self._token = token
        self._num_streams = num_streams
        self._duration_s = duration_s
        self._lock = threading.Lock()
        self._begins: list[float] = []
        self._came: list[tuple[float, int]] = []
        self._all_began = threading.Event()
        self._listener = socket.create_server((address, 0), backlog=_MAX_CONNECTIONS)
        self.port: int = self._listener.getsockname()[1]
        self._acceptor = threading.Thread(target=self._accept, daemon=True)
        self._acceptor.start()

    def bytes_per_s(self) -> float:
        """Wait for the measurement and tell its result; 0 if nobody came. Then all is closed."""
        try:
            if not self._all_began.wait(_PATIENCE_S):
                return 0.0
            begin_s = max(self._begins) + self._duration_s / 4
            end_s = max(self._begins) + self._duration_s
            time.sleep(max(0.0, end_s - time.monotonic()))
            with self._lock:
                return rate_of([each for each in self._came if begin_s < each[0] <= end_s])
        finally:
            self.close()

    def close(self) -> None:
        """Take no more."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes who waits for a connection
        self._listener.close()
        self._token = b""

    def _accept(self) -> None:
        for _ in range(_MAX_CONNECTIONS):
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._take, args=(connection,), daemon=True).start()

    def _take(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.settimeout(_PATIENCE_S)
            token, shown = self._token, b""
            while len(shown) < TOKEN_BYTES:
                piece = connection.recv(TOKEN_BYTES - len(shown))
                if not piece:
                    return
                shown += piece
            if not token or not hmac.compare_digest(shown, token):
                return
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


def rate_of(came: list[tuple[float, int]]) -> float:
    """Bytes per second of what came, as times and sizes.

    What came first was on its way before, so it only says when the rest began to come.
    """
    came = sorted(came)
    if len(came) < 2 or came[-1][0] <= came[0][0]:
        return 0.0
    return sum(size for _, size in came[1:]) / (came[-1][0] - came[0][0])


def send(address: str, port: int, token: bytes, num_streams: int, duration_s: float) -> str:
    """Send zeros over some connections until the receiver has had enough.

    Returns:
        Why it was not possible; empty if it was.
    """
    streams: list[socket.socket] = []
    try:
        for _ in range(num_streams):
            streams.append(socket.create_connection((address, port), timeout=_PATIENCE_S))
            streams[-1].sendall(token)
    except OSError as error:
        for stream in streams:
            stream.close()
        return f"{type(error).__name__}: {error}"
    # Twice the time: the receiver closes when it has had enough, and begins a little later.
    end_s = time.monotonic() + 2 * duration_s + 1
    threads = [
        threading.Thread(target=_pour, args=(stream, end_s), daemon=True) for stream in streams
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ""


def _pour(stream: socket.socket, end_s: float) -> None:
    zeros = bytes(_BUFFER_BYTES)
    with stream, suppress(OSError):
        stream.settimeout(_PATIENCE_S)
        while time.monotonic() < end_s:
            stream.send(zeros)


def _cpu_model(path: Path) -> str:
    with suppress(OSError):
        for line in path.read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            # x86 says `model name`, others `Processor` or `CPU part`.
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
