"""Gradients in 8 bits: their error, what is kept of it, and values that are not finite."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from headrace.training.gradient_codec import BLOCK, ErrorFeedback, decode, encode, packed_bytes


@given(
    values=arrays(
        np.float32,
        st.integers(0, 3000),
        elements=st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=False),
    )
)
def test_the_error_is_half_a_step_of_the_block(values: np.ndarray) -> None:
    packed = encode(values)
    assert packed.shape == (packed_bytes(len(values)),)
    back = decode(packed, len(values))
    for start in range(0, len(values), BLOCK):
        own = slice(start, start + BLOCK)
        step = float(np.abs(values[own]).max()) / 127
        assert np.abs(back[own].astype(np.float64) - values[own]).max() <= 0.501 * step


def test_blocks_that_are_not_finite_become_nan_and_others_do_not() -> None:
    values = np.ones(3 * BLOCK, np.float32)
    values[5], values[2 * BLOCK] = np.inf, np.nan
    back = decode(encode(values), len(values))
    assert np.isnan(back[:BLOCK]).all()
    assert np.array_equal(back[BLOCK : 2 * BLOCK], values[BLOCK : 2 * BLOCK])
    assert np.isnan(back[2 * BLOCK :]).all()


def test_what_rounding_loses_comes_later() -> None:
    rng = np.random.default_rng(0)
    feedback, exact, sent = ErrorFeedback(), np.zeros(2000), np.zeros(2000)
    # The small gradients of a block would be rounded to zero in every step.
    gradient = np.where(np.arange(2000) % 1000, 1e-4, 1.0).astype(np.float32)
    for _ in range(400):
        values = (gradient * rng.normal(1, 0.1, 2000)).astype(np.float32)
        exact += values
        sent += decode(feedback.encode("a", values), 2000)
    assert np.abs(sent - exact).max() < 0.02
    plain = sum(decode(encode(gradient), 2000)[1] for _ in range(400))
    assert plain == 0


def test_a_gradient_that_is_not_finite_leaves_nothing_behind() -> None:
    feedback = ErrorFeedback()
    feedback.encode(0, np.array([np.nan, 1, np.inf], np.float32))
    back = decode(feedback.encode(0, np.array([1, 2, 3], np.float32)), 3)
    assert back == pytest.approx([1, 2, 3], abs=0.02)
