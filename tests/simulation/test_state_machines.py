"""State machines of the policies, driven by Hypothesis: fresh examples in every campaign."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.policies.drift import deciding as drift
from headrace.policies.drift.deciding import Examine, Findings, Keep, Replan, Rules
from headrace.policies.drift.figures import Figures, Window
from headrace.policies.lifecycle.events import (
    Command,
    Ended,
    Event,
    Failed,
    Finish,
    Heard,
    Interrupted,
    Log,
    Lost,
    Phase,
    Ready,
    Regroup,
    Stage,
    Start,
    Stop,
    Task,
    Tick,
    Verified,
    Waits,
)
from headrace.policies.lifecycle.steps import begin, step
from headrace.policies.recovery.deciding import Recovery, decide
from headrace.policies.recovery.events import (
    Drifted,
    GiveUp,
    Limits,
    MachineLost,
    MachinesJoined,
    Restart,
    Resume,
    Saved,
    Settled,
    Stepped,
    TaskEnded,
    TaskLost,
)
from headrace.policies.recovery.events import Event as Fault
from tests.support.examples import machine_settings
from tests.support.lifecycle_invariants import validate
from tests.support.policy_tasks import EXIT_CODES, TASKS, start_of

NAMES = st.sampled_from([task.name for task in TASKS])
SILENCE_S = 15.0


class LifecycleMachine(RuleBasedStateMachine):
    """A run whose tasks do anything: it ends, stops what it started, and is never silent."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = self.shown_s = 0.0
        self.state, commands = begin(TASKS, self.now_s)
        self.started: list[str] = []
        self.num_finished = 0
        self.execute(commands)

    def execute(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case Start(name):
                    assert name not in self.started
                    self.started.append(name)
                case Stop(name):
                    assert name in self.started
                case Finish():
                    self.num_finished += 1
                case Log(line):
                    assert line
                    self.shown_s = self.now_s

    def emit(self, event: Event) -> None:
        before = self.state
        self.state, commands = step(before, event, self.now_s)
        if self.state.phase is not before.phase:
            self.shown_s = self.now_s
        assert all(self.state.stages[name] >= before.stages[name] for name in before.stages)
        if before.phase is Phase.ENDED:
            assert not commands
        self.execute(commands)

    @rule(seconds=st.floats(0.05, 1.0))
    def tick(self, seconds: float) -> None:
        self.now_s += seconds
        self.emit(Tick())

    @rule()
    def place_and_ship(self) -> None:
        for event in start_of(()):
            self.emit(event)

    @rule()
    def ready(self) -> None:
        for name in [name for name, stage in self.state.stages.items() if stage is Stage.STARTING]:
            self.emit(Ready(name))

    @rule(name=NAMES)
    def ready_alone(self, name: str) -> None:
        self.emit(Ready(name))

    @rule(names=st.frozensets(NAMES))
    def heard(self, names: frozenset[str]) -> None:
        self.emit(Heard(names))

    @rule(name=NAMES, what=st.sampled_from(["a", "b"]))
    def waits(self, name: str, what: str) -> None:
        self.emit(Waits(name, what))

    @rule(name=NAMES)
    def verified(self, name: str) -> None:
        self.emit(Verified(name))

    @rule(name=NAMES, code=st.sampled_from([0, 0, 1, -9]))
    def ended(self, name: str, code: int) -> None:
        self.emit(Ended(name, code, "ended"))

    @rule(name=NAMES | st.sampled_from(["m0", "m1"]))
    @precondition(lambda self: self.now_s > 2.0)
    def lost(self, name: str) -> None:
        self.emit(Lost(name, "it is gone"))

    @rule(event=st.sampled_from([Failed("problem", "remedy"), Interrupted(), Regroup("joined")]))
    @precondition(lambda self: self.now_s > 4.0)
    def stopped(self, event: Event) -> None:
        self.emit(event)

    @invariant()
    def holds(self) -> None:
        validate(self.state)
        assert self.num_finished == (self.state.phase is Phase.ENDED)

    def teardown(self) -> None:
        """Nobody answers any more: it ends, and says what it waits for."""
        begin_s = self.now_s
        while self.state.phase is not Phase.ENDED:
            self.now_s += 0.5
            self.emit(Tick())
            assert self.now_s - self.shown_s <= SILENCE_S
            assert self.now_s - begin_s < 900.0
        assert self.num_finished == 1


class RecoveryMachine(RuleBasedStateMachine):
    """A run to which anything happens: it is mended on machines that are there, for a while."""

    def __init__(self) -> None:
        super().__init__()
        there = frozenset({"m0", "m1", "m2"})
        self.state = Recovery(there, Limits.of(3), elastic=True)
        self.num_since_saved = 0
        self.is_over = False

    def handle(self, event: Fault) -> None:
        if self.is_over:
            return
        before = self.state
        self.state, decision = decide(before, event)
        if isinstance(event, MachineLost | TaskLost | TaskEnded):
            assert decision is not None
            self.num_since_saved += 1
            limits = self.state.limits
            # Four tasks may be restarted, and everything resumed, before a new checkpoint.
            if self.num_since_saved > 4 * limits.restarts + limits.resumes:
                assert isinstance(decision, GiveUp)
        match decision:
            case Resume():
                assert decision.line
                assert self.state.attempt == before.attempt + 1
                assert self.state.machines
                assert not decision.without & self.state.machines
                assert decision.saved == self.state.saved
            case Restart(number=number):
                assert 1 <= number <= self.state.limits.restarts
                assert self.state.num_restarts == before.num_restarts + 1
            case GiveUp():
                self.is_over = True

    @rule(task=st.sampled_from(TASKS), code=st.sampled_from(EXIT_CODES))
    def ended(self, task: Task, code: int) -> None:
        self.handle(TaskEnded(task, code, "ended"))

    @rule(task=st.sampled_from(TASKS))
    def killed(self, task: Task) -> None:
        self.handle(TaskEnded(task, -9, "was killed", can_restart=True))

    @rule(task=st.sampled_from(TASKS))
    def lost(self, task: Task) -> None:
        self.handle(TaskLost(task, "gone"))

    @rule(machine=st.sampled_from(["m0", "m1", "m2"]))
    def machine_lost(self, machine: str) -> None:
        self.handle(MachineLost(machine, "gone"))

    @rule(machines=st.frozensets(st.sampled_from(["m0", "m1", "m2", "m3"])))
    def joined(self, machines: frozenset[str]) -> None:
        self.handle(MachinesJoined(machines))
        assert self.is_over or not self.state.joined & self.state.machines

    @rule(machines=st.frozensets(st.sampled_from(["m0", "m1", "m2"]), min_size=1))
    def settled(self, machines: frozenset[str]) -> None:
        before = self.state.machines
        self.handle(Settled(machines))
        assert self.is_over or self.state.machines == before & machines

    @rule()
    def stepped(self) -> None:
        self.handle(Stepped())

    @rule(more=st.integers(-1, 3))
    def saved(self, more: int) -> None:
        before = self.state.saved
        self.handle(Saved((before or 0) + more))
        if not self.is_over and (before is None or more > 0):
            self.num_since_saved = 0
            assert not self.state.restarts
            assert not self.state.own_failures

    @rule()
    def drifted(self) -> None:
        before = self.state
        self.handle(Drifted("it is slow"))
        # A better plan costs nothing of the limits.
        assert self.is_over or self.state.resumes == before.resumes


class DriftMachine(RuleBasedStateMachine):
    """A run that is as fast as planned or not; it is examined after several slow windows only."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s, self.first = 100.0, 0
        self.thresholds = Rules(warm_up=10, num_windows=2, rest_s=20.0, most_rest_s=80.0)
        self.state = drift.begin(Figures(0.1), 0, self.now_s, self.thresholds)
        self.asked: Examine | None = None
        self.num_slow = 0

    @rule(time_s=st.sampled_from([0.05, 0.1, 0.11, 0.12, 0.2, 0.3]), seconds=st.floats(1.0, 30.0))
    @precondition(lambda self: self.asked is None)
    def window(self, time_s: float, seconds: float) -> None:
        self.now_s += seconds
        window = Window(self.first, self.first + 9, Figures(time_s))
        self.first += 10
        expected_s = self.state.expected.iteration_time_s
        low, high = sorted((time_s, expected_s))
        off = high / low - 1
        self.state, self.asked = drift.evaluate(self.state, window, self.now_s)
        if window.first < self.thresholds.warm_up:
            assert self.asked is None
            return
        if off > self.thresholds.threshold:
            self.num_slow += 1
        elif off <= self.thresholds.settled:
            self.num_slow = 0
        is_due = off > self.thresholds.threshold and self.num_slow >= self.thresholds.num_windows
        assert (self.asked is not None) == (is_due and self.now_s >= self.state.quiet_until_s)

    @rule(
        share=st.floats(0.1, 1.5),
        num_moves=st.integers(0, 3),
        num_left=st.integers(0, 10_000),
        fails=st.booleans(),
    )
    @precondition(lambda self: self.asked is not None)
    def weigh(self, share: float, num_moves: int, num_left: int, fails: bool) -> None:
        assert self.asked is not None
        before, window = self.state, self.asked.window
        time_s = window.figures.iteration_time_s
        found = None if fails else Findings("slow", time_s, share * time_s, num_moves)
        self.state, decision = drift.weigh(before, found, window, num_left, 30.0, self.now_s)
        self.asked, self.num_slow = None, 0
        assert isinstance(decision, Keep | Replan)
        assert decision.why
        if isinstance(decision, Replan):
            assert found is not None
            assert num_moves
            assert found.saving * time_s * num_left >= self.thresholds.payback * 30.0
        assert self.state.expected == window.figures
        assert self.state.quiet_until_s == self.now_s + before.rest_s
        assert before.rest_s <= self.state.rest_s <= self.thresholds.most_rest_s


TestLifecycle = LifecycleMachine.TestCase
TestLifecycle.settings = machine_settings(few=40, many=3000)
TestRecovery = RecoveryMachine.TestCase
TestRecovery.settings = machine_settings(few=40, many=3000)
TestDrift = DriftMachine.TestCase
TestDrift.settings = machine_settings(few=40, many=3000)
