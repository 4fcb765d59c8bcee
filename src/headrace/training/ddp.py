"""Trainers that learn one model together: gradients are summed, weighed by seeds.

A loss is the mean over a trainer's seeds. Weighed by its part of all seeds of the iteration, the
sum over trainers is the gradient of one process that has the whole batch, whatever shares trainers
have. Every trainer knows those numbers from the plan, so nothing but gradients is exchanged.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

TIMEOUT_S = 600.0
"""How long a trainer waits for others; evaluation on one of them must be shorter."""


@dataclass
class Step:
    """The step that a trainer is in.

    Attributes:
        num_seeds: Seeds of this trainer; none outside of a loop over a share of the plan.
        num_all_seeds: Seeds of all trainers.
        watch: Watches the exchange of gradients; none if nobody wants to know.
    """

    num_seeds: int | None = None
    num_all_seeds: int = 0
    watch: ExchangeWatch | None = None

    def begin(self, num_seeds: int, num_all_seeds: int) -> None:
        """A batch was handed to the script."""
        self.num_seeds, self.num_all_seeds = num_seeds, num_all_seeds

    def end(self) -> None:
        """There are no more batches."""
        self.num_seeds = None

    @property
    def weight(self) -> float:
        """What this trainer's gradients count; a plain mean if nobody knows better."""
        if self.num_seeds is None:
            return 1.0 / dist.get_world_size() if dist.is_initialized() else 1.0
        return self.num_seeds / self.num_all_seeds


STEP = Step()
"""Of this process: loaders begin it, and gradients of prepared models are weighed by it."""


def join_group(device: torch.device, world_size: int, timeout_s: float = TIMEOUT_S) -> None:
    """Meet the other trainers, by torchrun's variables; nothing happens if that was done."""
    if world_size == 1 or dist.is_initialized():
        return
    # NCCL is what torch recommends for GPUs; it is untested here, for want of one.
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s))


def leave_group() -> None:
    """Leave the other trainers, if they were met."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def share_gradients(model: nn.Module, device: torch.device, **settings: Any) -> nn.Module:
    """The model with parameters of rank 0, whose gradients are those of all trainers.

    Args:
        model: On its device already.
        device: Which one that is.
        **settings: Of `DistributedDataParallel`, e.g. `find_unused_parameters`.
    """
    ids = [device] if device.type == "cuda" else None
    shared = DistributedDataParallel(model, device_ids=ids, **settings)
    # Without annotations: torch compares them with types, and here they are text.
    shared.register_comm_hook(STEP, lambda step, bucket: _weighed_sum(step, bucket))  # noqa: PLW0108
    if not settings.get("static_graph") and not settings.get("find_unused_parameters"):
        _fix_buckets(shared)
    return shared


def _fix_buckets(shared: DistributedDataParallel) -> None:
    """Exchange gradients once before they count.

    Torch orders its buckets anew after the first exchange, by which gradients came when. Where in a
    bucket a number is decides in which order gloo sums it, so a run that is resumed would differ
    from one that was not in the last bit: its first step would have buckets of another order.
    """
    if any(getattr(module, "sparse", False) for module in shared.modules()):
        return
    watch, STEP.watch = STEP.watch, None
    learnt = [parameter for parameter in shared.parameters() if parameter.requires_grad]
    before = [parameter.grad for parameter in learnt]
    try:
        shared.reducer.prepare_for_backward([])
        with torch.enable_grad():
            torch.stack([parameter.sum().float() * 0 for parameter in learnt]).sum().backward()
    finally:
        STEP.watch = watch
        for parameter, gradient in zip(learnt, before, strict=True):
            parameter.grad = gradient


def from_first_trainer_all(tensors: Sequence[Tensor]) -> None:
    """Let tensors be those of rank 0, as buffers of a model are in torch's data parallel one."""
    if dist.is_initialized():
        for tensor in tensors:
            dist.broadcast(tensor.detach(), 0)


def sum_over_trainers(values: Sequence[float], device: torch.device) -> list[float]:
    """Sums of each value over all trainers, in double precision."""
    tensor = torch.tensor(values, dtype=torch.float64, device=device)
    if dist.is_initialized():
        dist.all_reduce(tensor)
    sums: list[float] = tensor.tolist()
    return sums


def from_first_trainer(value: float, device: torch.device) -> float:
    """The value that rank 0 has."""
    tensor = torch.tensor([value], dtype=torch.float64, device=device)
    if dist.is_initialized():
        dist.broadcast(tensor, 0)
    return float(tensor.item())


def plain(model: nn.Module) -> nn.Module:
    """The model as the script made it."""
    if isinstance(model, DistributedDataParallel):
        inner: nn.Module = model.module
        return inner
    return model


def _weighed_sum(step: Step, bucket: Any) -> torch.futures.Future[Tensor]:
    gradients: Tensor = bucket.buffer()
    watch = step.watch
    if watch is not None:
        watch.begin(gradients.nbytes, bucket.is_last())
    work = dist.all_reduce(gradients.mul_(step.weight), async_op=True)
    assert work is not None

    def finish(done: Any) -> Tensor:
        if watch is not None:
            watch.end()
        summed: Tensor = done.value()[0]
        return summed

    future: torch.futures.Future[Tensor] = work.get_future().then(finish)
    return future


Tell = Callable[[float, float, int], None]
"""Takes start, end and bytes of an exchange."""


class ExchangeWatch:
    """Watches the buckets of each step; several threads may finish them.

    A trainer computes until its last bucket is ready, and waits until all have been exchanged.

    Args:
        clock: Seconds.
        tell: Told of every exchange: when the last bucket was ready, when all were there, and how
            many bytes of gradients they have.
    """

    def __init__(self, clock: Callable[[], float], tell: Tell) -> None:
        self._clock = clock
        self._tell = tell
        self._lock = threading.Lock()
        self._num_open = 0
        self._num_bytes = 0
        self._ready_s: float | None = None

    def begin(self, num_bytes: int, is_last: bool) -> None:
        """A bucket is ready; its exchange begins."""
        with self._lock:
            self._num_open += 1
            self._num_bytes += num_bytes
            if is_last:
                self._ready_s = self._clock()

    def end(self) -> None:
        """The exchange of a bucket has ended."""
        with self._lock:
            self._num_open -= 1
            if self._num_open or self._ready_s is None:
                return
            told = (self._ready_s, self._clock(), self._num_bytes)
            self._ready_s, self._num_bytes = None, 0
        self._tell(*told)
