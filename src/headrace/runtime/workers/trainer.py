"""Task actor of a trainer: runs the user's script and answers its requests."""

from __future__ import annotations

import io
import os
import signal
import sys
import time
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.linux.network import free_port
from headrace.runtime.cluster.actor_system import ActorSystem
from headrace.runtime.protocol.actor_state import ActorState
from headrace.runtime.workers.base import TaskActor
from headrace.runtime.workers.task_process import TaskProcess

if TYPE_CHECKING:
    from headrace.runtime.protocol.sampler_requests import ReplaceSampler, StartSamplers

_START_TIMEOUT_S = 120.0
_POLL_INTERVAL_S = 0.1
_UNSET = ("HEADRACE_RUN", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


class TrainerActor(TaskActor):
    """Runs the script of one trainer."""

    preload = "train"

    def __init__(self, task: str, machine: str, system: ActorSystem) -> None:
        super().__init__(task, machine, system)
        self._samplers: Sequence[Any] = ()
        self._inbox: Any = None
        self._requests: Any = None

    def free_port(self) -> int:
        """A free port of this machine for the trainers' process group."""
        return free_port(self.address)

    def start(
        self,
        context: dict[str, Any],
        credentials: bytes,
        seeds: Mapping[str, bytes],
        environment: Mapping[str, str],
        command: Sequence[str],
        code: bytes | None,
        samplers: Sequence[Any],
        resume: Mapping[str, bytes],
        folder: Path | None = None,
    ) -> None:
        """Start the script.

        `context` is a `RunContext` without machine-specific fields; `command` is the script, as a
        path in the code, and its arguments; `code` is the user's folder as a zip file, none for a
        `folder` of this machine; `resume` has the files of the checkpoint to resume from, by name.
        """
        from headrace.runtime.protocol.sampler_requests import RequestServer
        from headrace.runtime.protocol.trainer_messages import Inbox

        self._samplers = samplers
        self._inbox = Inbox(self.folder / "messages")
        self._requests = RequestServer(self.folder / "requests", self._answer)
        for name in ("seeds", "output", "resume"):
            (self.folder / name).mkdir()
        for name, data in seeds.items():
            (self.folder / "seeds" / name).write_bytes(data)
        for name, data in resume.items():
            (self.folder / "resume" / name).write_bytes(data)
        checkpoint = next((name for name in resume if name.endswith(".pt")), None)
        own = {
            "task": self.task,
            "machine": self.machine,
            "messages": str(self.folder / "messages"),
            "requests": str(self.folder / "requests"),
            "credentials": str(self._write_keys(credentials)),
            "trace": str(self.trace_path),
            "output": str(self.folder / "output"),
            "resume": None if checkpoint is None else str(self.folder / "resume" / checkpoint),
            "seeds": str(self.folder / "seeds"),
        }
        import json

        path = self.folder / "context.json"
        path.write_text(json.dumps({**context, **own}), encoding="utf-8")
        where = self._unpack(code, folder)
        variables = {name: value for name, value in os.environ.items() if name not in _UNSET}
        variables |= {**environment, "HEADRACE_RUN": str(path), "PYTHONUNBUFFERED": "1"}
        if self._interface is not None and "WORLD_SIZE" in environment:
            variables.setdefault("GLOO_SOCKET_IFNAME", self._interface)
            variables.setdefault("NCCL_SOCKET_IFNAME", self._interface)
        begin = [sys.executable, "-m", "headrace.runtime.trainer", str(os.getpid())]
        self._process = TaskProcess(
            [*begin, self.machine, *command],
            self.log_path,
            variables,
            where,
            end_by=signal.SIGINT,
            lease=self._lease,
        )

    def output(self, name: str, offset: int) -> bytes:
        """A chunk of a file in the script's output folder."""
        path = (self.folder / "output" / name).resolve()
        if not path.is_relative_to((self.folder / "output").resolve()) or not path.is_file():
            return b""
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(1 << 22)

    def close(self) -> None:
        """Stop the process and remove the folder."""
        try:
            if self._requests is not None:
                self._requests.close()
            if self._inbox is not None:
                self._inbox.close()
                self._inbox = None
        finally:
            super().close()

    def state(self) -> ActorState:
        """State of the process, its new messages and its files."""
        state = super().state()
        if self._inbox is None:
            return state
        kept = self.folder / "output"
        # Hidden files are incomplete, and are renamed later.
        files = [each.name for each in os.scandir(kept) if each.is_file() and each.name[0] != "."]
        sidecars = {path.name: path for path in (kept / "checkpoints").glob("checkpoint-*.json")}
        return replace(
            state,
            messages=tuple(self._inbox.receive(0)),
            output=tuple(files),
            checkpoints={name: _text(path) for name, path in sidecars.items()},
        )

    def _unpack(self, code: bytes | None, folder: Path | None) -> Path:
        if code is None:
            return folder or Path.cwd()
        where = self.folder / "code"
        with zipfile.ZipFile(io.BytesIO(code)) as archive:
            archive.extractall(where)
        return where

    def _answer(self, request: dict[str, Any]) -> Mapping[str, Any]:
        """Start or replace samplers of the trainer; runs in the request's thread."""
        from headrace.runtime.protocol.sampler_requests import StartSamplers, parse_request

        parsed = parse_request(request)
        if isinstance(parsed, StartSamplers):
            return {"places": self._start_samplers(parsed)}
        return {"places": self._replace_sampler(parsed)}

    def _start_samplers(self, request: StartSamplers) -> list[Any]:
        from headrace.core.errors import SpecError

        configs, seeds = request.configs, request.seeds
        samplers = self._samplers[: len(configs)]
        if len(configs) > len(samplers) or len(configs) != len(seeds):
            raise SpecError(
                f"{self.task} requested {len(configs)} samplers with {len(seeds)} seeds and has "
                f"{len(samplers)}",
                "use the same headrace version everywhere",
            )
        try:
            contents = [None if path is None else path.read_bytes() for path in seeds]
        except (OSError, ValueError) as error:
            raise SpecError(f"seeds cannot be read: {error}", "check the path") from None
        began = [
            actor.begin.remote(config, content, request.split, self.machine)
            for actor, config, content in zip(samplers, configs, contents, strict=True)
        ]
        return self._places(samplers, began)

    def _replace_sampler(self, request: ReplaceSampler) -> list[Any]:
        from headrace.core.errors import SpecError

        if request.sampler >= len(self._samplers):
            raise SpecError(
                f"{self.task} has no sampler {request.sampler}, it has {len(self._samplers)}",
                "use the same headrace version everywhere",
            )
        actor = self._samplers[request.sampler]
        again = (request.epoch, request.batch, request.why)
        return self._places([actor], [actor.begin_again.remote(*again)])

    def _places(self, samplers: Sequence[Any], began: Sequence[Any]) -> list[Any]:
        """Wait until all samplers listen; return their addresses."""
        from headrace.core.errors import RunError

        end_s = time.monotonic() + _START_TIMEOUT_S

        def get(ref: Any) -> Any:
            return self._system.get(ref, max(1.0, end_s - time.monotonic()))

        try:
            for each in began:
                get(each)
            while True:
                places = [get(ref) for ref in [actor.place.remote() for actor in samplers]]
                for place in places:
                    if place is not None and "error" in place:
                        raise RunError(place["error"]["problem"], place["error"]["remedy"])
                if None not in places:
                    return places
                if time.monotonic() > end_s:
                    late = places.index(None)
                    raise RunError(
                        f"sampler {late} of {self.task} did not start in {_START_TIMEOUT_S:.0f} s",
                        "see its log with `headrace logs`",
                    )
                time.sleep(_POLL_INTERVAL_S)
        except self._system.errors as error:
            raise RunError(
                f"cannot start a sampler of {self.task}: {type(error).__name__}",
                "check its machine, and run again",
            ) from None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        # Removed meanwhile because newer ones exist.
        return ""
