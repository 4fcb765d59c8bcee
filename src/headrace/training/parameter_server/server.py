"""The RPC server of a parameter server, with the tokens, TLS and limits of a store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from headrace.rpc.server import RpcServer
from headrace.rpc.service_process import load_credentials
from headrace.tracing.task_trace import TraceWriter
from headrace.training.parameter_server.rounds import Done
from headrace.training.parameter_server.service import ParameterService
from headrace.training.parameter_server.types import ServerConfig


class ParameterServer(RpcServer):
    """Serves until it is closed."""

    def __init__(self, config: ServerConfig, clock: Callable[[], float], done: Done) -> None:
        credentials = load_credentials(config.credentials, config.tls)
        service = ParameterService(config.num_trainers, config.limits, clock, done)
        super().__init__(service, credentials, config.host, config.port, config.limits)


class Recording:
    """Records every step in a trace file, if there is one."""

    def __init__(self, path: Path | None, task: str, clock: Callable[[], float]) -> None:
        self._task = task
        self._recorder = None if path is None else TraceWriter(path, task, clock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._recorder is not None:
            self._recorder.close()

    def done(self, iteration: int, start_s: float, end_s: float) -> None:
        """Record a step."""
        if self._recorder is not None:
            times_s = (round(start_s, 6), round(end_s, 6))
            self._recorder.record(("exec", self._task, iteration, *times_s))
