from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from headrace.core.cluster import Cluster, Machine
from headrace.core.errors import InfeasibleError
from headrace.core.job import UNLIMITED_WINDOW, Job, Role, Sync
from headrace.core.memory import MachineMemory, MemoryEstimate, TaskMemory
from headrace.core.placement import Placement, PlacementFile
from headrace.core.plan import (
    Fingerprints,
    Plan,
    Prediction,
    SeedMix,
    Terms,
    uniform_seeds,
)
from headrace.core.profile import BatchTraffic, Profile, StoreTraffic, TaskTime

CLUSTER = Cluster(
    machines=(
        Machine(name="m", count=2, resources={"gpu": 1}, nic_in=1e9, nic_out=1e9),
        Machine(name="slow", resources={"gpu": 1}, nic_in=1e8, nic_out=1e8),
    )
)
JOB = Job(
    trainers=2,
    samplers_per_trainer=2,
    sync=Sync.PS,
    batch_size=100,
    window=UNLIMITED_WINDOW,
    demands={Role.TRAINER: {"gpu": 1}},
)
PROFILE = Profile(
    task_times={
        role: {"default": TaskTime(mean=0.01)}
        for role in (Role.STORE, Role.SAMPLER, Role.TRAINER, Role.SERVER)
    },
    store_traffic=StoreTraffic(bytes_per_seed=1e5, locality=0.5),
    batch_traffic=BatchTraffic(bytes_per_seed=1e5),
)
PLACEMENT = Placement(samplers=(0, 0, 1, 2), trainers=(0, 1), servers=(2,))
MIX = np.array([[25.0, 0.0, 25.0], [25.0, 0.0, 25.0], [0.0, 50.0, 0.0], [0.1, 0.2, 0.7]])


def plan_of(**changes: Any) -> Plan:
    return Plan.model_validate(
        {
            "method": "anneal",
            "policy": "maxmin",
            "placement": PlacementFile.of(PLACEMENT, CLUSTER),
            "seed_mix_name": "local-first",
            "seed_mix": SeedMix.of(MIX, CLUSTER),
            "predicted": Prediction(
                iterations=2,
                window=UNLIMITED_WINDOW,
                seed=0,
                makespan_s=1 / 3,
                iteration_time_s=1 / 6,
            ),
            "terms": Terms(
                nic_s=0.1, busiest_nic="slow in", cycle_s=0.0, task_s=0, latency_s=0, time_s=0.1
            ),
            "bound_s": 0.1,
            "gap": 0.0,
            "proven": True,
            "network_bytes": 1e6,
            "uniform_network_bytes": 2e6,
            "fingerprints": Fingerprints(
                cluster=CLUSTER.fingerprint(),
                job=JOB.fingerprint(),
                profile=PROFILE.fingerprint(),
            ),
            "cluster": CLUSTER,
            "job": JOB,
            "profile": PROFILE,
        }
        | changes
    )


@given(
    st.integers(1, 5).flatmap(
        lambda num: st.lists(
            st.lists(
                st.sampled_from([0.0, 0.1, 1 / 3, 5.0, 1e-9]) | st.floats(0, 1e6),
                min_size=num,
                max_size=num,
            ),
            min_size=1,
            max_size=6,
        )
    )
)
def test_a_seed_mix_is_written_without_loss(rows: list[list[float]]) -> None:
    seeds = np.array(rows)
    cluster = Cluster(machines=(Machine(name="m", count=seeds.shape[1], nic_in=1e9, nic_out=1e9),))
    mix = SeedMix.of(seeds, cluster)
    again = SeedMix.model_validate_json(mix.model_dump_json())
    assert np.array_equal(again.array(cluster), seeds)


def test_equal_samplers_share_a_row() -> None:
    mix = SeedMix.of(MIX, CLUSTER)
    assert [row.samplers for row in mix.rows] == [(0, 1), (2,), (3,)]
    assert mix.rows[0].parts == {"m-1": 0.0}
    assert mix.rows[0].others == 25.0
    assert mix.rows[1].parts == {"m-1": 50.0}


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [{"samplers": []}],
        [{"samplers": [1]}],
        [{"samplers": [0, 0]}],
        [{"samplers": [0]}, {"samplers": [0, 1]}],
        [{"samplers": [0], "others": -1.0}],
        [{"samplers": [0], "parts": {"m-0": -1.0}}],
    ],
)
def test_impossible_seed_mixes(rows: object) -> None:
    with pytest.raises(ValidationError):
        SeedMix.model_validate({"rows": rows})


def test_a_plan_survives_json() -> None:
    plan = plan_of()
    text = plan.model_dump_json()
    again = Plan.model_validate_json(text)
    assert again == plan
    assert again.placed == PLACEMENT
    assert np.array_equal(again.seeds, MIX)
    assert again.model_dump_json() == text


def test_plans_with_estimated_memory_have_version_2() -> None:
    assert "memory" not in plan_of().model_dump()
    assert plan_of().version == 1
    store = TaskMemory(role=Role.STORE, made_of={"process": 1e8, "graph files": 5e8})
    machine = MachineMemory(machine="m-0", tasks={Role.STORE: 1}, needed_bytes=6e8)
    memory = MemoryEstimate(
        tasks=(store,),
        machines=(machine,),
        batch_size=100,
        shape=(10, 20),
        demands={Role.STORE: 6e8},
    )
    plan = plan_of(memory=memory)
    assert plan.version == 2
    assert Plan.model_validate_json(plan.to_text()) == plan
    assert (store.total_bytes, store.anonymous_bytes) == (6e8, 1e8)
    with pytest.raises(ValidationError, match="a plan of version 1 has no memory"):
        plan_of(memory=memory, version=1)


def test_a_plan_file_names_machines_and_writes_windows_as_people_do() -> None:
    written = json.loads(plan_of().model_dump_json())
    assert written["placement"]["trainers"] == ["m-0", "m-1"]
    assert written["job"]["window"] == "unlimited"
    assert written["predicted"]["window"] == "unlimited"


def test_without_a_seed_mix_seeds_are_uniform() -> None:
    plan = plan_of(seed_mix=None, seed_mix_name="uniform")
    assert np.array_equal(plan.seeds, uniform_seeds(JOB, 3))


def test_a_plan_of_another_version_is_refused() -> None:
    with pytest.raises(ValidationError):
        Plan.model_validate_json(
            plan_of().model_dump_json().replace('"version":1,"method"', '"version":3,"method"')
        )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"job": JOB.model_copy(update={"batch_size": 200})},
            "made for a job with the fingerprint",
        ),
        ({"cluster": Cluster(machines=CLUSTER.machines[:1])}, "plan again for the changed cluster"),
        (
            {"placement": PlacementFile(samplers=("m-0",) * 4, trainers=("x", "m-0"))},
            "'x', which the cluster does not have",
        ),
        (
            {"placement": PlacementFile(samplers=(), trainers=())},
            "has 0 samplers, but the job has 4",
        ),
        ({"seed_mix": None}, "named local-first but is missing"),
        ({"seed_mix_name": "uniform"}, "named uniform but is given explicitly"),
        ({"seed_mix": SeedMix.of(MIX[:3], CLUSTER)}, "has 3 samplers, the job 4"),
        (
            {
                "seed_mix": {
                    "rows": [{"samplers": [0, 1, 2, 3], "parts": {"elsewhere": 50.0}}],
                }
            },
            "'elsewhere', which the cluster does not have",
        ),
    ],
)
def test_a_plan_that_contradicts_itself(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        plan_of(**changes)


def test_a_plan_that_does_not_fit() -> None:
    crowded = PlacementFile(samplers=("m-0",) * 4, trainers=("m-0", "m-0"), servers=("m-0",))
    with pytest.raises(InfeasibleError, match="needs 2 gpu on m-0, which has 1"):
        plan_of(placement=crowded)


def test_parts_lie_where_the_plan_says() -> None:
    assert plan_of().part_machines == (0, 1, 2)
    moved = plan_of(seed_mix=None, seed_mix_name="uniform", parts=(0, 2, 0, 2))
    again = Plan.model_validate_json(moved.model_dump_json())
    assert again.part_machines == (0, 2, 0, 2)
    assert np.array_equal(again.seeds, np.tile([25.0, 0.0, 25.0], (4, 1)))


@pytest.mark.parametrize("parts", [(), (0, 3), (-1,)])
def test_parts_lie_on_machines_of_the_cluster(parts: tuple[int, ...]) -> None:
    with pytest.raises(ValidationError):
        plan_of(parts=parts)
