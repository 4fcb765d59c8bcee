"""For all tests: one Hypothesis profile, without a clock, and who runs what."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# Where tests share what one worker should make alone: the emulated cluster; four servers; the
# compiled simulator and planner, which take a while to load. The first of these are begun first:
# the emulated cluster alone takes half of the time.
_TOGETHER = {
    "e2e": ("e2e/",),
    "serving": ("integration/store_service/",),
    "planning": (
        "unit/api/",
        "unit/cli/commands/plan/test_plan.py",
        "unit/cli/commands/plan/test_profile.py",
        "unit/planner/",
    ),
    "simulating": ("simulation/",),
    "rehearsing": (
        "contract/",
        "property/test_pacing.py",
        "property/test_simulator.py",
        "property/test_theory.py",
        "unit/benchmarks/",
        "unit/cli/commands/plan/test_simulate.py",
        "unit/observability/",
        "unit/simulator/",
    ),
}

# Tests use compiled kernels, and start no process that compiles them.
os.environ["HEADRACE_COMPILE"] = "now"

# Shells let what they run in the background ignore Ctrl-C, and its children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile(
    "headrace",
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("headrace")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put what takes longest first, in the order of groups; xdist would take the largest."""
    order = {name: number for number, name in enumerate(_TOGETHER)}
    items.sort(key=lambda item: order.get(_group_of(item.nodeid), len(order)))
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


def _group_of(nodeid: str) -> str:
    place = nodeid.removeprefix("tests/")
    groups = (name for name, places in _TOGETHER.items() if place.startswith(places))
    return next(groups, nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give every worker one test at a time, and those of a group to one worker.

    `--dist loadgroup` would do, but pytest-xdist 3.8 finds no groups with pytest 9.2.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByPlace(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return _group_of(nodeid)

    return ByPlace(config, log)
