"""Estimated bytes and seconds of a placement and a seed mix."""

from headrace.costs.estimates import (
    edge_volumes,
    nic_load_s,
    nic_loads,
    ring_chunk_bytes,
    store_seeds,
    swap_delays,
    swap_volumes,
    task_machines,
    task_times,
    time_factors,
)

__all__ = [
    "edge_volumes",
    "nic_load_s",
    "nic_loads",
    "ring_chunk_bytes",
    "store_seeds",
    "swap_delays",
    "swap_volumes",
    "task_machines",
    "task_times",
    "time_factors",
]
