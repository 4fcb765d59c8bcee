"""Exchanges of gradients, with a clock that goes by hand."""

from __future__ import annotations

import weakref
from itertools import count

import pytest

dist = pytest.importorskip("torch.distributed")

from headrace.training.ddp import ExchangeWatch, has_left_group, leave_group  # noqa: E402


def test_a_trainer_waits_from_its_last_bucket_to_the_last_exchange() -> None:
    told: list[tuple[float, float, int]] = []
    times = count(1)
    watch = ExchangeWatch(lambda: float(next(times)), lambda *each: told.append(each))
    watch.begin(100, is_last=False)
    watch.end()
    assert told == []
    watch.begin(20, is_last=False)
    watch.begin(3, is_last=True)
    watch.end()
    assert told == []
    watch.end()
    assert told == [(1.0, 2.0, 123)]
    watch.begin(7, is_last=True)
    watch.end()
    assert told[1] == (3.0, 4.0, 7)


def test_a_process_group_that_was_left_stays_in_memory() -> None:
    # Destroying it may hang: see `leave_group`.
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    group = weakref.ref(dist.group.WORLD)
    leave_group()
    assert not dist.is_initialized()
    assert has_left_group()
    assert group() is not None
