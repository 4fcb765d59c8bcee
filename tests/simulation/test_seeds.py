"""A sample of simulated runs; `benchmarks/simulation.py` simulates many more."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from tests.simulation.faults import draw
from tests.simulation.simulation import Result, simulate

SEEDS = range(20, 40)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_disturbed_run_ends_well(seed: int) -> None:
    result = simulate(seed)
    assert not result.problem, f"{result.problem}; repeat it with `{result.replay}`"


def test_the_first_iteration_is_waited_for_while_clocks_are_compared() -> None:
    # Over a slow network that takes 5 s, and a stall is told of 10 s after the begin.
    result = simulate(95, draw(95, ("reset", "delay", "kill task")))
    assert not result.problem


def test_a_seed_repeats_itself() -> None:
    results: list[Result] = [simulate(46) for _ in range(2)]
    assert results[0].lines == results[1].lines
    assert results[0].num_events == results[1].num_events
    assert results[0].lines
