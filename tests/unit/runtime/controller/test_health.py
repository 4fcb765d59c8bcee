"""A run that does not move says so, and machines that do not reach each other are found."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.core.job import Role
from headrace.linux.process import Activity
from headrace.policies.lifecycle.events import Lost, Task
from headrace.policies.recovery.deciding import Recovery
from headrace.runtime.cluster.head import HeadLostError
from headrace.runtime.cluster.local_actors import LocalActors
from headrace.runtime.controller.health import HangWatch, PartitionProbe, StallDetector, Watch
from headrace.runtime.controller.worker_group import PendingActorCalls
from headrace.runtime.protocol.actor_state import ActorState
from headrace.runtime.protocol.trainer_messages import (
    BatchProgress,
    BatchRequested,
    LoopLeft,
    Message,
    Waiting,
)

TASKS = (Task("sampler0.0", Role.SAMPLER, "m1"), Task("trainer0", Role.TRAINER, "m0"))


def state_of(*messages: Message, trace_bytes: int = 0) -> ActorState:
    return ActorState(messages=messages, trace_bytes=trace_bytes)


def test_steps_and_records_are_movement() -> None:
    watch = StallDetector(TASKS, 0.0)
    assert watch.update("trainer0", state_of(BatchProgress(True, 1, 9, 4, 1.0, 0.5, {})), 8.0)
    assert watch.poll(17.0) == ("", False)
    assert not watch.update("trainer0", state_of(trace_bytes=10), 17.0)
    assert watch.poll(26.0) == ("", False)
    # The same again is none.
    watch.update("trainer0", state_of(trace_bytes=10), 26.0)
    line, probes = watch.poll(28.0)
    assert line == "no iteration for 11 s: no task reports a reason"
    assert not probes
    assert watch.poll(62.0)[1]
    watch.update("trainer0", state_of(trace_bytes=20), 63.0)
    assert watch.poll(63.0) == ("the run resumed after 46 s", False)
    assert watch.poll(64.0) == ("", False)


def test_who_waits_is_named() -> None:
    watch = StallDetector(TASKS, 0.0)
    watch.update("trainer0", state_of(Waiting("sampler0.0 on m1", True)), 5)
    watch.update("sampler0.0", ActorState(waits_for="store2 on m2"), 5)
    line, _ = watch.poll(12.0)
    assert line == (
        "no first iteration for 12 s: trainer0 on m0 waits for sampler0.0 on m1; "
        "sampler0.0 on m1 waits for store2 on m2"
    )
    watch.update("trainer0", state_of(Waiting("sampler0.0 on m1", False)), 9)
    watch.update("sampler0.0", ActorState(), 13)
    assert "trainer0 on m0 waits for its script, which imports" in watch.poll(30.0)[0]
    watch.update("trainer0", state_of(BatchRequested()), 31)
    assert "trainer0 on m0 waits for its first batch" in watch.poll(60.0)[0]


def batches(number: int, trains: bool = True) -> BatchProgress:
    return BatchProgress(trains, number, 9, 4, 1.0, 0.5, {})


def test_a_run_may_hang_only_between_two_batches() -> None:
    watch = StallDetector((*TASKS, Task("trainer1", Role.TRAINER, "m1")), 0.0)
    # The first iteration compiles.
    watch.update("trainer0", state_of(batches(1)), 80.0)
    watch.update("trainer1", state_of(batches(1)), 81.0)
    assert watch.first_still(170.0) is None
    assert watch.first_still(171.0) == ("trainer0", 90.0)
    # A pause of the script was fine: the next one may be longer.
    watch.update("trainer1", state_of(batches(2)), 201.0)
    assert watch.first_still(1400.0) is None
    assert watch.first_still(1401.0) == ("trainer0", 1200.0)
    # Between epochs, while evaluating, and after a loop that was left, nothing is known.
    for message in (batches(9), batches(3, trains=False), LoopLeft()):
        watch.update("trainer0", state_of(batches(2)), 1500.0)
        watch.update("trainer0", state_of(message), 1500.0)
        assert watch.first_still(1e6) is None
    # Somebody who is done is not waited for.
    watch.update("trainer0", ActorState(code=0), 1500.0)
    assert watch.first_still(1e6) is not None


class Hanging:
    """Tasks, what they have done, and who was killed."""

    def __init__(self) -> None:
        self.names = ("sampler0.0", "trainer0")
        self.done = dict.fromkeys(self.names, Activity())
        self.killed: list[tuple[str, str, bool]] = []
        self.said: list[str] = []
        group: Any = self
        self.watch = HangWatch(group, AtOnce(LocalActors("m0")), self.said.append)

    def is_lost(self, name: str) -> bool:
        return False

    def slot(self, name: str) -> Any:
        (task,) = (task for task in TASKS if task.name == name)
        return SimpleNamespace(task=task)

    def actor(self, name: str) -> Any:
        def kill(why: str, only_stopped: bool) -> Any:
            self.killed.append((name, why, only_stopped))
            return SimpleNamespace(answer=None)

        activity = SimpleNamespace(remote=lambda: SimpleNamespace(answer=self.done[name]))
        return SimpleNamespace(activity=activity, kill_hung=SimpleNamespace(remote=kill))


def test_a_stopped_process_is_killed() -> None:
    run = Hanging()
    run.watch.update("sampler0.0", ActorState(pid=1, is_stopped=True), 5.0)
    run.watch.update("trainer0", ActorState(pid=2, is_stopped=True), 6.0)
    run.watch.update("sampler0.0", ActorState(pid=1, is_stopped=True), 9.0)
    run.watch.update("trainer0", ActorState(pid=2), 10.0)
    run.watch.kill_stopped(14.9)
    assert not run.killed
    run.watch.kill_stopped(15.0)
    run.watch.kill_stopped(30.0)
    why = "made no progress for 10 s, because it is stopped"
    assert run.killed == [("sampler0.0", why, True)]
    assert run.said == [f"sampler0.0 on m1 {why}: killing it"]


@pytest.mark.parametrize(
    ("who", "after", "is_killed"),
    [
        ("trainer0", Activity(), True),
        ("trainer0", Activity(0.05), True),
        ("trainer0", Activity(1.0), False),
        ("sampler0.0", Activity(1.0), False),
        ("trainer0", Activity(waits_for_disk=True), False),
    ],
)
def test_a_run_hangs_if_no_task_does_anything(who: str, after: Activity, is_killed: bool) -> None:
    run = Hanging()
    run.watch.examine(90.0, None)
    run.watch.examine(100.0, ("trainer0", 90.0))
    run.done[who] = after
    run.watch.examine(104.9, ("trainer0", 94.9))
    assert not run.killed
    run.watch.examine(105.0, ("trainer0", 95.0))
    why = "made no progress for 95 s, and no task computes"
    assert run.killed == ([("trainer0", why, False)] if is_killed else [])
    # It is examined again, but not all the time.
    run.done[who] = Activity(1.0)
    for now_s in (130.0, 134.9):
        run.watch.examine(now_s, ("trainer0", now_s - 10))
    assert len(run.killed) == is_killed
    run.watch.examine(140.0, ("trainer0", 130.0))
    run.watch.examine(146.0, ("trainer0", 136.0))
    assert len(run.killed) == 1 + is_killed


class Shell:
    """Answers at once what its machine does not reach."""

    def __init__(self, unreachable: dict[str, str] | None) -> None:
        self._unreachable = unreachable
        self.asked: dict[str, Any] = {}
        self.reach = self

    def remote(self, places: dict[str, Any]) -> Shell:
        self.asked = places
        return self

    @property
    def answer(self) -> dict[str, str]:
        if self._unreachable is None:
            raise ConnectionError
        return self._unreachable


class AtOnce(PendingActorCalls):
    def add(self, ref: Any, then: Any, failed: Any) -> None:
        try:
            answer = ref.answer
        except ConnectionError as error:
            failed(error)
        else:
            then(answer)


@pytest.mark.parametrize(
    ("found", "accused", "line"),
    [
        ([{}, {}, {}], None, "all machines are connected: the network is not the cause"),
        ([{}, {"m2": "no"}, {"m1": "no"}], "m1", ""),
        ([{"m2": "no"}, {}, None], "m2", ""),
    ],
)
def test_whoever_is_cut_off_is_accused(
    found: list[dict[str, str] | None], accused: str | None, line: str
) -> None:
    said: list[str] = []
    lost: list[Lost] = []
    places = {f"m{m}": (f"10.0.0.{m}", 100 if m else None) for m in range(3)}
    actors = {f"m{m}": Shell(each) for m, each in enumerate(found)}
    PartitionProbe(places, "m0", said.append, lost.append).begin(AtOnce(LocalActors("m0")), actors)
    assert actors["m1"].asked == {"m0": ("10.0.0.0", 1), "m2": ("10.0.0.2", 100)}
    assert [each.name for each in lost] == ([accused] if accused else [])
    assert said == ([line] if line else [])


@pytest.mark.parametrize(("silent_s", "num"), [(0.0, 1), (6.0, 0)])
def test_no_plan_is_taken_while_the_head_does_not_answer(silent_s: float, num: int) -> None:
    polls: list[bool] = []

    class Drifting:
        def poll(self, now_s: float, can_resume: bool) -> None:
            polls.append(can_resume)

    system = LocalActors("m0")
    system.head_silent_s = silent_s
    group: Any = SimpleNamespace(tasks=(), stores=(), names=(), system=system)
    handler: Any = SimpleNamespace(state=Recovery(frozenset({"m0"}), saved=1))
    drift: Any = Drifting()
    nothing: Any = None
    callback: Any = SimpleNamespace(log=lambda line: None)
    ask: Any = frozenset
    watch = Watch(group, nothing, nothing, callback, handler, ask, lambda event: None, drift)
    watch.poll(1.0)
    assert polls == [True] * num


@pytest.mark.parametrize(("silent_s", "num"), [(0.0, 1), (6.0, 0)])
def test_a_poll_for_joined_machines_is_short(silent_s: float, num: int) -> None:
    timeouts_s: list[float] = []

    def ask(timeout_s: float) -> frozenset[str]:
        timeouts_s.append(timeout_s)
        raise HeadLostError

    system = LocalActors("m0")
    system.head_silent_s = silent_s
    group: Any = SimpleNamespace(tasks=(), stores=(), names=(), system=system)
    handler: Any = SimpleNamespace(
        state=Recovery(frozenset({"m0"}), elastic=True), handle=lambda event: None
    )
    nothing: Any = None
    callback: Any = SimpleNamespace(log=lambda line: None)
    Watch(group, nothing, nothing, callback, handler, ask, lambda event: None).poll(6.0)
    assert timeouts_s == [1.0] * num
