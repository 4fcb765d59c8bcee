"""Settings of a run, and `run.json`, from which a run is resumed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError

from headrace.core.errors import SpecError
from headrace.core.plan import Plan
from headrace.core.validation_errors import first_problem
from headrace.core.values import CheckedFile
from headrace.linux.atomic_write import atomic_write
from headrace.runtime.protocol.run_context import TrainerSettings
from headrace.runtime.run_dir.run_dir import RunDirectory

FILE_NAME = "run.json"


Traffic = Literal["none", "plan"]
"""Whether the plan's flow policy is enforced."""


class RunSettings(TrainerSettings, CheckedFile):
    """Settings of a run that a resumed run keeps; `run.json` in the run folder.

    Attributes:
        graph: Directory of the partitioned graph, one partition per machine of the plan; None for
            a local run without a graph.
        script: Python training script.
        arguments: Arguments of the script.
        address: Ray address; None for `RAY_ADDRESS`, else the local cluster.
        tls: Whether connections between machines are encrypted.
        working_dir: Folder with the user's code; None for the script's folder.
        pip: Requirements file of the script.
        cache: Folder for shipped graphs on every machine, in which `{machine}` is replaced by the
            machine's name; None for the default.
        max_restarts: Restarts of a task without a new checkpoint; 0 to stop at the first fault.
        elastic: Whether to run without missing machines of the plan and add them when they join.
        replan: Whether to replan and resume when the measured performance drifts from the plan.
        traffic: `plan` to enforce the plan's flow policy, which needs privileges on every machine;
            `none` to leave flows to the operating system.
        track: Experiment trackers: `tensorboard[:DIR]`, `mlflow[:URI]`.
        independent: Whether trainers may have different models; else their parameters are compared
            after the first steps.
        is_local: Whether all tasks run on this machine, without Ray, and the script sets its seeds
            and its batch size.
        num_stores: In a local run: graph partitions read from the store, as if remote; the others
            are memory-mapped. None for all.
        store_set: Folder of the store set that serves the graph; None if the run starts its own
            stores.
        num_samplers: In a local run: sampler processes of the training loader; 0 for none.
    """

    version: Literal[1] = 1
    graph: Path | None
    script: Path
    arguments: tuple[str, ...] = ()
    address: str | None = None
    tls: bool = True
    working_dir: Path | None = None
    pip: Path | None = None
    cache: str | None = None
    max_restarts: Annotated[int, Field(ge=0)] = 3
    elastic: bool = False
    replan: bool = False
    traffic: Traffic = "none"
    track: tuple[str, ...] = ()
    independent: bool = False
    is_local: bool = False
    num_stores: Annotated[int, Field(ge=0)] | None = None
    store_set: Path | None = None
    num_samplers: Annotated[int, Field(ge=0)] = 1

    def save(self, folder: Path) -> None:
        """Write the file atomically."""
        atomic_write(folder / FILE_NAME, self.to_text(indent=1) + "\n")

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read the file; raises SpecError if it is missing or has another version."""
        path = folder / FILE_NAME
        try:
            return cls.model_validate_json(path.read_bytes())
        except OSError:
            raise SpecError(
                f"{folder} cannot be resumed: it has no {FILE_NAME}",
                "name a run started with `headrace run`, or start a new one",
            ) from None
        except ValidationError as error:
            raise SpecError(
                f"{path}: {first_problem(error)}", "use the headrace version that wrote it"
            ) from None


class RunConfig(RunSettings):
    """A run.

    Attributes:
        plan: The plan.
        name: Name of the run; the job's name if empty.
        runs: Folder of all runs; None for the default.
        resume: Folder of the run to resume from its newest complete checkpoint; None for a new run.
        follows_script: Whether the run stops if the script sets another batch size.
        files: Texts to write to the run folder, by name.
    """

    plan: Plan
    name: str = ""
    runs: Path | None = None
    resume: Path | None = None
    follows_script: bool = False
    files: Mapping[str, str] = Field(default_factory=dict)

    @classmethod
    def resumed(cls, folder: RunDirectory, **changes: Any) -> Self:
        """Config to resume a run, from its run folder.

        Args:
            folder: The run folder.
            **changes: Changed fields; `config` is merged into the run's config.

        Raises:
            SpecError: A file in the folder is missing or invalid.
        """
        saved = RunSettings.load(folder.path)
        try:
            plan = changes.pop("plan", None) or Plan.model_validate_json(folder.plan.read_bytes())
        except (OSError, ValueError):
            raise SpecError(
                f"{folder.plan} cannot be read as a plan", "give --plan with the plan of the run"
            ) from None
        config = {**saved.config, **changes.pop("config", {})}
        fields = {**dict(saved), **changes, "plan": plan, "config": config, "resume": folder.path}
        return cls(**fields)

    @property
    def settings(self) -> RunSettings:
        """The content of `run.json`, with absolute paths."""
        fields = {name: getattr(self, name) for name in RunSettings.model_fields}
        for name in ("graph", "script", "working_dir", "pip", "store_set"):
            fields[name] = None if fields[name] is None else fields[name].resolve()
        return RunSettings(**fields)
