"""Exchanges of gradients, with a clock that goes by hand."""

from __future__ import annotations

from itertools import count

from headrace.training.ddp import ExchangeWatch


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
