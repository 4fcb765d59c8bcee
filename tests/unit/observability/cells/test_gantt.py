"""Which iterations are shown, and how they look as letters."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.core.errors import SpecError
from headrace.core.trace import Executions, Flows, Trace
from headrace.observability.cells import gantt_cell, stretch_of, text_gantt


def trace_of(num: int) -> Trace:
    """A trainer that steps for half of every second, and sends to another machine meanwhile."""
    n = np.arange(num)
    return Trace(
        task_names=("store0", "sampler0.0", "trainer0"),
        task_roles=("store", "sampler", "trainer"),
        task_machines=np.array([0, 1, 1]),
        machine_names=("m0", "a-long-name-of-a-machine"),
        nic_in_bytes_per_s=np.array([100.0, 100.0]),
        nic_out_bytes_per_s=np.array([100.0, 100.0]),
        executions=Executions(np.full(num, 2), n, n + 0.5, n + 1.0),
        flows=Flows(np.zeros(num, int), np.ones(num, int), n, np.full(num, 25.0), n + 0.0, n + 0.5),
    )


@pytest.mark.parametrize(
    ("num", "asked", "found"),
    [
        (3, (None, None), (0, 2)),
        (1, (None, None), (0, 0)),
        (30, (2, 5), (2, 5)),
        (30, (28, None), (28, 29)),
        (30, (None, 1), (0, 1)),
        (30, (0, 29), (0, 29)),
    ],
)
def test_iterations_that_are_shown(
    num: int, asked: tuple[int | None, int | None], found: tuple[int, int]
) -> None:
    stretch = stretch_of(trace_of(num), *asked)
    assert (stretch.first, stretch.last) == found
    assert (stretch.begin_s, stretch.end_s) == (found[0], found[1] + 1)


def test_of_many_iterations_some_usual_ones_are_shown() -> None:
    stretch = stretch_of(trace_of(100))
    assert stretch.num == 4
    assert stretch.first >= 20


@pytest.mark.parametrize("asked", [(3, 2), (-1, 2), (0, 3), (5, None)])
def test_iterations_that_are_not_there(asked: tuple[int, int | None]) -> None:
    with pytest.raises(SpecError, match="choose from 0 to 2"):
        stretch_of(trace_of(3), *asked)


def test_an_empty_trace() -> None:
    with pytest.raises(SpecError, match="no iteration"):
        stretch_of(trace_of(0))


def test_letters() -> None:
    lines = text_gantt(stretch_of(trace_of(12), 9, 10), width=36).splitlines()
    assert lines[0].startswith("Iterations 9 to 10 in 2 s (")
    assert lines[1:] == [
        "m0",
        "           in |",
        "          out |▄▄▄▄▄     ▄▄▄▄▄",
        "a-long-name-of-a-machine",
        "           in |▄▄▄▄▄     ▄▄▄▄▄",
        "     trainer0 |     99999     00000",
        "          out |",
        "              |0                2 s",
    ]


def test_the_picture_names_iterations_and_says_how_long_they_took() -> None:
    markup = gantt_cell(stretch_of(trace_of(12), 9, 10))
    assert "Iterations 9 to 10 in 2 s" in markup
    assert "<title>trainer0, iteration 9: 500 ms</title>" in markup
    assert len(markup) < 16_000
