"""Data-parallel training with gradients weighted by the number of seeds.

A loss is the mean over a trainer's seeds. Weighted by the trainer's fraction of all seeds of the
iteration, the sum over trainers equals the gradient of one process with the whole batch. The plan
contains these numbers, so only gradients are exchanged.
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

from headrace.training import gradient_codec
from headrace.training.quantised_ring import QuantisedSum

TIMEOUT_S = 600.0
"""Timeout for other trainers; evaluation on one of them must be shorter."""


@dataclass
class Step:
    """The current step of a trainer.

    Attributes:
        num_seeds: Seeds of this trainer; None outside of a loop over planned batches.
        num_all_seeds: Seeds of all trainers.
        watch: Measures the exchange of gradients, if set.
    """

    num_seeds: int | None = None
    num_all_seeds: int = 0
    watch: ExchangeWatch | None = None

    def begin(self, num_seeds: int, num_all_seeds: int) -> None:
        """Set the numbers of seeds of a batch that the loader returns."""
        self.num_seeds, self.num_all_seeds = num_seeds, num_all_seeds

    def end(self) -> None:
        """Reset after the last batch."""
        self.num_seeds = None

    @property
    def weight(self) -> float:
        """Weight of this trainer's gradients; 1 / world size if seeds are not counted."""
        if self.num_seeds is None:
            return 1.0 / dist.get_world_size() if dist.is_initialized() else 1.0
        return self.num_seeds / self.num_all_seeds


STEP = Step()
"""Step of this process: set by loaders, used to weight the gradients of prepared models."""


def join_group(device: torch.device, world_size: int, timeout_s: float = TIMEOUT_S) -> None:
    """Join the process group by torchrun's variables, unless already joined."""
    if world_size == 1 or dist.is_initialized():
        return
    # NCCL is recommended by torch for GPUs; not tested.
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s))


_GROUPS: list[object] = []
_LEFT: list[object] = []


def new_group(world_size: int, timeout_s: float = TIMEOUT_S) -> Any:
    """Create another gloo group of all trainers; None for a single one. A collective call."""
    if world_size == 1:
        return None
    group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
    _GROUPS.append(group)
    return group


def leave_group() -> None:
    """Leave the process group, if joined.

    Groups are kept in memory: torch joins gloo's threads when it destroys one, while it holds the
    interpreter's lock. A thread that needs the lock to free a tensor then never ends.
    """
    if dist.is_available() and dist.is_initialized():
        _LEFT.extend([dist.group.WORLD, *_GROUPS])
        _GROUPS.clear()
        dist.destroy_process_group()


def has_left_group() -> bool:
    """Whether this process keeps a process group that it has left."""
    return bool(_LEFT)


def share_gradients(
    model: nn.Module, device: torch.device, is_quantised: bool = False, **settings: Any
) -> nn.Module:
    """Wrap a model for data-parallel training, with the parameters of rank 0.

    Args:
        model: The model, already on its device.
        device: Device of the model.
        is_quantised: Whether gradients are exchanged in 8 bits; not during the backward pass then.
        **settings: Arguments of `DistributedDataParallel`, e.g. `find_unused_parameters`.
    """
    ids = [device] if device.type == "cuda" else None
    shared = DistributedDataParallel(model, device_ids=ids, **settings)
    # Lambdas, because torch checks annotations of hooks and these are strings.
    if is_quantised:
        total = QuantisedSum()
        shared.register_comm_hook(STEP, lambda step, bucket: _quantised_sum(total, step, bucket))
    else:
        shared.register_comm_hook(STEP, lambda step, bucket: _weighed_sum(step, bucket))  # noqa: PLW0108
    if not settings.get("static_graph") and not settings.get("find_unused_parameters"):
        _fix_buckets(shared)
    return shared


def _fix_buckets(shared: DistributedDataParallel) -> None:
    """Exchange zero gradients once, so that torch fixes its buckets.

    Torch reorders its buckets after the first exchange, by the order in which gradients were ready.
    The position in a bucket determines in which order gloo sums, so a resumed run would differ from
    an uninterrupted one in the last bit.
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
    """Broadcast tensors of rank 0, as torch's data-parallel wrapper does for buffers."""
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
    """Broadcast the value of rank 0."""
    tensor = torch.tensor([value], dtype=torch.float64, device=device)
    if dist.is_initialized():
        dist.broadcast(tensor, 0)
    return float(tensor.item())


def plain(model: nn.Module) -> nn.Module:
    """The model without its data-parallel wrapper."""
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


def _quantised_sum(total: QuantisedSum, step: Step, bucket: Any) -> torch.futures.Future[Tensor]:
    gradients: Tensor = bucket.buffer()
    watch = step.watch
    if watch is not None:
        watch.begin(gradient_codec.packed_bytes(gradients.numel()), bucket.is_last())
    # Waits for both exchanges: a second one started by another thread could overtake one of the
    # next bucket.
    summed = total(bucket.index(), gradients.mul_(step.weight))
    if watch is not None:
        watch.end()
    future: torch.futures.Future[Tensor] = torch.futures.Future()
    future.set_result(summed)
    return future


Notify = Callable[[float, float, int], None]
"""Called with start, end and bytes of an exchange."""


class ExchangeWatch:
    """Measures the gradient exchange of each step; several threads may end buckets.

    Args:
        clock: Returns seconds.
        tell: Called for every exchange with the time when the last bucket was ready, the time when
            all were exchanged, and the bytes of gradients.
    """

    def __init__(self, clock: Callable[[], float], notify: Notify) -> None:
        self._clock = clock
        self._notify = notify
        self._lock = threading.Lock()
        self._num_open = 0
        self._num_bytes = 0
        self._ready_s: float | None = None

    def begin(self, num_bytes: int, is_last: bool) -> None:
        """Record that a bucket is ready and its exchange starts."""
        with self._lock:
            self._num_open += 1
            self._num_bytes += num_bytes
            if is_last:
                self._ready_s = self._clock()

    def end(self) -> None:
        """Record the end of a bucket's exchange."""
        with self._lock:
            self._num_open -= 1
            if self._num_open or self._ready_s is None:
                return
            exchange = (self._ready_s, self._clock(), self._num_bytes)
            self._ready_s, self._num_bytes = None, 0
        self._notify(*exchange)
