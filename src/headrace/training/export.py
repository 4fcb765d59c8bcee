"""Read and write model parameters as `state_dict` files or safetensors."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headrace.core.errors import MissingExtraError, SpecError
from headrace.linux.atomic_write import atomic_path

SAFETENSORS = ".safetensors"

_WRAPPED = "module."


def load_weights(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Read the parameters of a model.

    Args:
        path: A `.safetensors` file, a `state_dict` written by `torch.save` (such as `best.pt`), or
            a checkpoint of a run. No code in it is executed.

    Returns:
        A `state_dict` on the CPU, without the prefix of torch's `DistributedDataParallel`.

    Raises:
        SpecError: The file does not exist or holds no parameters.
        MissingExtraError: safetensors is not installed.
    """
    file = Path(path)
    if not file.is_file():
        raise SpecError(f"there is no file {file}", "give a best.pt, checkpoint or safetensors")
    try:
        if file.suffix == SAFETENSORS:
            found: Any = _safetensors().load_file(file)
        else:
            found = torch.load(file, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError, ValueError) as error:
        why = str(error).strip().splitlines() or [type(error).__name__]
        raise SpecError(
            f"{file} cannot be read: {why[0]}", "give a file written by torch.save or safetensors"
        ) from None
    except Exception as error:
        if type(error).__name__ != "SafetensorError":
            raise
        raise SpecError(f"{file} is not a safetensors file: {error}", "give another") from None
    if isinstance(found, Mapping) and isinstance(found.get("model"), Mapping):
        found = found["model"]
    if not isinstance(found, Mapping) or not any(isinstance(v, Tensor) for v in found.values()):
        raise SpecError(f"{file} holds no parameters", "give a best.pt or checkpoint file")
    if all(name.startswith(_WRAPPED) for name in found):
        found = {name.removeprefix(_WRAPPED): value for name, value in found.items()}
    return dict(found)


def save_weights(
    state: Mapping[str, Any], path: str | os.PathLike[str], notes: Mapping[str, str] | None = None
) -> None:
    """Write the parameters of a model atomically.

    Args:
        state: A `state_dict`.
        path: A `.safetensors` file, or else a file for `torch.load`.
        notes: Metadata in the header of a safetensors file.

    Raises:
        SpecError: It holds a value that safetensors does not support.
        MissingExtraError: safetensors is not installed.
    """
    file = Path(path)
    on_cpu = {n: v.detach().cpu() if isinstance(v, Tensor) else v for n, v in state.items()}
    with atomic_path(file) as partial:
        if file.suffix != SAFETENSORS:
            torch.save(on_cpu, partial)
            return
        others = [name for name, value in on_cpu.items() if not isinstance(value, Tensor)]
        if others:
            raise SpecError(
                f"{others[0]!r} is not a tensor; safetensors supports only tensors",
                "give a file name that ends with .pt",
            )
        # The format does not support shared tensors: each name gets a copy.
        plain = {name: value.clone().contiguous() for name, value in on_cpu.items()}
        _safetensors().save_file(plain, partial, {"format": "pt", **(notes or {})})


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError:
        raise MissingExtraError(
            "safetensors is not installed",
            "pip install 'headrace[train]', or give a file name that ends with .pt",
        ) from None
    return safetensors.torch
