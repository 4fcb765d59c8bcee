"""The files that `headrace init` writes: ready to plan with, and with a word on every key."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.core.errors import DOCS_URL, SpecError

SAMPLERS_PER_TRAINER = 2


@dataclass(frozen=True)
class Machines:
    """Equal machines, as people describe them; amounts as they are written in a file.

    Attributes:
        num: How many there are.
        num_gpus: GPUs of each.
        num_cpus: Cores of each.
        memory: Of each, e.g. `32GB`.
        bandwidth: Of each one's network card, e.g. `10Gbps`.
    """

    num: int
    num_gpus: int
    num_cpus: int
    memory: str
    bandwidth: str

    def resources(self) -> list[dict[str, float]]:
        """What a task may take of each machine."""
        own: dict[str, float] = {"cpu": self.num_cpus}
        if self.num_gpus:
            own["gpu"] = self.num_gpus
        return [own] * self.num


def cluster_text(machines: Machines) -> str:
    """A cluster file."""
    gpu = f"      gpu: {machines.num_gpus}\n" if machines.num_gpus else ""
    named = "m-0, m-1, ..." if machines.num > 1 else "one machine"
    return f"""\
# The machines that a job may use. All keys: {DOCS_URL}files.md#cluster
# For a live Ray cluster, `headrace cluster discover -o cluster.yaml` writes this file.
version: 1
machines:
  - name: m                  # a group of equal machines: {named}
    count: {machines.num}
    resources:               # a task runs where all that it demands is free
      cpu: {machines.num_cpus}
{gpu}      memory: {machines.memory}
    nic: {machines.bandwidth}              # of the network card, both directions, with its unit
# A machine that differs is a group of its own:
# - {{name: big, resources: {{cpu: 32, gpu: 4, memory: 256GB}}, nic: 100Gbps}}
"""


def job_text(name: str, resources: Sequence[Mapping[str, float]], trainers: int | None) -> str:
    """A job file that fits machines.

    Args:
        name: Of the job.
        resources: What each machine has.
        trainers: How many; else one per GPU, and without GPUs one per machine.

    Raises:
        SpecError: The machines have fewer GPUs than trainers are wanted.
    """
    gpus = [int(each.get("gpu", 0)) for each in resources]
    has_gpus = sum(gpus) > 0
    if trainers is None:
        trainers = sum(gpus) or len(resources)
    if has_gpus and trainers > sum(gpus):
        raise SpecError(
            f"{trainers} trainers need a GPU each, the machines have {sum(gpus)}",
            f"ask for --trainers {sum(gpus)}, or for more machines",
        )
    slots = gpus if has_gpus else [math.ceil(trainers / len(resources))] * len(resources)
    cpu = _cpus_of_a_task(resources, slots)
    sampler = f"{{cpu: {cpu:g}}}" if cpu else "{}"
    needs = ([f"cpu: {cpu:g}"] if cpu else []) + (["gpu: 1"] if has_gpus else [])
    each = "one per GPU" if has_gpus else "no GPUs: they compute on cores"
    return f"""\
# What is to be trained. All keys: {DOCS_URL}files.md#job
version: 1
name: {name}
trainers: {trainers}                  # data-parallel; {each}
samplers_per_trainer: {SAMPLERS_PER_TRAINER}      # processes that draw neighbours for one trainer
sync: ring                   # all-reduce; or `ps`, with `parameter_servers: 1`
batch_size: 1000             # seeds per trainer and iteration
model_bytes: 1MB             # all parameters: 4 bytes each, unless they are halves
iterations: 200              # to plan and rehearse; your script says how long it trains
window: 2                    # iterations that may be under way at once: 1 is no overlap
demands:                     # what each task occupies; what does not fit is refused
  trainer: {{{", ".join(needs)}}}
  sampler: {sampler}
  # store: {{memory: 8GB}}     # one on every machine: its part of the graph and of the features
"""


def _cpus_of_a_task(resources: Sequence[Mapping[str, float]], slots: Sequence[int]) -> float:
    """Cores for each trainer and sampler, so that all of them fit; 0 if nobody counts cores."""
    shares = [
        each.get("cpu", 0) / (num * (1 + SAMPLERS_PER_TRAINER))
        for each, num in zip(resources, slots, strict=True)
        if num
    ]
    least = min(shares, default=0.0)
    return 1.0 if least >= 1 else math.floor(least * 100) / 100
