"""Checks that all trainers train one model, by comparing parameters after the first steps.

A script written for one process trains an unrelated model on each trainer. Each trainer sends a
checksum and a sample of the parameters of each optimizer; the driver compares them.
"""

from __future__ import annotations

import weakref
import zlib
from typing import TYPE_CHECKING, Any

from headrace.policies.lifecycle.events import Failed
from headrace.runtime.protocol.run_context import RunContext
from headrace.runtime.protocol.trainer_messages import ParameterChecksum, send

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

_NUM_STEPS = 2
"""Checked steps per optimizer: with equal initial parameters, the first may change nothing."""

_MOST_OPTIMIZERS = 8
_NUM_VALUES = 64
_ROUNDING = 1e-5
"""Relative to the largest value: smaller differences are rounding errors."""

_REMEDY = (
    "train in a function `train_func(ctx)`, with `model, optimizer = ctx.prepare(model, "
    'optimizer)`; or call `torch.distributed.init_process_group("gloo")` and use `model = '
    "DistributedDataParallel(model)`; or pass --independent if each trainer has its own "
    "model"
)

_UNUSED_REMEDY = (
    "pass find_unused_parameters=True to `ctx.prepare`, because the loss does not depend on all "
    "parameters; without `ctx.prepare`, to `DistributedDataParallel`"
)

_watched: set[str] = set()


def send_parameters(run: RunContext) -> RemovableHandle | None:
    """Send this trainer's parameters after the first steps of every optimizer.

    Returns a handle to remove the hook; none if it exists already or there is one trainer.
    """
    if run.world_size == 1 or run.task in _watched:
        return None
    _watched.add(run.task)
    from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

    numbers: weakref.WeakKeyDictionary[Optimizer, list[int]] = weakref.WeakKeyDictionary()
    num_seen = 0

    def stepped(optimizer: Optimizer, *_: Any) -> None:
        nonlocal num_seen
        if optimizer not in numbers:
            numbers[optimizer] = [num_seen, 0]
            num_seen += 1
        seen = numbers[optimizer]
        if seen[0] >= _MOST_OPTIMIZERS or seen[1] >= _NUM_STEPS:
            return
        seen[1] += 1
        number, step = seen
        checksum, values = checksum_of(optimizer), values_of(optimizer)
        sample = ParameterChecksum(number, step, checksum, values, num_unused(optimizer))
        send(run.messages, sample)

    return register_optimizer_step_post_hook(stepped)


def checksum_of(optimizer: Any) -> int:
    """CRC32 of all parameters of an optimizer."""
    import torch

    checksum = 0
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            values = parameter.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)
            checksum = zlib.crc32(values.numpy(), checksum)
    return checksum


def values_of(optimizer: Any) -> list[float]:
    """A sample of the parameters, the same positions on all trainers."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    values: list[float] = []
    for parameter in parameters[:_NUM_VALUES]:
        flat = parameter.detach().reshape(-1)
        flat = flat.abs() if flat.is_complex() else flat
        num = max(1, _NUM_VALUES // len(parameters))
        values += flat[:: max(1, len(flat) // num)][:num].double().tolist()
    return values


def num_unused(optimizer: Any) -> int:
    """Number of parameters without a gradient, although they are trained."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    return sum(each.requires_grad and each.grad is None for each in parameters)


class ParameterCheck:
    """Compares the parameters that trainers send."""

    def __init__(self) -> None:
        self._reported: dict[tuple[int, int], dict[int, tuple[str, list[float]]]] = {}

    def update(self, task: str, message: ParameterChecksum) -> Failed | None:
        """Process a message; return a failure if trainers differ."""
        reported = self._reported.setdefault((message.optimizer, message.step), {})
        reported.setdefault(message.checksum, (task, message.values))
        if len(reported) == 1:
            return None
        (one, ours), (other, theirs) = list(reported.values())[:2]
        pairs = list(zip(ours, theirs, strict=False))
        difference = max((abs(x - y) for x, y in pairs), default=0.0)
        largest = max((abs(x) for pair in pairs for x in pair), default=0.0)
        if len(ours) == len(theirs) and difference <= _ROUNDING * largest:
            return None
        problem = (
            f"{one} and {other} train different models: their parameters differ by up to "
            f"{difference:.2g} after step {message.step}"
        )
        if message.num_unused:
            unused = f"{message.num_unused} parameters have no gradient"
            return Failed(f"{problem}, and {unused}", _UNUSED_REMEDY)
        return Failed(problem, _REMEDY)
