"""Memory of processes, as Linux counts it."""

from __future__ import annotations

from pathlib import Path


def available_bytes() -> int:
    """Memory of this machine that can be allocated without swapping; 0 if not reported."""
    return _figure("/proc/meminfo", "MemAvailable")


def memory_bytes(field: str = "RssAnon", pid: int | str = "self") -> int:
    """A figure of `/proc/PID/status`, e.g. anonymous resident memory; 0 if not reported."""
    return _figure(f"/proc/{pid}/status", field)


def _figure(path: str, field: str) -> int:
    try:
        lines = Path(path).read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    found = [int(line.split()[1]) << 10 for line in lines if line.startswith(f"{field}:")]
    return found[0] if found else 0
