"""Does to a run what its faults say, and knows which ends they explain."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.policies.lifecycle.events import Outcome
from headrace.policies.recovery.events import Limits
from tests.simulation.cluster import Actor
from tests.simulation.faults import Fault
from tests.simulation.messages import Injected, names_in, unexplained
from tests.simulation.world import Machine

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation


UNNOTICED = frozenset({"reset", "late clock", "flip piece", "boot"})
"""Faults after which no task is restarted."""

SURVIVABLE = UNNOTICED | {
    "kill task",
    "kill driver",
    "power loss",
    "flip bit",
}
"""Faults of which every run survives two."""


def _is_in_loop(actor: Actor) -> bool:
    loader = actor.body.process.process.details.get("loader")
    return loader is not None and loader.is_in_loop


class Injection:
    """Injects faults into a simulation.

    Attributes:
        done: Descriptions of the faults that found a victim.
        may_lose: Whether the last checkpoint may be lost.
        was_interrupted: Whether the user has interrupted the run.
    """

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self.done: list[str] = []
        self._injected: list[Injected] = []
        # When bits were flipped, and whether a trainer had the file already.
        self._flipped: list[tuple[float, bool]] = []
        self.kinds: set[str] = set()
        self.may_lose = self.was_interrupted = False
        self._frozen: list[tuple[float, float]] = []
        self._disturbed: set[int] = set()
        self._times: dict[str, list[tuple[float, float]]] = {}

    def frozen_s(self, begin_s: float, end_s: float) -> float:
        """How long the driver was frozen in this time."""
        return sum(max(0.0, min(end, end_s) - max(begin, begin_s)) for begin, end in self._frozen)

    def unexplained(self, outcome: Outcome) -> str:
        """The part of a failure that does not follow from the faults, if any."""
        settings = self._simulation.settings
        is_strict = settings.limits == Limits() and not settings.is_local
        # Nobody can tell that the last checkpoint is damaged before it has to arrive.
        is_missed = "was not fetched" in outcome.problem
        if is_strict and len(self.done) <= 2 and self.kinds <= SURVIVABLE and not is_missed:
            return outcome.problem
        tasks: dict[str, set[str]] = {}
        for actor in self._simulation.cluster.actors:
            tasks.setdefault(actor.machine.name, set()).add(actor.body.task)
        # A fault of a machine hits all tasks there.
        hit = [
            replace(each, names=each.names.union(*(tasks.get(name, ()) for name in each.names)))
            for each in self._injected
        ]
        driver = self._simulation.driver
        began_s = 0.0 if driver is None else driver.attempt_s
        if any(is_given or at_s >= began_s for at_s, is_given in self._flipped):
            # Before an attempt begins, a damaged checkpoint is noticed, and an older one is used.
            hit.append(Injected("flip resume", frozenset()))
        return unexplained(outcome.problem, hit)

    @property
    def goes_unnoticed(self) -> bool:
        """Whether nothing has to be restarted or resumed because of the faults."""
        # Without restarts nothing is asked for again.
        retries = self._simulation.settings.limits.restarts > 0
        return self.kinds <= (UNNOTICED if retries else UNNOTICED - {"reset"})

    def could_close(self, actor: Actor) -> bool:
        """Whether nothing prevented an actor from a clean end."""
        if id(actor) in self._disturbed or actor.never_began is not None:
            return False
        return all(
            actor.died_s < begin_s or actor.made_s > end_s
            for name in (actor.machine.name, self._simulation.home.name)
            for begin_s, end_s in self._times.get(name, ())
        )

    # --- injection --------------------------------------------------------------------------------

    def inject(self, fault: Fault) -> None:
        """Inject a fault, if it finds a victim."""
        victim = getattr(self, "_" + fault.kind.replace(" ", "_"))(fault)
        if victim:
            self.kinds.add(fault.kind)
            names = frozenset(names_in(victim))
            self._injected.append(Injected(fault.kind, names, fault.length_s))
            at_s = self._simulation.world.now_s - 1000.0
            self.done.append(f"{at_s:.1f} s: {fault.kind} {victim} ({fault.length_s:.1f} s)")

    def _actors(self) -> list[Actor]:
        system = self._simulation.system
        return [] if system is None else [each for each in system.made if not each.is_dead]

    def _pick(self, fault: Fault, things: list[Any]) -> Any:
        return things[fault.victim % len(things)] if things else None

    def _running(self) -> list[Actor]:
        return [
            each
            for each in self._actors()
            if each.body.process is not None and each.body.process.exit_code is None
        ]

    def _machine(self, fault: Fault) -> Machine:
        names = self._simulation.names
        return self._simulation.world.machines[names[fault.victim % len(names)]]

    def _disturb(self, actor: Actor) -> str:
        self._disturbed.add(id(actor))
        return f"{actor.body.task} on {actor.machine.name}"

    def _disturb_machine(self, machine: Machine, length_s: float) -> str:
        """Actors that are there meanwhile need not end cleanly."""
        now_s = self._simulation.world.now_s
        self._times.setdefault(machine.name, []).append((now_s, now_s + length_s + 5.0))
        return machine.name

    def _kill_task(self, fault: Fault) -> str:
        actor = self._pick(fault, self._running())
        if actor is None:
            return ""
        actor.body.process.exit(-9)
        return str(actor.body.task)

    def _kill_repeatedly(self, fault: Fault) -> str:
        """Whatever a task does, it ends again soon: it is out of memory, say."""
        actor = self._pick(fault, self._running())
        if actor is None:
            return ""
        task, world = str(actor.body.task), self._simulation.world

        def kill(num: int, is_again: bool = True) -> None:
            for each in self._running():
                if each.body.task == task:
                    each.body.process.exit(-9)
                    if is_again:
                        # Each is a fault of its own.
                        self._injected.append(Injected(fault.kind, frozenset({task})))
            if num > 1:
                world.after(world.random.uniform(2.0, 8.0), partial(kill, num - 1))

        kill(2 + fault.victim // 7 % 5, is_again=False)
        return task

    def _kill_actor(self, fault: Fault) -> str:
        actor = self._pick(fault, self._actors())
        if actor is None:
            return ""
        actor.die()
        return self._disturb(actor)

    def _kill_machine(self, fault: Fault) -> str:
        machine = self._machine(fault)
        if machine is self._simulation.home or not machine.is_alive:
            return ""
        self._disturb_machine(machine, 0.0)
        self._simulation.cluster.kill_machine(machine)
        if fault.victim // 3 % 2:
            boot = partial(self._simulation.cluster.boot, machine)
            self._simulation.world.after(2.0 + fault.length_s, boot)
        return machine.name

    def _boot(self, fault: Fault) -> str:
        dead = [each for each in self._simulation.world.machines.values() if not each.is_alive]
        machine = self._pick(fault, dead)
        if machine is None:
            return ""
        self._simulation.cluster.boot(machine)
        return str(machine.name)

    def _stop_task(self, fault: Fault) -> str:
        actor = self._pick(fault, self._running())
        if actor is None:
            return ""
        actor.body.process.process.frozen_until_s = self._simulation.world.now_s + fault.length_s
        return str(actor.body.task)

    def _freeze_actor(self, fault: Fault) -> str:
        actor = self._pick(fault, self._actors())
        if actor is None:
            return ""
        actor.process.frozen_until_s = self._simulation.world.now_s + fault.length_s
        return self._disturb(actor)

    def _freeze_machine(self, fault: Fault) -> str:
        machine = self._machine(fault)
        if machine is self._simulation.home:
            return ""
        machine.frozen_until_s = self._simulation.world.now_s + fault.length_s
        return self._disturb_machine(machine, fault.length_s)

    def _hang_trainer(self, fault: Fault) -> str:
        # Elsewhere a script may take as long as it likes.
        looping = [each for each in self._running() if _is_in_loop(each)]
        actor = self._pick(fault, looping)
        if actor is None:
            return ""
        # It never goes on, but no signal has stopped it.
        actor.body.process.process.hung_until_s = 1e12
        return str(actor.body.task)

    def _cut(self, fault: Fault) -> str:
        world = self._simulation.world
        one = self._machine(fault)
        others = [each for each in world.machines.values() if each is not one]
        end_s = world.now_s + fault.length_s
        if fault.victim % 3:
            # The machine is cut off from all others.
            for other in others:
                self._simulation.cluster.cuts[frozenset((one.name, other.name))] = end_s
            if one is self._simulation.home:
                # For the driver, all others are.
                for other in others:
                    self._disturb_machine(other, fault.length_s)
                return f"{one.name} from {', '.join(other.name for other in others)}"
            return self._disturb_machine(one, fault.length_s)
        other = others[fault.victim // 7 % len(others)]
        self._simulation.cluster.cuts[frozenset((one.name, other.name))] = end_s
        self._disturb_machine(other, fault.length_s)
        return f"{self._disturb_machine(one, fault.length_s)} from {other.name}"

    def _reset(self, fault: Fault) -> str:
        links = [each for each in self._simulation.cluster.links if each.is_open]
        link = self._pick(fault, links)
        if link is None:
            return ""
        when = ("at once", "while a push waits", "before the reply to a push")[
            fault.victim // 13 % 3
        ]
        if when == "at once":
            link.reset()
        else:
            link.resets_waiting = "waits" in when
            link.loses_reply = "reply" in when
        return f"of a connection to a store, {when}"

    def _delay(self, fault: Fault) -> str:
        machine = self._machine(fault)
        self._simulation.cluster.slow_until_s[machine.name] = (
            self._simulation.world.now_s + fault.length_s
        )
        self._disturb_machine(machine, fault.length_s)
        return machine.name

    def _reorder(self, fault: Fault) -> str:
        cluster, world = self._simulation.cluster, self._simulation.world
        cluster.jitter_s = 4.0
        for machine in world.machines.values():
            self._disturb_machine(machine, fault.length_s)

        def end() -> None:
            cluster.jitter_s = 0.05

        world.after(fault.length_s, end)
        return "messages"

    def _fail_call(self, fault: Fault) -> str:
        actor = self._pick(fault, self._actors())
        if actor is None:
            return ""
        actor.body.fail(("state", "stop", "output")[fault.victim % 3])
        return str(actor.body.task)

    def _full_disk(self, fault: Fault) -> str:
        return self._fill(self._machine(fault), fault)

    def _full_driver_disk(self, fault: Fault) -> str:
        return self._fill(self._simulation.home, fault)

    def _fill(self, machine: Machine, fault: Fault) -> str:
        disks = self._simulation.disks
        disks.full.add(machine.name)
        self._simulation.world.after(fault.length_s, lambda: disks.full.discard(machine.name))
        self.may_lose = True
        return machine.name

    def _flip_bit(self, fault: Fault) -> str:
        root = self._simulation.disks.root
        found = sorted(root.glob("*/*/**/checkpoint-*"))
        path = self._pick(fault, [each for each in found if each.is_file()])
        if path is None:
            return ""
        self._simulation.disks.flip_bit(path)
        self.may_lose = True
        self._flipped.append((self._simulation.world.now_s, "resume" in path.parts))
        return str(path.relative_to(root))

    def _flip_piece(self, fault: Fault) -> str:
        self._simulation.cluster.flips_pieces += 1
        self.may_lose = True
        return "of a piece"

    def _flip_resume(self, fault: Fault) -> str:
        self._simulation.cluster.flips_resumes += 1
        return "of a checkpoint that is resumed from"

    def _script_error(self, fault: Fault) -> str:
        trainers = [each for each in self._running() if each.body.task.startswith("trainer")]
        actor = self._pick(fault, trainers)
        if actor is None:
            return ""
        # The same data may raise the same error again.
        actor.body.process.process.details["raises"] = True
        if fault.victim // 5 % 2:
            self._simulation.cluster.raising.add(actor.body.task)
        return str(actor.body.task)

    def _lose_head(self, fault: Fault) -> str:
        now_s = self._simulation.world.now_s
        self._simulation.cluster.head_lost_s = (now_s, now_s + fault.length_s)
        return "of the cluster"

    def _kill_driver(self, fault: Fault) -> str:
        process = self._simulation.driver_process
        if process is None or process.is_dead or self._simulation.is_driver_done:
            return ""
        process.is_dead = True
        for actor in self._actors():
            self._disturb(actor)
        self._simulation.end_driver()
        return "now"

    def _power_loss(self, fault: Fault) -> str:
        killed = self._kill_driver(fault)
        if not killed:
            return ""
        simulation = self._simulation
        simulation.note_durable()
        simulation.disks.lose_power(simulation.checkpoints)
        simulation.check_durable()
        if simulation.home.name in simulation.names:
            simulation.cluster.kill_machine(simulation.home)
            simulation.cluster.boot(simulation.home)
        return "of the driver's machine"

    def _freeze_driver(self, fault: Fault) -> str:
        process, now_s = self._simulation.driver_process, self._simulation.world.now_s
        if process is None or self._simulation.is_driver_done:
            return ""
        process.frozen_until_s = now_s + fault.length_s
        self._frozen.append((now_s, now_s + fault.length_s))
        self._disturb_machine(self._simulation.home, fault.length_s)
        return "now"

    def _late_clock(self, fault: Fault) -> str:
        machine = self._machine(fault)
        if machine is not self._simulation.home:
            machine.clock_s += fault.length_s - 20.0
        return machine.name

    def _interrupt(self, fault: Fault) -> str:
        driver = self._simulation.driver
        if driver is None or self._simulation.is_driver_done:
            return ""
        interrupted = driver.interrupted

        def interrupt() -> None:
            interrupted.num_times += 1

        self.was_interrupted = True
        interrupt()
        if fault.victim % 3:
            return "once"
        self._simulation.world.after(min(fault.length_s, 3.0), interrupt)
        return "twice"

    def _other_version(self, fault: Fault) -> str:
        machine = self._machine(fault)
        machine.version = "0.0.1"
        return machine.name

    def _broken_install(self, fault: Fault) -> str:
        machine = self._machine(fault)
        machine.broken = ("environment", "import")[fault.victim // 11 % 2]
        return machine.name

    def _change_script(self, fault: Fault) -> str:
        """The driver is killed, and the run resumed with another script."""
        killed = self._kill_driver(fault)
        if killed:
            self._simulation.cluster.is_script_changed = True
        return killed

    def _damaged_graph(self, fault: Fault) -> str:
        name = f"store{fault.victim % len(self._simulation.names)}"
        self._simulation.cluster.damaged = name
        for actor in self._actors():
            if actor.body.task == name:
                actor.body.is_damaged = True
        return name
