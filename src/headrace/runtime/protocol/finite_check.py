"""Sees whether gradients and losses are finite: parameters that are not never become so again.

A trainer looks at its gradients before each step of an optimizer, so that parameters and
checkpoints stay as they were. Gradients that trainers share are wrong everywhere at once; hooks on
the parameters see what each trainer computed itself.
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
from headrace.runtime.protocol.trainer_messages import send

if TYPE_CHECKING:
    from torch import Tensor
    from torch.utils.hooks import RemovableHandle

KIND = "not finite"
"""Of the message `{"kind": ..., "what": "gradients", "step": 7, "is_own": true}`."""

REMEDY = (
    "see whether features and labels are finite, lower the learning rate, or clip gradients; "
    "--allow-nan lets the run go on"
)
LOSSES = ("loss", "train_loss")
"""Figures that must be finite; other ones may have no value, as of an empty split."""

_NOT_FINITE = ("nan", "inf", "-inf")
"""As messages have such figures."""

_WAIT_S = 30.0
_OTHERS_S = 2.0

_watched: dict[str, GradientCheck] = {}


class GradientCheck:
    """Looks at the gradients of a trainer.

    Args:
        run: Which is told.
    """

    def __init__(self, run: RunContext) -> None:
        self._run, self._num_steps = run, 0
        # By identity: tensors are compared value by value.
        self._hooked: dict[int, weakref.ref[Tensor]] = {}
        self._own: Tensor | None = None

    def hook(self, parameters: Iterable[Tensor]) -> None:
        """Know what this trainer computes itself of some parameters' gradients."""
        for parameter in parameters:
            known = self._hooked.get(id(parameter))
            if parameter.requires_grad and (known is None or known() is not parameter):
                self._hooked[id(parameter)] = weakref.ref(parameter)
                parameter.register_hook(self._note)

    def _note(self, gradient: Tensor) -> None:
        # Zero if all are finite, and not a number otherwise; nothing waits for a GPU here.
        trace = (gradient.sum() * 0).abs().float()
        self._own = trace if self._own is None else self._own.to(trace.device) + trace

    def check(self, parameters: Iterable[Tensor]) -> None:
        """Look at gradients before a step is made of them.

        Raises:
            NotFiniteError: Some are not finite.
        """
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
    """Whether all values are."""
    from torch.nn.utils import get_total_norm

    values = [tensor.coalesce().values() if tensor.is_sparse else tensor for tensor in tensors]
    # The norm takes one pass without a copy; that of very large values may overflow.
    if math.isfinite(float(get_total_norm(values))):
        return True
    return all(bool(value.isfinite().all()) for value in values)


def watch_gradients(run: RunContext) -> RemovableHandle | None:
    """Let this trainer look at its gradients before every step of every optimizer.

    Returns:
        What ends it; none if it does so already, or shall not.
    """
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
    """Know from the first step on what this trainer computes itself."""
    if run is not None and run.world_size > 1 and run.task in _watched:
        _watched[run.task].hook(parameters)


def check_figures(run: RunContext, figures: Mapping[str, Any]) -> None:
    """Look at what a script reports.

    Raises:
        NotFiniteError: A loss is not finite.
    """
    if run.allow_nan:
        return
    for name in LOSSES:
        if figures.get(name) in _NOT_FINITE:
            stop_not_finite(run, f"the reported {name}", None, True)


def stop_not_finite(run: RunContext, what: str, step: int | None, is_own: bool) -> NoReturn:
    """Tell the run, and give it time to stop all trainers with the cause that is known best.

    Raises:
        NotFiniteError: Always.
    """
    send(run.messages, {"kind": KIND, "what": what, "step": step, "is_own": is_own})
    if run.requests is not None:
        # Whoever ends by itself is started again, to come here again.
        time.sleep(_WAIT_S)
    raise NotFiniteError(_problem(what, step), REMEDY)


def _problem(what: str, step: int | None) -> str:
    place = "" if step is None else f" in step {step}"
    return f"{what} {'are' if what == 'gradients' else 'is'} infinite or not a number{place}"


class FiniteCheck:
    """Takes what trainers say, and finds the one that had it first."""

    def __init__(self) -> None:
        self._others: list[tuple[float, str, Mapping[str, Any]]] = []

    def see(self, task: str, message: Mapping[str, Any], now_s: float) -> Failed | None:
        """Take what a trainer said; a failure if it computed that itself.

        Args:
            task: The trainer, and where it is.
            message: As trainers send it.
            now_s: When it came.
        """
        if message["is_own"]:
            problem = _problem(message["what"], message["step"])
            return Failed(f"{task}: {problem}", REMEDY)
        self._others.append((now_s, task, message))
        return None

    def look(self, now_s: float) -> Failed | None:
        """A failure if nobody has said within some time that it was the first."""
        if not self._others or now_s < self._others[0][0] + _OTHERS_S:
            return None
        tasks = ", ".join(dict.fromkeys(task for _, task, _ in self._others))
        message = self._others[0][2]
        return Failed(f"{tasks}: {_problem(message['what'], message['step'])}", REMEDY)
