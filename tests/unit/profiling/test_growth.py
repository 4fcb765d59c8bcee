"""Growth is measured from runs with several batch sizes, and from sampled batches."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
from headrace.api.graph import partition
from headrace.core.job import Role
from headrace.core.plan import Plan
from headrace.core.trace import Trace
from headrace.planner.planner import make_plan
from headrace.profiling import measured_iteration_time_s, profile_trace
from headrace.profiling.from_graph import sample_batches, sample_growth
from headrace.profiling.growth import trainer_steps
from tests.unit.core.test_growth import GROWTH, grown

FACTORS = np.repeat([1.0, 0.5, 2.0], [36, 12, 12])


def taken(table: Any, iterations: np.ndarray) -> Any:
    kept = np.isin(table.iteration, iterations)
    return type(table)(**{f.name: getattr(table, f.name)[kept] for f in fields(table)})


def joined(tables: list[Any]) -> Any:
    names = [field.name for field in fields(tables[0])]
    return type(tables[0])(
        **{name: np.concatenate([getattr(each, name) for each in tables]) for name in names}
    )


def trace_of(plan: Plan, factors: np.ndarray) -> Trace:
    """Iterations of simulated runs that have these batch sizes."""
    job, num = plan.job, len(factors)
    traces = []
    for factor in sorted(set(factors.tolist())):
        sized = job.model_copy(update={"batch_size": round(job.batch_size * factor)})
        whole = headrace.simulate(
            plan.cluster, sized, plan.profile, plan.placed, iterations=num, record=True
        ).trace()
        at = np.flatnonzero(factors == factor)
        traces.append(
            replace(whole, executions=taken(whole.executions, at), flows=taken(whole.flows, at))
        )
    seeds = np.tile(job.batch_size / job.samplers_per_trainer * factors, (job.num_samplers, 1))
    return replace(
        traces[0],
        executions=joined([each.executions for each in traces]),
        flows=joined([each.flows for each in traces]),
        seeds=seeds.astype(np.int64),
    )


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(grown(), seed_mix="uniform")


def test_a_run_with_three_sizes_gives_curves_and_nominal_figures(plan: Plan) -> None:
    found = profile_trace(trace_of(plan, FACTORS), plan)
    assert found.growth is not None
    assert found.growth.seeds == (25, 50, 100)
    for name in ("store_bytes", "sampler_time", "trainer_time"):
        measured = np.array(getattr(found.growth, name))
        expected = GROWTH.values_at(name, found.growth.seeds)
        np.testing.assert_allclose(measured / measured[1], expected / expected[1], rtol=0.06)
    plain = profile_trace(trace_of(plan, np.ones(36)), plan)
    assert plain.growth == plan.profile.growth
    assert found.task_times[Role.SAMPLER]["default"].mean == pytest.approx(
        plain.task_times[Role.SAMPLER]["default"].mean, rel=0.02
    )
    assert found.batch_traffic.bytes_per_seed == pytest.approx(
        plain.batch_traffic.bytes_per_seed, rel=0.02
    )


def test_steps_of_trainers_are_measured_by_size_and_machine_class(plan: Plan) -> None:
    trace = trace_of(plan, FACTORS)
    found = trainer_steps(trace, plan, skip=5)
    sizes = [round(plan.job.batch_size * factor) for factor in (0.5, 1, 2)]
    assert sorted(found) == sizes
    kinds = {plan.cluster.hosts[machine].kind for machine in plan.placed.trainers}
    for seeds in sizes:
        assert set(found[seeds]) == kinds
        for kind, seconds in found[seeds].items():
            nominal_s = plan.profile.task_time(Role.TRAINER, kind).mean
            job = plan.job.model_copy(update={"batch_size": seeds})
            expected_s = nominal_s * plan.profile.seed_scale(Role.TRAINER, job)
            assert seconds == pytest.approx(expected_s, rel=0.1)
    assert trainer_steps(replace(trace, seeds=None), plan, 5) == {}


def test_without_seeds_in_the_trace_there_is_no_curve(plan: Plan) -> None:
    trace = replace(trace_of(plan, FACTORS), seeds=None)
    flat = plan.model_copy(
        update={"profile": plan.profile.model_copy(update={"growth": None, "version": 1})}
    )
    assert profile_trace(trace, flat).growth is None


def test_time_per_iteration_is_that_of_the_usual_size(plan: Plan) -> None:
    trace = trace_of(plan, np.ones(20))
    usual_s = measured_iteration_time_s(trace)
    seeds = np.array(trace.seeds)
    seeds[:, 15:] //= 2
    rows = trace.executions
    late = rows.iteration >= 15
    slower = replace(rows, end_s=np.where(late, rows.end_s + 100.0, rows.end_s))
    varied = replace(trace, executions=slower, seeds=seeds)
    assert measured_iteration_time_s(varied) == pytest.approx(usual_s, rel=0.05)


def test_sampled_batches_predict_batches_of_other_sizes(tmp_path: Path) -> None:
    graph = partition("generated:nodes=3000,edges=40000,features=16", tmp_path / "parts", 2)
    growth = sample_growth(graph, [10, 5], 32)
    assert growth.seeds == (8, 32, 128)
    assert sample_growth(graph, [10, 5], 32) == growth
    truth = sample_batches(graph, [10, 5], [64], num_draws=20, seed=5)
    for name, (value,) in truth.items():
        assert float(growth.values_at(name, 64)) == pytest.approx(value, rel=0.05)
