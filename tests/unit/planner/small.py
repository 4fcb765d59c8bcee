"""A job small enough to plan in a moment, with machines that differ."""

from __future__ import annotations

from headrace.core.cluster import Cluster, Machine
from headrace.core.job import Job, Role, Sync
from headrace.core.profile import BatchTraffic, Problem, Profile, StoreTraffic, TaskTime, Variation


def cluster_of(*nics: float) -> Cluster:
    """One machine per bandwidth in GB/s."""
    return Cluster(
        machines=tuple(
            Machine(
                name=f"m{i}", resources={"cpu": 6, "gpu": 2}, nic_in=nic * 1e9, nic_out=nic * 1e9
            )
            for i, nic in enumerate(nics)
        )
    )


CLUSTER = cluster_of(1.0, 1.0, 0.25)
JOB = Job(
    trainers=3,
    samplers_per_trainer=2,
    sync=Sync.PS,
    batch_size=100,
    model_bytes=1e6,
    iterations=30,
    window=2,
    demands={
        Role.SAMPLER: {"cpu": 2},
        Role.TRAINER: {"cpu": 1, "gpu": 1},
        Role.SERVER: {"cpu": 1},
    },
)


def profile_of(locality: float = 0.0, bytes_per_seed: float = 1e6) -> Profile:
    """Traffic that binds, with some variation."""
    return Profile(
        task_times={
            role: {"default": TaskTime(mean=0.01)}
            for role in (Role.STORE, Role.SAMPLER, Role.TRAINER, Role.SERVER)
        },
        store_traffic=StoreTraffic(
            bytes_per_seed=bytes_per_seed,
            locality=locality,
            variation=Variation(peak_to_mean=1.2),
        ),
        batch_traffic=BatchTraffic(bytes_per_seed=bytes_per_seed),
    )


PROFILE = profile_of()
PROBLEM = Problem(CLUSTER, JOB, PROFILE)
