"""A trainer's process asks its shell for samplers: lines of JSON over a Unix socket.

Both are on one machine and belong to one user, for whom alone the socket's folder is. A request is
one line, and so is its answer.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from headrace.core.errors import HeadraceError, RunError, SpecError
from headrace.core.values import Value
from headrace.graph.sampler_worker.config import SamplerConfig

Answer = Callable[[dict[str, Any]], Mapping[str, Any]]

START_TIMEOUT_S = 180.0
"""How long a trainer waits for its samplers; whoever starts them gives up sooner and says why."""

_PATHS = frozenset({"graph", "stores", "credentials", "tls", "seeds", "listen", "waits"})
"""What whoever starts a sampler knows better than the trainer."""


class StartSamplers(Value):
    """Asks for all samplers of the trainer, in order.

    Attributes:
        kind: Which request this is.
        configs: A `SamplerConfig` each, without what differs from machine to machine.
        seeds: File on the trainer's machine with original ids for each, or none for those that the
            plan deals to it of the split.
        split: Which one that is.
        loader: Name of the loader, for messages.
    """

    kind: Literal["start_samplers"] = "start_samplers"
    configs: tuple[Mapping[str, Any], ...]
    seeds: tuple[Path | None, ...]
    split: str | None = None
    loader: str = "loader"


class ReplaceSampler(Value):
    """Asks for another sampler in the place of one that is lost; all else is as it was.

    Attributes:
        kind: Which request this is.
        sampler: Number of the sampler among the trainer's.
        epoch: Where it begins ...
        batch: ... and with which batch of it.
        why: What became of the other one.
    """

    kind: Literal["replace_sampler"] = "replace_sampler"
    sampler: Annotated[int, Field(ge=0)]
    epoch: Annotated[int, Field(ge=0)]
    batch: Annotated[int, Field(ge=0)]
    why: str


class SamplerPlace(Value):
    """Where a sampler is reached.

    Attributes:
        socket: File, on the trainer's machine; none if the sampler is elsewhere.
        host: Address otherwise.
        port: Of that.
        task: Name of the sampler, for messages.
        machine: Name of its machine, for messages.
    """

    socket: Path | None = None
    host: str | None = None
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    task: str | None = None
    machine: str | None = None


def without_paths(config: SamplerConfig) -> dict[str, Any]:
    """What a trainer says about a sampler that somebody else starts."""
    return config.model_dump(mode="json", exclude=set(_PATHS), warnings=False)


def ask_for_samplers(
    path: Path, request: StartSamplers, timeout_s: float = START_TIMEOUT_S
) -> tuple[SamplerPlace, ...]:
    """Have samplers started.

    Raises:
        RunError: They did not start, or nobody answers.
    """
    return _ask_for_places(path, request, len(request.configs), request.loader, timeout_s)


def ask_for_another(
    path: Path, request: ReplaceSampler, loader: str, timeout_s: float = START_TIMEOUT_S
) -> SamplerPlace:
    """Have a sampler replaced.

    Raises:
        RunError: No other one did start, or nobody answers.
    """
    (place,) = _ask_for_places(path, request, 1, loader, timeout_s)
    return place


def _ask_for_places(
    path: Path,
    request: StartSamplers | ReplaceSampler,
    num_samplers: int,
    loader: str,
    timeout_s: float,
) -> tuple[SamplerPlace, ...]:
    answer = ask(path, request.model_dump(mode="json"), timeout_s)
    try:
        places = tuple(SamplerPlace.model_validate(place) for place in answer["places"])
    except (KeyError, TypeError, ValidationError):
        raise RunError(
            f"the answer to {loader} is not understood", "use one version of headrace"
        ) from None
    if len(places) != num_samplers:
        raise RunError(
            f"{loader} asked for {num_samplers} samplers and got {len(places)}",
            "see the logs of the run",
        )
    return places


def ask(path: Path, request: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
    """Send one request and wait for its answer.

    Raises:
        RunError: The answer is an error, or there is none.
    """
    wanted = request.get("kind", "request")
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout_s)
            connection.connect(os.fspath(path))
            connection.sendall(json.dumps(request).encode() + b"\n")
            with connection.makefile("rb") as lines:
                line = lines.readline()
    except TimeoutError:
        raise RunError(
            f"{wanted} was not answered within {timeout_s:g} s", "see the logs of the run"
        ) from None
    except OSError as error:
        line, reason = b"", error.strerror
    else:
        reason = "it closed the connection"
    if not line.endswith(b"\n"):
        raise RunError(f"nobody answers {wanted}: {reason}", "see the logs of the run")
    answer: dict[str, Any] = json.loads(line)
    if "error" in answer:
        raise RunError(answer["error"]["problem"], answer["error"]["remedy"])
    return answer


class AskServer:
    """Answers requests, each connection in its own thread.

    Args:
        path: Of the socket; must not exist yet, in a folder for this user alone.
        answer: Called with each request; a `HeadraceError` it raises is what the asker gets.
    """

    def __init__(self, path: Path, answer: Answer) -> None:
        self._answer = answer
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(os.fspath(path))
        path.chmod(0o600)
        self._socket.listen()
        threading.Thread(target=self._accept, name="requests", daemon=True).start()

    def close(self) -> None:
        """Take no more requests; those that are being answered are left to end."""
        # A thread in accept() is not woken by close() alone.
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as lines, suppress(OSError):
            for line in lines:
                connection.sendall(json.dumps(self._reply(line)).encode() + b"\n")

    def _reply(self, line: bytes) -> Mapping[str, Any]:
        try:
            try:
                request = json.loads(line)
            except ValueError:
                raise SpecError("a request is not JSON", "send one object per line") from None
            if not isinstance(request, dict):
                raise SpecError("a request is no object", "send one object per line")
            return self._answer(request)
        except HeadraceError as error:
            return {"error": {"problem": error.problem, "remedy": error.remedy}}
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
            return {"error": {"problem": problem, "remedy": "see the logs of the run"}}
