"""How large a part each machine should get."""

from __future__ import annotations

import numpy as np

from headrace.core.cluster import Cluster


def shares_of(cluster: Cluster) -> np.ndarray:
    """Share of the graph for every machine, as large as its scarcer capacity allows.

    A part fills memory and is read through the network card, so a machine's share is the smaller of
    its shares of all memory and of all outgoing bandwidth, scaled so that all add up to one. A
    machine that states no memory counts by its network card alone.
    """
    memory = cluster.capacities(("memory",))[:, 0]
    nic = cluster.nic_out_bytes_per_s()
    shares = nic / nic.sum()
    if np.all(memory > 0):
        shares = np.minimum(shares, memory / memory.sum())
    return np.asarray(shares / shares.sum())
