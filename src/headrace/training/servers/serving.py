"""A parameter server's socket: a store's, with the same tokens, TLS and limits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from headrace.core.errors import MissingExtraError
from headrace.graph.feeding.recording import Recorder
from headrace.graph.service.process import load_credentials
from headrace.graph.service.shard import Shard
from headrace.training.servers.config import ServerConfig
from headrace.training.servers.operations import ServerOperations
from headrace.training.servers.rounds import Done

try:
    from headrace.graph.service.store import StoreServer
except ImportError:
    raise MissingExtraError("pyarrow is not installed", "pip install 'headrace[train]'") from None


class ParameterServer(StoreServer):
    """Serves until it is closed.

    Args:
        config: Where, and for whom.
        clock: Seconds.
        done: Told of every step.

    Raises:
        SpecError: There are no credentials.
    """

    def __init__(self, config: ServerConfig, clock: Callable[[], float], done: Done) -> None:
        credentials = load_credentials(config.credentials, config.tls)
        super().__init__(Shard(0), credentials, config.host, config.port, config.limits, warm=False)
        self._operations = ServerOperations(config.num_trainers, config.limits, clock, done)


class Recording:
    """Notes every step in a file, if there is one.

    Args:
        path: The file; none to note nothing.
        task: Name of the server.
        clock: Seconds.
    """

    def __init__(self, path: Path | None, task: str, clock: Callable[[], float]) -> None:
        self._task = task
        self._recorder = None if path is None else Recorder(path, task, clock)

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
        """A step was made."""
        if self._recorder is not None:
            times_s = (round(start_s, 6), round(end_s, 6))
            self._recorder.note(("exec", self._task, iteration, *times_s))
