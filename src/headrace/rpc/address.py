"""Where a task listens."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from headrace.core.values import Value


class TaskAddress(Value):
    """Address of a store, sampler or parameter server; `task` and `machine` are for messages."""

    task: str
    machine: str
    host: str
    port: Annotated[int, Field(ge=1, le=65535)]

    def __str__(self) -> str:
        return f"{self.task} on {self.machine}"
