"""The first trials of the campaign in `benchmarks/faults.py`: all kinds of victims are killed."""

from __future__ import annotations

import pytest

# Now: PyG warns of what it imports, and warnings are errors in tests.
pytest.importorskip("torch_geometric.nn")

from benchmarks.fault_trials import Trials, draw
from headrace.runtime.testbed import Testbed

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

NUM_TRIALS = 8


@pytest.fixture(scope="module")
def trials(testbed: Testbed, tmp_path_factory: pytest.TempPathFactory) -> Trials:
    """Share a graph, and runs that nobody disturbs."""
    return Trials(testbed, tmp_path_factory.mktemp("faults"), print)


@pytest.mark.parametrize("number", range(NUM_TRIALS))
def test_a_run_ends_as_if_nobody_had_been_killed(trials: Trials, number: int) -> None:
    found = trials.trial(draw(0, number))
    assert not found["problems"], found
