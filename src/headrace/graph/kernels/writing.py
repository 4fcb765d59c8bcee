"""Kernels for writing partitions: new ids, reordered neighbour lists, rounding."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True)
def count_groups(parts, clusters, counts):
    """Count the nodes of every (partition, cluster); `clusters` is empty for one cluster each."""
    for i in range(len(parts)):
        counts[parts[i], clusters[i] if len(clusters) > 0 else 0] += 1


@njit(cache=True)
def number_nodes(parts, clusters, following, new_ids):
    """Assign every node the next id of its (partition, cluster); `following` is modified."""
    for i in range(len(parts)):
        c = clusters[i] if len(clusters) > 0 else 0
        new_ids[i] = following[parts[i], c]
        following[parts[i], c] += 1


@njit(cache=True)
def copy_lists(indptr, first, values, rows, out):
    """Concatenate the lists of some rows; `values` begins at the list of `first`."""
    base = indptr[first]
    at = 0
    for row in rows:
        for k in range(indptr[first + row] - base, indptr[first + row + 1] - base):
            out[at] = values[k]
            at += 1


@njit(cache=True)
def copy_renamed(indptr, first, values, rows, names, out):
    """Concatenate the lists of some rows, with entries mapped through `names`."""
    base = indptr[first]
    at = 0
    for row in rows:
        for k in range(indptr[first + row] - base, indptr[first + row + 1] - base):
            out[at] = names[values[k]]
            at += 1


@njit(cache=True)
def mark(indices, is_there):
    """Set the flag of every node in `indices`."""
    for v in indices:
        is_there[v] = True


@njit(cache=True)
def round_to_bfloat16(bits, out):
    """Round `float32` bits to their upper halves, to nearest, ties to even; NaN stays NaN."""
    for i in range(len(bits)):
        b = bits[i]
        if (b & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000):
            # Rounding could turn a NaN into infinity.
            out[i] = np.uint16((b >> np.uint32(16)) | np.uint32(0x40))
        else:
            carry = np.uint32(0x7FFF) + ((b >> np.uint32(16)) & np.uint32(1))
            out[i] = np.uint16((b + carry) >> np.uint32(16))
