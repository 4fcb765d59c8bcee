"""Hot loops of writing parts: new ids, neighbour lists in new order, rounding."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True)
def count_groups(parts, clusters, counts):
    """Count the nodes of every (part, cluster); `clusters` is empty if there is one per part."""
    for i in range(len(parts)):
        counts[parts[i], clusters[i] if len(clusters) > 0 else 0] += 1


@njit(cache=True)
def number_nodes(parts, clusters, following, new_ids):
    """Give every node the next id of its (part, cluster); `following` is used up."""
    for i in range(len(parts)):
        c = clusters[i] if len(clusters) > 0 else 0
        new_ids[i] = following[parts[i], c]
        following[parts[i], c] += 1


@njit(cache=True)
def copy_lists(indptr, first, values, rows, out):
    """Put the lists of some rows one after another; `values` begins at the list of `first`."""
    base = indptr[first]
    at = 0
    for row in rows:
        for k in range(indptr[first + row] - base, indptr[first + row + 1] - base):
            out[at] = values[k]
            at += 1


@njit(cache=True)
def copy_renamed(indptr, first, values, rows, names, out):
    """Put the lists of some rows one after another, with new names for their entries."""
    base = indptr[first]
    at = 0
    for row in rows:
        for k in range(indptr[first + row] - base, indptr[first + row + 1] - base):
            out[at] = names[values[k]]
            at += 1


@njit(cache=True)
def mark(indices, is_there):
    """Set the flag of every node that occurs."""
    for v in indices:
        is_there[v] = True


@njit(cache=True)
def round_to_bfloat16(bits, out):
    """Upper halves of `float32` bits, rounded to nearest, ties to even; NaN stays NaN."""
    for i in range(len(bits)):
        b = bits[i]
        if (b & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000):
            # Rounding could carry a NaN's last bits into infinity.
            out[i] = np.uint16((b >> np.uint32(16)) | np.uint32(0x40))
        else:
            carry = np.uint32(0x7FFF) + ((b >> np.uint32(16)) & np.uint32(1))
            out[i] = np.uint16((b + carry) >> np.uint32(16))
