"""Every sampler gets the same number of seeds, and as many as can be from its own part."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headrace.core.errors import SpecError
from headrace.graph.format.partitioned_graph import open_graph
from headrace.graph.sampler_worker.cluster_seeds import split_seeds, training_seeds
from tests.unit.graph.small_graphs import homogeneous, write


def rows(*counts: int) -> list[np.ndarray]:
    """Seeds of parts that follow each other: every id is a seed."""
    ends = np.cumsum(counts)
    return [np.arange(end - num, end) for num, end in zip(counts, ends, strict=True)]


def test_equal_parts_stay_at_home() -> None:
    given = split_seeds(rows(4, 4), [0, 0, 1, 1])
    assert [own.tolist() for own in given] == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_a_rich_part_gives_to_a_poor_one() -> None:
    given = split_seeds(rows(6, 2), [0, 1])
    assert [own.tolist() for own in given] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_the_odd_seed_stays_where_it_is() -> None:
    assert [len(own) for own in split_seeds(rows(2, 3), [0, 1])] == [2, 3]


def test_a_part_without_samplers_gives_all() -> None:
    given = split_seeds(rows(2, 4, 0), [0, 2])
    assert [own.tolist() for own in given] == [[0, 1, 2], [3, 4, 5]]


def test_a_poor_part_shares_evenly() -> None:
    given = split_seeds(rows(2, 6), [0, 0, 1, 1])
    assert [sum(own < 2) for own in given] == [1, 1, 0, 0]


def test_more_samplers_than_seeds() -> None:
    assert [len(own) for own in split_seeds(rows(1, 1), [0, 0, 1, 1])] == [1, 0, 1, 0]


def test_seeds_of_a_graph(tmp_path: Path) -> None:
    source = homogeneous()
    write(source, tmp_path)
    graph = open_graph(tmp_path)
    given = np.concatenate(training_seeds(graph, "node", [0, 1, 2, 2]))
    original = np.sort(graph.to_original("node", given))
    np.testing.assert_array_equal(original, source.nodes[0].splits["train"])


@pytest.mark.parametrize(
    ("samplers", "message"), [([], "no samplers"), ([0, 2], "there are 2: use 0 to 1")]
)
def test_samplers_must_be_at_parts(samplers: list[int], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        split_seeds(rows(1, 1), samplers)
