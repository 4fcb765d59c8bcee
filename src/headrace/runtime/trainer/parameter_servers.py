"""Models of a trainer whose parameters are with the run's parameter servers."""

from __future__ import annotations

import time
import weakref
from functools import partial

import torch
from torch import nn

from headrace.core.errors import SpecError
from headrace.runtime.protocol.run_context import RunContext
from headrace.runtime.protocol.trainer_messages import tell_waiting
from headrace.runtime.trainer.step_trace import note_exchanges, steps_of
from headrace.training.ddp import STEP, TIMEOUT_S, from_first_trainer_all
from headrace.training.parameter_server.client import PATIENCE_S, Servers
from headrace.training.parameter_server.remote_optimizer import RemoteOptimizer


class ServedModels:
    """Lets servers make the steps of optimizers, in the order in which they are prepared.

    Args:
        run: With servers.
    """

    def __init__(self, run: RunContext) -> None:
        self._run = run
        self._steps = steps_of(run)
        self._servers: Servers | None = None
        self._shared: dict[nn.Module, RemoteOptimizer] = {}

    def share(self, model: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
        """Make a model learn with all trainers; the group of trainers is met already.

        Raises:
            SpecError: There is no optimizer, servers do not know it, or it is the model's second.
            StoreError: A server is gone, or trainers have different models.
        """
        if optimizer is None:
            raise SpecError(
                "this run has parameter servers, and `prepare` was given no optimizer",
                "call ctx.prepare(model, optimizer), or plan the job with `sync: ring`",
            )
        if model in self._shared:
            raise SpecError(
                "this model was prepared already", "prepare it with one optimizer that has it all"
            )
        steps = self._steps
        self._shared[model] = RemoteOptimizer(
            optimizer,
            self._connect(),
            len(self._shared),
            lambda: STEP.weight,
            None if steps is None else lambda: steps.num_steps,
        )
        # What nobody learns has to be the same too, as it is in torch's data parallel model.
        fixed = [parameter for parameter in model.parameters() if not parameter.requires_grad]
        buffers = list(model.buffers())
        from_first_trainer_all([*fixed, *buffers])
        if buffers:
            optimizer.register_step_post_hook(lambda *_: from_first_trainer_all(buffers))

    def clip(self, model: nn.Module, max_norm: float) -> float:
        """Clip the gradients of a model before its next step; see `RemoteOptimizer.clip`.

        Raises:
            SpecError: The model was not prepared, or its gradients were changed.
        """
        shared = self._shared.get(model)
        if shared is None:
            raise SpecError("this model was not prepared", "call ctx.prepare(model, optimizer)")
        return shared.clip(max_norm)

    def _connect(self) -> Servers:
        if self._servers is None:
            run, steps = self._run, self._steps
            self._servers = Servers.connect(
                run.servers,
                run.load_credentials(),
                run.rank,
                time.monotonic,
                TIMEOUT_S,
                None if steps is None else partial(note_exchanges, steps, run.task),
                partial(tell_waiting, run),
                run.retry_budget_s or PATIENCE_S,
            )
            weakref.finalize(self, self._servers.close)
        return self._servers
