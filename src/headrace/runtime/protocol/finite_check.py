"""Checks that gradients and losses are finite, before parameters become NaN for good.

A trainer checks its gradients before each optimizer step, so parameters and checkpoints stay
valid. Synchronised gradients are invalid on all trainers at once; hooks on the parameters detect
which trainer computed them.
"""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from headrace.core.errors import NotFiniteError
from headrace.policies.lifecycle.events import Failed
from headrace.runtime.protocol.run_context import RunContext, current_run
from headrace.runtime.protocol.trainer_messages import NonFinite, send

if TYPE_CHECKING:
    from torch import Tensor
    from torch.utils.hooks import RemovableHandle

REMEDY = (
    "check that features and labels are finite, lower the learning rate, or clip gradients; "
    "--allow-nan disables this check"
)
LOSSES = ("loss", "train_loss")
"""Metrics that must be finite; others may have no value, e.g. for an empty split."""

_NOT_FINITE = ("nan", "inf", "-inf")
"""Encoding of such values in messages."""

_STOP_TIMEOUT_S = 30.0
_OWN_REPORT_TIMEOUT_S = 2.0

_watched: dict[str, GradientCheck] = {}


class GradientCheck:
    """Checks the gradients of a trainer."""

    def __init__(self, run: RunContext) -> None:
        self._run, self._num_steps = run, 0
        # By id, because `==` compares tensors by value.
        self._hooked: dict[int, weakref.ref[Tensor]] = {}
        self._own: Tensor | None = None

    def hook(self, parameters: Iterable[Tensor]) -> None:
        """Record this trainer's own gradients of some parameters, before synchronisation."""
        for parameter in parameters:
            known = self._hooked.get(id(parameter))
            if parameter.requires_grad and (known is None or known() is not parameter):
                self._hooked[id(parameter)] = weakref.ref(parameter)
                parameter.register_hook(self._record)

    def _record(self, gradient: Tensor | None) -> None:
        # Torch passes none for parameters that the loss does not use.
        if gradient is None:
            return
        # 0 if all values are finite, else NaN; does not synchronise with the GPU.
        trace = (gradient.sum() * 0).abs().float()
        self._own = trace if self._own is None else self._own.to(trace.device) + trace

    def check(self, parameters: Iterable[Tensor]) -> None:
        """Check gradients before an optimizer step; raises `NotFiniteError`."""
        self._num_steps += 1
        own, self._own = self._own, None
        learnt = [parameter for parameter in parameters if parameter.grad is not None]
        if self._run.world_size > 1:
            self.hook(learnt)
        if not are_finite([parameter.grad for parameter in learnt if parameter.grad is not None]):
            is_own = self._run.world_size == 1
            if own is not None:
                is_own = not math.isfinite(float(own))
            stop_not_finite(self._run, "gradients", self._num_steps, is_own)


def are_finite(tensors: list[Tensor]) -> bool:
    """Whether all values are finite."""
    from torch.nn.utils import get_total_norm

    values = [tensor.coalesce().values() if tensor.is_sparse else tensor for tensor in tensors]
    # The norm is one pass without a copy; it may overflow for very large values.
    if math.isfinite(float(get_total_norm(values))):
        return True
    return all(bool(value.isfinite().all()) for value in values)


def watch_gradients(run: RunContext) -> RemovableHandle | None:
    """Check gradients before every optimizer step; returns a handle to remove a new check."""
    if run.allow_nan or run.task in _watched:
        return None
    from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

    check = _watched[run.task] = GradientCheck(run)

    def before_step(optimizer: Optimizer, *_: Any) -> None:
        if current_run() is not run:
            return
        check.check(parameter for group in optimizer.param_groups for parameter in group["params"])

    return register_optimizer_step_pre_hook(before_step)


def hook_model(run: RunContext | None, parameters: Iterable[Tensor]) -> None:
    """Record this trainer's own gradients from the first step on."""
    if run is not None and run.world_size > 1 and run.task in _watched:
        _watched[run.task].hook(parameters)


def check_figures(run: RunContext, figures: Mapping[str, Any]) -> None:
    """Check the metrics that a script reports; raises `NotFiniteError` for a loss."""
    if run.allow_nan:
        return
    for name in LOSSES:
        if figures.get(name) in _NOT_FINITE:
            stop_not_finite(run, f"the reported {name}", None, True)


def stop_not_finite(run: RunContext, what: str, step: int | None, is_own: bool) -> NoReturn:
    """Notify the driver, wait for it to stop all trainers, and raise `NotFiniteError`."""
    send(run.messages, NonFinite(what, step, is_own))
    if run.requests is not None:
        # A trainer that exits is restarted, and would fail here again.
        time.sleep(_STOP_TIMEOUT_S)
    raise NotFiniteError(_problem(what, step), REMEDY)


def _problem(what: str, step: int | None) -> str:
    place = "" if step is None else f" in step {step}"
    return f"{what} {'are' if what == 'gradients' else 'is'} infinite or not a number{place}"


class FiniteCheck:
    """Collects the trainers' messages and finds the trainer that computed the value."""

    def __init__(self) -> None:
        self._others: list[tuple[float, str, NonFinite]] = []

    def update(self, task: str, message: NonFinite, now_s: float) -> Failed | None:
        """Process a trainer's message; return a failure if it computed the value itself."""
        if message.is_own:
            return Failed(f"{task}: {_problem(message.what, message.step)}", REMEDY)
        self._others.append((now_s, task, message))
        return None

    def poll(self, now_s: float) -> Failed | None:
        """Return a failure if no trainer reported the value as its own in time."""
        if not self._others or now_s < self._others[0][0] + _OWN_REPORT_TIMEOUT_S:
            return None
        tasks = ", ".join(dict.fromkeys(task for _, task, _ in self._others))
        message = self._others[0][2]
        return Failed(f"{tasks}: {_problem(message.what, message.step)}", REMEDY)
