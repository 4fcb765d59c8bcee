"""Generator of a graph with communities and power-law degrees, a pure function of the seed.

Nodes with a lower rank have more edges. Ranks are assigned to communities round-robin (`rank %
num_communities`) and permuted into ids. Floating-point code uses only addition, multiplication and
square roots, so that every machine generates the same graph.
"""

from __future__ import annotations

import numpy as np
from numba import njit

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
# Purpose of a draw; separates the random streams of one seed.
_ROUND, _PAIR, _CLASS, _LABEL, _FEATURE, _HOT, _SPLIT = range(1, 8)


@njit(cache=True)
def mix(x):
    """SplitMix64's finaliser."""
    x = np.uint64(x)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@njit(cache=True)
def draw(seed, purpose, number):
    """64 random bits for a purpose and number."""
    return mix(mix(np.uint64(seed) * _GOLDEN + np.uint64(purpose)) + np.uint64(number) * _GOLDEN)


@njit(cache=True)
def unit(bits):
    """A number in [0, 1) from 64 random bits."""
    return np.float64(bits >> np.uint64(11)) * 2.0**-53


@njit(cache=True)
def _bits_of(num_nodes):
    bits = 1
    while (1 << bits) < num_nodes:
        bits += 1
    return bits


@njit(cache=True)
def _feistel(x, keys, left_bits, right_bits, forward):
    left_mask = np.uint64((1 << left_bits) - 1)
    right_mask = np.uint64((1 << right_bits) - 1)
    left, right = np.uint64(x) >> np.uint64(right_bits), np.uint64(x) & right_mask
    for step in range(4):
        turn = step if forward else 3 - step
        if turn % 2 == 0:
            left ^= mix(right + keys[turn]) & left_mask
        else:
            right ^= mix(left + keys[turn]) & right_mask
    return np.int64((left << np.uint64(right_bits)) | right)


@njit(cache=True)
def _shuffle(x, keys, bits, num_nodes, forward):
    # Cycle walking: permute again until the result is a node.
    left_bits = bits // 2
    while True:
        x = _feistel(x, keys, left_bits, bits - left_bits, forward)
        if x < num_nodes:
            return x


@njit(cache=True)
def shuffle_keys(seed):
    """Keys of the four Feistel rounds."""
    keys = np.empty(4, np.uint64)
    for turn in range(4):
        keys[turn] = draw(seed, _ROUND, turn)
    return keys


@njit(cache=True)
def zipf(u, num):
    """Rank below `num` for `u` in [0, 1), with density rank**-0.75: degrees ~ degree**-2.33."""
    t = 1.0 + u * (np.sqrt(np.sqrt(num + 1.0)) - 1.0)
    t *= t
    return min(np.int64(t * t) - 1, num - 1)


@njit(cache=True)
def generate_pairs(seed, num_nodes, num_communities, num_pairs, crossing, first, last, src, dst):
    """Generate all edges of communities `first` to `last`, each in both directions.

    Numbers of pairs per community differ by at most one. One pair in `crossing` connects to one of
    the following communities, up to half of all, so that no two communities draw the same pair.
    Within a community, duplicate pairs are drawn again. Hence there are no parallel edges.
    """
    keys, bits = shuffle_keys(seed), _bits_of(num_nodes)
    largest = num_nodes // num_communities + 1
    members = np.empty(largest, np.int64)
    inner = np.empty((largest * largest + 63) // 64, np.uint64)
    most = num_pairs // num_communities + 1
    crossed = np.empty(1 << _bits_of(4 * (most // crossing + 1)), np.int64)
    slots = np.uint64(len(crossed) - 1)
    row = 0
    for c in range(first, last):
        size = num_nodes // num_communities + (1 if c < num_nodes % num_communities else 0)
        for r in range(size):
            members[r] = _shuffle(r * num_communities + c, keys, bits, num_nodes, True)
        pairs = num_pairs * (c + 1) // num_communities - num_pairs * c // num_communities
        crossings = pairs // crossing if num_communities > 1 else 0
        state = draw(seed, _PAIR, c)

        inner[:] = 0
        found = crossings
        while found < pairs:
            state += _GOLDEN
            bits_drawn = mix(state)
            a = zipf(np.float64(bits_drawn >> np.uint64(32)) * 2.0**-32, size)
            b = zipf(np.float64(bits_drawn & np.uint64(0xFFFFFFFF)) * 2.0**-32, size)
            if a == b:
                continue
            cell = np.uint64(min(a, b) * size + max(a, b))
            word, flag = cell >> np.uint64(6), np.uint64(1) << (cell & np.uint64(63))
            if inner[word] & flag:
                continue
            inner[word] |= flag
            src[row] = dst[row + 1] = members[a]
            dst[row] = src[row + 1] = members[b]
            row += 2
            found += 1

        crossed[:] = -1
        found = 0
        while found < crossings:
            state += _GOLDEN
            far = zipf(unit(mix(state)), num_nodes)
            steps = (far % num_communities - c) % num_communities
            if steps == 0 or steps > num_communities // 2:
                continue
            state += _GOLDEN
            a = zipf(unit(mix(state)), size)
            pair = a * num_nodes + far
            slot = mix(pair) & slots
            while crossed[slot] >= 0 and crossed[slot] != pair:
                slot = (slot + np.uint64(1)) & slots
            if crossed[slot] == pair:
                continue
            crossed[slot] = pair
            src[row] = dst[row + 1] = members[a]
            dst[row] = src[row + 1] = _shuffle(far, keys, bits, num_nodes, True)
            row += 2
            found += 1
    return row


@njit(cache=True)
def class_of(seed, rank, num_communities, num_classes):
    """Class of a node's community."""
    return np.int64(draw(seed, _CLASS, rank % num_communities) % np.uint64(num_classes))


@njit(cache=True)
def generate_labels(seed, start, stop, num_nodes, num_communities, num_classes, noise, out):
    """Class of every node; a fraction `noise` is drawn uniformly from all classes."""
    keys, bits = shuffle_keys(seed), _bits_of(num_nodes)
    for node in range(start, stop):
        drawn = draw(seed, _LABEL, node)
        if unit(drawn) < noise:
            out[node - start] = np.int64(mix(drawn) % np.uint64(num_classes))
        else:
            rank = _shuffle(node, keys, bits, num_nodes, False)
            out[node - start] = class_of(seed, rank, num_communities, num_classes)


@njit(cache=True)
def generate_features(seed, start, stop, num_nodes, num_communities, centroids, normal, out):
    """Write the centroid of each node's class plus noise drawn from the values of `normal`."""
    keys, bits = shuffle_keys(seed), _bits_of(num_nodes)
    num_classes, width = centroids.shape
    for node in range(start, stop):
        rank = _shuffle(node, keys, bits, num_nodes, False)
        centroid = centroids[class_of(seed, rank, num_communities, num_classes)]
        state = draw(seed, _FEATURE, node)
        column = 0
        while column < width:
            state += _GOLDEN
            drawn = mix(state)
            for _ in range(min(5, width - column)):  # 5 x 12 bits
                out[node - start, column] = centroid[column] + normal[drawn & np.uint64(4095)]
                drawn >>= np.uint64(12)
                column += 1


@njit(cache=True)
def generate_splits(seed, num_nodes, num_communities, hot, cold, val, test, out):
    """Write 1 for training, 2 for validation, 3 for test, 0 for no split.

    Every eighth community is hot: its nodes are training nodes with probability `hot` instead of
    `cold`.
    """
    keys, bits = shuffle_keys(seed), _bits_of(num_nodes)
    for node in range(num_nodes):
        rank = _shuffle(node, keys, bits, num_nodes, False)
        is_hot = draw(seed, _HOT, rank % num_communities) < np.uint64(1) << np.uint64(61)
        train = hot if is_hot else cold
        u = unit(draw(seed, _SPLIT, node))
        if u < train:
            out[node] = 1
        elif u < train + val:
            out[node] = 2
        elif u < train + val + test:
            out[node] = 3
        else:
            out[node] = 0
