"""Mistakes in values that are made in Python; `test_broken_files.py` has those in files."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from headrace.core.cluster import Cluster, Machine
from headrace.core.errors import SpecError
from headrace.core.job import Job
from headrace.core.placement import Placement
from headrace.core.profile import Profile, TaskTime
from headrace.core.validation_errors import schema_at
from headrace.core.values import Spec

MACHINE = {"name": "a", "nic": "1Gbps"}
JOB = {"trainers": 4, "batch_size": 8}


@pytest.mark.parametrize(
    ("model", "fields", "problem", "remedy"),
    [
        (Job, {"trainer": 4}, "Job: trainer: unknown key", "did you mean `trainers`?"),
        (Job, {"trainers": 4}, "Job: `batch_size` is missing", "add `batch_size: 4`"),
        (
            Job,
            JOB | {"demands": {"trainr": {"cpu": 1}}},
            "Job: demands.trainr: 'trainr' is not known",
            "did you mean `trainer`? It is one of store, sampler, trainer, ps, ring",
        ),
        (
            Job,
            JOB | {"samplers_per_trainer": 9},
            "Job: batch_size: batch_size 8 gives 9 samplers less than one seed each",
            "increase batch_size or decrease samplers_per_trainer",
        ),
        (
            Machine,
            {"nic": "10 gigs"},
            "Machine: nic: '10 gigs' is not a bandwidth",
            "write it like 10Gbps (units: bps, ",
        ),
        (
            Machine,
            {"name": "a", "nic_in": "1Gbps"},
            "Machine: `nic_out` is missing",
            "add `nic: 10Gbps`, or `nic_in` and `nic_out`",
        ),
        (
            Cluster,
            {"machines": [MACHINE, MACHINE | {"name": "b", "nic": "10 gigs"}]},
            "Cluster: machines[1].nic: '10 gigs' is not a bandwidth",
            "write it like 10Gbps",
        ),
        (
            Cluster,
            {"machines": [MACHINE, MACHINE]},
            "Cluster: machines[1].name: two machines have the name 'a'",
            "give every machine a unique name",
        ),
        (Cluster, {"machines": ()}, "Cluster: machines: it is empty", "write at least one entry"),
        (
            Placement,
            {"samplers": (0,), "trainers": ("a",)},
            "Placement: trainers[0]: 'a' is not a whole number",
            "write one such as 4",
        ),
        (
            Profile,
            {"task_times": {"store": "20ms"}, "store_traffic": {}, "batch_traffic": {}},
            "Profile: task_times.store: expected a mapping, found '20ms'",
            "name the machine class, as in `store: {default: 20ms}`",
        ),
    ],
)
def test_a_mistake_in_python_is_told_as_in_a_file(
    model: type[Spec], fields: dict[str, Any], problem: str, remedy: str
) -> None:
    with pytest.raises(SpecError) as caught:
        model(**fields)
    error = caught.value
    assert error.problem == problem
    assert error.remedy.startswith(remedy)
    assert "\n" not in str(error)
    # What pydantic says is not shown above it.
    assert error.__suppress_context__
    assert pickle.loads(pickle.dumps(error)).at == error.at


def test_the_place_is_the_one_that_was_written() -> None:
    with pytest.raises(SpecError) as caught:
        Cluster(machines=[MACHINE | {"resources": {"memory": "48 gigs"}}])
    assert caught.value.at == ("machines", 0, "resources", "memory")


def test_right_values_are_what_they_were() -> None:
    machine = Machine(name="a", nic="1Gbps")  # type: ignore[call-arg]
    assert machine == Machine.model_validate(MACHINE)
    assert pickle.loads(pickle.dumps(machine)) == machine
    assert Cluster(machines=(machine,)).machines[0] is machine
    assert TaskTime(mean=0.02) == TaskTime.model_validate("20ms")


def test_nothing_is_at_a_place_that_is_not() -> None:
    schema = Job.model_json_schema()
    assert schema_at(schema, ("trainers", 0)) == {}
    assert schema_at(schema, ("nobody",)) == {}
