"""Columns instead of rows between trainers: the values of both ways, and which is fewer.

A layer that adds up rows of neighbours treats every column alike. Instead of rows at the borders of
parts, trainers can exchange slices: each gets some columns of all rows, adds them up along all
edges, and sends every trainer the sums of its nodes (tensor parallelism along the features).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


def slice_widths(width: int, num_trainers: int) -> np.ndarray:
    """Columns of each trainer; they differ by at most one, and some have none if there are few."""
    bounds = np.arange(num_trainers + 1) * width // num_trainers
    widths: np.ndarray = np.diff(bounds)
    return widths


def column_values(
    sources: ArrayLike, destinations: ArrayLike, width: int
) -> tuple[np.ndarray, np.ndarray]:
    """Values that trainers send each other in the forward pass; the backward pass returns them.

    Args:
        sources: Nodes of each trainer whose rows are added up.
        destinations: Nodes of each trainer that get sums.
        width: Values of a row.

    Returns:
        Values of the columns of all rows, then of the sums, each by sender and receiver.
    """
    nodes = np.array([sources, destinations], dtype=np.int64)
    widths = slice_widths(width, nodes.shape[1])
    there, back = np.outer(nodes[0], widths), np.outer(widths, nodes[1])
    for values in (there, back):
        np.fill_diagonal(values, 0)
    return there, back


def busiest(values: ArrayLike) -> float:
    """The most that a trainer sends or receives, of values by sender and receiver or reverse."""
    pairs = np.asarray(values)
    return float(max(pairs.sum(axis=0).max(initial=0), pairs.sum(axis=1).max(initial=0)))


def columns_are_fewer(
    rows: ArrayLike, sources: ArrayLike, destinations: ArrayLike, width: int
) -> bool:
    """Whether columns are fewer values through the busiest trainer than rows.

    Args:
        rows: Rows that trainers send each other instead, by receiver and sender.
        sources: Nodes of each trainer whose rows are added up.
        destinations: Nodes of each trainer that get sums.
        width: Values of a row.
    """
    # One after the other: sums are complete only once all columns are there.
    columns = sum(map(busiest, column_values(sources, destinations, width)))
    return columns < width * busiest(rows)
