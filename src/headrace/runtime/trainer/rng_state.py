"""Saves and restores the RNG state of a process: torch, numpy and Python."""

from __future__ import annotations

import random
import struct

import numpy as np
import torch

_WORDS = 624
_MORE = struct.Struct("<qqd")
"""Position in the generator's words, whether a Gaussian is cached, and that value."""


def random_state(device: torch.device) -> torch.Tensor:
    """Return all RNG state as bytes, equally many on every trainer."""
    pieces = [torch.get_rng_state(), _of_numpy(), _of_python()]
    if device.type == "cuda":
        pieces.append(torch.cuda.get_rng_state(device))
    return torch.cat(pieces)


def restore_random_state(state: torch.Tensor, device: torch.device) -> None:
    """Restore the result of `random_state`; CUDA state only if the device is a GPU."""
    num_torch, num_other = len(torch.get_rng_state()), _WORDS * 4 + _MORE.size
    own, numpy_state, python_state, rest = torch.split(
        state, [num_torch, num_other, num_other, len(state) - num_torch - 2 * num_other]
    )
    torch.set_rng_state(own.clone())
    words, at, has_left, left = _unpack(numpy_state)
    np.random.set_state(("MT19937", words, at, has_left, left))  # noqa: NPY002 - scripts may use it
    words, at, has_left, left = _unpack(python_state)
    random.setstate((3, (*words.tolist(), at), left if has_left else None))
    if device.type == "cuda" and len(rest):
        torch.cuda.set_rng_state(rest.clone(), device)


def begin_random(seed: int) -> None:
    """Seed all generators, for a trainer without a saved state."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - a user's script may use it
    random.seed(seed)


def _of_numpy() -> torch.Tensor:
    state = np.random.get_state(legacy=False)  # noqa: NPY002 - a user's script may use it
    assert isinstance(state, dict)
    words = np.asarray(state["state"]["key"], np.uint32)
    return _pack(words, state["state"]["pos"], state["has_gauss"], state["gauss"])


def _of_python() -> torch.Tensor:
    _, (*words, at), left = random.getstate()
    return _pack(np.array(words, np.uint32), at, left is not None, left or 0.0)


def _pack(words: np.ndarray, at: int, has_left: int, left: float) -> torch.Tensor:
    data = words.tobytes() + _MORE.pack(at, has_left, left)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _unpack(state: torch.Tensor) -> tuple[np.ndarray, int, int, float]:
    data = state.numpy().tobytes()
    at, has_left, left = _MORE.unpack(data[_WORDS * 4 :])
    return np.frombuffer(data[: _WORDS * 4], np.uint32), at, has_left, left
