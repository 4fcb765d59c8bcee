"""An optimizer whose steps are made by parameter servers; it stays the object that the script has.

Gradients are weighed as they come, so that a parameter's `grad` is this trainer's part of the sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import wraps
from types import MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from headrace.core.errors import SpecError
from headrace.training.parameter_server.client import Servers
from headrace.training.parameter_server.optimizer_specs import SCALARS, name_of, options_of
from headrace.training.parameter_server.sharding import ShardLayout
from headrace.training.parameter_server.types import GradientShard, Shared, States

_DTYPES = {torch.float32: "float32", torch.float64: "float64"}


class RemoteOptimizer:
    """Stands behind a script's optimizer; all trainers must make one, in the same order.

    Its parameters become those of rank 0.

    Args:
        optimizer: Of the script. Its `step`, `state_dict` and `load_state_dict` are replaced.
        servers: Who make the steps.
        number: Of the model, from 0.
        weight: What this trainer's gradients count, asked whenever there are some.
        iteration: Of the training, for traces; steps are counted if nobody knows.

    Raises:
        SpecError: Servers do not know the optimizer, or cannot have its parameters.
        StoreError: Trainers have different models, or a server is gone.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        servers: Servers,
        number: int,
        weight: Callable[[], float],
        iteration: Callable[[], int] | None = None,
    ) -> None:
        name = name_of(optimizer)
        self._optimizer, self._servers, self._iteration = optimizer, servers, iteration
        self._num_steps = 0
        self._held: tuple[GradientShard, float, float] | None = None
        owned = [(p, g) for g, group in enumerate(optimizer.param_groups) for p in group["params"]]
        self._all = [parameter for parameter, _ in owned]
        # Those that stay as they are belong to the optimizer's numbering, but not to servers.
        self._index = [i for i, parameter in enumerate(self._all) if parameter.requires_grad]
        self._learnt: list[Tensor] = [self._all[i] for i in self._index]
        sizes = [parameter.numel() for parameter in self._learnt]
        self._shared = Shared(
            number,
            ShardLayout.of(sizes, len(servers)),
            tuple(owned[i][1] for i in self._index),
            _dtype_of(self._learnt),
        )
        self._flat, self._views = self._vector()
        self._last, self._old = self._vector()
        self._seen: dict[int, tuple[Tensor, int]] = {}
        torch._foreach_copy_(self._views, [p.detach() for p in self._learnt])
        self._take(servers.begin(self._shared, name, options_of(optimizer), self._flat.numpy()))
        if optimizer.state:
            if servers.rank == 0:
                servers.load(self._shared, self._states(optimizer.state_dict()["state"]))
            optimizer.state.clear()
        self._watch(weight)
        self._replace()

    def _vector(self) -> tuple[Tensor, list[Tensor]]:
        """Room for all parameters, and where each of them is in it."""
        layout = self._shared.layout
        flat = torch.zeros(layout.num_elements, dtype=getattr(torch, self._shared.dtype))
        views = [
            flat[start : start + size].view(parameter.shape)
            for start, size, parameter in zip(
                layout.starts, layout.sizes, self._learnt, strict=True
            )
        ]
        return flat, views

    def _watch(self, weight: Callable[[], float]) -> None:
        def note(parameter: Tensor, number: int) -> None:
            assert parameter.grad is not None
            self._seen[number] = (parameter.grad, parameter.grad._version)

        for number, parameter in enumerate(self._learnt):
            parameter.register_hook(lambda gradient: gradient * weight())
            parameter.register_post_accumulate_grad_hook(
                lambda parameter, number=number: note(parameter, number)
            )

    def _replace(self) -> None:
        optimizer: Any = self._optimizer

        @wraps(type(optimizer).step)
        def step(_: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
            return self.step(closure)

        # With torch's hooks, and known to schedulers, whether they were made before or after.
        hooked: Any = Optimizer.profile_hook_step(step)
        hooked._wrapped_by_lr_sched = True
        optimizer.step = MethodType(hooked, optimizer)
        optimizer.state_dict = MethodType(lambda _: self.state_dict(), optimizer)
        optimizer.load_state_dict = MethodType(
            lambda _, state_dict: self.load_state_dict(state_dict), optimizer
        )

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Let the servers make a step; parameters are those after it.

        Raises:
            SpecError: Parameters were added, or gradients changed since `backward`.
            StoreError: Other trainers do not come, or a server is gone.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._held is None:
            values = self._servers.step(self._shared, self._part())
        else:
            part, _, factor = self._held
            values, self._held = self._servers.scale(self._shared, part, factor), None
        self._take(values)
        self._seen.clear()
        self._optimizer._opt_called = True  # type: ignore[attr-defined]
        return loss

    def clip(self, max_norm: float) -> float:
        """Let the next step use gradients whose norm is no larger; all trainers must ask.

        Returns:
            The norm of the gradients of all trainers together, as they were.

        Raises:
            SpecError: Parameters were added, or gradients changed since `backward`.
            StoreError: Other trainers do not come, or a server is gone.
        """
        if self._held is None:
            part = self._part()
            self._held = (part, math.sqrt(self._servers.hold(self._shared, part)), 1.0)
        part, norm, factor = self._held
        # As torch clips; for the second time if the script does.
        now = norm * factor
        self._held = (part, norm, factor * min(1.0, max_norm / (now + 1e-6)))
        return now

    def _part(self) -> GradientShard:
        """What this trainer has for the next step."""
        self._check()
        self._num_steps += 1
        present = np.array([p.grad is not None for p in self._learnt], bool)
        for view, parameter in zip(self._views, self._learnt, strict=True):
            gradient = parameter.grad
            if gradient is None:
                view.zero_()
            else:
                view.copy_(gradient.to_dense() if gradient.is_sparse else gradient)
        gradients, options, changed = self._flat.numpy(), None, None
        if self._servers.rank == 0:
            gradients = gradients.copy()
            options, changed = options_of(self._optimizer), self._changed()
        count = self._num_steps
        iteration = count - 1 if self._iteration is None else self._iteration()
        return GradientShard(count, iteration, gradients, present, options, changed)

    def state_dict(self) -> dict[str, Any]:
        """As torch's, with what the servers keep."""
        whole: dict[str, Any] = type(self._optimizer).state_dict(self._optimizer)
        layout, kept = self._shared.layout, whole["state"]
        for name, (values, has) in self._servers.state(self._shared).items():
            for number in np.flatnonzero(has).tolist():
                parameter, start = self._learnt[number], layout.starts[number]
                if name in SCALARS:
                    value = torch.tensor(values[number], dtype=torch.get_default_dtype())
                else:
                    own = values[start : start + layout.sizes[number]]
                    value = torch.from_numpy(own.copy()).view(parameter.shape)
                kept.setdefault(self._index[number], {})[name] = value
        return whole

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """As torch's: options for this trainer, all else for the servers, by rank 0."""
        type(self._optimizer).load_state_dict(self._optimizer, {**state_dict, "state": {}})
        if self._servers.rank == 0:
            self._servers.load(self._shared, self._states(state_dict["state"]))

    def _states(self, state: Mapping[int, Mapping[str, Any]]) -> States:
        layout = self._shared.layout
        found: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        for number, index in enumerate(self._index):
            start, size = layout.starts[number], layout.sizes[number]
            for name, value in state.get(index, {}).items():
                if value is None:
                    continue
                if name not in found:
                    is_scalar = name in SCALARS
                    values = (
                        np.zeros(len(layout.sizes))
                        if is_scalar
                        else np.zeros(layout.num_elements, self._shared.dtype)
                    )
                    found[name] = (values, np.zeros(len(layout.sizes), bool))
                values, has = found[name]
                has[number] = True
                if name in SCALARS:
                    values[number] = float(value)
                else:
                    values[start : start + size] = value.detach().cpu().reshape(-1).numpy()
        return found

    def _check(self) -> None:
        groups = self._optimizer.param_groups
        if [id(p) for group in groups for p in group["params"]] != [id(p) for p in self._all]:
            raise SpecError(
                "the optimizer has other parameters than when it was prepared",
                "add them before `ctx.prepare`, or plan the job with `sync: ring`",
            )
        for number, (gradient, version) in self._seen.items():
            if self._learnt[number].grad is gradient and gradient._version != version:
                raise SpecError(
                    "gradients were changed between backward() and step(): each trainer has only "
                    "its part of them, the sum is made by parameter servers",
                    "clip with ctx.clip_grad_norm(model, max_norm), do not change them otherwise",
                )

    def _changed(self) -> np.ndarray | None:
        """Parameters, if the script has changed them since the last step."""
        torch._foreach_copy_(self._views, [p.detach() for p in self._learnt])
        return None if torch.equal(self._flat, self._last) else self._flat.numpy()

    def _take(self, values: np.ndarray) -> None:
        self._last.copy_(torch.from_numpy(values))
        with torch.no_grad():
            torch._foreach_copy_(self._learnt, self._old)


def _dtype_of(parameters: list[Tensor]) -> str:
    kinds = {parameter.dtype for parameter in parameters}
    if len(kinds) > 1 or not kinds <= _DTYPES.keys():
        names = ", ".join(sorted(str(kind) for kind in kinds))
        raise SpecError(
            f"parameters are {names}",
            "let all be torch.float32 or all torch.float64, or plan the job with `sync: ring`",
        )
    return _DTYPES[kinds.pop()] if kinds else "float32"
