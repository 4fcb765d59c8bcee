"""Memory of processes, as Linux counts it."""

from __future__ import annotations

from pathlib import Path


def memory_bytes(field: str = "RssAnon", pid: int | str = "self") -> int:
    """A figure of `/proc/PID/status`, e.g. anonymous resident memory; 0 if not reported."""
    return _bytes_of(field, Path(f"/proc/{pid}/status"))


def system_memory_bytes(field: str = "MemAvailable") -> int:
    """A figure of `/proc/meminfo`; 0 if not reported."""
    return _bytes_of(field, Path("/proc/meminfo"))


def _bytes_of(field: str, path: Path) -> int:
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    found = [int(line.split()[1]) << 10 for line in lines if line.startswith(f"{field}:")]
    return found[0] if found else 0
