"""A trainer's models whose parameters are on the run's parameter servers."""

from __future__ import annotations

import time
import weakref
from functools import partial

import torch
from torch import nn

from headrace.core.errors import SpecError
from headrace.runtime.protocol.run_context import RunContext
from headrace.runtime.protocol.trainer_messages import send_waiting
from headrace.runtime.trainer.step_trace import record_exchanges, steps_of
from headrace.training.ddp import STEP, TIMEOUT_S, from_first_trainer_all
from headrace.training.parameter_server.client import PATIENCE_S, Servers
from headrace.training.parameter_server.remote_optimizer import RemoteOptimizer


class ServedModels:
    """Delegates optimizer steps to parameter servers; models are numbered in order."""

    def __init__(self, run: RunContext) -> None:
        self._run = run
        self._steps = steps_of(run)
        self._servers: Servers | None = None
        self._shared: dict[nn.Module, RemoteOptimizer] = {}

    def synchronise(
        self, model: nn.Module, optimizer: torch.optim.Optimizer | None, is_quantised: bool = False
    ) -> None:
        """Train a model with all trainers; needs the process group.

        With `is_quantised`, trainers send gradients in 8 bits. Raises `SpecError` if there is no
        supported optimizer or the model has one already, and `StoreError` if a server is
        unreachable or the models of trainers differ.
        """
        if optimizer is None:
            raise SpecError(
                "this run uses parameter servers, but `prepare` was called without an optimizer",
                "call ctx.prepare(model, optimizer), or plan the job with `sync: ring`",
            )
        if model in self._shared:
            raise SpecError(
                "this model was prepared already",
                "prepare it once, with one optimizer for all parameters",
            )
        steps = self._steps
        self._shared[model] = RemoteOptimizer(
            optimizer,
            self._connect(),
            len(self._shared),
            lambda: STEP.weight,
            None if steps is None else lambda: steps.num_steps,
            is_quantised,
        )
        # Like DDP, synchronise what is not trained too.
        fixed = [parameter for parameter in model.parameters() if not parameter.requires_grad]
        buffers = list(model.buffers())
        from_first_trainer_all([*fixed, *buffers])
        if buffers:
            optimizer.register_step_post_hook(lambda *_: from_first_trainer_all(buffers))

    def clip(self, model: nn.Module, max_norm: float) -> float:
        """Clip a model's gradients before its next step; see `RemoteOptimizer.clip`."""
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
                None if steps is None else partial(record_exchanges, steps, run.task),
                partial(send_waiting, run),
                run.retry_budget_s or PATIENCE_S,
            )
            weakref.finalize(self, self._servers.close)
        return self._servers
