"""Templates of the files written by `headrace init`, with a comment on every key."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.core.errors import DOCS_URL, SpecError

SAMPLERS_PER_TRAINER = 2


@dataclass(frozen=True)
class Machines:
    """A number of equal machines; amounts as in a cluster file.

    Attributes:
        num: Number of machines.
        num_gpus: GPUs per machine.
        num_cpus: Cores per machine.
        memory: Memory per machine, e.g. `32GB`.
        bandwidth: NIC bandwidth per machine, e.g. `10Gbps`.
    """

    num: int
    num_gpus: int
    num_cpus: int
    memory: str
    bandwidth: str

    def resources(self) -> list[dict[str, float]]:
        """Resources of each machine."""
        own: dict[str, float] = {"cpu": self.num_cpus}
        if self.num_gpus:
            own["gpu"] = self.num_gpus
        return [own] * self.num


def cluster_text(machines: Machines) -> str:
    """Content of a cluster file."""
    gpu = f"      gpu: {machines.num_gpus}\n" if machines.num_gpus else ""
    named = "m-0, m-1, ..." if machines.num > 1 else "one machine"
    return f"""\
# Machines of the cluster. All keys: {DOCS_URL}reference/files.md#cluster
# For a live Ray cluster, `headrace cluster discover -o cluster.yaml` writes this file.
version: 1
machines:
  - name: m                  # a group of equal machines: {named}
    count: {machines.num}
    resources:               # a task runs where all its demands are free
      cpu: {machines.num_cpus}
{gpu}      memory: {machines.memory}
    nic: {machines.bandwidth}              # NIC bandwidth in both directions, with its unit
# A different machine is a separate group:
# - {{name: big, resources: {{cpu: 32, gpu: 4, memory: 256GB}}, nic: 100Gbps}}
"""


def job_text(name: str, resources: Sequence[Mapping[str, float]], trainers: int | None) -> str:
    """Content of a job file; by default one trainer per GPU, or per machine without GPUs."""
    gpus = [int(each.get("gpu", 0)) for each in resources]
    has_gpus = sum(gpus) > 0
    if trainers is None:
        trainers = sum(gpus) or len(resources)
    if has_gpus and trainers > sum(gpus):
        raise SpecError(
            f"{trainers} trainers need a GPU each, the machines have {sum(gpus)}",
            f"use --trainers {sum(gpus)}, or more machines",
        )
    slots = gpus if has_gpus else [math.ceil(trainers / len(resources))] * len(resources)
    cpu = _cpus_of_a_task(resources, slots)
    sampler = f"{{cpu: {cpu:g}}}" if cpu else "{}"
    needs = ([f"cpu: {cpu:g}"] if cpu else []) + (["gpu: 1"] if has_gpus else [])
    each = "one per GPU" if has_gpus else "no GPUs: they run on CPU cores"
    return f"""\
# The training job. All keys: {DOCS_URL}reference/files.md#job
version: 1
name: {name}
trainers: {trainers}                  # data-parallel; {each}
samplers_per_trainer: {SAMPLERS_PER_TRAINER}      # sampler processes per trainer
sync: ring                   # all-reduce; or `ps`, with `parameter_servers: 1`
batch_size: 1000             # seeds per trainer and iteration
model_bytes: 1MB             # size of all parameters (float32: 4 bytes each)
iterations: 200              # for planning and simulation; your script sets the epochs
window: 2                    # iterations in flight: 1 is no overlap
demands:                     # resources of each task; infeasible jobs are rejected
  trainer: {{{", ".join(needs)}}}
  sampler: {sampler}
  # store: {{memory: 8GB}}     # one per machine: its graph partition with features
"""


def _cpus_of_a_task(resources: Sequence[Mapping[str, float]], slots: Sequence[int]) -> float:
    """Cores per trainer and sampler such that all fit; 0 if machines declare no cores."""
    shares = [
        each.get("cpu", 0) / (num * (1 + SAMPLERS_PER_TRAINER))
        for each, num in zip(resources, slots, strict=True)
        if num
    ]
    least = min(shares, default=0.0)
    return 1.0 if least >= 1 else math.floor(least * 100) / 100
