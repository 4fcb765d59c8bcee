"""Quotas of CPU time per emulated machine: a control group for each, of version 1 or 2."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from headrace.core.errors import RunError, SpecError

_MOUNTS = Path("/proc/self/mountinfo")
_PERIOD_US = 10_000  # short: whoever has used up a quota stands still for the rest of the period
_MIN_QUOTA_US = 1_000  # the kernel takes no less
_MAX_PERIOD_US = 1_000_000  # nor more here
_POLL_EVERY_S = 0.02


def find_top(mounts: Path = _MOUNTS) -> Path:
    """The folder in which to make groups that have CPU quotas.

    Args:
        mounts: What is mounted where, as the kernel tells it.

    Raises:
        SpecError: There is none.
    """
    for line in mounts.read_text().splitlines():
        left, _, right = line.partition(" - ")
        top = Path(left.split()[4].replace("\\040", " "))
        kind, _, options = right.split(maxsplit=2)
        if kind == "cgroup" and "cpu" in options.split(","):
            return top
        if kind == "cgroup2" and "cpu" in _words(top / "cgroup.controllers"):
            return top
    raise SpecError(
        "CPU time is limited by control groups, and none with the controller `cpu` is mounted here",
        "mount one (mount -t cgroup2 none /sys/fs/cgroup), or do without --shaped",
    )


def make(group: Path) -> None:
    """Make a group that has no limit yet.

    Raises:
        SpecError: This may not be done here.
    """
    try:
        if _is_v2(group) and "cpu" not in _words(group.parent / "cgroup.subtree_control"):
            (group.parent / "cgroup.subtree_control").write_text("+cpu")
        group.mkdir()
    except OSError as error:
        raise SpecError(
            f"the control group {group} cannot be made ({error.strerror})",
            "run it where root may change control groups: outside of a container, or in one with"
            " --privileged --cgroupns=host; or do without --shaped",
        ) from None


def limit(group: Path, cores: float) -> None:
    """Let all processes of a group together have that many cores' time at most."""
    period_us = min(_MAX_PERIOD_US, max(_PERIOD_US, round(_MIN_QUOTA_US / cores)))
    quota_us = max(_MIN_QUOTA_US, round(cores * period_us))
    if _is_v2(group):
        (group / "cpu.max").write_text(f"{quota_us} {period_us}")
        return
    # A quota of more than a period's length is refused if the period changes after it.
    (group / "cpu.cfs_quota_us").write_text("-1")
    (group / "cpu.cfs_period_us").write_text(str(period_us))
    (group / "cpu.cfs_quota_us").write_text(str(quota_us))


def remove(group: Path, deadline_s: float) -> None:
    """Remove a group whose processes have been killed; fine if it is gone.

    Raises:
        RunError: There are still processes in it.
    """
    end_s = time.monotonic() + deadline_s
    while True:
        try:
            group.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError as error:
            if time.monotonic() > end_s:
                pids = ", ".join(_words(group / "cgroup.procs")) or "none"
                raise RunError(
                    f"the control group {group} cannot be removed ({error.strerror});"
                    f" processes in it: {pids}",
                    "end them, then take the testbed down again",
                ) from None
        time.sleep(_POLL_EVERY_S)


def _is_v2(group: Path) -> bool:
    return (group.parent / "cgroup.controllers").exists()


def _words(file: Path) -> list[str]:
    with suppress(OSError):
        return file.read_text().split()
    return []
