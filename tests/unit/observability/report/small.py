"""Two trainers that step in a known rhythm, as a trace."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from headrace.core.trace import Executions, Flows, Mark, Trace

STEP_S, RING_S, WAIT_S, OTHER_S = 0.04, 0.01, 0.03, 0.02
PACE_S = STEP_S + RING_S + WAIT_S + OTHER_S
NUM = 30


def steady_trace(num: int = NUM, pause_at: int | None = None, pause_s: float = 1.0) -> Trace:
    """Every iteration: a batch comes, something else, a step, the ring; trainer 1 is elsewhere.

    With a pause, trainers do something else before that iteration although its batch is there.
    """
    fed = ("store0", "store1", "sampler0.0", "sampler1.0")
    names = (*fed, "trainer0", "trainer1", "barrier", "ring0.0", "ring1.0")
    roles = ("store", "store", "sampler", "sampler", "trainer", "trainer", "ring", "ring", "ring")
    runs, flows = [], []
    for n in range(num):
        shift_s = pause_s if pause_at is not None and n >= pause_at else 0.0
        late_s = pause_s if pause_at == n else 0.0
        begin_s = n * PACE_S + shift_s
        ready_s = begin_s - late_s + WAIT_S
        start_s = begin_s + WAIT_S + OTHER_S
        done_s = start_s + STEP_S
        for w in (0, 1):
            runs.append((2 + w, n, ready_s - 0.01, ready_s if w == 0 else ready_s - 0.005))
            runs.append((4 + w, n, start_s, done_s))
            runs.append((7 + w, n, done_s, done_s + RING_S / 2))
        flows.append((3, 5, n, 500.0, ready_s - 0.005, ready_s))
        flows.append((8, 4, n, 200.0, done_s + RING_S / 2, done_s + RING_S))
        flows.append((7, 5, n, 200.0, done_s + RING_S / 2, done_s + RING_S))
    runs.sort(key=lambda row: row[2])
    flows.sort(key=lambda row: row[4])
    task, iteration, start, end = (np.array(column) for column in zip(*runs, strict=True))
    src, dst, of, num_bytes, begin, finish = (np.array(c) for c in zip(*flows, strict=True))
    return Trace(
        task_names=names,
        task_roles=roles,
        task_machines=np.array([0, 1, 0, 0, 0, 1, 0, 0, 1]),
        machine_names=("m0", "m1"),
        nic_in_bytes_per_s=np.array([1e5, 1e5]),
        nic_out_bytes_per_s=np.array([1e5, 2e5]),
        executions=Executions(task, iteration, start, end),
        flows=Flows(src, dst, of, num_bytes, begin, finish),
    )


def marked(trace: Trace, at_s: float, text: str = "trainer0 was started again") -> Trace:
    """With a decision."""
    return replace(trace, marks=(Mark(at_s, text),))
