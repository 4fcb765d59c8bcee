"""Estimated bytes and seconds of a placement and a seed mix."""

from headrace.costs.estimates import (
    edge_volumes,
    nic_load_s,
    nic_loads,
    ring_chunk_bytes,
    task_machines,
    task_times,
)

__all__ = [
    "edge_volumes",
    "nic_load_s",
    "nic_loads",
    "ring_chunk_bytes",
    "task_machines",
    "task_times",
]
