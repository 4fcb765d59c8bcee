"""Requests of a trainer process to its task actor for samplers: JSON lines over a Unix socket.

Both processes belong to one user, and only that user can access the socket's folder. A request is
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
from headrace.core.validation_errors import first_problem
from headrace.core.values import Value
from headrace.graph.sampler_worker.config import SamplerConfig
from headrace.linux.accepting import accept

Answer = Callable[[dict[str, Any]], Mapping[str, Any]]

START_TIMEOUT_S = 180.0
"""How long a trainer waits for samplers; longer than the actor, which reports the cause."""

_PATHS = frozenset({"stores", "credentials", "tls", "seeds", "listen", "waits"})
"""Config fields that are set by the actor that starts the sampler; also `graph`, if the run has
one."""


class StartSamplers(Value):
    """Requests the first samplers of the trainer, in order.

    Attributes:
        configs: A `SamplerConfig` per sampler, without machine-specific fields.
        seeds: Per sampler a local file with original ids, or none for the seeds that the plan
            assigns.
        split: Split of the assigned seeds.
        loader: Name of the loader, for messages.
    """

    kind: Literal["start_samplers"] = "start_samplers"
    configs: tuple[Mapping[str, Any], ...]
    seeds: tuple[Path | None, ...]
    split: str | None = None
    loader: str = "loader"


class ReplaceSampler(Value):
    """Requests a replacement for a lost sampler, with the same config.

    It starts at `batch` of `epoch`; `sampler` is its index among the trainer's samplers.
    """

    kind: Literal["replace_sampler"] = "replace_sampler"
    sampler: Annotated[int, Field(ge=0)]
    epoch: Annotated[int, Field(ge=0)]
    batch: Annotated[int, Field(ge=0)]
    why: str


def parse_request(request: Mapping[str, Any]) -> StartSamplers | ReplaceSampler:
    """Validate a request; raises `SpecError`."""
    kinds: dict[Any, type[StartSamplers | ReplaceSampler]]
    kinds = {"start_samplers": StartSamplers, "replace_sampler": ReplaceSampler}
    name = request.get("kind")
    kind = kinds.get(name) if isinstance(name, str) else None
    if kind is None:
        raise SpecError(
            f"unknown request {str(name)[:40]!r}", "send start_samplers or replace_sampler"
        )
    try:
        return kind.model_validate(request)
    except ValidationError as error:
        problem = f"invalid request {name}: {first_problem(error)}"
        raise SpecError(problem, "use the same headrace version everywhere") from None


class SamplerPlace(Value):
    """Address of a sampler: a Unix socket, or host and port on another machine."""

    socket: Path | None = None
    host: str | None = None
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    task: str | None = None
    machine: str | None = None


def without_paths(config: SamplerConfig) -> dict[str, Any]:
    """Config of a sampler without machine-specific fields."""
    return config.model_dump(mode="json", exclude=set(_PATHS), warnings=False)


def request_samplers(
    path: Path, request: StartSamplers, timeout_s: float = START_TIMEOUT_S
) -> tuple[SamplerPlace, ...]:
    """Request the start of samplers; raises `RunError` if they do not start."""
    return _request_places(path, request, len(request.configs), request.loader, timeout_s)


def request_replacement(
    path: Path, request: ReplaceSampler, loader: str, timeout_s: float = START_TIMEOUT_S
) -> SamplerPlace:
    """Request the replacement of a sampler; raises `RunError` if it does not start."""
    (place,) = _request_places(path, request, 1, loader, timeout_s)
    return place


def _request_places(
    path: Path,
    request: StartSamplers | ReplaceSampler,
    num_samplers: int,
    loader: str,
    timeout_s: float,
) -> tuple[SamplerPlace, ...]:
    answer = request_answer(path, request.model_dump(mode="json"), timeout_s)
    try:
        places = tuple(SamplerPlace.model_validate(place) for place in answer["places"])
    except (KeyError, TypeError, ValidationError):
        raise RunError(
            f"invalid answer to {loader}", "use the same headrace version everywhere"
        ) from None
    if len(places) != num_samplers:
        raise RunError(
            f"{loader} requested {num_samplers} samplers and got {len(places)}",
            "see the logs of the run",
        )
    return places


def request_answer(path: Path, request: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
    """Send one request and return its answer; raises `RunError` for an error or no answer."""
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
            f"no answer to {wanted} within {timeout_s:g} s", "see the logs of the run"
        ) from None
    except OSError as error:
        line, reason = b"", error.strerror
    else:
        reason = "the connection was closed"
    if not line.endswith(b"\n"):
        raise RunError(f"no answer to {wanted}: {reason}", "see the logs of the run")
    answer: dict[str, Any] = json.loads(line)
    if "error" in answer:
        raise RunError(answer["error"]["problem"], answer["error"]["remedy"])
    return answer


class RequestServer:
    """Answers requests, each connection in its own thread.

    The socket's folder must be private to this user. A `HeadraceError` of `answer` is sent back.
    """

    def __init__(self, path: Path, answer: Answer) -> None:
        self._answer = answer
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(os.fspath(path))
        path.chmod(0o600)
        self._socket.listen()
        threading.Thread(target=self._accept, name="requests", daemon=True).start()

    def close(self) -> None:
        """Accept no more requests; pending ones are completed."""
        # close() alone does not wake a thread in accept().
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                connection = accept(self._socket)
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
            except (ValueError, RecursionError):
                raise SpecError("a request is not JSON", "send one object per line") from None
            if not isinstance(request, dict):
                raise SpecError("a request is not a JSON object", "send one object per line")
            return self._answer(request)
        except HeadraceError as error:
            return {"error": {"problem": error.problem, "remedy": error.remedy}}
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
            return {"error": {"problem": problem, "remedy": "see the logs of the run"}}
