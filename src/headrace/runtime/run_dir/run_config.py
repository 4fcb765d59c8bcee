"""`run.json` in the run folder: the settings of a run, read by `--resume`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from headrace.core.errors import SpecError
from headrace.core.validation_errors import first_problem
from headrace.core.values import CheckedFile
from headrace.linux.atomic_write import atomic_write

FILE_NAME = "run.json"


Traffic = Literal["none", "plan"]
"""Whether the plan's flow policy is enforced."""


class RunFile(CheckedFile):
    """Settings of a run; see `ClusterRun` for the fields."""

    version: Literal[1] = 1
    graph: Path
    script: Path
    arguments: tuple[str, ...] = ()
    address: str | None = None
    config: Mapping[str, Any] = Field(default_factory=dict)
    tls: bool = True
    working_dir: Path | None = None
    pip: Path | None = None
    iterations: Annotated[int, Field(ge=1)] | None = None
    cache: str | None = None
    checkpoint_every: Annotated[int, Field(ge=0)] = 0
    max_restarts: Annotated[int, Field(ge=0)] = 3
    elastic: bool = False
    replan: bool = False
    traffic: Traffic = "none"
    track: tuple[str, ...] = ()
    independent: bool = False
    allow_nan: bool = False

    def save(self, folder: Path) -> None:
        """Write the file atomically."""
        atomic_write(folder / FILE_NAME, self.to_text(indent=1) + "\n")

    @classmethod
    def load(cls, folder: Path) -> RunFile:
        """Read the file; raises SpecError if it is missing or has another version."""
        path = folder / FILE_NAME
        try:
            return cls.model_validate_json(path.read_bytes())
        except OSError:
            raise SpecError(
                f"{folder} cannot be resumed: it has no {FILE_NAME}",
                "name a run started with `headrace run --plan`, or start a new one",
            ) from None
        except ValidationError as error:
            raise SpecError(
                f"{path}: {first_problem(error)}", "use the headrace version that wrote it"
            ) from None
