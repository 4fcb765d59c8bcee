"""Models of a trainer whose parameters are with the run's parameter servers."""

from __future__ import annotations

import time
import weakref
from functools import partial

import torch
from torch import nn

from headrace.core.errors import SpecError
from headrace.runtime.context import RunContext
from headrace.runtime.stepping import note_exchanges, steps_of
from headrace.training.data_parallel import STEP, TIMEOUT_S, from_first_trainer_all
from headrace.training.servers.client import Servers
from headrace.training.servers.sharing import SharedOptimizer


class ServedModels:
    """Lets servers make the steps of optimizers, in the order in which they are prepared.

    Args:
        run: With servers.
    """

    def __init__(self, run: RunContext) -> None:
        self._run = run
        self._steps = steps_of(run)
        self._servers: Servers | None = None
        self._num = 0

    def share(self, model: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
        """Make a model learn with all trainers; the group of trainers is met already.

        Raises:
            SpecError: There is no optimizer, or servers do not know it.
            StoreError: A server is gone, or trainers have different models.
        """
        if optimizer is None:
            raise SpecError(
                "this run has parameter servers, and `prepare` was given no optimizer",
                "call ctx.prepare(model, optimizer), or plan the job with `sync: ring`",
            )
        steps = self._steps
        SharedOptimizer(
            optimizer,
            self._connect(),
            self._num,
            lambda: STEP.weight,
            None if steps is None else lambda: steps.num_steps,
        )
        self._num += 1
        # What nobody learns has to be the same too, as it is in torch's data parallel model.
        fixed = [parameter for parameter in model.parameters() if not parameter.requires_grad]
        buffers = list(model.buffers())
        from_first_trainer_all([*fixed, *buffers])
        if buffers:
            optimizer.register_step_post_hook(lambda *_: from_first_trainer_all(buffers))

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
            )
            weakref.finalize(self, self._servers.close)
        return self._servers
