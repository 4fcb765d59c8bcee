"""Estimates: what a placement and a seed mix cost in bytes and seconds."""

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
