"""What a run was asked for: `run.json` in its folder, beside its plan; `--resume` reads both."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from headrace.core.errors import SpecError
from headrace.core.values import CheckedFile

FILE_NAME = "run.json"


Traffic = Literal["none", "plan"]
"""Who shares the network among flows."""


class RunFile(CheckedFile):
    """A run, as it was asked for; see `ClusterRun`.

    Attributes:
        version: Of the file format.
        graph: Directory of the partitioned graph.
        script: The script.
        arguments: Of the script.
        address: Of the Ray cluster.
        config: What the user set for the script.
        tls: Whether connections between machines are encrypted.
        working_dir: The user's folder.
        pip: File that names packages.
        iterations: After so many the run ends.
        cache: Folder for shipped graphs.
        checkpoint_every: Steps between checkpoints.
        max_restarts: How often a task is started again without a new checkpoint.
        elastic: Whether machines that join are used.
        replan: Whether the run is planned anew when it has drifted from its plan.
        traffic: Who shares the network: the plan's policy, or nobody but the system.
        track: Who keeps figures, as `--track` names them.
        independent: Whether each trainer may have a model of its own.
        allow_nan: Whether losses and gradients may be infinite or not a number.
    """

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
        """Write it at one stroke."""
        hidden = folder / f".{FILE_NAME}.partial"
        hidden.write_text(self.to_text(indent=1) + "\n", encoding="utf-8")
        hidden.replace(folder / FILE_NAME)

    @classmethod
    def load(cls, folder: Path) -> RunFile:
        """Read it.

        Raises:
            SpecError: There is none, or it is of another version.
        """
        path = folder / FILE_NAME
        try:
            return cls.model_validate_json(path.read_bytes())
        except OSError:
            raise SpecError(
                f"{folder} cannot be resumed: it has no {FILE_NAME}",
                "name a run of `headrace run --plan`, or start a new one",
            ) from None
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise SpecError(
                f"{path}: {where}: {first['msg']}", "use the headrace that wrote it"
            ) from None
