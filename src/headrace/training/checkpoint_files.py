"""Checkpoint files: `checkpoint-00000400.pt` and its sidecar `checkpoint-00000400.json`.

The `.pt` file has tensors and plain values for `torch.load(weights_only=True)`. The sidecar has its
position, size and SHA-256, and is written last, so that an interrupted write leaves no checkpoint.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from headrace.core.errors import SpecError
from headrace.core.values import CheckedFile, Value
from headrace.linux.atomic_write import atomic_write

KEEP = 2
"""Checkpoints to keep: the previous one is used if the newest is lost with its machine."""

HELD = "held"
"""File with the iteration of the last valid checkpoint while newer ones are on hold."""

_NAME = re.compile(r"checkpoint-(\d{8,})")
_READ_BYTES = 1 << 20
_OTHER = "resume from another checkpoint, or start a new run"

_Num = Annotated[int, Field(ge=0)]


class Position(Value):
    """Position of a checkpoint in a training.

    Attributes:
        iteration: Number of completed steps.
        epoch: Current or next epoch of the script.
        batch: Next batch of the training loader, within its epoch.
        plan: Fingerprint of the plan; empty without one.
        lanes: Fingerprint of the seed assignment; empty without a plan.
    """

    iteration: _Num
    epoch: _Num
    batch: _Num
    plan: str = ""
    lanes: str = ""


class Sidecar(Position, CheckedFile):
    """Metadata of a checkpoint.

    Attributes:
        version: Version of the format.
        size: Size of the `.pt` file in bytes.
        sha256: SHA-256 of the `.pt` file.
    """

    version: Literal[1] = 1
    size: _Num
    sha256: str

    @property
    def name(self) -> str:
        """Name of both files without suffix."""
        return f"checkpoint-{self.iteration:08d}"


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint."""

    folder: Path
    sidecar: Sidecar

    @property
    def path(self) -> Path:
        """Path of the `.pt` file."""
        return self.folder / f"{self.sidecar.name}.pt"

    @property
    def sidecar_path(self) -> Path:
        """Path of the sidecar."""
        return self.path.with_suffix(".json")


def save(
    folder: Path, position: Position, state: Mapping[str, Any], keep: int = KEEP
) -> Checkpoint:
    """Write a checkpoint of a plain state (see `as_plain`); only `keep` checkpoints are kept.

    Raises:
        OSError: It cannot be written; checkpoints that exist are unchanged.
    """
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / ".checkpoint.partial"
    write_state(partial, state, sync=True)
    size, sha256 = _digest(partial)
    sidecar = Sidecar(size=size, sha256=sha256, **dict(position))
    return install(folder, sidecar, partial, keep)


def write_state(path: Path, state: Mapping[str, Any], sync: bool = False) -> None:
    """Write a state with torch; after an `OSError` there is no file."""
    import torch

    try:
        with path.open("wb") as file:
            torch.save(dict(state), file)
            if sync:
                file.flush()
                os.fsync(file.fileno())
    except (OSError, RuntimeError) as error:
        # It would keep a full disk full.
        path.unlink(missing_ok=True)
        raise _cause_of(error) from None


def _cause_of(error: BaseException) -> BaseException:
    """The `OSError` behind an error: torch's writer raises one of its own after it."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__context__
    return cause or error


def install(folder: Path, sidecar: Sidecar, partial: Path, keep: int = KEEP) -> Checkpoint:
    """Make a checkpoint of a complete file, and remove old checkpoints."""
    made = Checkpoint(folder, sidecar)
    # A checkpoint of the same iteration may exist: its sidecar must not match the new file.
    made.sidecar_path.unlink(missing_ok=True)
    partial.replace(made.path)
    _sync_folder(folder)
    atomic_write(made.sidecar_path, sidecar.to_text(), sync=True)
    _sync_folder(folder)
    _prune(made, keep)
    return made


def newest_whole(folder: Path) -> Checkpoint | None:
    """The newest valid checkpoint that is complete, if any."""
    last = _last_valid(folder)
    for sidecar_path in reversed(_sidecars(folder)):
        sidecar = read_sidecar(sidecar_path)
        if sidecar is None or sidecar.iteration > last:
            continue
        found = Checkpoint(folder, sidecar)
        with suppress(OSError):
            if _digest(found.path) == (sidecar.size, sidecar.sha256):
                return found
    return None


def hold(folder: Path) -> None:
    """Put checkpoints written from now on, until `release`, on hold: their graph may be damaged.

    Valid checkpoints are kept, however many are written.
    """
    if (folder / HELD).exists():
        # It is unknown whether their graph was damaged.
        last = _last_valid(folder)
        for path in _sidecars(folder):
            if _iteration(path) > last:
                path.unlink()
        return
    newest = newest_whole(folder)
    folder.mkdir(parents=True, exist_ok=True)
    atomic_write(folder / HELD, str(-1 if newest is None else newest.sidecar.iteration))


def release(folder: Path) -> None:
    """Make all checkpoints valid."""
    (folder / HELD).unlink(missing_ok=True)


def _last_valid(folder: Path) -> float:
    try:
        return int((folder / HELD).read_text(encoding="ascii"))
    except FileNotFoundError:
        return math.inf
    except (OSError, ValueError):
        return -1


def read_sidecar(path: Path) -> Sidecar | None:
    """Read a sidecar; None if it is missing, damaged or of another checkpoint."""
    try:
        sidecar = sidecar_of(path.read_bytes())
    except OSError:
        return None
    return sidecar if sidecar is not None and sidecar.name == path.stem else None


def sidecar_of(text: bytes) -> Sidecar | None:
    """Parse a sidecar; None if it is damaged."""
    try:
        return Sidecar.model_validate_json(text)
    except ValueError:
        return None


def load(path: Path) -> tuple[Sidecar, dict[str, Any]]:
    """Read a checkpoint by its `.pt` file."""
    import torch

    sidecar = read_sidecar(path.with_suffix(".json"))
    if sidecar is None:
        raise SpecError(f"{path} has no valid sidecar {path.stem}.json", _OTHER)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror}", _OTHER) from None
    if (len(data), hashlib.sha256(data).hexdigest()) != (sidecar.size, sidecar.sha256):
        raise SpecError(f"{path} is damaged: its size or checksum is wrong", _OTHER)
    try:
        state: dict[str, Any] = torch.load(io.BytesIO(data), "cpu", weights_only=True)
    except Exception as error:
        raise SpecError(f"{path} is not a checkpoint: {type(error).__name__}", _OTHER) from None
    return sidecar, state


def as_plain(value: Any, name: str) -> Any:
    """Copy a value to plain values and tensors on the CPU; `name` is for messages.

    Raises:
        SpecError: It is not of tensors, numbers, strings, None, and mappings and sequences of them.
    """
    import torch

    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if value is None or isinstance(value, bool | int | float | str | bytes):
        # numpy's float64 is a float, but `torch.load` rejects it.
        return value if type(value).__module__ == "builtins" else value.item()  # type: ignore[union-attr]
    if isinstance(value, Mapping):
        return {key: as_plain(each, f"{name}[{key!r}]") for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        copies = [as_plain(each, f"{name}[{i}]") for i, each in enumerate(value)]
        return tuple(copies) if isinstance(value, tuple) else copies
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        return value.item()
    raise SpecError(
        f"a checkpoint cannot hold {name} of type "
        f"{type(value).__module__}.{type(value).__qualname__}",
        "use tensors, numbers, strings, and dicts and lists of them",
    )


def _sidecars(folder: Path) -> list[Path]:
    """Sidecars of all checkpoints, the oldest first."""
    found = [path for path in folder.glob("checkpoint-*.json") if _NAME.fullmatch(path.stem)]
    return sorted(found, key=_iteration)


def _iteration(path: Path) -> int:
    return int(path.stem.removeprefix("checkpoint-"))


def _prune(made: Checkpoint, keep: int) -> None:
    """Remove old checkpoints before `made`, which is verified; later ones may be damaged."""
    iteration, last_valid = made.sidecar.iteration, _last_valid(made.folder)
    before = [path for path in _sidecars(made.folder) if _iteration(path) < iteration]
    complete = [path.stem for path in before if _has_size(path)]
    kept = complete[max(len(complete) - keep + 1, 0) :]
    for path in sorted(made.folder.glob("checkpoint-*")):
        # In this order sidecars (.json) are removed before their .pt files.
        if _NAME.fullmatch(path.stem) is None or path.stem in kept:
            continue
        if _iteration(path) < iteration and _iteration(path) != last_valid:
            path.unlink(missing_ok=True)


def _has_size(sidecar_path: Path) -> bool:
    """Whether a checkpoint has the size in its sidecar; its checksum would take longer."""
    sidecar = read_sidecar(sidecar_path)
    with suppress(OSError):
        return (
            sidecar is not None and sidecar_path.with_suffix(".pt").stat().st_size == sidecar.size
        )
    return False


def _digest(path: Path) -> tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while data := file.read(_READ_BYTES):
            digest.update(data)
            size += len(data)
    return size, digest.hexdigest()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
