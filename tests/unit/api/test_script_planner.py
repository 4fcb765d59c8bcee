"""Plans with the memory and the trainer times of a traced step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch_geometric")

import headrace
from headrace.api.estimate import ScriptPlanner
from headrace.api.plan import estimated_steps, explain, plan_summary
from headrace.api.plan import plan as make_plan
from headrace.api.profile import with_steps
from headrace.core.cluster import Cluster, Machine
from headrace.core.job import Job, Role
from headrace.core.plan import Plan
from headrace.core.profile import Problem, Profile, StepSample
from headrace.profiling.default_profile import default_profile
from headrace.profiling.step_estimate.script import ScriptStep

JOB = Job(trainers=2, batch_size=100)


def step(seeds: int) -> ScriptStep:
    size = seeds * 10_000
    return ScriptStep(
        peak_bytes=3 * size,
        made_of={"parameters": 1000, "activations": 2 * size, "batch": size},
        resident_bytes=4 * size,
        base_bytes=300_000_000,
        batch_bytes=size,
        batch_size=seeds,
        shape=(10, 20),
        num_batches=20,
        counts=(100.0, 1e6 * seeds, 1e5 * seeds, 1e5 * seeds, 0.0, 1e6 * seeds),
        parameter_bytes=1000,
        is_real=False,
    )


def planner(seeds: int = 100, **more: Any) -> ScriptPlanner:
    def make(problem: Problem, **options: Any) -> Plan:
        return make_plan(*problem, method="colocate", policy="maxmin", **options)

    return ScriptPlanner(step(seeds), (5e6, 5e6), make, **more)


def cluster(**resources: float) -> Cluster:
    machines = (Machine(name="m", count=2, nic_in=1e9, nic_out=1e9, resources=resources),)
    return Cluster(machines=machines)


def profile(*sizes: int) -> Profile:
    samples = []
    for seeds in sizes:
        counts = step(seeds).counts
        assert counts is not None
        times = {"default": 1e-3 + 1e-4 * seeds}
        samples.append(StepSample(seeds=seeds, counts=counts, times=times))
    return default_profile().model_copy(update={"version": 2, "steps": tuple(samples)})


def test_machines_of_unknown_memory_have_room() -> None:
    made = planner().plan(Problem(cluster(cpu=8), JOB, default_profile()))
    assert made.job == JOB
    assert made.memory is not None
    assert not made.memory.demands
    assert all(machine.fits for machine in made.memory.machines)
    known = planner().plan(Problem(cluster(memory=8e9), JOB, default_profile()))
    assert known.memory is not None
    assert known.memory.demands[Role.TRAINER] == known.job.demand(Role.TRAINER)["memory"]
    assert Plan.model_validate_json(known.to_text()) == known
    assert plan_summary(known)["memory"]["machines"][0]["fits"]


def test_a_given_cache_is_part_of_the_demand() -> None:
    problem = Problem(cluster(memory=8e9), JOB, default_profile())
    without, given = planner().plan(problem), planner(cache_bytes=1e6).plan(problem)
    demands = [each.job.demand(Role.SAMPLER)["memory"] for each in (without, given)]
    assert demands[1] == demands[0] + 1e6


def test_a_step_that_never_ran_has_an_estimated_time_with_an_interval() -> None:
    problem = Problem(cluster(cpu=8), JOB, profile(20, 50, 80))
    made = planner(more_profiles=(profile(200, 400),)).plan(problem)
    ((kind, seconds, low_s, high_s, num),) = estimated_steps(made)
    assert (kind, num) == ("default", 5)
    assert seconds == pytest.approx(1e-3 + 1e-4 * 100, rel=0.05)
    assert low_s <= seconds <= high_s
    assert plan_summary(made)["trainer_steps"]["default"]["num_steps"] == 5
    again = Plan.model_validate_json(made.to_text())
    assert estimated_steps(explain(again).plan) == estimated_steps(made)
    measured = planner().plan(problem._replace(profile=profile(20, 100, 200)))
    assert estimated_steps(measured) == []


def test_profiles_store_what_measured_steps_do(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def traced(*arguments: Any, config: Any, is_real: bool) -> ScriptStep:
        asked.append((arguments[3], config))
        return step(arguments[3])

    monkeypatch.setattr("headrace.runtime.controller.script_step.trace_script", traced)
    made = make_plan(cluster(cpu=8), JOB, method="colocate", policy="maxmin")
    trace = headrace.simulate(
        made.cluster, made.job, made.profile, made, iterations=20, record=True
    ).trace()
    script, graph = Path("train.py"), Path("parts")
    assert with_steps(made.profile, trace, made, script, graph) == made.profile
    object.__setattr__(trace, "seeds", np.full((2, 20), 100))
    found = with_steps(made.profile, trace, made, script, graph, config={"width": 3})
    assert asked == [(100, {"width": 3})]
    (sample,) = found.steps
    assert (sample.seeds, sample.counts) == (100, step(100).counts)
    mean_s = made.profile.task_time(Role.TRAINER, "default").mean
    expected_s = mean_s * made.profile.seed_scale(Role.TRAINER, JOB)
    assert sample.times["default"] == pytest.approx(expected_s, rel=0.2)
    assert found.version == 2
