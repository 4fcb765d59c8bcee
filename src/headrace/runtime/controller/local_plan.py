"""The plan of a run on this machine alone: all tasks on one machine, the script's own batches."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import Any

from headrace.core.cluster import Cluster, Machine
from headrace.core.errors import SpecError
from headrace.core.job import Job, Role
from headrace.core.placement import PlacementFile
from headrace.core.plan import LOCAL_METHOD, Fingerprints, Plan, Terms
from headrace.core.profile import BatchTraffic, Problem, Profile, StoreTraffic
from headrace.graph.format.partitioned_graph import open_graph
from headrace.runtime.run_dir.run_config import RunConfig

LOCAL_WINDOW = 4
"""Sub-batches that each sampler may have queued for the trainer."""


def local_config(
    script: Path,
    graph: Path | None,
    num_stores: int | None,
    num_samplers: int,
    num_trainers: int = 1,
    **settings: Any,
) -> RunConfig:
    """Config of a run on this machine.

    Args:
        script: Python training script.
        graph: Directory of a partitioned graph, if any.
        num_stores: Graph partitions that are read from the store; None for all.
        num_samplers: Sampler processes of each trainer's training loader.
        num_trainers: Trainers of one model.
        **settings: Further fields of `RunConfig`.

    Raises:
        SpecError: The graph is invalid, or has fewer partitions.
    """
    if graph is None and num_stores:
        raise SpecError(
            f"{num_stores} stores need a partitioned graph, and none is given",
            "give --graph with a directory written by `headrace partition`",
        )
    num_parts = 0 if graph is None else open_graph(graph).num_parts
    if num_stores is not None and num_stores > num_parts:
        raise SpecError(
            f"the number of stores is {num_stores}, the graph has {num_parts} partitions",
            f"give 0 to {num_parts}, or partition the graph again",
        )
    return RunConfig(
        plan=local_plan(script.stem, num_parts, num_samplers, num_trainers),
        script=script,
        graph=graph,
        working_dir=Path.cwd(),
        is_local=True,
        num_stores=num_stores,
        num_samplers=num_samplers,
        **settings,
    )


def local_plan(name: str, num_parts: int, num_samplers: int, num_trainers: int = 1) -> Plan:
    """Plan of a job on this machine, without a prediction."""
    machine = socket.gethostname()
    num_threads = _num_threads(num_samplers, num_trainers)
    resources = {"cpu": float(max(num_threads * num_trainers, os.cpu_count() or 1))}
    cluster = Cluster(machines=(Machine(name=machine, nic_in=1, nic_out=1, resources=resources),))
    num = max(1, num_samplers)
    demands = {Role.TRAINER: {"cpu": float(num_threads)}}
    job = Job(
        name=name,
        trainers=num_trainers,
        samplers_per_trainer=num,
        batch_size=num * num_trainers,
        window=LOCAL_WINDOW,
        demands=demands,
    )
    profile = Profile(
        note="a run on one machine: nothing is predicted",
        task_times={},
        store_traffic=StoreTraffic(),
        batch_traffic=BatchTraffic(bytes_per_seed=0),
    )
    return Plan(
        method=LOCAL_METHOD,
        policy="none",
        placement=PlacementFile(
            samplers=(machine,) * num * num_trainers, trainers=(machine,) * num_trainers
        ),
        terms=Terms(nic_s=0, busiest_nic="", cycle_s=0, task_s=0, latency_s=0, time_s=0),
        bound_s=0,
        gap=0,
        proven=False,
        network_bytes=0,
        uniform_network_bytes=0,
        fingerprints=Fingerprints.of(Problem(cluster, job, profile)),
        cluster=cluster,
        job=job,
        profile=profile,
        parts=(0,) * max(1, num_parts),
    )


def _num_threads(num_samplers: int, num_trainers: int) -> int:
    """Threads of a trainer: one per core that samplers and other trainers leave."""
    # Oversubscribed OpenMP threads block each other (measured 20x slower on two busy cores).
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return max(1, cores // num_trainers - num_samplers)
