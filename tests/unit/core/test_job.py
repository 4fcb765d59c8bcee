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


@pytest.mark.parametrize("role", ["ring", "layer"])
def test_parts_of_trainers_have_no_demand(role: str) -> None:
    with pytest.raises(ValidationError, match="have no demand of their own"):
        job_of(demands={role: {"cpu": 1}})


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


def test_plain_widths_of_a_full_graph_job_are_followed_by_the_way_back() -> None:
    job = Job.model_validate({"kind": "full-graph", "trainers": 2, "swaps": [8, 16]})
    assert [(swap.row_bytes, swap.is_back) for swap in job.swaps] == [
        (32.0, False),
        (64.0, False),
        (64.0, True),
        (32.0, True),
    ]
    assert Job.model_validate(job.model_dump(mode="json")) == job


def test_swaps_of_other_layers_are_written_out() -> None:
    swaps = [{"row_bytes": "1KB", "is_sum": False}, 8]
    job = Job.model_validate({"kind": "full-graph", "trainers": 2, "swaps": swaps})
    assert [(swap.row_bytes, swap.is_sum) for swap in job.swaps] == [(1000.0, False), (32.0, True)]


def test_full_graph_jobs_need_no_batch_size() -> None:
    fields = {"trainers": 2, "samplers_per_trainer": 3}
    assert Job.model_validate({"kind": "full-graph", **fields}).batch_size == 3
    with pytest.raises(ValidationError, match="batch_size"):
        Job.model_validate(fields)


def test_sampled_jobs_divide_no_layers() -> None:
    with pytest.raises(ValidationError, match="write `kind: full-graph`"):
        Job.model_validate({"trainers": 2, "batch_size": 8, "parallelism": "features"})


def test_sampled_jobs_have_no_swaps() -> None:
    with pytest.raises(ValidationError, match="write `kind: full-graph`"):
        job_of(swaps=[8])


def test_sampled_jobs_are_written_as_before() -> None:
    written = job_of().model_dump(mode="json")
    assert not {"kind", "swaps", "parallelism"} & set(written)
    assert job_of(kind="sampled").fingerprint() == job_of().fingerprint()
