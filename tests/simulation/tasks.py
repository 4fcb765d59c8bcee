"""Bodies of task actors: they answer what the controller asks, with processes in virtual time."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from headrace.core.errors import DamagedGraphError
from headrace.linux.process import Activity
from headrace.prefork.identity import own_version
from headrace.runtime.protocol.actor_state import ActorState
from headrace.runtime.protocol.trainer_messages import Message
from headrace.runtime.workers.sampler import after_name
from headrace.runtime.workers.task_process import GRACE_S, URGENT_GRACE_S
from tests.simulation.cluster import Actor, Cluster, Handle, Later
from tests.simulation.processes import Task
from tests.simulation.stores import open_service
from tests.simulation.world import Machine, Process

PIECE_BYTES = 1 << 11
"""Bytes of a file that an actor sends at once: checkpoints have several pieces."""


_IDLE_SHARE = 0.004
"""CPU time of a process that only waits for requests."""


class Body:
    """What all actors answer."""

    actor: Actor

    def __init__(self, cluster: Cluster, task: str, machine: Machine) -> None:
        self.cluster, self.world, self.task, self.machine = cluster, cluster.world, task, machine
        self.folder = cluster.disks.folder(machine.name, f"{task}-{cluster.next_number()}")
        self.process: Task | None = None
        self.log_bytes = bytearray()
        self.raises: dict[str, Exception] = {}

    def register(self) -> dict[str, Any]:
        """Registration data."""
        return {
            "task": self.task,
            "version": self.machine.version or own_version(),
            "python": (3, 12),
            "node_id": self.machine.node_id,
            "address": self.machine.address,
            "interface": None,
            "pid": 1,
            "gpus": [],
            "folder": str(self.folder),
        }

    def _raise(self, name: str) -> None:
        if name in self.raises:
            raise self.raises.pop(name)

    def state(self) -> ActorState:
        """State of the process."""
        self._raise("state")
        process = self.process
        if process is None:
            return ActorState(None, None, len(self.log_bytes))
        code = process.code()
        if code is None:
            is_stopped = process.is_stopped
            return ActorState(process.pid, None, len(self.log_bytes), is_stopped=is_stopped)
        ago_s = self.world.now_s - process.ended_s
        return ActorState(
            None,
            code,
            len(self.log_bytes),
            how=process.how,
            last_error=process.last_error if code else "",
            ended_ago_s=ago_s,
        )

    def log(self, offset: int) -> bytes:
        """Output of the process."""
        return bytes(self.log_bytes[offset : offset + 4096])

    def trace(self, offset: int) -> bytes:
        """There is no trace."""
        return b""

    def clock(self) -> float:
        """The machine's clock."""
        return self.world.now_s + self.machine.clock_s

    def stop(self, is_urgent: bool) -> None:
        """Ask the process to exit."""
        self._raise("stop")
        if self.process is not None:
            self.process.stop(URGENT_GRACE_S if is_urgent else GRACE_S)

    def activity(self) -> Activity:
        """CPU time of its process: what a trainer has computed, and little while it waits."""
        process = self.process
        if process is None or process.code() is not None or process.is_stopped:
            return Activity()
        computed_s = process.process.details.get("computed_s", 0.0)
        return Activity(computed_s + _IDLE_SHARE * (self.world.now_s - process.began_s))

    def kill_hung(self, why: str, only_stopped: bool) -> None:
        """Kill the process if it hangs."""
        if self.process is not None and (not only_stopped or self.process.is_stopped):
            self.process.kill(why)

    def close(self) -> Later | None:
        """Stop the process, which may take a second, and remove the folder."""
        process, later = self.process, Later()
        if process is None or process.code() is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            return None
        process.stop(1.0)

        def check() -> None:
            if self.actor.is_dead:
                return
            if process.code() is None:
                self.world.after(0.1, check)
            else:
                shutil.rmtree(self.folder, ignore_errors=True)
                later.then(None, None)

        check()
        return later

    def die(self) -> None:
        """The actor has died, and its process with it."""
        if self.process is not None:
            self.process.exit(-signal.SIGKILL)

    def fail(self, name: str) -> None:
        """Let the next call of a method fail."""
        self.raises[name] = RuntimeError(f"{name} of {self.task} has failed")

    def new_process(self, react: Callable[[], None] | None = None) -> Task:
        """Start a process."""
        self.process = Task(self.cluster, Process(self.task, self.machine), react)
        return self.process

    def later(self, least_s: float, most_s: float, call: Callable[[], None]) -> None:
        """Let the current process do something after a while, if it lives."""
        task = self.process
        assert task is not None

        def act() -> None:
            if task.exit_code is not None:
                return
            if task.process.thaws_s() > self.world.now_s:
                self.world.at(task.process.thaws_s(), act)
            else:
                call()

        self.world.after(self.world.random.uniform(least_s, most_s), act)


class StoreBody(Body):
    """A store: it listens after it has loaded, and checks its files."""

    def __init__(self, cluster: Cluster, task: str, machine: Machine) -> None:
        super().__init__(cluster, task, machine)
        self.num_starts = 0
        self.ports: dict[str, int] | None = None
        self.is_verified = False
        self.is_damaged = cluster.damaged == task
        self.service: Any = None
        self.number = cluster.next_number()
        cluster.stores[self.number] = self

    def find_graph(self, given: str, fingerprint: str, files: dict[str, int]) -> dict[str, Any]:
        """The graph is here."""
        return {"folder": given, "missing": []}

    def attach(self, ports: dict[int, int], is_verified: bool) -> None:
        """There is no graph."""
        self.ports, self.is_verified = {}, is_verified

    def start(self, config: dict[str, Any], credentials: bytes) -> None:
        """Start the store."""
        self._start()

    def restart(self) -> None:
        """Start it again."""
        if self.process is not None:
            self.process.exit(-signal.SIGKILL)
        self._start()

    def _start(self) -> None:
        self.num_starts += 1
        self.ports, self.is_verified, self.service = None, False, None
        self.new_process(self._release)
        self.later(0.2, 3.0, self._listen)

    def _listen(self) -> None:
        assert self.process is not None
        process = self.process
        try:
            self.world.call_in(process.process, self._open)
        except OSError as error:
            process.exit(1, f"error: {error}")
            return
        self.ports = {"0": self.cluster.next_number()}
        self.later(0.5, 20.0, self._verify)

    def _open(self) -> None:
        self.service = open_service(self.folder / "embeddings")

    def _release(self) -> None:
        """Answer all who wait for others, then exit."""
        assert self.process is not None
        if self.service is not None:
            self.world.call_in(self.process.process, self.service.close)
        self.later(0.01, 0.05, partial(self.process.exit, 0))

    def _verify(self) -> None:
        assert self.process is not None
        if self.is_damaged:
            error = f"ERROR part-0 of {self.task} is damaged"
            self.process.exit(DamagedGraphError.exit_code, f"12:00 {error}")
        else:
            self.is_verified = True

    def state(self) -> ActorState:
        """State of the process, with its ports."""
        starts, verified = self.num_starts, self.is_verified
        return replace(
            super().state(), ports=self.ports, nic=(0, 0), starts=starts, is_verified=verified
        )

    def reach(self, places: dict[str, tuple[str, int]]) -> Later:
        """Connect to other machines: those that are cut off cannot be reached."""
        later, unreachable = Later(), {}
        by_name = self.world.machines
        for name in places:
            other = by_name[name]
            is_cut = self.cluster.cut_until_s(self.machine, other) > self.world.now_s
            if is_cut or not other.is_alive or other.frozen_until_s > self.world.now_s:
                unreachable[name] = "timed out"
        delay_s = 5.0 if unreachable else 0.01
        self.world.after(delay_s, lambda: later.then(unreachable, None))
        return later


class SamplerBody(Body):
    """A sampler, whose process starts when its trainer asks for it."""

    def __init__(self, cluster: Cluster, task: str, machine: Machine) -> None:
        super().__init__(cluster, task, machine)
        self.num_restarts, self.why = 0, ""
        self.is_listening = False
        self.name = f"{task} on {machine.name}"

    def prepare(self, settings: Any, credentials: bytes, seeds: Any) -> None:
        """Nothing is kept."""

    def begin(self) -> None:
        """Start a process."""
        if self.process is not None:
            self.process.exit(0)
        self.is_listening = False
        self.new_process()

        def listen() -> None:
            self.is_listening = True

        self.later(0.1, 2.0, listen)

    def begin_again(self, why: str) -> None:
        """Start a process after the last one was lost."""
        self.num_restarts += 1
        self.why = after_name(self.name, why)
        self.begin()

    def is_there(self) -> bool:
        """Whether the process listens."""
        if self.process is not None and self.process.code() is not None:
            # It was killed before it listened.
            self.begin_again(f"{self.name} {self.process.how}")
        return self.is_listening

    def state(self) -> ActorState:
        """State of the process, with its restarts."""
        return replace(super().state(), restarts=self.num_restarts, why=self.why)


class ServerBody(Body):
    """A parameter server: it listens."""

    port: int | None = None

    def start(self, config: Any, credentials: bytes) -> None:
        """Start the server."""
        self.new_process()

        def listen() -> None:
            self.port = self.cluster.next_number()

        self.later(0.1, 2.0, listen)

    def state(self) -> ActorState:
        """State of the process, with its port."""
        return replace(super().state(), port=self.port)


class TrainerBody(Body):
    """A trainer, whose process runs the script in a fiber."""

    def __init__(self, cluster: Cluster, task: str, machine: Machine) -> None:
        super().__init__(cluster, task, machine)
        self.messages: list[Message] = []
        # Files change rarely, so they are listed only when they may have.
        self._listed: tuple[int, int | None] = (-1, None)
        self._names: tuple[str, ...] = ()
        self._texts: dict[str, str] = {}

    def free_port(self) -> int:
        """A port for the trainers' group."""
        return self.cluster.next_number()

    def start(
        self,
        context: dict[str, Any],
        credentials: bytes,
        seeds: Mapping[str, bytes],
        environment: Mapping[str, str],
        command: Sequence[str],
        code: bytes | None,
        samplers: Sequence[Handle],
        resume: Mapping[str, bytes],
        folder: Any = None,
    ) -> None:
        """Start the script."""
        self.cluster.disks.check_space(str(self.folder))
        given = self.folder / "resume"
        given.mkdir()
        for name, data in resume.items():
            path = given / name
            path.write_bytes(data)
            if self.cluster.flips_resumes > 0 and self.world.random.random() < 0.5:
                self.cluster.flips_resumes -= 1
                self.cluster.disks.flip_bit(path)
        checkpoint = next((given / name for name in resume if name.endswith(".pt")), None)
        task = self.new_process(self._interrupt)
        own = [Handle(each.actor, task.process) for each in samplers]
        self.cluster.start_script(self, task, context, environment, own, checkpoint)

    def _interrupt(self) -> None:
        assert self.process is not None
        process = self.process.process
        handler = process.handlers.get(signal.SIGINT)
        if handler is None:
            self.process.exit(130)
            return
        try:
            handler(signal.SIGINT, None)
        except KeyboardInterrupt:
            self.process.exit(130)

    def output(self, name: str, offset: int) -> bytes:
        """A piece of a file."""
        self._raise("output")
        path = self.folder / "output" / name
        if not path.is_file():
            return b""
        with path.open("rb") as file:
            file.seek(offset)
            data = bytearray(file.read(PIECE_BYTES))
        if data and self.cluster.flips_pieces > 0:
            self.cluster.flips_pieces -= 1
            data[self.world.random.randrange(len(data))] ^= 1
        return bytes(data)

    def state(self) -> ActorState:
        """State of the process, its messages and its checkpoints."""
        state = super().state()
        messages, self.messages = tuple(self.messages), []
        code = None if self.process is None else self.process.exit_code
        if (now := (self.cluster.disks.num_changes, code)) != self._listed:
            self._listed, kept = now, self.folder / "output"
            self._names = tuple(files_in(kept))
            self._texts = {
                name: (kept / "checkpoints" / name).read_text(errors="replace")
                for name in files_in(kept / "checkpoints")
                if name.startswith("checkpoint-") and name.endswith(".json")
            }
        return replace(state, messages=messages, output=self._names, checkpoints=self._texts)


def files_in(folder: Path) -> list[str]:
    """Names of the files in a folder."""
    try:
        return sorted(each.name for each in os.scandir(folder) if each.is_file())
    except FileNotFoundError:
        return []
