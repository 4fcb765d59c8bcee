"""Compare the package's rehearsal with the naive one, and say where they part."""

from __future__ import annotations

import numpy as np

from headrace.simulator import Instance, Outcome, simulate
from tests.oracle.naive import NaiveOutcome, rehearse

RELATIVE = 1e-9


def differences(instance: Instance, policy: str) -> list[str]:
    """What differs between kernel and naive twin, as readable lines; empty if they agree."""
    return list_differences(simulate(instance, policy, record=True), rehearse(instance, policy))


def list_differences(outcome: Outcome, naive: NaiveOutcome) -> list[str]:
    """As `differences`, for outcomes at hand."""
    record = outcome.record
    assert record is not None
    lines = []
    if outcome.num_events != naive.num_events:
        lines.append(f"num_events: {outcome.num_events} instead of {naive.num_events}")
    for name in ("makespan_s", "iteration_end_s", "in_bytes", "out_bytes"):
        lines += _compare(name, getattr(outcome, name), getattr(naive, name))
    for name in ("task_start_s", "task_end_s", "flow_start_s", "flow_end_s", "flow_bytes"):
        lines += _compare(name, getattr(record, name), getattr(naive, name))
    return lines


def _compare(name: str, found: float | np.ndarray, wanted: float | np.ndarray) -> list[str]:
    found, wanted = np.asarray(found), np.asarray(wanted)
    if found.shape != wanted.shape:
        return [f"{name}: shape {found.shape} instead of {wanted.shape}"]
    same = np.isclose(found, wanted, rtol=RELATIVE, atol=0.0, equal_nan=True)
    if same.all():
        return []
    where = tuple(int(i) for i in np.argwhere(~same)[0]) if same.ndim else ()
    return [f"{name}{list(where)}: {found[where]!r} instead of {wanted[where]!r}"]
