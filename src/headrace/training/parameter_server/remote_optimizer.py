"""Make the steps of a script's optimizer on parameter servers.

Gradients are weighted by hooks, so that a parameter's `grad` is this trainer's summand.
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
from headrace.training.gradient_codec import ErrorFeedback
from headrace.training.parameter_server.client import Servers
from headrace.training.parameter_server.optimizer_specs import SCALARS, name_of, options_of
from headrace.training.parameter_server.sharding import ShardLayout
from headrace.training.parameter_server.types import GradientShard, Shared, States

_DTYPES = {torch.float32: "float32", torch.float64: "float64"}


class RemoteOptimizer:
    """Replaces a script's optimizer; all trainers must create one, in the same order.

    Parameters are set to those of rank 0.

    Args:
        optimizer: The script's optimizer. Its `step`, `state_dict` and `load_state_dict` are
            replaced.
        servers: The parameter servers.
        number: Number of the model, from 0.
        weight: Returns the weight of this trainer's gradients.
        iteration: Returns the iteration, for traces; by default steps are counted.
        is_quantised: Whether gradients are sent in 8 bits.

    Raises:
        SpecError: The optimizer or the dtype of its parameters is not supported.
        StoreError: Trainers have different models, or a server is unreachable.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        servers: Servers,
        number: int,
        weight: Callable[[], float],
        iteration: Callable[[], int] | None = None,
        is_quantised: bool = False,
    ) -> None:
        name = name_of(optimizer)
        self._optimizer, self._servers, self._iteration = optimizer, servers, iteration
        self._feedback = ErrorFeedback() if is_quantised else None
        self._num_steps = 0
        self._held: tuple[GradientShard, float, float] | None = None
        owned = [(p, g) for g, group in enumerate(optimizer.param_groups) for p in group["params"]]
        self._all = [parameter for parameter, _ in owned]
        # Frozen parameters count in the optimizer's numbering, but are not on servers.
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
        self._set_parameters(
            servers.begin(self._shared, name, options_of(optimizer), self._flat.numpy())
        )
        if optimizer.state:
            if servers.rank == 0:
                servers.load(self._shared, self._states(optimizer.state_dict()["state"]))
            optimizer.state.clear()
        self._register_hooks(weight)
        self._replace_methods()

    def _vector(self) -> tuple[Tensor, list[Tensor]]:
        """A flat vector of all parameters, and a view for each."""
        layout = self._shared.layout
        flat = torch.zeros(layout.num_elements, dtype=getattr(torch, self._shared.dtype))
        views = [
            flat[start : start + size].view(parameter.shape)
            for start, size, parameter in zip(
                layout.starts, layout.sizes, self._learnt, strict=True
            )
        ]
        return flat, views

    def _register_hooks(self, weight: Callable[[], float]) -> None:
        def record(parameter: Tensor, number: int) -> None:
            assert parameter.grad is not None
            self._seen[number] = (parameter.grad, parameter.grad._version)

        for number, parameter in enumerate(self._learnt):
            parameter.register_hook(lambda gradient: gradient * weight())
            parameter.register_post_accumulate_grad_hook(
                lambda parameter, number=number: record(parameter, number)
            )

    def _replace_methods(self) -> None:
        optimizer: Any = self._optimizer

        @wraps(type(optimizer).step)
        def step(_: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
            return self.step(closure)

        # With torch's hooks; schedulers created before or after must accept it.
        hooked: Any = Optimizer.profile_hook_step(step)
        hooked._wrapped_by_lr_sched = True
        optimizer.step = MethodType(hooked, optimizer)
        optimizer.state_dict = MethodType(lambda _: self.state_dict(), optimizer)
        optimizer.load_state_dict = MethodType(
            lambda _, state_dict: self.load_state_dict(state_dict), optimizer
        )

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make a step on the servers and update the parameters."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._held is None:
            values = self._servers.step(self._shared, self._shard())
        else:
            shard, _, factor = self._held
            values, self._held = self._servers.scale(self._shared, shard, factor), None
        self._set_parameters(values)
        self._seen.clear()
        self._optimizer._opt_called = True  # type: ignore[attr-defined]
        return loss

    def clip(self, max_norm: float) -> float:
        """Clip the gradient norm of the next step, on all trainers; returns the previous norm."""
        if self._held is None:
            shard = self._shard()
            self._held = (shard, math.sqrt(self._servers.hold(self._shared, shard)), 1.0)
        shard, norm, factor = self._held
        # Same formula as torch; may be called repeatedly.
        now = norm * factor
        self._held = (shard, norm, factor * min(1.0, max_norm / (now + 1e-6)))
        return now

    def _shard(self) -> GradientShard:
        """This trainer's gradients for the next step."""
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
        encoded = None
        if self._feedback is not None:
            bounds = [self._shared.layout.bounds(number) for number in range(len(self._servers))]
            encoded = tuple(
                self._feedback.encode(number, gradients[slice(*each)])
                for number, each in enumerate(bounds)
            )
        if self._servers.rank == 0:
            gradients = gradients.copy()
            options, changed = options_of(self._optimizer), self._changed()
        count = self._num_steps
        iteration = count - 1 if self._iteration is None else self._iteration()
        return GradientShard(count, iteration, gradients, present, options, changed, encoded)

    def state_dict(self) -> dict[str, Any]:
        """Like torch's, with the state of the servers."""
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
        """Like torch's: sets the options here; rank 0 sends the state to the servers."""
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
                "the parameters of the optimizer changed after it was prepared",
                "add them before `ctx.prepare`, or plan the job with `sync: ring`",
            )
        for number, (gradient, version) in self._seen.items():
            if self._learnt[number].grad is gradient and gradient._version != version:
                raise SpecError(
                    "gradients were changed between backward() and step(): each trainer has only "
                    "its own summand, parameter servers compute the sum",
                    "clip with ctx.clip_grad_norm(model, max_norm), do not change them otherwise",
                )

    def _changed(self) -> np.ndarray | None:
        """Parameters, if the script has changed them since the last step."""
        torch._foreach_copy_(self._views, [p.detach() for p in self._learnt])
        return None if torch.equal(self._flat, self._last) else self._flat.numpy()

    def _set_parameters(self, values: np.ndarray) -> None:
        self._last.copy_(torch.from_numpy(values))
        with torch.no_grad():
            torch._foreach_copy_(self._learnt, self._old)


def _dtype_of(parameters: list[Tensor]) -> str:
    kinds = {parameter.dtype for parameter in parameters}
    if len(kinds) > 1 or not kinds <= _DTYPES.keys():
        names = ", ".join(sorted(str(kind) for kind in kinds))
        raise SpecError(
            f"unsupported parameter dtypes: {names}",
            "use torch.float32 or torch.float64 for all, or plan the job with `sync: ring`",
        )
    return _DTYPES[kinds.pop()] if kinds else "float32"
