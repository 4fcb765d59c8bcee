from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import headrace
from headrace.core.errors import SpecError
from headrace.core.job import Role

CLUSTER = headrace.Cluster.model_validate(
    {"machines": [{"name": "a", "nic": "10Gbps"}, {"name": "b", "nic": "1Gbps"}]}
)
JOB = headrace.Job.model_validate(
    {"trainers": 2, "batch_size": 100, "model_bytes": "1MB", "iterations": 20}
)
PROFILE = headrace.Profile.model_validate(
    {
        "task_times": {
            "store": {"default": "1ms"},
            "sampler": {"default": "2ms"},
            "trainer": {"default": "3ms"},
        },
        "store_traffic": {"bytes_per_seed": "100KB", "variation": {"peak_to_mean": 1.2}},
        "batch_traffic": {"bytes_per_seed": "50KB"},
    }
)
TESTBED = Path(__file__).parents[3] / "examples" / "testbed"
GIVEN = headrace.Placement(samplers=(0, 1), trainers=(0, 1))


def test_a_simulation_holds_everything() -> None:
    found = headrace.simulate(CLUSTER, JOB, PROFILE, placement=GIVEN, policy="maxmin")
    assert (found.placement, found.placement_name, found.policy) == (GIVEN, "given", "maxmin")
    assert found.makespan_s == found.outcome.iteration_end_s[-1]
    assert found.mean_iteration_time_s == pytest.approx(found.makespan_s / 20)
    assert found.bottleneck in ("b in", "b out")
    assert found.window == 2
    assert found.num_tasks() == [{"store": 1, "sampler": 1, "trainer": 1}] * 2
    json.dumps(found.summary(), allow_nan=False)


def test_same_seed_same_result() -> None:
    one, same, other = (
        headrace.simulate(CLUSTER, JOB, PROFILE, placement=GIVEN, seed=seed) for seed in (1, 1, 2)
    )
    assert one.summary() == same.summary()
    assert one.makespan_s != other.makespan_s


def test_trace_with_and_without_a_record() -> None:
    traces = [
        headrace.simulate(CLUSTER, JOB, PROFILE, placement=GIVEN, record=record).trace()
        for record in (True, False)
    ]
    np.testing.assert_array_equal(traces[0].executions.end_s, traces[1].executions.end_s)
    assert traces[0].makespan_s > 0
    assert traces[0].machine_names == ("a", "b")


def test_without_a_profile_the_default_is_used() -> None:
    found = headrace.simulate(CLUSTER, JOB, placement=GIVEN, iterations=2)
    assert found.profile == headrace.default_profile()


def test_placement_by_path(tmp_path: Path) -> None:
    path = tmp_path / "placement.yaml"
    path.write_text("samplers: [b, a]\ntrainers: [a, b]\n")
    for given in (path, str(path)):
        found = headrace.simulate(CLUSTER, JOB, PROFILE, placement=given)
        assert found.placement.samplers == (1, 0)
        assert found.placement_name == str(path)


def test_placement_file_for_another_job(tmp_path: Path) -> None:
    path = tmp_path / "placement.yaml"
    path.write_text("samplers: [b, a]\ntrainers: [a]\n")
    with pytest.raises(
        SpecError, match=r"line 2: trainers: the placement has 1 trainers, but the job has 2"
    ):
        headrace.simulate(CLUSTER, JOB, PROFILE, placement=path)


@pytest.mark.parametrize("iterations", [0, -1])
def test_impossible_number_of_iterations(iterations: int) -> None:
    with pytest.raises(SpecError, match=f"{iterations} iterations were requested"):
        headrace.simulate(CLUSTER, JOB, PROFILE, iterations=iterations)


@pytest.mark.parametrize("window", [0, -1])
def test_impossible_window(window: int) -> None:
    with pytest.raises(SpecError, match="unlimited"):
        headrace.simulate(CLUSTER, JOB, PROFILE, window=window)


def test_comparison() -> None:
    steps: list[str] = []
    found = headrace.compare(CLUSTER, JOB, PROFILE, placement=GIVEN, on_step=steps.append)
    assert steps == list(headrace.FLOW_POLICIES)
    assert [each.policy for each in found.simulations] == steps
    assert found.relative_makespan(found.best) == 1.0
    assert min(found.relative_makespan(each) for each in found.simulations) == 1.0
    # One placement and one set of draws for all.
    assert len({id(each.instance) for each in found.simulations}) == 1
    alone = headrace.simulate(CLUSTER, JOB, PROFILE, placement=GIVEN, policy="oes")
    assert found.simulations[0].makespan_s == alone.makespan_s
    json.dumps(found.summary(), allow_nan=False)


def test_nothing_to_do_takes_no_time() -> None:
    idle = PROFILE.model_copy(
        update={
            "task_times": {
                role: {"default": time["default"].model_copy(update={"mean": 0.0})}
                for role, time in PROFILE.task_times.items()
            },
            "store_traffic": PROFILE.store_traffic.model_copy(update={"bytes_per_seed": 0.0}),
            "batch_traffic": PROFILE.batch_traffic.model_copy(update={"bytes_per_seed": 0.0}),
        }
    )
    job = JOB.model_copy(update={"model_bytes": 0.0})
    found = headrace.compare(CLUSTER, job, idle, ["oes", "maxmin"], placement=GIVEN)
    assert found.best.makespan_s == 0.0
    assert found.relative_makespan(found.best) == 1.0
    assert found.summary()["policies"][0]["bottleneck"]["nic"] is None


@pytest.mark.parametrize("num", [1, 2, 5, 20])
def test_time_per_iteration_is_what_the_second_half_adds(num: int) -> None:
    def makespan_s(iterations: int) -> float:
        found = headrace.simulate(CLUSTER, JOB, PROFILE, placement=GIVEN, iterations=iterations)
        return found.makespan_s

    found = headrace.simulate(CLUSTER, JOB, PROFILE, placement=GIVEN, iterations=num)
    half_s = makespan_s(num // 2) if num > 1 else 0.0
    assert found.iteration_time_s == (makespan_s(num) - half_s) / (num - num // 2)


@pytest.mark.parametrize("policy", ["oes", "maxmin", "priority"])
def test_no_iteration_is_faster_than_the_busiest_nic(policy: str) -> None:
    # With an unlimited window stores run ahead under `oes`; once they are through, late iterations
    # end in quick succession.
    found = headrace.simulate(
        headrace.load_cluster(TESTBED / "cluster.yaml"),
        headrace.load_job(TESTBED / "job.yaml"),
        headrace.load_profile(TESTBED / "profile.yaml"),
        policy=policy,
        window="unlimited",
    )
    drawn = 0.98  # volumes drawn for these iterations may be below their mean
    assert found.iteration_time_s > drawn * found.instance.pace_s
    if policy == "oes":
        ends_s = found.outcome.iteration_end_s
        assert (ends_s[-1] - ends_s[41]) / 43 < found.instance.pace_s / 2


def test_a_plan_with_shares_is_simulated_with_them() -> None:
    machines = [
        headrace.Machine(name="big", nic_in=1.25e9, nic_out=1.25e9, resources={"gpu": 2}),
        headrace.Machine(name="small", count=2, nic_in=1e8, nic_out=1e8, resources={"gpu": 1}),
    ]
    cluster = headrace.Cluster(machines=tuple(machines))
    job = headrace.Job(
        trainers=4, batch_size=500, iterations=30, demands={Role.TRAINER: {"gpu": 1.0}}
    )
    plan = headrace.plan(cluster, job, seed_mix="uniform")
    assert plan.shares is not None
    assert plan.predicted is not None
    found = headrace.simulate(cluster, job, placement=plan)
    assert found.makespan_s == plan.predicted.makespan_s
    larger = job.model_copy(update={"batch_size": 600})
    with pytest.raises(SpecError, match="the plan has shares of 4 x 500 seeds"):
        headrace.simulate(cluster, larger, placement=plan)
