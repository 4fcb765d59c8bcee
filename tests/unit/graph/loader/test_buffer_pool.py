"""Memory is used again, and never while somebody still looks at it."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from headrace.graph.loader.buffer_pool import BufferPool  # noqa: E402

ROWS = 5000


def test_memory_is_used_again_when_its_tensor_is_gone() -> None:
    pool = BufferPool()
    first = pool.empty("x", (ROWS, 100), torch.float32)
    assert first.shape == (ROWS, 100)
    address = first.data_ptr()
    second = pool.empty("x", (ROWS, 100), torch.float32)
    assert second.data_ptr() != address
    del first
    other = pool.empty("y", (ROWS, 100), torch.float32)
    again = pool.empty("x", (ROWS + 9, 50), torch.int64)
    assert again.data_ptr() == address
    assert other.data_ptr() != address


def test_a_view_keeps_the_memory() -> None:
    pool = BufferPool()
    looks: list[Callable[[Any], Any]] = [
        lambda t: t[10:20],
        lambda t: t.view(torch.int32),
        lambda t: t.numpy(),
        lambda t: t.t(),
        lambda t: t.detach(),
    ]
    for look in looks:
        whole = pool.empty("x", (ROWS, 100), torch.float32).fill_(1)
        view = look(whole)
        wanted = view.copy() if hasattr(view, "copy") else view.clone()
        del whole
        new = pool.empty("x", (ROWS, 100), torch.float32).fill_(2)
        assert (view == wanted).all()
        del new, view


def test_memory_does_not_grow() -> None:
    pool = BufferPool()
    held = [pool.empty("x", (ROWS, 100), torch.float32) for _ in range(10)]
    addresses = {tensor.data_ptr() for tensor in held}
    held.clear()
    kept = [pool.empty("x", (ROWS, 100), torch.float32) for _ in range(10)]
    assert sum(tensor.data_ptr() in addresses for tensor in kept[:2]) == 2
    kept.clear()
    assert len(pool._free["x"]) == 2
    assert not pool._lent


def test_larger_and_small_tensors() -> None:
    pool = BufferPool()
    small = pool.empty("x", (3,), torch.bfloat16)
    assert small.shape == (3,)
    assert not pool._lent
    del small
    for factor in (1, 2, 4, 3):
        assert pool.empty("x", (ROWS * factor, 100), torch.float16).shape == (ROWS * factor, 100)
    assert pool.empty("x", (0, 7), torch.float32).shape == (0, 7)
    assert isinstance(pickle.loads(pickle.dumps(pool)), BufferPool)
