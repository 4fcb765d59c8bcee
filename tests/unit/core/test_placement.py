from __future__ import annotations

import numpy as np
import pytest

from headrace.core.cluster import Cluster
from headrace.core.errors import InfeasibleError, SpecError
from headrace.core.job import Job, Role
from headrace.core.placement import Placement, PlacementFile, demand_vector, resource_names
from headrace.core.plan import uniform_seeds

CLUSTER = Cluster.model_validate(
    {
        "machines": [
            {"name": "m", "count": 2, "nic": "1Gbps", "resources": {"cpu": 8, "gpu": 2}},
            {"name": "cpu-only", "nic": "1Gbps", "resources": {"cpu": 8}},
        ]
    }
)
JOB = Job.model_validate(
    {
        "trainers": 2,
        "samplers_per_trainer": 2,
        "batch_size": 8,
        "sync": "ps",
        "demands": {
            "store": {"cpu": 1},
            "sampler": {"cpu": 2},
            "trainer": {"cpu": 1, "gpu": 1},
            "ps": {"cpu": 1},
        },
    }
)
GOOD = Placement(samplers=(0, 0, 1, 2), trainers=(0, 1), servers=(2,))


def test_a_good_placement_passes() -> None:
    GOOD.check(CLUSTER, JOB)


def test_trainers_are_numbered_by_machine_and_take_their_samplers_along() -> None:
    placement = Placement(samplers=(5, 6, 7, 8, 3, 4), trainers=(2, 0, 2), servers=(1,))
    numbered = placement.numbered_by_ring()
    assert numbered == Placement(samplers=(7, 8, 5, 6, 3, 4), trainers=(0, 2, 2), servers=(1,))
    assert numbered.ring_order == (0, 1, 2)
    assert numbered.numbered_by_ring() == numbered


def test_usage_counts_stores_too() -> None:
    assert resource_names(CLUSTER, JOB) == ("cpu", "gpu")
    np.testing.assert_array_equal(GOOD.usage(CLUSTER, JOB), [[6, 1], [4, 1], [4, 0]])
    np.testing.assert_array_equal(demand_vector(JOB, Role.TRAINER, ("cpu", "gpu")), [1, 1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"samplers": (0, 0, 1)},
            "has 3 samplers, but the job has 4: list one machine for each of the 4",
        ),
        ({"trainers": (0, 1, 1)}, "has 3 trainers, but the job has 2"),
        ({"servers": ()}, "has 0 servers, but the job has 1"),
        ({"trainers": (0, 3)}, r"trainers names machines outside 0..2"),
        ({"servers": (-1,)}, r"servers names machines outside 0..2"),
    ],
)
def test_what_does_not_belong_together(change: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        GOOD.model_copy(update=change).check(CLUSTER, JOB)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"samplers": (0, 0, 0, 0)}, "needs 10 cpu on m-0, which has 8"),
        ({"trainers": (2, 1)}, "needs 1 gpu on cpu-only, which has 0"),
    ],
)
def test_what_does_not_fit(change: dict[str, object], message: str) -> None:
    with pytest.raises(InfeasibleError, match=message):
        GOOD.model_copy(update=change).check(CLUSTER, JOB)


def test_a_demand_nobody_can_meet() -> None:
    greedy = JOB.model_copy(update={"demands": {Role.TRAINER: {"tpu": 1.0}}})
    with pytest.raises(InfeasibleError, match="needs 1 tpu on m-0, which has 0"):
        GOOD.check(CLUSTER, greedy)


def test_fractions_that_add_up_fit() -> None:
    third = JOB.model_copy(update={"demands": {Role.SAMPLER: {"gpu": 2 / 3}}})
    Placement(samplers=(0, 0, 0, 1), trainers=(0, 1), servers=(2,)).check(CLUSTER, third)


def test_trainers_of_one_machine_are_side_by_side_in_the_ring() -> None:
    placement = Placement(samplers=(), trainers=(2, 0, 2, 1, 0))
    assert placement.ring_order == (1, 4, 3, 0, 2)


def test_names_there_and_back() -> None:
    file = PlacementFile.of(GOOD, CLUSTER)
    assert file.samplers == ("m-0", "m-0", "m-1", "cpu-only")
    assert file.resolve(CLUSTER) == GOOD


def test_unknown_name() -> None:
    file = PlacementFile(samplers=("m-0",), trainers=("m-0", "m"))
    with pytest.raises(SpecError, match="use one of m-0, m-1, cpu-only") as raised:
        file.resolve(CLUSTER)
    assert raised.value.at == ("trainers", 1)


def test_uniform_seeds_sum_to_the_batch() -> None:
    seeds = uniform_seeds(JOB, CLUSTER.num_machines)
    assert seeds.shape == (4, 3)
    assert seeds.sum() == pytest.approx(JOB.trainers * JOB.batch_size)
