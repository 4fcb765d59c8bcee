"""CPU quotas of emulated machines: a control group (v1 or v2) for each."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from headrace.core.errors import RunError, SpecError

_MOUNTS = Path("/proc/self/mountinfo")
_PERIOD_US = 10_000  # short: a group that has used its quota is paused for the rest of the period
_MIN_QUOTA_US = 1_000  # minimum of the kernel
_MAX_PERIOD_US = 1_000_000  # maximum of the kernel
_POLL_EVERY_S = 0.02


def find_top(mounts: Path = _MOUNTS) -> Path:
    """Mount point of the control groups that support CPU quotas; raises `SpecError` if none."""
    for line in mounts.read_text().splitlines():
        left, _, right = line.partition(" - ")
        top = Path(left.split()[4].replace("\\040", " "))
        kind, _, options = right.split(maxsplit=2)
        if kind == "cgroup" and "cpu" in options.split(","):
            return top
        if kind == "cgroup2" and "cpu" in _words(top / "cgroup.controllers"):
            return top
    raise SpecError(
        "no control group with the controller `cpu` is mounted; CPU limits require one",
        "mount one (mount -t cgroup2 none /sys/fs/cgroup), or omit --shaped",
    )


def make(group: Path) -> None:
    """Create a group without limits; raises `SpecError` if this is not permitted."""
    try:
        if _is_v2(group) and "cpu" not in _words(group.parent / "cgroup.subtree_control"):
            (group.parent / "cgroup.subtree_control").write_text("+cpu")
        group.mkdir()
    except OSError as error:
        raise SpecError(
            f"the control group {group} cannot be created ({error.strerror})",
            "run it where root may change control groups: outside of a container, or in one with"
            " --privileged --cgroupns=host; or omit --shaped",
        ) from None


def limit(group: Path, cores: float) -> None:
    """Limit the CPU time of a group to that of `cores` cores."""
    period_us = min(_MAX_PERIOD_US, max(_PERIOD_US, round(_MIN_QUOTA_US / cores)))
    quota_us = max(_MIN_QUOTA_US, round(cores * period_us))
    if _is_v2(group):
        (group / "cpu.max").write_text(f"{quota_us} {period_us}")
        return
    # The kernel rejects a period change while the quota is longer than the new period.
    (group / "cpu.cfs_quota_us").write_text("-1")
    (group / "cpu.cfs_period_us").write_text(str(period_us))
    (group / "cpu.cfs_quota_us").write_text(str(quota_us))


def remove(group: Path, deadline_s: float) -> None:
    """Remove a group whose processes have been killed; raises `RunError` after `deadline_s`."""
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
                    "kill them, then take the testbed down again",
                ) from None
        time.sleep(_POLL_EVERY_S)


def _is_v2(group: Path) -> bool:
    return (group.parent / "cgroup.controllers").exists()


def _words(file: Path) -> list[str]:
    with suppress(OSError):
        return file.read_text().split()
    return []
