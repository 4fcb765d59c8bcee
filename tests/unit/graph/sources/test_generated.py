"""The generator: what it promises about graphs, and the twin of its kernels."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from headrace.core.errors import SpecError
from headrace.graph.kernels import generator as kernels
from headrace.graph.schema import GraphSource
from headrace.graph.sources.generated import generated, parse

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def ends_of(source: GraphSource) -> tuple[np.ndarray, np.ndarray]:
    chunks = list(source.edges[0].chunks())
    return np.concatenate([c[0] for c in chunks]), np.concatenate([c[1] for c in chunks])


def column(source: GraphSource, name: str, start: int, stop: int) -> np.ndarray:
    return next(c for c in source.nodes[0].columns if c.name == name).read(start, stop)


@pytest.fixture(scope="module")
def graph() -> GraphSource:
    return generated(20_000, 320_000, 16, seed=3)


def test_it_is_undirected_without_loops_or_parallel_edges(graph: GraphSource) -> None:
    src, dst = ends_of(graph)
    assert len(src) == graph.num_edges == 320_000
    assert src.dtype == np.int32
    assert src.min() >= 0
    assert max(src.max(), dst.max()) < 20_000
    assert not np.any(src == dst)
    forth = np.sort(src.astype(np.int64) * 20_000 + dst)
    back = np.sort(dst.astype(np.int64) * 20_000 + src)
    assert np.array_equal(forth, back)
    assert np.all(np.diff(forth) > 0)


def shuffled(seed: int, num_nodes: int, *, forward: bool) -> np.ndarray:
    """Node id of every rank; if not `forward`, rank of every node id."""
    keys, bits = kernels.shuffle_keys(seed), kernels._bits_of(num_nodes)
    return np.array([kernels._shuffle(x, keys, bits, num_nodes, forward) for x in range(num_nodes)])


def test_degrees_follow_a_power_law(graph: GraphSource) -> None:
    _, dst = ends_of(graph)
    degrees = np.sort(np.bincount(dst, minlength=20_000))[::-1]
    assert degrees[0] > 20 * degrees.mean()
    assert (degrees == 0).mean() < 0.02
    # Straight in logarithms between the tenth and the thousandth: about rank**-0.75.
    slope = np.log(degrees[999] / degrees[9]) / np.log(100)
    assert -0.95 < slope < -0.4


def test_seven_edges_in_eight_stay_in_their_community(graph: GraphSource) -> None:
    src, dst = ends_of(graph)
    ranks = shuffled(3, 20_000, forward=False)
    assert np.mean(ranks[src] % 21 == ranks[dst] % 21) == pytest.approx(7 / 8, abs=0.001)


def test_the_same_seed_gives_the_same_graph_and_another_one_another() -> None:
    first, again, other = (generated(3000, 30_000, 8, seed=seed) for seed in (1, 1, 2))
    for source, same in ((again, True), (other, False)):
        assert np.array_equal(ends_of(first)[0], ends_of(source)[0]) == same
        assert np.array_equal(column(first, "x", 0, 3000), column(source, "x", 0, 3000)) == same
        assert np.array_equal(column(first, "y", 0, 3000), column(source, "y", 0, 3000)) == same
        train, others = first.nodes[0].splits["train"], source.nodes[0].splits["train"]
        assert np.array_equal(train, others) == same


def test_a_range_of_rows_is_a_range_of_all_rows(graph: GraphSource) -> None:
    for name in ("x", "y"):
        rows = column(graph, name, 0, 20_000)
        assert np.array_equal(column(graph, name, 777, 1555), rows[777:1555])
    half = generated(20_000, 320_000, 16, seed=3, feature_dtype="float16")
    x = column(half, "x", 5, 9)
    assert x.dtype == np.float16
    assert np.array_equal(x, column(graph, "x", 5, 9).astype(np.float16))


def test_features_are_a_centroid_and_unit_noise(graph: GraphSource) -> None:
    x = column(graph, "x", 0, 20_000)
    ranks = shuffled(3, 20_000, forward=False)
    classes = np.array([kernels.class_of(3, rank, 21, 16) for rank in ranks])
    for label in np.unique(classes):
        rows = x[classes == label]
        assert np.linalg.norm(rows.mean(axis=0)) == pytest.approx(1.8, abs=0.3)
        assert rows.std(axis=0).mean() == pytest.approx(1.0, abs=0.05)
    wrong = np.mean(column(graph, "y", 0, 20_000) != classes)
    assert wrong == pytest.approx(0.05 * 15 / 16, abs=0.01)


def test_splits_do_not_overlap_and_training_nodes_are_skewed() -> None:
    source = generated(200_000, 2_000_000, 0, seed=1)
    splits = source.nodes[0].splits
    everything = np.concatenate(list(splits.values()))
    assert len(np.unique(everything)) == len(everything)
    for name, share in (("train", 0.10), ("val", 0.05), ("test", 0.10)):
        assert np.all(np.diff(splits[name]) > 0)
        assert len(splits[name]) / 200_000 == pytest.approx(share, rel=0.25)
    communities = shuffled(1, 200_000, forward=False)[splits["train"]] % 201
    counts = np.bincount(communities, minlength=201)
    assert counts.max() > 4 * counts.mean()
    assert [column.name for column in source.nodes[0].columns] == ["y"]


@pytest.mark.parametrize("num_nodes", [1, 2, 3, 17, 1000, 4096, 5001])
def test_ids_are_a_shuffle_of_ranks(num_nodes: int) -> None:
    ids = shuffled(9, num_nodes, forward=True)
    assert np.array_equal(np.sort(ids), np.arange(num_nodes))
    ranks = shuffled(9, num_nodes, forward=False)
    assert np.array_equal(ranks[ids], np.arange(num_nodes))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("generated:nodes=1e6", "edges is missing"),
        ("generated:", "'' is not one of"),
        ("generated:nodes=1e6,edges=2e6,color=3", "'color=3' is not one of"),
        ("generated:nodes=1e6,nodes=1e6,edges=2e6", "twice"),
        ("generated:nodes=many,edges=2", "nodes=many is not a number"),
        ("generated:nodes=10.5,edges=2", "not an integer"),
        ("generated:nodes=inf,edges=2", "not an integer"),
        ("generated:nodes=nan,edges=2", "not an integer"),
        ("generated:nodes=100,edges=3", "both directions"),
        ("generated:nodes=100,edges=1e6", "allow at most"),
        ("generated:nodes=0,edges=0", "nodes=0"),
        ("generated:nodes=100,edges=10,classes=0", "classes=0"),
        ("generated:nodes=100,edges=10,seed=-1", "seed=-1"),
        ("generated:nodes=100,edges=10,seed=1e30", "less than 2**53"),
        ("generated:nodes=100,edges=10,train=2", "train=2"),
        ("generated:nodes=100,edges=10,dtype=int8", "int8"),
    ],
)
def test_what_cannot_be_generated_is_refused(text: str, words: str) -> None:
    with pytest.raises(SpecError) as error:
        parse(text)
    assert words in str(error.value)


def test_a_line_of_text_says_all() -> None:
    source = parse("generated:nodes=2e3,edges=2e4,features=4,seed=7,dtype=float16,signal=0.5")
    assert source.num_nodes == 2000
    assert source.num_edges == 20_000
    same = generated(2000, 20_000, 4, seed=7, feature_dtype="float16", feature_signal=0.5)
    assert np.array_equal(column(source, "x", 0, 2000), column(same, "x", 0, 2000))


# --- twins in plain Python ------------------------------------------------------------------------


def mix(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def draw(seed: int, purpose: int, number: int) -> int:
    return mix((mix((seed * GOLDEN + purpose) & MASK) + number * GOLDEN) & MASK)


def unit(bits: int) -> float:
    return (bits >> 11) * 2.0**-53


def zipf(u: float, num: int) -> int:
    t = float(1.0 + u * (np.sqrt(np.sqrt(num + 1.0)) - 1.0))
    t *= t
    return min(int(t * t) - 1, num - 1)


def id_of_rank(seed: int, rank: int, num_nodes: int) -> int:
    bits = max(1, (num_nodes - 1).bit_length())
    low = bits - bits // 2
    x = rank
    while True:
        left, right = x >> low, x & ((1 << low) - 1)
        for turn in range(4):
            key = draw(seed, 1, turn)
            if turn % 2 == 0:
                left ^= mix((right + key) & MASK) & ((1 << bits - low) - 1)
            else:
                right ^= mix((left + key) & MASK) & ((1 << low) - 1)
        x = left << low | right
        if x < num_nodes:
            return x


def pairs_of(seed: int, num_nodes: int, num: int, num_pairs: int) -> Iterator[tuple[int, int]]:
    for c in range(num):
        size = len(range(c, num_nodes, num))
        pairs = num_pairs * (c + 1) // num - num_pairs * c // num
        crossings = pairs // 8 if num > 1 else 0
        state = draw(seed, 2, c)
        seen: set[tuple[int, int]] = set()
        while len(seen) < pairs - crossings:
            state = (state + GOLDEN) & MASK
            bits = mix(state)
            a, b = zipf((bits >> 32) * 2.0**-32, size), zipf((bits & 0xFFFFFFFF) * 2.0**-32, size)
            if a != b and (min(a, b), max(a, b)) not in seen:
                seen.add((min(a, b), max(a, b)))
                yield a * num + c, b * num + c
        seen.clear()
        while len(seen) < crossings:
            state = (state + GOLDEN) & MASK
            far = zipf(unit(mix(state)), num_nodes)
            if not 1 <= (far - c) % num <= num // 2:
                continue
            state = (state + GOLDEN) & MASK
            a = zipf(unit(mix(state)), size)
            if (a, far) not in seen:
                seen.add((a, far))
                yield a * num + c, far


@pytest.mark.parametrize(("num_nodes", "num_edges"), [(40, 100), (5000, 20_002)])
def test_edges_equal_those_of_the_twin(num_nodes: int, num_edges: int) -> None:
    src, dst = ends_of(generated(num_nodes, num_edges, 0, seed=5))
    num_communities = 2 * (num_nodes // 2000) + 1
    pairs = list(pairs_of(5, num_nodes, num_communities, num_edges // 2))
    ids = [id_of_rank(5, rank, num_nodes) for rank in range(num_nodes)]
    assert src.tolist() == [ids[end] for pair in pairs for end in pair]
    assert dst.tolist() == [ids[end] for pair in pairs for end in reversed(pair)]


def test_labels_features_and_splits_equal_those_of_the_twin() -> None:
    num_nodes, num = 5000, 5
    rank_of = {id_of_rank(5, rank, num_nodes): rank for rank in range(num_nodes)}
    centroids = np.arange(33, dtype=np.float32).reshape(3, 11)
    normal = np.arange(4096, dtype=np.float32)
    labels, features = np.empty(50, np.int64), np.empty((50, 11), np.float32)
    kernels.generate_labels(5, 100, 150, num_nodes, num, 3, 0.4, labels)
    kernels.generate_features(5, 100, 150, num_nodes, num, centroids, normal, features)
    splits = np.empty(num_nodes, np.uint8)
    kernels.generate_splits(5, num_nodes, num, 0.6, 0.2, 0.1, 0.2, splits)
    for row, node in enumerate(range(100, 150)):
        community = rank_of[node] % num
        drawn = draw(5, 4, node)
        label = draw(5, 3, community) % 3
        assert labels[row] == (mix(drawn) % 3 if unit(drawn) < 0.4 else label)

        state, noise = draw(5, 5, node), []
        for _ in range(3):
            state = (state + GOLDEN) & MASK
            noise += [mix(state) >> shift & 4095 for shift in range(0, 60, 12)]
        assert features[row].tolist() == (centroids[label] + normal[noise[:11]]).tolist()

        train = 0.6 if draw(5, 6, community) < 2**61 else 0.2
        limits = [train, train + 0.1, train + 0.1 + 0.2, 2]
        u = unit(draw(5, 7, node))
        assert splits[node] == [1, 2, 3, 0][next(i for i, x in enumerate(limits) if u < x)]
