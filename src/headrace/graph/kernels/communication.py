"""Kernels that move nodes and track the remote neighbours of every partition.

A table holds, for every node, the number of its neighbours in each adjacent partition. A move adds
a remote neighbour when a count leaves zero and removes one when a count returns to zero, so its
effect is computed in time linear in the node's degree. G3's fast neighbour tracking keeps the same
counts for remote neighbours only.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from headrace.graph.kernels.rebalance import fits, shift


@njit(cache=True)
def count_neighbours(indptr, indices, parts, num_parts):
    """Build the table: first slot and number of slots per node, partition and count per slot."""
    num_nodes = len(parts)
    begins = np.zeros(num_nodes + 1, np.int64)
    for node in range(num_nodes):
        begins[node + 1] = begins[node] + min(num_parts, indptr[node + 1] - indptr[node])
    sizes = np.zeros(num_nodes, np.int32)
    names = np.empty(begins[-1], np.int32)
    counts = np.empty(begins[-1], np.int32)
    for node in range(num_nodes):
        for arc in range(indptr[node], indptr[node + 1]):
            count_one(node, parts[indices[arc]], begins, sizes, names, counts)
    return begins, sizes, names, counts


@njit(cache=True)
def count_one(node, part, begins, sizes, names, counts):
    """Add a neighbour in a partition; returns the new count."""
    end = begins[node] + sizes[node]
    for slot in range(begins[node], end):
        if names[slot] == part:
            counts[slot] += 1
            return counts[slot]
    names[end] = part
    counts[end] = 1
    sizes[node] += 1
    return 1


@njit(cache=True)
def discount_one(node, part, begins, sizes, names, counts):
    """Remove a neighbour in a partition; returns the new count."""
    last = begins[node] + sizes[node] - 1
    slot = begins[node]
    while names[slot] != part:
        slot += 1
    counts[slot] -= 1
    if counts[slot] > 0:
        return counts[slot]
    names[slot], counts[slot] = names[last], counts[last]
    sizes[node] -= 1
    return 0


@njit(cache=True)
def count_remote(parts, num_parts, begins, sizes, names):
    """Number of distinct remote neighbours of every partition."""
    remote = np.zeros(num_parts, np.int64)
    for node in range(len(parts)):
        for slot in range(begins[node], begins[node] + sizes[node]):
            if names[slot] != parts[node]:
                remote[names[slot]] += 1
    return remote


@njit(cache=True)
def visit(node, indptr, indices, arc_weights, parts, begins, sizes, names, counts, known, strength):
    """Evaluate the moves of one node to all partitions.

    For every partition, fills `known` with the number of the node's neighbours that the partition
    owns or already has as remote neighbours, and `strength` with the weight of the node's arcs to
    it.

    Returns:
        Number of remote neighbours that the node's partition would no longer need.
    """
    source = parts[node]
    known[:] = 0
    strength[:] = 0
    freed = 0
    for arc in range(indptr[node], indptr[node + 1]):
        other = indices[arc]
        home = parts[other]
        strength[home] += 1 if arc_weights is None else arc_weights[arc]
        at_home = False
        for slot in range(begins[other], begins[other] + sizes[other]):
            part = names[slot]
            known[part] += 1
            if part == home:
                at_home = True
            elif part == source and counts[slot] == 1:
                freed += 1
        if not at_home:
            known[home] += 1
    return freed


@njit(cache=True)
def move(
    node,
    target,
    indptr,
    indices,
    arc_weights,
    node_weights,
    parts,
    loads,
    begins,
    sizes,
    names,
    counts,
    remote,
):
    """Move a node; updates `parts`, `loads`, the table and `remote`; returns the cut increase."""
    source = parts[node]
    for slot in range(begins[node], begins[node] + sizes[node]):
        if names[slot] == source:
            remote[source] += 1
        elif names[slot] == target:
            remote[target] -= 1
    parts[node] = target
    shift(node, source, target, node_weights, loads)
    growth = 0
    for arc in range(indptr[node], indptr[node + 1]):
        other = indices[arc]
        weight = 1 if arc_weights is None else arc_weights[arc]
        if parts[other] == source:
            growth += weight
        elif parts[other] == target:
            growth -= weight
        left = discount_one(other, source, begins, sizes, names, counts)
        if left == 0 and parts[other] != source:
            remote[source] -= 1
        now = count_one(other, target, begins, sizes, names, counts)
        if now == 1 and parts[other] != target:
            remote[target] += 1
    return growth


@njit(cache=True)
def draw(state):
    """Next number in [0, 1) of a xorshift generator; updates `state`, an array of one element."""
    bits = state[0]
    bits ^= bits << np.uint64(13)
    bits ^= bits >> np.uint64(7)
    bits ^= bits << np.uint64(17)
    state[0] = bits
    return np.float64(bits >> np.uint64(11)) / 9007199254740992.0


@njit(cache=True)
def excess(remote, limit):
    """Half the squared excess over the limit, divided by the limit."""
    above = max(0.0, remote - limit)
    return 0.5 * above * above / limit


@njit(cache=True)
def fits_swap(node, other, part, node_weights, loads, caps):
    """Whether a partition stays within all caps after exchanging one node for another."""
    for c in range(len(loads)):
        change = node_weights[c, node] - node_weights[c, other]
        if change > 0 and loads[c, part] + change > caps[c, part]:
            return False
    return True


@njit(cache=True)
def forget(node, part, waiting):
    """Remove a node that leaves its partition from the swap candidates."""
    for target in range(len(waiting)):
        if waiting[part, target] == node:
            waiting[part, target] = -1


@njit(cache=True)
def sweep(
    indptr,
    indices,
    arc_weights,
    node_weights,
    parts,
    loads,
    caps,
    begins,
    sizes,
    names,
    counts,
    remote,
    limits,
    penalty,
    cut_price,
    heat,
    everywhere,
    state,
):
    """Try to move every node to another partition, alone or in exchange for another node.

    The price of a move is the change of total communication, plus `penalty` times the change of the
    excess over `limits`, plus `cut_price` times the change of the cut. A move with a negative price
    is made; others are made at random according to `heat`. Caps are never exceeded: a node that a
    cap blocks becomes a swap candidate. Unless `everywhere`, only moves out of and into partitions
    above their limits are evaluated.

    Returns:
        Number of moved nodes, and the increase of the cut.
    """
    num_parts = len(remote)
    known, strength = np.zeros(num_parts, np.int64), np.zeros(num_parts, np.int64)
    waiting = np.full((num_parts, num_parts), -1, np.int64)
    waiting_price = np.zeros((num_parts, num_parts))
    num_moved, cut_growth = 0, 0
    for node in range(len(parts)):
        source = parts[node]
        wanted = False
        for slot in range(begins[node], begins[node] + sizes[node]):
            part = names[slot]
            if part != source and (
                everywhere or remote[source] > limits[source] or remote[part] > limits[part]
            ):
                wanted = True
        if not wanted and everywhere:
            for part in range(num_parts):
                wanted = wanted or waiting[part, source] >= 0
        if not wanted or loads[0, source] <= node_weights[0, node]:
            continue
        freed = visit(
            node,
            indptr,
            indices,
            arc_weights,
            parts,
            begins,
            sizes,
            names,
            counts,
            known,
            strength,
        )
        degree = indptr[node + 1] - indptr[node]
        source_change = (1 if strength[source] > 0 else 0) - freed
        source_over = excess(remote[source] + source_change, limits[source]) - excess(
            remote[source], limits[source]
        )
        best, best_price, best_partner = -1, np.inf, -1
        for target in range(num_parts):
            if target == source:
                continue
            target_change = degree - known[target] - (1 if strength[target] > 0 else 0)
            target_over = excess(remote[target] + target_change, limits[target]) - excess(
                remote[target], limits[target]
            )
            cut_change = strength[source] - strength[target]
            price = (
                source_change
                + target_change
                + penalty * (source_over + target_over)
                + cut_price * cut_change
            )
            if price < best_price:
                if fits(node, target, node_weights, loads, caps):
                    best, best_price, best_partner = target, price, -1
                elif price < 0 and (
                    waiting[source, target] < 0 or price < waiting_price[source, target]
                ):
                    waiting[source, target] = node
                    waiting_price[source, target] = price
            partner = waiting[target, source]
            if partner >= 0:
                price += waiting_price[target, source]
                if (
                    price < best_price
                    and fits_swap(node, partner, target, node_weights, loads, caps)
                    and fits_swap(partner, node, source, node_weights, loads, caps)
                ):
                    best, best_price, best_partner = target, price, partner
        if best < 0:
            continue
        if best_price >= 0 and heat > 0:
            accepted = best_price < -heat * np.log(1.0 - draw(state))
        else:
            accepted = best_price < 0
        if accepted:
            if best_partner >= 0:
                forget(best_partner, best, waiting)
                cut_growth += move(
                    best_partner,
                    source,
                    indptr,
                    indices,
                    arc_weights,
                    node_weights,
                    parts,
                    loads,
                    begins,
                    sizes,
                    names,
                    counts,
                    remote,
                )
                num_moved += 1
            forget(node, source, waiting)
            cut_growth += move(
                node,
                best,
                indptr,
                indices,
                arc_weights,
                node_weights,
                parts,
                loads,
                begins,
                sizes,
                names,
                counts,
                remote,
            )
            num_moved += 1
    return num_moved, cut_growth
