from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from headrace.core.errors import MissingExtraError
from headrace.core.job import Sync
from headrace.core.trace import Executions, Flows, Trace
from headrace.observability import draw_gantt
from headrace.observability.rows import MAX_MACHINES, Bars, Row, coarsen, layout
from tests.unit.observability.traces import random_trace, tiny_trace


def size_of(path: Path) -> tuple[int, int]:
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG")
    return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")


def test_a_row_per_task_between_flows_in_and_out() -> None:
    drawn = layout(tiny_trace())
    assert [machine for machine, _, _ in drawn.bands] == [0, 1]
    assert [row.label for row in drawn.rows] == [
        "gradient in",
        "store0",
        "ps0",
        "graph out",
        "parameter out",
        "graph in",
        "parameter in",
        "store1",
        "sampler0.0",
        "trainer0",
        "gradient out",
    ]


def test_rows_follow_one_another_inside_their_band() -> None:
    drawn = layout(random_trace(4, 6, Sync.PS))
    for before, after in pairwise(drawn.rows):
        assert before.top + before.height <= after.top + 1e-9
    assert drawn.bands[-1][2] == drawn.height
    assert drawn.rows[-1].top + drawn.rows[-1].height <= drawn.height


def test_bars_hold_every_flow_twice_and_every_execution_that_takes_time() -> None:
    trace = random_trace(4, 5, Sync.RING)
    drawn = layout(trace)
    num_flows = sum(len(row.bars.start_s) for row in drawn.rows if row.is_flow)
    num_runs = sum(len(row.bars.start_s) for row in drawn.rows if not row.is_flow)
    assert num_flows == 2 * len(trace.flows.src)
    assert num_runs == int((trace.executions.end_s > trace.executions.start_s).sum())


def test_many_tasks_share_a_row_by_role() -> None:
    drawn = layout(random_trace(4, 40, Sync.PS))
    labels = {row.label.split(" ")[-1] for row in drawn.rows if not row.is_flow}
    assert labels <= {"store", "sampler", "samplers", "trainer", "trainers", "ps"}
    assert len(drawn.rows) <= 4 * 10


def test_coarse_rows_keep_what_differs_by_a_pixel() -> None:
    start = np.array([0.0, 0.1, 0.2, 3.0, 3.1])
    bars = Bars(start, start + 5, np.array([0, 0, 1, 1, 1]), np.array([0, 1, 2, 3, 0]))
    coarse = coarsen(Row("graph in", True, 0.0, 1.0, 4, bars), step_s=1.0, max_lanes=2)
    assert coarse.num_lanes == 2
    assert coarse.bars.start_s.tolist() == [0.0, 0.2, 3.0, 3.1]
    assert coarse.bars.lane.tolist() == [0, 1, 1, 0]


def test_of_very_many_machines_the_busiest_are_shown() -> None:
    drawn = layout(random_trace(MAX_MACHINES + 8, 10, Sync.PS))
    assert len(drawn.bands) == MAX_MACHINES
    assert drawn.num_hidden == 8


@pytest.mark.parametrize(
    "trace",
    [
        tiny_trace(),
        random_trace(3, 4, Sync.RING, iterations=14),
        random_trace(MAX_MACHINES + 8, 12, Sync.PS, iterations=2),
    ],
    ids=["tiny", "ring of many iterations", "large"],
)
def test_draws_a_png_that_is_not_too_large(trace: Trace, tmp_path: Path) -> None:
    path = tmp_path / "gantt.png"
    draw_gantt(trace, path, title="a title")
    width, height = size_of(path)
    assert 1000 < width < 4000
    assert 400 < height < 8000


def test_equal_traces_give_equal_pictures(tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        draw_gantt(tiny_trace(), tmp_path / name)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_an_empty_trace_is_an_empty_picture(tmp_path: Path) -> None:
    none = np.zeros(0)
    ints = np.zeros(0, dtype=np.int64)
    trace = Trace(
        task_names=("store0",),
        task_roles=("store",),
        task_machines=np.zeros(1, dtype=np.int64),
        machine_names=("m0",),
        nic_in_bytes_per_s=np.ones(1),
        nic_out_bytes_per_s=np.ones(1),
        executions=Executions(ints, ints, none, none),
        flows=Flows(ints, ints, ints, none, none, none),
    )
    draw_gantt(trace, tmp_path / "empty.png")
    assert size_of(tmp_path / "empty.png")[0] > 0


def test_without_matplotlib_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'headrace\[report\]'"):
        draw_gantt(tiny_trace(), tmp_path / "gantt.png")
