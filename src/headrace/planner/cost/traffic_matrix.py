"""Bytes between machines per iteration, summed per machine instead of per edge."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.core.cluster import Cluster
from headrace.core.job import Sync
from headrace.core.placement import Placement
from headrace.core.profile import Problem
from headrace.costs import ring_chunk_bytes, store_seeds, swap_volumes


@dataclass(frozen=True)
class Traffic:
    """Mean bytes per iteration between machines, shape (sender, receiver)."""

    pairs: np.ndarray

    @property
    def network_bytes(self) -> float:
        """Bytes that cross the network."""
        return float(self.pairs.sum() - self.pairs.trace())

    def loads_s(self, cluster: Cluster) -> tuple[np.ndarray, np.ndarray]:
        """Seconds per iteration that each NIC receives and sends at full rate."""
        own = self.pairs.diagonal()
        received, sent = self.pairs.sum(axis=0) - own, self.pairs.sum(axis=1) - own
        return received / cluster.nic_in_bytes_per_s(), sent / cluster.nic_out_bytes_per_s()


def traffic_of(problem: Problem, placement: Placement, seeds: np.ndarray) -> Traffic:
    """Traffic of a placed job; `seeds` has shape (num_samplers, num_parts)."""
    cluster, job, profile = problem
    num = cluster.num_machines
    samplers = np.array(placement.samplers, dtype=np.int64)
    trainers = np.array(placement.trainers, dtype=np.int64)
    servers = np.array(placement.servers, dtype=np.int64)
    by_machine = np.zeros((num, num))
    np.add.at(by_machine, samplers, store_seeds(problem, seeds))
    pairs = (by_machine @ profile.store_traffic.bytes_per_seed_matrix(num)).T.copy()
    batches = profile.batch_bytes(job, seeds.sum(axis=1))
    np.add.at(pairs, (samplers, np.repeat(trainers, job.samplers_per_trainer)), batches)
    if len(servers):
        shard = job.model_bytes / len(servers)
        here, there = np.repeat(trainers, len(servers)), np.tile(servers, len(trainers))
        np.add.at(pairs, (here, there), shard)
        np.add.at(pairs, (there, here), shard)
    if job.sync is Sync.RING and len(trainers) > 1:
        around = trainers[list(placement.ring_order)]
        num_steps = 2 * (len(trainers) - 1)
        np.add.at(pairs, (around, np.roll(around, -1)), num_steps * ring_chunk_bytes(job))
    if job.swaps:
        sender, receiver = np.nonzero(~np.eye(len(trainers), dtype=bool))
        volumes = swap_volumes(problem).sum(axis=0)
        np.add.at(pairs, (trainers[sender], trainers[receiver]), volumes)
    return Traffic(pairs)
