"""Events in continuous time are Algorithm 1 with ever shorter slots.

A slotted run differs because everything ends with a slot. Along the chain of tasks and flows that
makes the makespan (Lemma 2) every element ends up to one slot late by its own rounding; a flow also
waits for neighbours that keep their share of a port to the end of their last slot, which costs the
d flows left behind 1 / (d + 1) of a slot each time. So two slots per element of the longest chain
are allowed, whatever the slot length. This is a budget, not a theorem: where slots are coarse,
events swap places and the makespan may even shrink.
"""

from __future__ import annotations

import numpy as np
import pytest

from headrace.core.tasks import EdgeKind
from headrace.simulator import Instance, simulate
from tests.oracle.instances import constant_case, fixed_instance, ring_instance
from tests.oracle.naive import rehearse
from tests.oracle.slotted import oes_makespan_s
from tests.oracle.theory import num_chain_elements, shape_of

SLOTS_PER_ELEMENT = 2


def check(seed: int, num_slots: int) -> None:
    case = constant_case(seed)
    makespan_s = simulate(case.instance, "oes").makespan_s
    slot_s = makespan_s / num_slots
    allowed_s = SLOTS_PER_ELEMENT * num_chain_elements(case.instance, shape_of(case.graph)) * slot_s
    assert abs(oes_makespan_s(case.instance, slot_s) - makespan_s) <= allowed_s


@pytest.mark.parametrize("seed", range(20))
def test_agrees_up_to_the_slot_length(seed: int) -> None:
    check(seed, num_slots=500)


@pytest.mark.campaign
@pytest.mark.parametrize("first", range(100, 300, 50))
def test_agrees_up_to_the_slot_length_on_many(first: int) -> None:
    for seed in range(first, first + 50):
        check(seed, num_slots=1_000)


def test_shorter_slots_come_closer() -> None:
    mean_errors = []
    cases = [constant_case(seed) for seed in range(12)]
    for num_slots in (64, 256, 1_024, 4_096):
        errors = []
        for case in cases:
            makespan_s = simulate(case.instance, "oes").makespan_s
            errors.append(
                abs(oes_makespan_s(case.instance, makespan_s / num_slots) / makespan_s - 1)
            )
        mean_errors.append(float(np.mean(errors)))
    # Slots of a quarter of the length: about a quarter of the error.
    ratios = np.array(mean_errors[1:]) / np.array(mean_errors[:-1])
    assert (ratios < 0.5).all()
    assert mean_errors[-1] < 0.005


EXACT = {
    "two flows": fixed_instance(
        machines=[0, 1, 2],
        times=[1.0, 0.0, 0.0],
        edges=[(0, 1, 0, EdgeKind.GRAPH, 8.0), (0, 2, 0, EdgeKind.GRAPH, 4.0)],
        nic_out=[4.0, 1.0, 1.0],
        nic_in=[1.0, 99.0, 99.0],
    ),
    "parameter server": fixed_instance(
        machines=[0, 1],
        times=[1.0, 0.5],
        edges=[(0, 1, 0, EdgeKind.GRADIENT, 4.0), (1, 0, 1, EdgeKind.PARAMETER, 4.0)],
        nic_out=[2.0, 2.0],
        nic_in=[2.0, 2.0],
        num_iterations=3,
    ),
    "pipeline": fixed_instance(
        machines=[0, 1],
        times=[1.0, 0.5],
        edges=[(0, 1, 0, EdgeKind.GRAPH, 6.0)],
        nic_out=[2.0, 2.0],
        nic_in=[2.0, 2.0],
        num_iterations=4,
    ),
    "ring of two": ring_instance([0, 1], [1.0, 2.0], [4.0, 2.0], 4.0, num_iterations=2),
    "ring of three": ring_instance([0, 1, 2], [1.0] * 3, [2.0] * 3, 4.0, num_iterations=2),
}


@pytest.mark.parametrize("slot_s", [0.5, 0.25, 0.125])
@pytest.mark.parametrize("instance", EXACT.values(), ids=EXACT.keys())
def test_exact_where_everything_ends_with_a_slot(instance: Instance, slot_s: float) -> None:
    assert oes_makespan_s(instance, slot_s) == rehearse(instance, "oes").makespan_s
