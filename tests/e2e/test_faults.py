"""Faults on a testbed: a trainer, a store, the driver and Ctrl-C.

`benchmarks/faults.py` has all kinds.
"""

from __future__ import annotations

import pytest

# Now: PyG warns of what it imports, and warnings are errors in tests.
pytest.importorskip("torch_geometric.nn")

from headrace.testbed import Testbed
from tests.support.fault_trials import Case, Trials, draw

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

NUM_TRIALS = 8
CASES = {
    "trainer, training": Case(0, "trainer", "training", "ring", 0.9, 40, 0.2),
    "store, checkpoint": Case(1, "store", "checkpoint", "ring", 0.4, 30, 0.01),
    "Ctrl-C, then driver": Case(2, "driver", "training", "ring", 0.0, 60, 0.3, interrupt_at=20),
}


@pytest.fixture(scope="module")
def trials(testbed: Testbed, tmp_path_factory: pytest.TempPathFactory) -> Trials:
    """Share a graph, and runs that nobody disturbs."""
    return Trials(testbed, tmp_path_factory.mktemp("faults"), print, most_silent_s=None)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_run_ends_as_if_nobody_had_been_killed(trials: Trials, case: Case) -> None:
    found = trials.trial(case)
    assert not found["problems"], found


@pytest.mark.campaign
@pytest.mark.parametrize("number", range(NUM_TRIALS))
def test_a_run_survives_trial(trials: Trials, number: int) -> None:
    found = trials.trial(draw(0, number))
    assert not found["problems"], found
