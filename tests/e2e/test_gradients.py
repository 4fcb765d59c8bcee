"""Trainers on four Ray nodes compute the gradients of one process, however the work is shared.

The plan with unequal seeds and two parameter servers is in `test_planned_run.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

# Now: PyG warns of what it imports, and warnings are errors in tests.
pytest.importorskip("torch_geometric.nn")

from headrace.api.graph import partition
from headrace.testbed import Testbed
from tests.e2e.planned_run import CONFIG, GRAPH, SEEDS
from tests.support.cluster_bed import Layout, Run, make_plan
from tests.support.cluster_checks import gradient_difference, is_placed, left_over

pytestmark = [pytest.mark.e2e, pytest.mark.campaign, pytest.mark.timeout(900)]

LAYOUTS = {
    "unequal seeds, ring": Layout(seeds=SEEDS),
    "equal seeds, ring": Layout(),
    "unequal seeds, one server": Layout(servers=("m3",), seeds=SEEDS),
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_gradients_are_those_of_one_process(
    testbed: Testbed, tmp_path: Path, layout: Layout
) -> None:
    partition(GRAPH, tmp_path / "parts", 4)
    config = {**CONFIG, "epochs": 1}
    run = Run(testbed, make_plan(layout, 30), tmp_path / "parts", tmp_path / "run", config)
    folder = run.end()
    assert gradient_difference(folder, tmp_path / "parts", config) <= 1e-5
    assert is_placed(run, folder)
    assert not left_over(testbed)
