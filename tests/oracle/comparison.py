"""Compare the package's rehearsal with the naive one, and say where they part."""

from __future__ import annotations

import numpy as np

from headrace.simulator import Instance, Outcome, Record, simulate
from tests.oracle.instances import symmetric_instance
from tests.oracle.naive import NaiveOutcome, rehearse

RELATIVE = 1e-9
PAIR_POLICIES = ("oes", "maxmin", "priority")
"""Policies of both kernels."""

OUTCOME = ("makespan_s", "num_events", "iteration_end_s", "in_bytes", "out_bytes")
RECORD = ("task_start_s", "task_end_s", "flow_start_s", "flow_end_s", "flow_bytes")


def differences(
    instance: Instance,
    policy: str,
    *,
    general: bool = False,
    ties: bool = False,
    exact: bool = False,
) -> list[str]:
    """What differs between kernel and naive twin, as readable lines; empty if they agree.

    Args:
        instance: What to rehearse.
        policy: Flow policy.
        general: Whether to use the kernel that runs every policy where there is a faster one.
        ties: Flows may end with the last task but for rounding; leave those out on both sides.
        exact: Whether the twin computes with fractions.
    """
    outcome = simulate(instance, policy, record=True, general=general)
    assert outcome.record is not None
    found, wanted = _figures(outcome, outcome.record), rehearse(instance, policy, exact=exact)
    expected = _figures(wanted, wanted)
    if ties:
        for figures in (found, expected):
            _leave_out_last_instant(figures, instance)
    return [line for name in found for line in _compare(name, found[name], expected[name])]


def exact_differences(seed: int) -> list[str]:
    """What differs from exact fractions on a symmetric instance, with both kernels."""
    instance = symmetric_instance(seed)
    return [
        f"seed {seed}, {policy}, general {general}: {line}"
        for policy in PAIR_POLICIES
        for general in (False, True)
        for line in differences(instance, policy, general=general, ties=True, exact=True)
    ]


def _figures(
    outcome: Outcome | NaiveOutcome, record: Record | NaiveOutcome
) -> dict[str, np.ndarray]:
    figures = {name: np.array(getattr(outcome, name)) for name in OUTCOME}
    return figures | {name: np.array(getattr(record, name)) for name in RECORD}


def _leave_out_last_instant(figures: dict[str, np.ndarray], instance: Instance) -> None:
    last = figures["flow_end_s"] >= figures["makespan_s"] * (1 - RELATIVE)
    moved = last & (figures["flow_bytes"] > 0)
    figures["flow_end_s"][last] = np.nan
    figures["num_events"] -= moved.sum()
    lost = np.where(moved, figures["flow_bytes"], 0.0).sum(axis=1)
    np.subtract.at(figures["out_bytes"], instance.task_machine[instance.edge_src], lost)
    np.subtract.at(figures["in_bytes"], instance.task_machine[instance.edge_dst], lost)


def _compare(name: str, found: np.ndarray, wanted: np.ndarray) -> list[str]:
    if found.shape != wanted.shape:
        return [f"{name}: shape {found.shape} instead of {wanted.shape}"]
    same = np.isclose(
        found, wanted, rtol=0.0 if name == "num_events" else RELATIVE, atol=0.0, equal_nan=True
    )
    if same.all():
        return []
    where = tuple(int(i) for i in np.argwhere(~same)[0])
    return [f"{name}{list(where)}: {found[where]!r} instead of {wanted[where]!r}"]
