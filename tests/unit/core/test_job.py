from __future__ import annotations

import pytest
from pydantic import ValidationError

from headrace.core.job import UNLIMITED_WINDOW, Job, Role


def job_of(**fields: object) -> Job:
    return Job.model_validate({"trainers": 4, "batch_size": 8} | fields)


def test_counts() -> None:
    job = job_of(samplers_per_trainer=2, sync="ps", parameter_servers=3)
    assert (job.num_samplers, job.num_servers) == (8, 3)


def test_a_ring_has_no_servers() -> None:
    assert job_of(sync="ring", parameter_servers=3).num_servers == 0


def test_demands() -> None:
    job = job_of(demands={"trainer": {"gpu": 1, "memory": "3GB"}})
    assert job.demand(Role.TRAINER) == {"gpu": 1.0, "memory": 3e9}
    assert job.demand(Role.SAMPLER) == {}


def test_ring_steps_have_no_demand() -> None:
    with pytest.raises(ValidationError, match="have no demand of their own"):
        job_of(demands={"ring": {"cpu": 1}})


@pytest.mark.parametrize(("written", "kept"), [("unlimited", UNLIMITED_WINDOW), (1, 1), (4, 4)])
def test_window(written: object, kept: int) -> None:
    assert job_of(window=written).window == kept


@pytest.mark.parametrize("written", ["infinite", "4", -1, 1.5, None, True])
def test_wrong_windows(written: object) -> None:
    with pytest.raises(ValidationError):
        job_of(window=written)


def test_every_sampler_gets_a_seed() -> None:
    job_of(samplers_per_trainer=8)
    with pytest.raises(
        ValidationError, match="increase batch_size or decrease samplers_per_trainer"
    ):
        job_of(samplers_per_trainer=9)


@pytest.mark.parametrize("field", ["trainers", "batch_size", "iterations", "parameter_servers"])
@pytest.mark.parametrize("bad", [0, -1, 1.5, "many", True, None])
def test_counts_are_positive_whole_numbers(field: str, bad: object) -> None:
    with pytest.raises(ValidationError):
        job_of(**{field: bad})
