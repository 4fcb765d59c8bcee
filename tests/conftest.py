"""For all tests: one Hypothesis profile, without a clock, and who runs what."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

_TESTS = Path(__file__).parent
_REHEARSING = (
    "contract",
    "property/test_pacing.py",
    "property/test_simulator.py",
    "property/test_theory.py",
    "unit/api",
    "unit/benchmarks",
    "unit/cli/test_plan.py",
    "unit/cli/test_simulate.py",
    "unit/observability",
    "unit/planner",
    "unit/simulator",
)

settings.register_profile(
    "headrace",
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("headrace")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # To compile simulator and planner takes 55 s of CPU time, which both workers would spend.
    for item in items:
        if any(item.path.is_relative_to(_TESTS / place) for place in _REHEARSING):
            item.add_marker(pytest.mark.xdist_group("rehearsing"))
