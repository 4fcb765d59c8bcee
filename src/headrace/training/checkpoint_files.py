"""A training as it was between two steps, in two files of a folder.

`checkpoint-00000400.pt` is what `torch.save` writes: tensors and plain values, which `torch.load`
reads without trusting anybody. `checkpoint-00000400.json` says what it is and which bytes it has;
it is written last. So whoever is killed, and wherever a file is cut, a checkpoint is whole or it is
none.
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
from typing import IO, Annotated, Any, Literal

from pydantic import Field

from headrace.core.errors import SpecError
from headrace.core.values import CheckedFile, Value

KEEP = 2
"""Checkpoints that stay: the one before helps if the newest does not get out of its machine."""

HELD = "held"
"""File with the iteration of the last checkpoint that counts, while newer ones do not yet."""

_NAME = re.compile(r"checkpoint-(\d{8,})")
_READ_BYTES = 1 << 20
_OTHER = "resume from another one, or begin anew"

_Num = Annotated[int, Field(ge=0)]


class Position(Value):
    """Where in a training a checkpoint was made.

    Attributes:
        iteration: Steps that were done.
        epoch: Of the script: the one that it was in, or about to begin.
        batch: The next one of the training loader, within its epoch.
        plan: Fingerprint of the plan that was run; empty without one.
        lanes: Fingerprint of how seeds were dealt; empty without a plan.
    """

    iteration: _Num
    epoch: _Num
    batch: _Num
    plan: str = ""
    lanes: str = ""


class Sidecar(Position, CheckedFile):
    """What a checkpoint is, beside its file.

    Attributes:
        version: Of both files.
        size: Bytes of the other one.
        sha256: Of those bytes.
    """

    version: Literal[1] = 1
    size: _Num
    sha256: str

    @property
    def name(self) -> str:
        """Of the files, without their endings."""
        return f"checkpoint-{self.iteration:08d}"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that is whole.

    Attributes:
        folder: Where it lies.
        sidecar: What it is.
    """

    folder: Path
    sidecar: Sidecar

    @property
    def path(self) -> Path:
        """The file with the training."""
        return self.folder / f"{self.sidecar.name}.pt"

    @property
    def sidecar_path(self) -> Path:
        """The file that says what it is."""
        return self.path.with_suffix(".json")


def save(
    folder: Path, position: Position, state: Mapping[str, Any], keep: int = KEEP
) -> Checkpoint:
    """Write a checkpoint and remove old ones.

    Args:
        folder: Made if it does not exist.
        position: Where the training is.
        state: Tensors and plain values; see `as_plain`.
        keep: How many stay, with this one.
    """
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / ".checkpoint.partial"
    with partial.open("wb") as file:
        torch.save(dict(state), file)
        _sync(file)
    size, sha256 = _digest(partial)
    sidecar = Sidecar(size=size, sha256=sha256, **dict(position))
    return install(folder, sidecar, partial, keep)


def install(folder: Path, sidecar: Sidecar, partial: Path, keep: int = KEEP) -> Checkpoint:
    """Make a checkpoint of a file that is whole and on disk; old checkpoints are removed."""
    made = Checkpoint(folder, sidecar)
    # One with this number may be there already: nobody may take its sidecar for the new file's.
    made.sidecar_path.unlink(missing_ok=True)
    partial.replace(made.path)
    beside = folder / ".sidecar.partial"
    with beside.open("wb") as file:
        file.write(sidecar.to_text().encode())
        _sync(file)
    _sync_folder(folder)
    beside.replace(made.sidecar_path)
    _sync_folder(folder)
    _prune(folder, keep)
    return made


def newest_whole(folder: Path) -> Checkpoint | None:
    """The newest checkpoint whose bytes are all there, and which counts; none if there is none."""
    last = _last_that_counts(folder)
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
    """Let no checkpoint count that is made from now on, until `release`: its graph may be damaged.

    Those that count stay, however many are made.
    """
    if (folder / HELD).exists():
        # Nobody knows any more what those were made of.
        last = _last_that_counts(folder)
        for path in _sidecars(folder):
            if int(path.stem.removeprefix("checkpoint-")) > last:
                path.unlink()
        return
    newest = newest_whole(folder)
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f".{HELD}.partial"
    partial.write_text(str(-1 if newest is None else newest.sidecar.iteration), encoding="ascii")
    partial.replace(folder / HELD)


def release(folder: Path) -> None:
    """Let all checkpoints count."""
    (folder / HELD).unlink(missing_ok=True)


def _last_that_counts(folder: Path) -> float:
    try:
        return int((folder / HELD).read_text(encoding="ascii"))
    except FileNotFoundError:
        return math.inf
    except (OSError, ValueError):
        return -1


def read_sidecar(path: Path) -> Sidecar | None:
    """What a checkpoint is; none if the file is missing, damaged or of another checkpoint."""
    try:
        sidecar = sidecar_of(path.read_bytes())
    except OSError:
        return None
    return sidecar if sidecar is not None and sidecar.name == path.stem else None


def sidecar_of(text: bytes) -> Sidecar | None:
    """What a checkpoint is, by the text of its small file; none if that is damaged."""
    try:
        return Sidecar.model_validate_json(text)
    except ValueError:
        return None


def load(path: Path) -> tuple[Sidecar, dict[str, Any]]:
    """Read a checkpoint by its `.pt` file.

    Raises:
        SpecError: A byte is missing or wrong, or something is in it that this does not know.
    """
    import torch

    sidecar = read_sidecar(path.with_suffix(".json"))
    if sidecar is None:
        raise SpecError(f"{path} has no whole file {path.stem}.json beside it", _OTHER)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror}", _OTHER) from None
    if (len(data), hashlib.sha256(data).hexdigest()) != (sidecar.size, sidecar.sha256):
        raise SpecError(f"{path} is damaged: its bytes are not those that were written", _OTHER)
    try:
        state: dict[str, Any] = torch.load(io.BytesIO(data), "cpu", weights_only=True)
    except Exception as error:
        raise SpecError(f"{path} is no checkpoint: {type(error).__name__}", _OTHER) from None
    return sidecar, state


def as_plain(value: Any, name: str) -> Any:
    """A copy that no later step changes: tensors on the CPU, and plain values.

    Args:
        value: Tensors, numbers, texts, nothing, and mappings and sequences of those.
        name: What it is, for messages.

    Raises:
        SpecError: Something else is in it.
    """
    import torch

    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if value is None or isinstance(value, bool | int | float | str | bytes):
        # numpy's float64 is a float, but not one that `torch.load` trusts.
        return value if type(value).__module__ == "builtins" else value.item()  # type: ignore[union-attr]
    if isinstance(value, Mapping):
        return {key: as_plain(each, f"{name}[{key!r}]") for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        copies = [as_plain(each, f"{name}[{i}]") for i, each in enumerate(value)]
        return tuple(copies) if isinstance(value, tuple) else copies
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        return value.item()
    raise SpecError(
        f"{name} is of {type(value).__module__}.{type(value).__qualname__}, which a checkpoint "
        "cannot hold",
        "keep tensors, numbers, texts, and dicts and lists of them",
    )


def _sidecars(folder: Path) -> list[Path]:
    """Of all checkpoints that may be there, the oldest first."""
    found = []
    for path in folder.glob("checkpoint-*.json"):
        match = _NAME.fullmatch(path.stem)
        if match is not None:
            found.append((int(match[1]), path))
    return [path for _, path in sorted(found)]


def _prune(folder: Path, keep: int) -> None:
    all_ = _sidecars(folder)
    kept = {path.stem for path in all_[-max(keep, 1) :]}
    counts = f"checkpoint-{_last_that_counts(folder):08.0f}"
    kept |= {path.stem for path in all_ if path.stem == counts}
    for path in sorted(folder.glob("checkpoint-*")):
        # Sidecars come first in this order: no checkpoint loses its file before its sidecar.
        if _NAME.fullmatch(path.stem) and path.stem not in kept:
            path.unlink(missing_ok=True)


def _digest(path: Path) -> tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while data := file.read(_READ_BYTES):
            digest.update(data)
            size += len(data)
    return size, digest.hexdigest()


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
