"""What a script must know of the run it belongs to: a file, named by the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from headrace.core.errors import SpecError
from headrace.core.values import Value
from headrace.graph.feeding.config import StoreAt

CONTEXT_VARIABLE = "HEADRACE_RUN"
"""Names the file."""


class RunContext(Value):
    """A run, as its trainer sees it.

    Attributes:
        machine: Name of the machine, for messages.
        messages: Socket that takes figures for the display.
        parts: Directory of the graph whose parts are with stores; none if nobody serves one.
        stores: Where they are.
        credentials: File to talk to them with.
        tls: Whether they are asked over encrypted connections.
        num_samplers: Processes that make batches for each loader that trains; 0 for none.
        log: File for messages of samplers.
    """

    machine: str
    messages: Path
    parts: Path | None = None
    stores: tuple[StoreAt, ...] = ()
    credentials: Path | None = None
    tls: bool = False
    num_samplers: Annotated[int, Field(ge=0)] = 0
    log: Path | None = None

    def stores_of(self, folder: Path) -> tuple[StoreAt, ...]:
        """Stores of the graph in a folder; none if this run serves another graph."""
        if self.parts is None or folder.resolve() != self.parts.resolve():
            return ()
        return self.stores

    def connect(self, stores: tuple[StoreAt, ...]) -> Mapping[int, Any]:
        """How to reach stores, by part."""
        from headrace.graph.service.channel import Address
        from headrace.graph.service.client import StoreClient
        from headrace.graph.service.security import Credentials

        if not stores:
            return {}
        assert self.credentials is not None
        credentials = Credentials.load(self.credentials)
        if not self.tls:
            credentials = replace(credentials, identity=None)
        return {
            at.part: partial(
                StoreClient.connect, Address(at.task, at.machine, at.host, at.port), credentials
            )
            for at in stores
        }


def current_run() -> RunContext | None:
    """The run this process belongs to, if `headrace run` started it.

    Raises:
        SpecError: The run's file cannot be understood.
    """
    path = os.environ.get(CONTEXT_VARIABLE)
    return _load(path) if path else None


@lru_cache(maxsize=1)
def _load(path: str) -> RunContext:
    remedy = f"start the script with `headrace run`, or unset {CONTEXT_VARIABLE}"
    try:
        return RunContext.model_validate_json(Path(path).read_bytes())
    except OSError as error:
        raise SpecError(f"the run's file {path} cannot be read: {error.strerror}", remedy) from None
    except ValidationError:
        raise SpecError(f"{path} is no file of a run", remedy) from None
