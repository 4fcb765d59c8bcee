"""Speeds of draws and of decoding in the benchmark of bytes and accuracy."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from headrace.graph.build.encoding_choice import choose_form
from headrace.graph.format.manifest import ColumnInfo
from headrace.graph.sampling.neighbor_sampler import BatchKey, Sampler
from headrace.graph.schema import Column


def ratio_of_times(samplers: Sequence[Sampler], seeds: np.ndarray, rounds: int) -> float:
    """Time of the second sampler's draws over that of the first: the median of alternating rounds.

    Args:
        samplers: Two samplers.
        seeds: Seeds of each batch, of type `node`.
        rounds: Number of rounds.
    """
    ratios = []
    for number in range(rounds + 1):
        key = BatchKey(0, 0, number)
        times = []
        for sampler in samplers:
            times.append(_seconds(partial(sampler.sample_hetero, {"node": seeds}, [10, 10], key)))
        ratios.append(times[1] / times[0])
    return statistics.median(ratios[1:])


def codec_speeds(rounds: int) -> dict[str, float]:
    """GB of `float32` per second and core that are decoded from each encoding."""
    rng = np.random.default_rng(0)
    dense = rng.normal(size=(20_000, 128)).astype(np.float32)
    sparse = np.where(rng.random((20_000, 1024)) < 0.03, 1, 0).astype(np.float32)
    two = (rng.random((20_000, 256)) < 0.4).astype(np.float32)
    speeds: dict[str, float] = {}
    for form, values in (("int8", dense), ("int4", dense), ("auto", sparse), ("auto", two)):
        info = choose_form(Column.of("x", values), form, len(values))
        assert info.encoding is not None
        speeds[info.encoding.kind] = _decode_speed(info, values, rounds)
    return speeds


def _decode_speed(info: ColumnInfo, values: np.ndarray, rounds: int) -> float:
    codec = info.codec
    assert codec is not None
    stored = codec.encode(values)
    rows = codec.split(stored, len(values)) if codec.is_sparse else stored
    some = np.random.default_rng(1).permutation(len(values))[:10_000]
    out = np.empty((len(some), *values.shape[1:]), np.float32)
    at = np.arange(len(some))
    times = [_seconds(lambda: codec.decode(rows, some, at, out)) for _ in range(rounds + 1)]
    return out.nbytes / statistics.median(times[1:]) / 1e9


def _seconds(call: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    call()
    return time.perf_counter() - began_s
