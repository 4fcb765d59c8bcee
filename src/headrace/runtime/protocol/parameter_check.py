"""Sees whether trainers train one model: their parameters are compared after the first steps.

A script that was written for one process trains as many unrelated models as there are trainers, and
nothing else would say so. Each trainer sends a checksum of the parameters of each optimizer after
its first steps, and some of them; the driver compares them.
"""

from __future__ import annotations

import weakref
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headrace.policies.lifecycle.events import Failed
from headrace.runtime.protocol.run_context import RunContext
from headrace.runtime.protocol.trainer_messages import send

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

_NUM_STEPS = 2
"""Of each optimizer: with the same first parameters, the first may change nothing yet."""

_MOST_OPTIMIZERS = 8
_NUM_VALUES = 64
_ROUNDING = 1e-5
"""Of the largest value: models that differ by less are one, which was rounded differently."""

_REMEDY = (
    "let a function `train_func(ctx)` train, with `model, optimizer = ctx.prepare(model, "
    'optimizer)`; or call `torch.distributed.init_process_group("gloo")` and use `model = '
    "DistributedDataParallel(model)`; or say --independent if each trainer shall have a model of "
    "its own"
)

_watched: set[str] = set()


def tell_parameters(run: RunContext) -> RemovableHandle | None:
    """Let this trainer say what its parameters are after the first steps of every optimizer.

    The message is `{"kind": "parameters", "optimizer": 0, "step": 1, "checksum": ..., "values":
    [...]}`.

    Returns:
        What ends it; none if it does so already, or is the only trainer.
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
        checksum = checksum_of(optimizer)
        message = {"optimizer": seen[0], "step": seen[1], "checksum": checksum}
        send(run.messages, {"kind": "parameters", **message, "values": values_of(optimizer)})

    return register_optimizer_step_post_hook(stepped)


def checksum_of(optimizer: Any) -> int:
    """Of all parameters that an optimizer learns."""
    import torch

    checksum = 0
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            values = parameter.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)
            checksum = zlib.crc32(values.numpy(), checksum)
    return checksum


def values_of(optimizer: Any) -> list[float]:
    """Some of the parameters, the same ones of all trainers."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    values: list[float] = []
    for parameter in parameters[:_NUM_VALUES]:
        flat = parameter.detach().reshape(-1)
        flat = flat.abs() if flat.is_complex() else flat
        num = max(1, _NUM_VALUES // len(parameters))
        values += flat[:: max(1, len(flat) // num)][:num].double().tolist()
    return values


class ParameterCheck:
    """Compares what trainers say of their parameters."""

    def __init__(self) -> None:
        self._said: dict[tuple[int, int], dict[int, tuple[str, list[float]]]] = {}

    def see(self, task: str, message: Mapping[str, Any]) -> Failed | None:
        """Take what a trainer said; a failure if another one said something else.

        Args:
            task: The trainer, and where it is.
            message: Of the kind `parameters`.
        """
        step = message["step"]
        said = self._said.setdefault((message["optimizer"], step), {})
        said.setdefault(message["checksum"], (task, message["values"]))
        if len(said) == 1:
            return None
        (one, ours), (other, theirs) = list(said.values())[:2]
        pairs = list(zip(ours, theirs, strict=False))
        difference = max((abs(x - y) for x, y in pairs), default=0.0)
        largest = max((abs(x) for pair in pairs for x in pair), default=0.0)
        if len(ours) == len(theirs) and difference <= _ROUNDING * largest:
            return None
        problem = (
            f"{one} and {other} train different models: their parameters differ by up to "
            f"{difference:.2g} after step {step}"
        )
        return Failed(problem, _REMEDY)
