"""Minimum vertex covers of bipartite graphs, by maximum matchings (Hopcroft-Karp and Koenig)."""

import numpy as np
from numba import njit


@njit(cache=True)
def match(indptr, indices, num_right):
    """Find a maximum matching.

    Args:
        indptr: First edge of each left node, and the number of edges.
        indices: Right node of each edge.
        num_right: Number of right nodes.

    Returns:
        The partner of each left node and of each right node; -1 without one.
    """
    num_left = len(indptr) - 1
    mates = np.full(num_left, -1, np.int64)
    partners = np.full(num_right, -1, np.int64)
    depth = np.empty(num_left, np.int64)
    queue = np.empty(num_left, np.int64)
    at = np.empty(num_left, np.int64)
    path = np.empty(num_left, np.int64)
    while True:
        # Breadth-first from all free left nodes: depths along alternating paths.
        head, tail, found = 0, 0, False
        for left in range(num_left):
            depth[left] = -1
            if mates[left] < 0:
                depth[left] = 0
                queue[tail] = left
                tail += 1
        while head < tail:
            left = queue[head]
            head += 1
            for edge in range(indptr[left], indptr[left + 1]):
                other = partners[indices[edge]]
                if other < 0:
                    found = True
                elif depth[other] < 0:
                    depth[other] = depth[left] + 1
                    queue[tail] = other
                    tail += 1
        if not found:
            return mates, partners
        # Depth-first: node-disjoint shortest paths, each of which adds an edge to the matching.
        for left in range(num_left):
            at[left] = indptr[left]
        for start in range(num_left):
            if mates[start] >= 0:
                continue
            path[0], length = start, 1
            while length:
                left = path[length - 1]
                if at[left] == indptr[left + 1]:
                    depth[left] = -1
                    length -= 1
                    continue
                other = partners[indices[at[left]]]
                if other < 0:
                    for place in range(length - 1, -1, -1):
                        node = path[place]
                        right = indices[at[node]]
                        partners[right], mates[node] = node, right
                    break
                if depth[other] == depth[left] + 1:
                    path[length] = other
                    length += 1
                else:
                    at[left] += 1
                # A node that was left without success is never entered again: its depth is -1.


@njit(cache=True)
def cover(indptr, indices, num_right):
    """Find a minimum vertex cover: every edge has an end in it.

    Args:
        indptr: First edge of each left node, and the number of edges.
        indices: Right node of each edge.
        num_right: Number of right nodes.

    Returns:
        Whether each left node and each right node is in the cover.
    """
    mates, partners = match(indptr, indices, num_right)
    num_left = len(mates)
    is_left = np.ones(num_left, np.bool_)
    is_right = np.zeros(num_right, np.bool_)
    queue = np.empty(num_left, np.int64)
    tail = 0
    for left in range(num_left):
        if mates[left] < 0:
            is_left[left] = False
            queue[tail] = left
            tail += 1
    head = 0
    while head < tail:
        left = queue[head]
        head += 1
        for edge in range(indptr[left], indptr[left + 1]):
            right = indices[edge]
            if is_right[right]:
                continue
            is_right[right] = True
            other = partners[right]
            if other >= 0 and is_left[other]:
                is_left[other] = False
                queue[tail] = other
                tail += 1
    return is_left, is_right
