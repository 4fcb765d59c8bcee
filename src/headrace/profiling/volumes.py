"""Estimation of bytes per seed by graph partition and store from the samplers' volumes."""

from __future__ import annotations

import numpy as np

from headrace.profiling.samples import NOTHING_KNOWN

_RIDGE = 1e-9
"""Ridge weight that pulls unidentified entries towards the expected ones."""

_MIN_DATA_WEIGHT = 0.9
"""Minimum fraction of an entry that is determined by data for its error to be meaningful."""

_LEAST_SEEN = 0.02
"""Smallest part of the expected bytes that scales the others."""

_Z = 1.96


def bytes_per_seed(
    seeds: np.ndarray, means: np.ndarray, errors: np.ndarray, expected: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Non-negative least squares: a sampler's volume is the sum over its seeds.

    Args:
        seeds: Seeds per iteration, shape (num_samplers, num_parts).
        means: Mean bytes per iteration, shape (num_samplers, num_stores); `nan` if not recorded.
        errors: Standard errors of the means.
        expected: Bytes per seed, shape (num_parts, num_stores), for entries that the means do not
            determine; scaled to the means of each store. Equal by default.

    Returns:
        Bytes per seed, shape (num_parts, num_stores), and their relative errors.
    """
    num_parts = seeds.shape[1]
    if expected is None:
        expected = np.ones((num_parts, means.shape[1]))
    found = np.full((num_parts, means.shape[1]), np.nan)
    unsure = np.full(found.shape, NOTHING_KNOWN)
    for store in range(means.shape[1]):
        seen = ~np.isnan(means[:, store])
        if seeds[seen].sum() > 0:
            found[:, store], unsure[:, store] = _solve(
                seeds[seen], means[seen, store], errors[seen, store], expected[:, store]
            )
    # Stores without recorded traffic get the mean.
    known = ~np.isnan(found)
    found[~known] = found[known].mean() if known.any() else 0.0
    return found, unsure


def _solve(
    x: np.ndarray, y: np.ndarray, error: np.ndarray, expected: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    num_parts = x.shape[1]
    mean = y.sum() / x.sum()
    total = float((x @ expected).sum())
    # Where only a small part of the expected bytes was seen, the rest is not extrapolated.
    is_seen = total > _LEAST_SEEN * expected.mean() * x.sum()
    expected = expected * (y.sum() / total) if is_seen else np.full(num_parts, mean)
    pull = np.sqrt(_RIDGE * max(float((x**2).sum()), 1e-30) / num_parts)
    found = np.zeros(num_parts)
    free = np.ones(num_parts, dtype=bool)
    # Fix the most negative entry to 0 until none is negative.
    while free.any():
        own = x[:, free]
        system = np.vstack([own, pull * np.eye(own.shape[1])])
        right = np.concatenate([y, pull * expected[free]])
        values = np.linalg.lstsq(system, right, rcond=None)[0]
        found[:] = 0.0
        found[free] = values
        if values.min() >= 0:
            break
        free[np.flatnonzero(free)[np.argmin(values)]] = False
    return found, _errors(x, pull, error, found, mean)


def _errors(
    x: np.ndarray, pull: float, error: np.ndarray, found: np.ndarray, mean: float
) -> np.ndarray:
    inverse = np.linalg.inv(x.T @ x + pull**2 * np.eye(x.shape[1]))
    data_weight = np.diag(inverse @ x.T @ x)
    spread = np.sqrt(np.maximum(np.diag(inverse @ (x.T * error**2) @ x @ inverse), 0.0))
    # For entries near 0 the error is relative to the mean.
    relative: np.ndarray = _Z * spread / np.maximum(found, 0.01 * mean if mean > 0 else 1.0)
    return np.where(data_weight >= _MIN_DATA_WEIGHT, np.round(relative, 6), NOTHING_KNOWN)
