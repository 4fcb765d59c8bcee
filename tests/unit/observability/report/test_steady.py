from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from headrace.core.trace import Executions
from headrace.observability.report.pairing import (
    Seen,
    machines_of,
    stretches_of,
    tasks_of,
    trainers_of,
)
from headrace.observability.report.steady import steady_iterations
from headrace.observability.report.timelines import timelines_of
from headrace.observability.report.use import nic_series
from tests.unit.observability.report.small import (
    NUM,
    OTHER_S,
    PACE_S,
    RING_S,
    STEP_S,
    WAIT_S,
    marked,
    steady_trace,
)
from tests.unit.observability.traces import tiny_trace


def test_an_iteration_of_a_trainer_is_split_without_rest() -> None:
    lines = timelines_of(steady_trace())
    assert lines.names == ("trainer0", "trainer1")
    counted = np.arange(NUM) >= 1
    for trainer in (0, 1):
        split = lines.split(trainer, counted)
        assert split is not None
        assert split.compute_s == pytest.approx(STEP_S)
        assert split.peers_s == 0
        assert split.exchange_s == pytest.approx(RING_S)
        assert split.wait_s == pytest.approx(WAIT_S)
        assert split.other_s == pytest.approx(OTHER_S)
        assert split.total_s == pytest.approx(PACE_S)


def test_the_wait_for_a_slower_trainer_is_no_exchange() -> None:
    trace = steady_trace()
    rows = trace.executions
    quick = np.where(rows.task == 4, rows.end_s - STEP_S / 4, rows.end_s)
    lines = timelines_of(replace(trace, executions=replace(rows, end_s=quick)))
    split = lines.split(0, np.arange(NUM) >= 1)
    assert split is not None
    assert split.peers_s == pytest.approx(STEP_S / 4)
    assert split.exchange_s == pytest.approx(RING_S)
    assert split.total_s == pytest.approx(PACE_S)


def test_parameter_servers_end_the_exchange() -> None:
    lines = timelines_of(tiny_trace())
    assert lines.num_iterations == 1
    # The flow back is unfinished; the server's own end is known.
    assert lines.agreed_s[0, 0] == pytest.approx(0.062)
    assert lines.ready_s[0, 0] == pytest.approx(0.04)


def test_what_a_step_does_after_the_exchange_is_its_own() -> None:
    trace = tiny_trace()
    # The trainer's bar ends at 60 ms; gradients are now said to have left at 45 ms.
    flows = replace(trace.flows, start_s=np.array([0.01, 0.03, 0.045, 0.062]))
    lines = timelines_of(replace(trace, flows=flows))
    assert lines.agreed_s[0, 0] == pytest.approx(0.062 + 0.015)


def test_an_exchange_ends_before_the_next_step() -> None:
    trace = steady_trace()
    rows = trace.executions
    # A barrier long before the end of the step: most of the step came after the exchange.
    early = [(6, n, n * PACE_S + WAIT_S, n * PACE_S + WAIT_S) for n in range(NUM)]
    task, iteration, start_s, end_s = (np.array(column) for column in zip(*early, strict=True))
    more = Executions(
        np.concatenate([rows.task, task]),
        np.concatenate([rows.iteration, iteration]),
        np.concatenate([rows.start_s, start_s]),
        np.concatenate([rows.end_s, end_s]),
    )
    counted = (np.arange(NUM) >= 1) & (np.arange(NUM) < NUM - 1)
    split = timelines_of(replace(trace, executions=more)).split(0, counted)
    assert split is not None
    assert split.compute_s == pytest.approx(STEP_S)
    assert split.total_s == pytest.approx(PACE_S)


def test_the_pace_is_the_mean_of_what_follows_the_first() -> None:
    steady = steady_iterations(steady_trace(), skip=5)
    assert steady.num == NUM - 5
    assert steady.time_s == pytest.approx(PACE_S)
    assert steady.pauses_s == 0


def test_a_pause_and_what_was_made_ahead_do_not_count() -> None:
    steady = steady_iterations(steady_trace(pause_at=12), skip=5, window=2)
    assert steady.pauses.tolist() == [12]
    assert not steady.counted[12:15].any()
    assert steady.num == NUM - 5 - 3
    assert steady.time_s == pytest.approx(PACE_S)
    assert steady.pauses_s == pytest.approx(1.0)


def test_an_iteration_in_which_the_run_was_mended_does_not_count() -> None:
    trace = marked(steady_trace(), at_s=10.5 * PACE_S)
    assert steady_iterations(trace, skip=5).pauses.tolist() == [10]


def test_few_iterations_all_count() -> None:
    steady = steady_iterations(steady_trace(num=8, pause_at=4), skip=1, window=4)
    assert steady.counted.tolist() == [False, True, True, True, False, True, True, True]


def test_nothing_was_seen() -> None:
    steady = steady_iterations(steady_trace(num=1), skip=0)
    assert steady.num == 0
    assert steady.time_s is None
    assert steady.stretch(6) is None


def test_a_stretch_is_whole_and_typical() -> None:
    steady = steady_iterations(steady_trace(pause_at=12), skip=5)
    first, last = steady.stretch(6) or (0, 0)
    assert last - first == 5
    assert not first <= 12 <= last
    assert steady.stretch(6, before=11) == (5, 10)
    assert steady.stretch(40) == (13, NUM - 1)


def test_a_stretch_is_not_at_the_end_where_cards_fall_silent() -> None:
    steady = steady_iterations(steady_trace(), skip=5)
    took_s = np.where(np.arange(NUM) < NUM - 6, steady.took_s * 1.01, steady.took_s)
    mean_s = took_s[steady.counted].mean()
    last_is_best = replace(steady, took_s=np.where(np.arange(NUM) < NUM - 6, took_s, mean_s))
    _, last = last_is_best.stretch(6) or (0, 0)
    assert last < NUM - NUM // 10


def test_network_cards_carry_what_flows_bring() -> None:
    trace = steady_trace()
    series = nic_series(trace, 0.0, trace.makespan_s, 50)
    length_s = trace.makespan_s / 50
    received = (series.into * trace.nic_in_bytes_per_s * length_s).sum(axis=0)
    # The last exchange ends after the last step of a task.
    assert received == pytest.approx([200.0 * (NUM - 1), 700.0 * (NUM - 1) + 500.0], rel=0.02)


def test_a_rehearsal_and_a_run_side_by_side() -> None:
    slow = Seen(steady_trace(), steady_iterations(steady_trace(), skip=5))
    machines = machines_of(None, slow)
    assert [machine.name for machine in machines] == ["m0", "m1"]
    assert machines[0].measured_in == pytest.approx(200 / PACE_S / 1e5)
    assert machines[0].measured_out == pytest.approx(700 / PACE_S / 1e5)
    assert machines[1].measured_out == pytest.approx(200 / PACE_S / 2e5)
    assert machines[0].predicted_in is None
    tasks = {task.name: task.measured for task in tasks_of(slow, slow)}
    assert tasks["trainer1"] == pytest.approx(STEP_S / PACE_S)
    assert "ring0.0" not in tasks
    assert [each.machine for each in trainers_of(slow, None)] == ["m0", "m1"]
    (one, first), (other, second) = stretches_of(slow, slow, 6)
    assert (one, other) == ("Predicted", "Measured")
    assert (first.first, first.last) == (second.first, second.last)
    assert first.end_s - first.begin_s == pytest.approx(6 * PACE_S)


def test_a_short_rehearsal_shows_its_last_iterations() -> None:
    short = steady_trace(num=10)
    late = steady_trace()
    predicted = Seen(short, steady_iterations(short, skip=2))
    measured = Seen(late, steady_iterations(late, skip=15))
    (_, first), (_, second) = stretches_of(predicted, measured, 4)
    assert (first.first, first.last) == (6, 9)
    assert second.first >= 15
