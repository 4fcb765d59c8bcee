"""A run's life, one event after another, without anything that runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from headrace.core.job import Role
from headrace.policies.lifecycle.events import (
    Command,
    Deadlines,
    Ended,
    Event,
    Failed,
    Finish,
    Heard,
    Interrupted,
    Log,
    Lost,
    Outcome,
    Phase,
    Place,
    Placed,
    Ready,
    Regroup,
    Ship,
    Shipped,
    Stage,
    Start,
    Stop,
    Task,
    Tick,
    Verified,
    Waits,
)
from headrace.policies.lifecycle.state import Lifecycle
from headrace.policies.lifecycle.steps import begin, step
from tests.support import policy_tasks
from tests.support.lifecycle_invariants import validate

TASKS = tuple(task for task in policy_tasks.TASKS if task.role is not Role.SERVER)
NAMES = tuple(task.name for task in TASKS)
START = policy_tasks.start_of(TASKS)
FAILURE = Ended("trainer1", 1, "exited with code 1", "ValueError: no")


def drive(
    *events: Event, state: Lifecycle | None = None, now_s: float = 0.0
) -> tuple[Lifecycle, list[Command]]:
    """Take events one after another; all commands."""
    commands: list[Command] = []
    if state is None:
        state, commands = begin(TASKS, now_s)
        state = replace(state, unverified=frozenset())
    for event in events:
        state, more = step(state, event, now_s)
        validate(state)
        commands += more
    return state, commands


def outcome_of(commands: Sequence[Command]) -> Outcome:
    (outcome,) = [command.outcome for command in commands if isinstance(command, Finish)]
    return outcome


def test_tasks_start_in_their_order() -> None:
    state, commands = drive(Placed(), Shipped())
    assert commands == [Place(), Ship(), Start("store0"), Start("store1")]
    state, commands = drive(Ready("store1"), state=state)
    assert not commands
    state, commands = drive(Ready("store0"), state=state)
    assert commands == [Start("sampler0.0")]
    state, commands = drive(Ready("sampler0.0"), state=state)
    assert commands == [Start("trainer0"), Start("trainer1")]
    state, _ = drive(Ready("trainer0"), Ready("trainer1"), state=state)
    assert state.phase is Phase.RUNNING


def test_parameter_servers_start_before_trainers_and_end_after_them() -> None:
    state, _ = begin((*TASKS, Task("ps0", Role.SERVER, "m0")), 0.0)
    state = replace(state, unverified=frozenset())
    state, commands = drive(*START[:5], state=state)
    assert (state.phase, commands[-1]) == (Phase.SERVERS, Start("ps0"))
    state, commands = drive(Ready("ps0"), state=state)
    assert commands == [Start("trainer0"), Start("trainer1")]
    state, _ = drive(*START[5:], state=state)
    lost, commands = drive(Ended("ps0", -9, "was ended by SIGKILL"), state=state)
    assert (lost.outcome or Outcome()).problem == "ps0 on m0 was ended by SIGKILL"
    ends = [Ended(f"trainer{w}", 0, "ended") for w in range(2)]
    _, commands = drive(*ends, state=state)
    assert Stop("ps0") in commands


def test_a_run_succeeds_when_all_trainers_have() -> None:
    state, _ = drive(*START)
    state, commands = drive(Ended("trainer0", 0, "ended"), state=state)
    assert not commands
    state, commands = drive(Ended("trainer1", 0, "ended"), state=state)
    assert commands == [Stop("store0"), Stop("store1"), Stop("sampler0.0")]
    ends = [Ended(name, 0, "ended") for name in NAMES[:3]]
    state, commands = drive(*ends, state=state)
    assert outcome_of(commands) == Outcome(is_success=True)
    assert state.phase is Phase.ENDED
    assert drive(Tick(), Interrupted(), *START, state=state) == (state, [])


def test_a_run_is_not_done_before_its_graph_is_verified() -> None:
    state, _ = begin(TASKS, 0.0)
    state, _ = drive(*START, Verified("store1"), state=state)
    ends = [Ended(f"trainer{w}", 0, "ended") for w in range(2)]
    state, commands = drive(*ends, state=state)
    assert (state.phase, commands) == (Phase.RUNNING, [])
    failed, commands = drive(Failed("store0 on m0: x.bin is damaged", ""), state=state)
    assert (failed.outcome or Outcome()).problem == "store0 on m0: x.bin is damaged"
    state, commands = drive(Verified("store0"), state=state)
    assert commands == [Stop("store0"), Stop("store1"), Stop("sampler0.0")]
    assert state.outcome == Outcome(is_success=True)


def test_a_trainer_may_end_before_the_others_have_started() -> None:
    state, _ = drive(*START[:-2], Ended("trainer0", 0, "ended"), Ready("trainer1"))
    assert state.phase is Phase.RUNNING
    _, commands = drive(Ended("trainer1", 0, "ended"), state=state)
    assert Stop("store0") in commands


def test_the_first_trainer_that_fails_stops_the_run() -> None:
    state, _ = drive(*START)
    state, commands = drive(FAILURE, state=state)
    assert commands == [Stop("trainer0")]
    state, commands = drive(Ended("trainer0", -9, "was ended by SIGKILL"), state=state)
    assert commands == [Stop("store0"), Stop("store1"), Stop("sampler0.0")]
    _, commands = drive(*(Ended(name, 0, "ended") for name in NAMES[:3]), state=state)
    problem = outcome_of(commands).problem
    assert problem == "trainer1 on m1 exited with code 1; last output: ValueError: no"
    assert "headrace logs --task trainer1" in outcome_of(commands).remedy


def test_the_deeper_cause_is_told() -> None:
    state, _ = drive(*START)
    state, _ = drive(FAILURE, Ended("store0", -9, "was ended by SIGKILL"), state=state)
    state, _ = drive(Ended("trainer0", 1, "exited with code 1"), state=state)
    _, commands = drive(Ended("store1", 0, "ended"), Ended("sampler0.0", 0, "ended"), state=state)
    assert outcome_of(commands).problem == "store0 on m0 was ended by SIGKILL"


def test_a_sampler_that_has_fed_its_loader_is_no_failure() -> None:
    state, _ = drive(*START)
    after, commands = drive(Ended("sampler0.0", 0, "ended"), state=state)
    assert (after, commands) == (state, [])
    after, commands = drive(Ended("sampler0.0", 7, "exited with code 7"), state=state)
    assert after.phase is Phase.STOPPING
    assert "sampler0.0 on m1" in (after.outcome or Outcome()).problem


@pytest.mark.parametrize("num_events", range(len(START) + 1))
def test_an_interrupt_stops_all_that_was_started(num_events: int) -> None:
    state, commands = drive(*START[:num_events])
    started = {command.task for command in commands if isinstance(command, Start)}
    state, commands = drive(Interrupted(), state=state)
    for _ in range(3):
        asked = {command.task for command in commands if isinstance(command, Stop)}
        state, more = drive(*(Ended(name, 0, "ended") for name in sorted(asked)), state=state)
        commands += more
    assert {command.task for command in commands if isinstance(command, Stop)} == started
    assert outcome_of(commands) == Outcome(is_interrupted=True)


def test_whoever_does_not_stop_is_not_waited_for() -> None:
    limits = Deadlines()
    state, _ = drive(*START)
    state, _ = drive(Interrupted(), state=state)
    state, commands = drive(Tick(), state=state, now_s=limits.save_s)
    assert {command.task for command in commands if isinstance(command, Stop)} == set(NAMES[:3])
    _, commands = drive(Tick(), state=state, now_s=limits.save_s + limits.stop_s)
    assert outcome_of(commands).is_interrupted
    assert limits.urgent_save_s + limits.stop_s < 10


SAVE = [Stop("trainer0", is_urgent=False), Stop("trainer1", is_urgent=False)]


def test_trainers_that_are_interrupted_have_time_to_save_until_told_again() -> None:
    limits = Deadlines()
    state, _ = drive(*START)
    state, commands = drive(Interrupted(), state=state)
    assert commands[:2] == SAVE
    assert isinstance(commands[2], Log)
    assert "Ctrl-C again" in commands[2].line
    state, commands = drive(Tick(), state=state, now_s=limits.save_s - 1)
    assert not any(isinstance(command, Stop) for command in commands)
    state, commands = drive(Interrupted(), state=state, now_s=limits.save_s - 1)
    assert commands == [Stop("trainer0"), Stop("trainer1")]
    assert state.deadline_s == limits.save_s - 1 + limits.urgent_save_s


def test_trainers_that_save_have_little_time_once_another_is_lost() -> None:
    state, _ = drive(*START)
    state, commands = drive(Regroup("somebody has joined"), state=state)
    assert commands == SAVE
    state, commands = drive(Lost("trainer1", "it is gone"), state=state)
    assert commands == [Stop("trainer0")]
    state, commands = drive(Lost("store0", "it is gone"), state=state)
    assert not commands


def test_a_slow_start_says_who_waits_for_what_and_then_fails_with_it() -> None:
    limits = Deadlines()
    state, _ = drive(Waits("store1", "4 CPU"))
    state, commands = drive(Tick(), state=state, now_s=limits.slow_s)
    assert commands == [Log("store1 on m1 waits for 4 CPU after 10 s")]
    assert drive(Tick(), state=state, now_s=limits.slow_s + 1)[1] == []
    state, commands = drive(Tick(), state=state, now_s=2 * limits.slow_s)
    assert commands == [Log("store1 on m1 waits for 4 CPU after 20 s")]
    _, commands = drive(Tick(), state=state, now_s=limits.place_s)
    assert outcome_of(commands).problem == "store1 on m1 waits for 4 CPU after 150 s"
    state, _ = drive(*START[:3])
    _, commands = drive(Tick(), state=state, now_s=limits.slow_s)
    assert commands == [Log("store1 on m1 waits for its process after 10 s")]


def test_a_shipment_that_goes_on_is_not_late() -> None:
    limits = Deadlines()
    state, _ = drive(Placed())
    state, _ = drive(Waits("store0", "1 of 9 MB"), state=state, now_s=limits.ship_s - 1)
    state, _ = drive(Tick(), state=state, now_s=limits.ship_s + 1)
    assert state.phase is Phase.SHIPPING
    state, commands = drive(Tick(), state=state, now_s=2 * limits.ship_s)
    assert "store0 on m0 waits for 1 of 9 MB" in outcome_of(commands).problem


def test_silence_is_loss_of_a_task_or_of_its_machine() -> None:
    limits = Deadlines()
    state, _ = drive(*START)
    state, _ = drive(Heard(frozenset(NAMES) - {"store1"}), state=state, now_s=5)
    one, _ = drive(Tick(), state=state, now_s=limits.silence_s)
    assert one.stages["store1"] is Stage.LOST
    assert (one.outcome or Outcome()).problem.startswith("store1 on m1 is lost")
    state, _ = drive(*START)
    state, _ = drive(Heard(frozenset({"store0", "trainer0"})), state=state, now_s=5)
    machine, _ = drive(Tick(), state=state, now_s=limits.silence_s)
    problem = (machine.outcome or Outcome()).problem
    assert problem.startswith("m1 is lost with store1, sampler0.0, trainer1: ")


def test_silence_is_told_before_it_counts_as_loss() -> None:
    limits = Deadlines()
    state, _ = drive(*START)
    state, _ = drive(Heard(frozenset(NAMES) - {"store1"}), state=state, now_s=5)
    state, commands = drive(Tick(), state=state, now_s=limits.slow_s)
    assert commands == [Log("m1 has not answered for 10 s")]
    state, commands = drive(Tick(), state=state, now_s=limits.slow_s + 1)
    assert commands == []
    # A network that was cut for 10 s is no loss.
    state, _ = drive(Heard(frozenset(NAMES)), state=state, now_s=20)
    state, commands = drive(Tick(), state=state, now_s=limits.silence_s)
    assert commands == []
    assert limits.slow_s <= limits.silence_s - limits.slow_s <= 15


def test_an_outcome_names_the_fault_that_may_be_mended() -> None:
    state, _ = drive(*START)
    after, _ = drive(FAILURE, state=state)
    assert (after.outcome or Outcome()).fault == FAILURE
    after, _ = drive(FAILURE, Lost("m1", "it is gone"), state=state)
    assert (after.outcome or Outcome()).fault == Lost("m1", "it is gone")
    after, commands = drive(Regroup("m3 has joined"), state=state)
    assert commands == SAVE
    assert (after.outcome or Outcome()).fault == Regroup("m3 has joined")


def test_a_machine_that_is_lost_early_fails_the_run() -> None:
    state, commands = drive(Placed(), Lost("m1", "its Ray node is gone"))
    assert "m1 is lost" in outcome_of(commands).problem
    assert state.phase is Phase.ENDED


def test_other_failures_stop_the_run_too() -> None:
    _, commands = drive(Placed(), Failed("no room", "make some"))
    assert outcome_of(commands) == Outcome(problem="no room", remedy="make some")


def test_an_interrupt_while_a_failed_run_stops_changes_nothing() -> None:
    state, _ = drive(*START)
    state, _ = drive(FAILURE, Interrupted(), state=state)
    assert "trainer1" in (state.outcome or Outcome()).problem


def test_a_service_serves_until_it_is_stopped() -> None:
    stores = TASKS[:2]
    state, _ = begin(stores, 0.0, is_service=True)
    ready: list[Event] = [Placed(), Shipped(), *(Ready(task.name) for task in stores)]
    state, _ = drive(*ready, *(Verified(task.name) for task in stores), state=state)
    assert state.phase is Phase.RUNNING
    # Its clients wait for a machine that does not answer.
    state, commands = drive(Tick(), state=state, now_s=1e6)
    assert state.phase is Phase.RUNNING
    assert [type(each) for each in commands] == [Log]
    state, commands = drive(Interrupted(), state=state, now_s=1e6)
    assert commands == [Stop(task.name) for task in stores]
    ended = [Ended(task.name, 0, "ended") for task in stores]
    _, commands = drive(*ended, state=state, now_s=1e6)
    assert commands == [Finish(Outcome(is_interrupted=True))]


def test_a_run_that_ends_says_what_it_waits_for() -> None:
    state, _ = drive(*START)
    state, _ = step(state, Interrupted(), 5.0)
    assert step(state, Tick(), 14.0)[1] == []
    state, commands = step(state, Tick(), 15.0)
    assert commands == [Log("waiting for trainer0 on m0 (and 1 more) to save")]
    assert step(state, Tick(), 16.0)[1] == []


@pytest.mark.parametrize(
    ("module", "remedy"),
    [
        ("torch", "pip install 'headrace[train]' on m1"),
        ("mine", "see `headrace logs --task trainer1`, and run again"),
    ],
)
def test_a_missing_module_of_ours_is_to_be_installed(module: str, remedy: str) -> None:
    output = f"ModuleNotFoundError: No module named '{module}'"
    state, _ = drive(*START, Ended("trainer1", 1, "exited with code 1", output))
    assert state.outcome is not None
    assert state.outcome.remedy == remedy
