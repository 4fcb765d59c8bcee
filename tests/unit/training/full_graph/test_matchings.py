"""Exchanges of unequal sizes as rounds of matchings."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.training.full_graph.matchings import rounds_of


@st.composite
def exchanges(draw: st.DrawFn) -> np.ndarray:
    num = draw(st.integers(1, 6))
    values = st.integers(0, 50)
    rows = np.array(draw(st.lists(values, min_size=num * num, max_size=num * num)))
    rows = rows.reshape(num, num)
    np.fill_diagonal(rows, 0)
    return rows


@given(exchanges())
def test_rounds_take_no_longer_than_the_busiest_trainer(rows: np.ndarray) -> None:
    sent = np.zeros_like(rows)
    total = 0
    for each in rounds_of(rows.tolist()):
        receivers = [receiver for receiver, num in each if num]
        assert len(receivers) == len(set(receivers))
        total += max(num for _, num in each)
        for sender, (receiver, num) in enumerate(each):
            sent[sender, receiver] += num
    assert (sent == rows).all()
    assert total == max(rows.sum(axis=0).max(), rows.sum(axis=1).max())
