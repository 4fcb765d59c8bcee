"""A run whose machines have changed, with records that are made up."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

import pytest

from headrace.core.errors import RunError
from headrace.core.job import Role
from headrace.core.plan import Plan
from headrace.policies.drift.deciding import Rules
from headrace.policies.drift.figures import Peak
from headrace.policies.recovery.events import Drifted
from headrace.runtime.callbacks.drift_monitor import DriftMonitor
from headrace.runtime.callbacks.drift_windows import Windows, expected_of
from headrace.runtime.protocol.actor_state import ActorState
from headrace.runtime.protocol.trainer_messages import BatchProgress, NumEpochs
from headrace.runtime.run_dir.status import Status
from tests.unit.runtime.recorded import NIC, recorded, small_plan

AS_KNOWN = {f"m{i}": Peak(NIC, NIC) for i in range(3)}
# A tenth of what it was, one way.
SLOW = AS_KNOWN | {"m0": Peak(NIC / 10, NIC)}
RULES = Rules(rest_s=0.0, warm_up=5)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return small_plan()


class Watched:
    """A watch, and whatever it says."""

    def __init__(self, plan: Plan, peaks: Mapping[str, Peak] | Exception = SLOW) -> None:
        self.adopted: list[Plan] = []
        self.said: list[str] = []
        self.events: list[dict[str, Any]] = []
        self._peaks = peaks
        self.num_measured = 0
        self.watch = DriftMonitor(
            plan,
            self._measure,
            dict,
            self.adopted.append,
            self.said.append,
            lambda kind, **fields: self.events.append({"kind": kind, **fields}),
            rules=RULES,
            windows=Windows(plan, 10, 1.0),
        )
        self.watch.polled("trainer0", ActorState(messages=(NumEpochs(100),)))
        batches = BatchProgress(True, 1, 50, 4, 1.0, 0.5, {})
        self.watch.polled("trainer0", ActorState(messages=(batches,)))

    def _measure(self) -> Mapping[str, Peak]:
        self.num_measured += 1
        if isinstance(self._peaks, Exception):
            raise self._peaks
        return self._peaks

    def see(self, first: int, last: int, time_s: float) -> None:
        for task, data in recorded(first, last, time_s):
            # In pieces, as they come.
            self.watch.traced(task, data[:1000])
            self.watch.traced(task, data[1000:])

    def look(self, now_s: float = 1.0, can_resume: bool = True) -> Drifted | None:
        """Until nothing is being found out."""
        found = self.watch.poll(now_s, can_resume)
        for thread in threading.enumerate():
            if thread.name == "examine drift":
                self.watch.finished(Status(run_id="r", since_s=0.0, updated_s=0.0))
                thread.join(60)
                found = self.watch.poll(now_s, can_resume)
        return found


def test_windows_are_of_iterations_that_all_have_done(plan: Plan) -> None:
    windows = Windows(plan, 10, 1.0)
    parts = dict(recorded(0, 24, 0.1))
    for task in ("sampler0.0", "sampler1.0", "trainer0"):
        windows.add(task, parts[task])
    assert windows.pop() is None
    half = len(parts["trainer1"]) // 2 + 5
    windows.add("trainer1", parts["trainer1"][:half])
    taken = windows.pop()
    assert taken is not None
    assert (taken.first, taken.last) == (0, 11)
    assert windows.pop() is None
    windows.add("trainer1", parts["trainer1"][half:])
    taken = windows.pop()
    assert taken is not None
    assert (taken.first, taken.last) == (12, 24)
    window, profile = taken.measure(plan, {})
    assert window.figures.iteration_time_s == pytest.approx(0.1)
    assert window.figures.task_times_s[Role.TRAINER, "default"] == pytest.approx(0.01)
    assert profile.model_bytes is not None


def test_a_pause_does_not_count(plan: Plan) -> None:
    windows = Windows(plan, 20, 1.0)
    for first, shift in ((0, 0), (10, 50)):
        for task, data in recorded(first + shift, first + shift + 9, 0.1):
            # The later ones are numbered as if nothing had been between.
            for n in range(10):
                data = data.replace(
                    f'", {first + shift + n},'.encode(), f'", {first + n},'.encode()
                )
            windows.add(task, data)
    taken = windows.pop()
    assert taken is not None
    assert (taken.first, taken.last) == (0, 19)
    assert taken.measure(plan, {})[0].figures.iteration_time_s == pytest.approx(0.1)


def test_a_plan_says_what_it_was_made_for(plan: Plan) -> None:
    expected = expected_of(plan)
    assert expected.iteration_time_s == 0.1
    assert expected.task_times_s[Role.SAMPLER, "default"] == 0.01
    assert (Role.SERVER, "default") not in expected.task_times_s


def test_what_is_as_planned_is_not_looked_into(plan: Plan) -> None:
    watched = Watched(plan)
    for first in range(0, 100, 20):
        watched.see(first, first + 19, 0.1)
        assert watched.look() is None
    assert watched.num_measured == 0
    assert watched.said == []


def test_a_slower_network_is_planned_around(plan: Plan) -> None:
    watched = Watched(plan)
    watched.see(0, 19, 0.1)
    assert watched.look() is None
    watched.see(20, 39, 0.4)
    assert watched.look() is None
    watched.see(40, 59, 0.4)
    drifted = watched.look()
    assert drifted is not None
    assert watched.num_measured == 1
    assert "an iteration takes 400 ms, not 100 ms; m0 in carries 80 Mbps" in drifted.why
    assert watched.said[0].endswith("measuring the network and replanning")
    (better,) = watched.adopted
    assert better.cluster.hosts[0].nic_in == NIC / 10
    assert "m0" not in better.placement.samplers
    (event,) = watched.events
    assert event["what"] == "replan"
    assert event["nics"] == {"m0 in": [NIC, NIC / 10]}
    assert event["num_left"] == 100 * 50 - 60
    assert event["replanned_s"] < 0.8 * event["current_s"]


def test_without_a_checkpoint_nothing_is_looked_into(plan: Plan) -> None:
    watched = Watched(plan)
    for first in (0, 20, 40):
        watched.see(first, first + 19, 0.4)
        assert watched.look(can_resume=False) is None
    assert watched.num_measured == 0
    watched.see(60, 79, 0.4)
    assert watched.look() is not None


@pytest.mark.parametrize(
    ("peaks", "said"),
    [
        (AS_KNOWN, "no other plan saves enough"),
        (RunError("m2 does not answer", "wait"), "m2 does not answer"),
        (ValueError("odd"), "ValueError: odd"),
    ],
)
def test_what_does_not_help_is_said_once(
    plan: Plan, peaks: Mapping[str, Peak] | Exception, said: str
) -> None:
    watched = Watched(plan, peaks)
    for first in range(0, 120, 20):
        watched.see(first, first + 19, 0.4)
        assert watched.look(now_s=time.monotonic()) is None
    assert watched.num_measured == 1
    assert any(said in line for line in watched.said)
    assert watched.adopted == []


def test_near_its_end_a_run_is_left_alone(plan: Plan) -> None:
    watched = Watched(plan)
    watched.watch.polled("trainer0", ActorState(messages=(NumEpochs(1),)))
    for first in (0, 20, 40):
        watched.see(first, first + 19, 0.4)
        assert watched.look() is None
    assert "until the end" in watched.said[-1]
