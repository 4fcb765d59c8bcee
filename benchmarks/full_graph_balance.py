"""Rows that each part receives and sends, by partitioner, for `full_graph.py`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.traffic import source_of
from headrace.graph.adjacency import Adjacency
from headrace.graph.build.csc import build_adjacency, build_csc
from headrace.graph.build.partition import constraints
from headrace.graph.partitioners._base import Partitioner, Question
from headrace.graph.partitioners.baselines import Range
from headrace.graph.partitioners.g3_communication import balance_communication
from headrace.graph.partitioners.metis import Metis
from headrace.graph.partitioners.rebalance import repair

CONVERGED = 0.005
"""G3 stops when the parts with most and fewest remote nodes differ by less."""

MOST_WITHOUT_GAIN = 500
"""Swaps without a new best state after which they are taken to be a cycle."""


def neighbours(adjacency: Adjacency, parts: np.ndarray, num: int) -> np.ndarray:
    """Number of neighbours of each node in each part."""
    counts = np.zeros((adjacency.num_nodes, num), np.int32)
    node = np.repeat(np.arange(adjacency.num_nodes), np.diff(adjacency.indptr))
    np.add.at(counts, (node, parts[adjacency.indices]), 1)
    return counts


def remote_nodes(counts: np.ndarray, parts: np.ndarray) -> np.ndarray:
    """Whether a node is a remote neighbour of a part."""
    is_remote: np.ndarray = counts > 0
    is_remote[np.arange(len(parts)), parts] = False
    return is_remote


def swap_nodes(adjacency: Adjacency, parts: np.ndarray, num: int) -> np.ndarray:
    """G3's second stage: swap nodes of the parts with most and fewest remote nodes."""
    parts = parts.copy()
    counts = neighbours(adjacency, parts, num)
    remote = remote_nodes(counts, parts).sum(0)
    degrees = np.diff(adjacency.indptr)
    best, fewest, num_vain = parts.copy(), int(remote.max()), 0

    def move(node: int, to: int) -> None:
        own, around = parts[node], adjacency.indices[slice(*adjacency.indptr[node : node + 2])]
        remote[own] += counts[node, own] > 0
        remote[to] -= counts[node, to] > 0
        parts[node] = to
        # An undirected graph may have an edge twice.
        ids, times = np.unique(around, return_counts=True)
        counts[ids, own] -= times.astype(np.int32)
        remote[own] -= int(((counts[ids, own] == 0) & (parts[ids] != own)).sum())
        remote[to] += int(((counts[ids, to] == 0) & (parts[ids] != to)).sum())
        counts[ids, to] += times.astype(np.int32)

    while num_vain < MOST_WITHOUT_GAIN:
        most, least = int(remote.argmax()), int(remote.argmin())
        if remote[least] >= (1 - CONVERGED) * remote[most]:
            break
        inside, outside = np.flatnonzero(parts == most), np.flatnonzero(parts == least)
        if not len(inside) or not len(outside):
            break
        leaves = inside[np.argmax(degrees[inside] - counts[inside, most])]
        comes = outside[np.argmin(degrees[outside] - counts[outside, most])]
        move(int(leaves), least)
        move(int(comes), most)
        num_vain += 1
        if remote.max() < fewest:
            best, fewest, num_vain = parts.copy(), int(remote.max()), 0
    return best


def spread(counts: np.ndarray, parts: np.ndarray) -> dict[str, float]:
    """Rows of the fullest part, and over the mean, of all copies of nodes at other parts."""
    is_remote = remote_nodes(counts, parts)
    received = is_remote.sum(0)
    sent = np.bincount(parts, weights=is_remote.sum(1), minlength=counts.shape[1])
    return {
        "total": int(received.sum()),
        "received": int(received.max()),
        "received_balance": float(received.max() / max(received.mean(), 1e-9)),
        "sent": int(sent.max()),
        "sent_balance": float(sent.max() / max(sent.mean(), 1e-9)),
    }


def question_of(name: str, num: int, scratch: Path) -> Question:
    """Nodes, edges and training nodes are balanced, as `headrace partition` does."""
    source, cscs = source_of(name), []
    for number, table in enumerate(source.edges):
        folder = scratch / f"{name}-edges-{number}"
        cscs.append(build_csc(table, source.num_nodes, source.num_nodes, folder))
    adjacency = build_adjacency(source, cscs, scratch / f"{name}-adjacency")
    limits = constraints(source, cscs, ("nodes", "edges", "train"))
    return Question(adjacency, np.full(num, 1 / num), limits)


def measure_balance(names: Sequence[str], num: int, scratch: Path) -> dict[str, Any]:
    """Remote nodes by graph and partitioner."""
    found: dict[str, Any] = {}
    for name in names:
        question = question_of(name, num, scratch)

        def assigned(by: Partitioner, question: Question = question) -> np.ndarray:
            return by.assign(question, lambda step: None)

        metis = repair(question, assigned(Metis()))
        states = {
            "chunks": assigned(Range()),
            "metis": metis,
            "swaps": swap_nodes(question.adjacency, metis, num),
            "headrace": balance_communication(question, metis),
        }
        found[name] = {
            way: spread(neighbours(question.adjacency, parts, num), parts)
            for way, parts in states.items()
        }
        print(f"balance {name}: {json.dumps(found[name])}", file=sys.stderr)
    fewest = {
        name: min(("chunks", "metis", "swaps", "headrace"), key=lambda way: ways[way]["received"])
        for name, ways in found.items()
    }
    return {"parts": num, "graphs": found, "fewest_received": fewest}
