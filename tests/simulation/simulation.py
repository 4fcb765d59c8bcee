"""One simulated run: a scenario and faults drawn from a seed, and whether it ended well."""

from __future__ import annotations

import hashlib
import random
import shutil
import tempfile
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch

from headrace.policies.lifecycle.events import Outcome
from headrace.policies.recovery.events import Limits
from headrace.runtime.protocol.run_context import RunContext
from headrace.runtime.trainer.rng_state import random_state, restore_random_state
from headrace.runtime.workers.parameter_server import ParameterServerActor
from headrace.runtime.workers.sampler import SamplerActor
from headrace.runtime.workers.store import StoreActor
from headrace.runtime.workers.trainer import TrainerActor
from headrace.training.checkpoint_files import HELD, Checkpoint, newest_whole, read_sidecar
from tests.simulation.actors import VirtualActors
from tests.simulation.cluster import Actor, Cluster
from tests.simulation.disks import Disks
from tests.simulation.drift import Expectation
from tests.simulation.driver import Driver, Plan, Recorder, Settings
from tests.simulation.faults import Fault, draw
from tests.simulation.groups import Group
from tests.simulation.injection import Injection
from tests.simulation.messages import unexpected
from tests.simulation.patches import inside
from tests.simulation.processes import Task
from tests.simulation.tasks import (
    Body,
    SamplerBody,
    ServerBody,
    StoreBody,
    TrainerBody,
)
from tests.simulation.training import CPU, Job, Script, undisturbed
from tests.simulation.world import Machine, Process, World

SILENCE_S = 15.0
"""The user hears of a run at least this often."""

LIMIT_S = 1500.0
"""A run has ended by then, whatever happened to it."""

NUM_SESSIONS = 4
"""Drivers that a run may lose."""

_CONTEXT = ("rank", "world_size", "checkpoint_every", "assignment", "retry_budget_s")

_BODIES: dict[type, type[Body]] = {
    StoreActor: StoreBody,
    SamplerActor: SamplerBody,
    ParameterServerActor: ServerBody,
    TrainerActor: TrainerBody,
}


@dataclass
class Result:
    """What became of a run.

    Attributes:
        problem: What is wrong with headrace; empty if nothing is.
        lines: What the user saw, with the seconds.
    """

    seed: int
    faults: tuple[Fault, ...]
    problem: str = ""
    outcome: str = ""
    virtual_s: float = 0.0
    num_events: int = 0
    decisions: list[str] = field(default_factory=list)
    kinds: frozenset[str] = frozenset()
    lines: list[tuple[float, str]] = field(default_factory=list)
    done: list[str] = field(default_factory=list)

    @property
    def replay(self) -> str:
        """Command that repeats it."""
        return f"python -m tests.simulation.replay {self.seed}"


def expected(job: Job) -> tuple[float, ...]:
    """Parameters of the undisturbed run, which does not depend on checkpoints."""
    return _undisturbed(replace(job, every=0, has_counter=False))


_undisturbed = lru_cache(maxsize=None)(undisturbed)


class Simulation:
    """A world with a run in it.

    Args:
        seed: Seed of the scenario, of the faults and of the world.
        faults: Faults instead of those of the seed.
    """

    def __init__(self, seed: int, root: Path, faults: tuple[Fault, ...] | None = None) -> None:
        source = random.Random(seed * 31 + 5)
        self.seed, self.faults = seed, draw(seed) if faults is None else faults
        self.world = world = World(seed, LIMIT_S)
        world.save_randoms, world.load_randoms = torch.get_rng_state, torch.set_rng_state
        self.disks = Disks(world, root)
        num_machines = source.choice((1, 2, 2, 3, 3))
        for number in range(num_machines + 1):
            name = "driver" if number == num_machines else f"m{number}"
            clock_s = source.uniform(0.0, 2e4)
            world.machines[name] = Machine(name, number, clock_s)
        self.names = [f"m{number}" for number in range(num_machines)]
        # The driver runs on a machine of its own, or on the first one.
        self.home = world.machines[source.choice(("driver", "m0"))]
        num_trainers = source.choice((1, 2, 2, 3))
        self.job = Job(
            num_epochs=source.choice((1, 2, 3)),
            num_batches=source.choice((3, 4, 5)),
            num_shards=max(num_trainers, 2),
            num_trainers=num_trainers,
            every=source.choice((0, 1, 2, 3)),
            is_noisy=source.random() < 0.7,
            has_rows=source.random() < 0.6,
            has_counter=source.random() < 0.2,
        )
        self.plan = Plan.of(self.names, num_trainers, source.choice((0, 0, 1)))
        is_local = num_machines == 1 and self.home.name == "m0" and source.random() < 0.5
        self.settings = Settings(
            Limits.of(source.choice((3, 3, 3, 1, 0))),
            is_elastic=source.random() < 0.4 and not is_local,
            is_local=is_local,
            expectation=None if is_local else _expectation(source),
        )
        self.cluster = cluster = Cluster(world, self.disks, self.home)
        cluster.start_script = self._start_script
        self.checkpoints = self.disks.folder(self.home.name, "run") / "checkpoints"
        self.groups: dict[str, Group] = {}
        self.finals: dict[str, tuple[float, ...]] = {}
        self.injection = Injection(self)
        self.system: VirtualActors | None = None
        self.driver: Driver | None = None
        self.driver_process: Process | None = None
        self.recorders: list[Recorder] = []
        self.durable_iteration, self.lost = -1, ""
        self._collected_iteration = -1
        self.attempt = 1
        self.is_driver_done = False
        self.failure: BaseException | None = None

    # --- the run ----------------------------------------------------------------------------------

    def run(self) -> Result:
        """Run it and judge it."""
        result = Result(self.seed, self.faults)
        before = random_state(CPU)
        # `torch.manual_seed` also prepares GPUs, which takes a millisecond.
        torch.default_generator.manual_seed(self.seed)
        try:
            with inside(self.cluster, self._send):
                try:
                    result.problem = self._run_sessions()
                finally:
                    self.world.close()
        except BaseException as error:
            result.problem = f"{type(error).__name__}: {error}"
            if not isinstance(error, Exception):
                raise
        finally:
            restore_random_state(before, CPU)
        outcome = None if self.driver is None else self.driver.outcome
        result.outcome = describe(outcome)
        result.virtual_s = self.world.now_s - 1000.0
        result.num_events = self.world.num_steps
        result.done, result.kinds = self.injection.done, frozenset(self.injection.kinds)
        for recorder in self.recorders:
            result.decisions += recorder.decisions
            result.lines += [(at_s - 1000.0, line) for at_s, line in recorder.lines]
        return result

    def _run_sessions(self) -> str:
        for each in self.faults:
            self.world.at(1000.0 + each.at_s, partial(self.injection.inject, each))
        for _ in range(NUM_SESSIONS):
            self._drive()
            if self.failure is not None:
                raise self.failure
            if self.driver is not None and self.driver.outcome is not None:
                break
        else:
            return ""
        return self._judge()

    def _drive(self) -> None:
        world = self.world
        self.is_driver_done = False
        self.driver_process = process = Process("driver", self.home)
        self.system = VirtualActors(self.cluster, process, self._make)
        recorder = Recorder(world, self.injection.frozen_s)
        recorder.was_collected, recorder.begins_attempt = self._collected, self._drop_held
        self.recorders.append(recorder)
        self.driver = driver = Driver(
            world,
            process,
            self.system,
            self.job,
            self.plan,
            self.checkpoints,
            recorder,
            self.attempt,
            self.settings,
        )

        def main() -> None:
            driver()
            self.end_driver()

        process.at_error = self._driver_failed
        world.spawn(process, main, "driver")
        while not self.is_driver_done:
            world.block()
        recorder.sign()
        if driver.handler is not None:
            self.attempt = driver.handler.state.attempt + 1
        # Task actors end with their driver.
        for actor in self.system.made:
            world.after(world.random.uniform(0.1, 3.0), actor.die)
        world.sleep(world.random.uniform(3.5, 6.0))

    def end_driver(self) -> None:
        """The driver has ended."""
        self.is_driver_done = True
        self.world.wake_main()

    def _driver_failed(self, error: BaseException) -> None:
        self.failure = error
        self.end_driver()

    def _make(self, actor: type, task: str, machine: Machine) -> Body:
        return _BODIES[actor](self.cluster, task, machine)

    def _start_script(
        self,
        body: TrainerBody,
        task: Task,
        context: dict[str, Any],
        environment: dict[str, str],
        samplers: list[Any],
        checkpoint: Path | None,
    ) -> None:
        port = environment["MASTER_PORT"]
        group = self.groups.setdefault(port, Group(self.cluster, context["world_size"]))
        group.join(context["rank"], task)
        task.process.details |= {"rank": context["rank"], "group": group, "body": body}
        run = RunContext(
            machine=body.machine.name,
            messages=body.folder / "messages",
            output=body.folder / "output",
            resume=checkpoint,
            task=body.task,
            **{name: context[name] for name in _CONTEXT},
        )
        (body.folder / "output").mkdir()
        assert self.system is not None
        stores = [each.body for each in self.system.made if each.body.task == "store0"]
        script = Script(
            self.job, self.cluster, body, task, run, group, samplers, stores[-1], self._finished
        )
        task.process.at_error = lambda error: self._script_failed(task, error)
        self.world.spawn(task.process, script, body.task)

    def _script_failed(self, task: Task, error: BaseException) -> None:
        self.world.error = error

    def _finished(self, task: str, final: tuple[float, ...]) -> None:
        self.finals[task] = final

    def _send(self, path: Path, message: Any) -> None:
        """Receive a message of a trainer."""
        assert self.world.current is not None
        body = self.world.current.process.details["body"]
        body.messages.append(message)

    def _collected(self, checkpoint: Checkpoint) -> None:
        self._collected_iteration = checkpoint.sidecar.iteration
        self.note_durable()

    def _drop_held(self) -> None:
        """An attempt drops checkpoints that are still on hold."""
        if (self.checkpoints / HELD).exists():
            self._collected_iteration = -1

    def note_durable(self) -> None:
        """What was collected has to stay, once its graph is verified."""
        if not (self.checkpoints / HELD).exists():
            self.durable_iteration = max(self.durable_iteration, self._collected_iteration)

    def check_durable(self) -> None:
        """What was collected is still there, unless bits were flipped."""
        found = [
            Checkpoint(path.parent, sidecar)
            for path in self.checkpoints.glob("*.json")
            if (sidecar := read_sidecar(path)) is not None
        ]
        whole = [
            each.sidecar.iteration
            for each in found
            if each.path.is_file()
            and hashlib.sha256(each.path.read_bytes()).hexdigest() == each.sidecar.sha256
        ]
        if (
            max(whole, default=-1) < self.durable_iteration
            and "flip bit" not in self.injection.kinds
        ):
            self.lost = f"the checkpoint of iteration {self.durable_iteration} was not durable"

    # --- the oracle -------------------------------------------------------------------------------

    def _judge(self) -> str:
        assert self.driver is not None
        outcome = self.driver.outcome
        assert outcome is not None
        problem = self.lost or self._judge_outcome(outcome)
        decisions = [each for recorder in self.recorders for each in recorder.decisions]
        for each in decisions:
            if each != "Replan" and self.injection.goes_unnoticed and not problem:
                problem = f"{each} without need"
        for recorder in self.recorders:
            said = unexpected((line for _, line in recorder.lines), self.injection.kinds)
            if said and not problem:
                problem = f"no fault explains {said!r}"
            if recorder.longest_s > SILENCE_S and not problem:
                at_s = recorder.longest_at_s - 1000.0
                problem = f"{recorder.longest_s:.1f} s of silence from {at_s:.1f} s on"
        return problem or self._judge_leftovers()

    def _judge_outcome(self, outcome: Outcome) -> str:
        if outcome.is_success:
            final = {self.finals.get(f"trainer{w}") for w in range(self.job.num_trainers)}
            if final != {(wanted := expected(self.job))}:
                return f"other parameters: {final} instead of {wanted}"
            newest = newest_whole(self.checkpoints)
            iteration = -1 if newest is None else newest.sidecar.iteration
            if self.job.every and iteration != self.job.num_steps and not self.injection.may_lose:
                return f"the last checkpoint is of iteration {iteration}"
            return ""
        if outcome.is_interrupted:
            return "" if self.injection.was_interrupted else "interrupted by nobody"
        if not outcome.problem:
            return "it failed without a problem"
        if not outcome.remedy:
            return f"there is no remedy: {outcome.problem}"
        wrong = self.injection.unexplained(outcome)
        return wrong and f"no fault explains {wrong!r} of {outcome.problem!r}"

    def _judge_leftovers(self) -> str:
        for actor in self.cluster.actors:
            if not actor.is_dead:
                return f"{actor.body.task} on {actor.machine.name} is left"
            if not actor.was_closed and self._should_close(actor):
                return f"{actor.body.task} on {actor.machine.name} left its folder"
        return ""

    def _should_close(self, actor: Actor) -> bool:
        return self.injection.could_close(actor)


def _expectation(source: random.Random) -> Expectation | None:
    """What the plan predicts, if the run watches for drift."""
    if source.random() < 0.6:
        return None
    return Expectation(
        step_s=source.choice((0.2, 1.0, 3.0)),
        better_s=source.choice((0.3, 0.6, 0.95)),
        num_moves=source.choice((0, 1, 2)),
        error=source.choice(("", "", "", "raises", "unreadable")),
    )


def describe(outcome: Outcome | None) -> str:
    """One word and the problem."""
    if outcome is None:
        return "no driver was left"
    if outcome.is_success:
        return "success"
    return "interrupted" if outcome.is_interrupted else f"failed: {outcome.problem}"


def simulate(seed: int, faults: tuple[Fault, ...] | None = None) -> Result:
    """Run one seed in a folder of its own."""
    above = Path("/dev/shm")
    root = Path(tempfile.mkdtemp(prefix="simulated-", dir=above if above.is_dir() else None))
    try:
        return Simulation(seed, root, faults).run()
    finally:
        shutil.rmtree(root, ignore_errors=True)
