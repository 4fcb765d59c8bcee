"""The packing against Algorithm 2 taken literally: a set of counts per number of machines."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from headrace.planner.methods.bin_packing import (
    Counts,
    Room,
    Totals,
    most_samplers,
    num_fitting,
    pack,
)


def random_room(rng: np.random.Generator) -> tuple[Room, Totals]:
    room = Room(
        names=("cpu", "memory"),
        free=rng.integers(0, 9, size=(int(rng.integers(1, 6)), 2)).astype(float),
        sampler=rng.integers(0, 3, size=2).astype(float),
        trainer=rng.integers(0, 4, size=2).astype(float),
        server=rng.integers(0, 4, size=2).astype(float),
    )
    totals = Totals(*(int(n) for n in rng.integers(0, (9, 5, 3))))
    return room, totals


def machines_needed(room: Room, totals: Totals, order: np.ndarray) -> int | None:
    """Alg. 2 as printed, with zero counts: the first i whose set holds the complete count."""
    packed = {(0, 0, 0)}
    if totals in packed:
        return 0
    for i, machine in enumerate(order, start=1):
        here = [
            (s, w, p)
            for s, w, p in product(*(range(total + 1) for total in totals))
            if (s * room.sampler + w * room.trainer + p * room.server <= room.free[machine]).all()
        ]
        packed = {
            (a + x, b + y, c + z)
            for (a, b, c), (x, y, z) in product(packed, here)
            if a + x <= totals.samplers and b + y <= totals.trainers and c + z <= totals.servers
        }
        if totals in packed:
            return i
    return None


def used(room: Room, counts: Counts) -> np.ndarray:
    total: np.ndarray = (
        counts.samplers[:, None] * room.sampler
        + counts.trainers[:, None] * room.trainer
        + counts.servers[:, None] * room.server
    )
    return total


@pytest.mark.parametrize("chunk", range(5))
def test_packs_on_the_first_machines_that_suffice(chunk: int) -> None:
    rng = np.random.default_rng(chunk)
    num_feasible = 0
    for _ in range(60):
        room, totals = random_room(rng)
        order = rng.permutation(len(room.free))
        counts = pack(room, totals, order, samplers_per_trainer=2)
        needed = machines_needed(room, totals, order)
        if needed is None:
            assert counts is None
            continue
        num_feasible += 1
        assert counts is not None
        assert (used(room, counts) <= room.free).all()
        assert (counts.samplers.sum(), counts.trainers.sum(), counts.servers.sum()) == totals
        rest = order[needed:]
        assert not (counts.samplers[rest] + counts.trainers[rest] + counts.servers[rest]).any()
    assert 10 < num_feasible < 60


def test_most_samplers_is_what_fits_beside_each_number_of_trainers() -> None:
    room = Room(
        names=("cpu",),
        free=np.array([[8.0], [8.0]]),
        sampler=np.array([2.0]),
        trainer=np.array([1.0]),
        server=np.array([3.0]),
    )
    table = most_samplers(room, Totals(samplers=10, trainers=4, servers=1))
    assert table[:, 0].tolist() == [8, 7, 7, 6, 6]
    assert table[:, 1].tolist() == [6, 6, 5, 5, 4]


def test_roles_without_a_demand_fit_any_number_of_times() -> None:
    nothing = np.zeros(1)
    room = Room(("cpu",), np.ones((2, 1)), nothing, nothing, nothing)
    counts = pack(room, Totals(5000, 1000, 3), np.array([1, 0]), samplers_per_trainer=5)
    assert counts is not None
    assert (counts.samplers.tolist(), counts.trainers.tolist()) == ([0, 5000], [0, 1000])


def test_num_fitting_counts_in_fractions_and_knows_overdrawn_machines() -> None:
    free = np.array([[4.0, 1.0], [4.0, -1.0], [1.0, 9.0]])
    assert num_fitting(free, np.array([2.0, 0.0])).tolist() == [2.0, -1.0, 0.5]
    assert num_fitting(free, np.zeros(2)).tolist() == [np.inf, -1.0, np.inf]
