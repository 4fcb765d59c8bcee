"""Trace of a training step: floating-point tensors have no data, integers and masks are real.

Shapes that depend on edges, such as `index.max() + 1`, are those of the step. Values of
floating-point tensors are not known: a shape that depends on one raises `ValueDependentError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from headrace.core.errors import ValueDependentError
from headrace.core.step_counts import StepCounts
from headrace.profiling.step_estimate.allocations import Allocations, Event
from headrace.profiling.step_estimate.operation_counts import count

_UNKNOWN = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
_REMEDY = "run a step to measure it"

_FEW_VALUES = 64
"""Smaller floating-point tensors keep their values: layers choose kernels by constants."""

_CASTING = {"add", "div", "mul", "sub"}
"""Operations of the CPU that copy inputs of another type than their result."""

_SCRATCH = {"_unique2": 2, "sort": 1}
"""Memory of kernels beside inputs and outputs, over that of the input: measured with 1e6 64-bit
integers and torch 2.13."""

_IN_PLACE_IN_BACKWARD = {"add", "index_add"}
"""Sums of gradients, which use the memory of a summand that nothing else uses."""

_INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put"}


@dataclass(frozen=True)
class StepTrace:
    """A traced training step.

    Attributes:
        peak_bytes: Largest tensor memory, with parameters, optimizer state and the batch.
        made_of: Bytes at the peak: `parameters`, `gradients`, `optimizer`, `batch`, `activations`.
        counts: What the step does.
    """

    peak_bytes: int
    made_of: Mapping[str, int]
    counts: StepCounts


class StepTracer(TorchDispatchMode):
    """Traces the operations of this thread while it is entered.

    Args:
        round_up: Bytes that the allocator takes for a request.
        on_untraceable: Called before `ValueDependentError` is raised in the traced code.
    """

    def __init__(
        self,
        round_up: Callable[[int], int] = int,
        on_untraceable: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._on_untraceable = on_untraceable
        self._fake = FakeTensorMode(allow_non_fake_inputs=True)
        self._memory = Allocations(round_up)
        self._counts = StepCounts()
        self._depth = 0
        self._optimizers: list[Optimizer] = []
        self._models: list[nn.Module] = []
        self._batch: set[int] = set()
        self._hooks = ExitStack()

    def __enter__(self) -> StepTracer:
        def enter(module: nn.Module, _: Any) -> None:
            if not self._depth and module not in self._models:
                self._models.append(module)
                self._add_parameters(module)
            self._depth += 1

        def leave(*_: Any) -> None:
            self._depth -= 1

        def stepped(optimizer: Optimizer, *_: Any) -> None:
            if optimizer not in self._optimizers:
                self._optimizers.append(optimizer)

        for handle in (
            register_module_forward_pre_hook(enter),
            register_module_forward_hook(leave, always_call=True),
            register_optimizer_step_post_hook(stepped),
        ):
            self._hooks.callback(handle.remove)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._hooks.close()

    def add_batch(self, batch: Any) -> None:
        """Record the tensors of a batch."""
        for tensor in tensors_of(batch):
            self._memory.add(tensor)
            number = self._memory.number(tensor)
            if number is not None:
                self._batch.add(number)

    def next_step(self) -> None:
        """Forget counts and peak: the next step starts."""
        self._counts = StepCounts()
        self._memory.reset_peak()

    def allocations(self) -> tuple[list[Event], list[Event]]:
        """Storages before the step, and what the step allocates and frees."""
        return self._memory.split()

    def result(self) -> StepTrace:
        """The step since `next_step`."""
        parameters = [p for model in self._models for p in model.parameters()]
        buffers = [b for model in self._models for b in model.buffers()]
        gradients = [p.grad for p in parameters if p.grad is not None]
        states = [
            value
            for optimizer in self._optimizers
            for state in optimizer.state.values()
            for value in state.values()
            if isinstance(value, Tensor)
        ]
        kinds = (
            ("parameters", self._numbers([*parameters, *buffers])),
            ("gradients", self._numbers(gradients)),
            ("optimizer", self._numbers(states)),
            ("batch", self._batch),
        )
        made_of = self._memory.at_peak(kinds)
        return StepTrace(self._memory.peak_bytes, made_of, self._counts)

    def _add_parameters(self, module: nn.Module) -> None:
        for tensor in (*module.parameters(), *module.buffers()):
            self._memory.add(tensor)

    def _numbers(self, tensors: Iterable[Tensor]) -> set[int]:
        found = (self._memory.number(tensor) for tensor in tensors)
        return {number for number in found if number is not None}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run an operation on shapes, or really if all its tensors are integers."""
        kwargs = dict(kwargs or {})
        name = func._opname
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if func is torch.ops.aten._local_scalar_dense.default and _has_no_values(inputs[0]):
            return self._value(inputs[0])
        with self._errors_named(func):
            if inputs and not any(map(_has_no_values, inputs)):
                out = self._run(func, args, kwargs)
            elif inputs:
                out = self._run_on_shapes(func, name, inputs, args, kwargs)
            else:
                out = self._create(func, args, kwargs)
        if func._schema.is_mutable:
            out = _unchanged_identity(func, args, kwargs, out)
        outputs = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        reuses = inputs if _is_in_place(name) else ()
        fresh = [tensor for tensor in outputs if self._memory.add(tensor, reuses=reuses)]
        if name in _CASTING and fresh:
            self._memory.peak_with(_cast_bytes(inputs, fresh[0]))
        if name in _SCRATCH and fresh:
            self._memory.peak_with(_SCRATCH[name] * inputs[0].nbytes)
        if func._schema.is_mutable and not fresh:
            fresh = outputs
        self._counts = self._counts.plus(count(name, inputs, fresh))
        return out

    @contextmanager
    def _errors_named(self, func: Any) -> Iterator[None]:
        try:
            yield
        except _UNKNOWN as error:
            self._on_untraceable()
            raise ValueDependentError(f"{func} cannot be traced", _REMEDY) from error

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operation on integers; floating-point results lose their values."""
        out = func(*args, **kwargs)
        return tree_map_only(Tensor, self._without_values, out)

    def _run_on_shapes(
        self, func: Any, name: str, inputs: list[Tensor], args: Any, kwargs: Any
    ) -> Any:
        if name in _INDEXING and any(_is_mask(tensor) for tensor in inputs[1:]):
            args, kwargs = tree_map_only(Tensor, self._as_indices(inputs[0]), (args, kwargs))
        if name == "masked_select" and not _has_no_values(inputs[1]):
            num = int(inputs[1].expand(inputs[0].shape).sum())
            with self._fake:
                return inputs[0].new_empty(num)
        args, kwargs = tree_map_only(Tensor, self._faked, (args, kwargs))
        with self._fake:
            return func(*args, **kwargs)

    def _create(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run a factory function; integers get values."""
        with self._fake:
            out = func(*args, **kwargs)
        made = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        if any(_is_floating(leaf) and leaf.numel() > _FEW_VALUES for leaf in made):
            return out
        return func(*args, **kwargs)

    def _as_indices(self, changed: Tensor) -> Callable[[Tensor], Any]:
        """Replace masks by the indices that the kernel makes of them."""

        def convert(tensor: Tensor) -> Any:
            if tensor is changed or not _is_mask(tensor):
                return tensor
            indices = tensor.nonzero()
            self._memory.peak_with(indices.nbytes)
            return indices.squeeze(1)

        return convert

    def _without_values(self, tensor: Tensor) -> Tensor:
        return self._fake.from_tensor(tensor) if _has_no_values(tensor) else tensor

    def _faked(self, tensor: Tensor) -> Tensor:
        """A tensor without values that stands for a real one; takes no memory."""
        if isinstance(tensor, FakeTensor):
            return tensor
        fake = self._fake.from_tensor(tensor)
        if _is_floating(tensor):
            self._memory.add(tensor)
        self._memory.add(fake, 0)
        return fake

    def _value(self, tensor: Tensor) -> float:
        """A value that a script reads, e.g. its loss."""
        if self._depth:
            self._on_untraceable()
            raise ValueDependentError("the model reads a value in its forward pass", _REMEDY)
        return False if tensor.dtype is torch.bool else 1.0 if _is_floating(tensor) else 1


def trace_steps(step: Callable[[Any], object], batch: Any, num_steps: int = 2) -> StepTrace:
    """Trace training steps of a batch and return the last one.

    The first step creates gradients and optimizer state, so that the second is a usual one.

    Args:
        step: Forward and backward pass and optimizer step.
        batch: Its batch.
        num_steps: How many.

    Raises:
        ValueDependentError: Shapes of the step depend on values.
    """
    tracer = StepTracer()
    tracer.add_batch(batch)
    with torch.random.fork_rng(devices=[]), tracer:
        for _ in range(num_steps):
            tracer.next_step()
            step(batch)
    return tracer.result()


def _unchanged_identity(func: Any, args: Any, kwargs: Any, out: Any) -> Any:
    """Return the arguments that an operation changes instead of their copies without values."""
    written = [
        kwargs[argument.name] if argument.name in kwargs else args[at]
        for at, argument in enumerate(func._schema.arguments)
        if argument.is_write and (argument.name in kwargs or at < len(args))
    ]
    returned = [
        value.alias_info is not None and value.alias_info.is_write for value in func._schema.returns
    ]
    if not any(returned) or not all(returned):
        return out
    return written[0] if len(returned) == 1 else tuple(written)


def tensors_of(batch: Any) -> Iterator[Tensor]:
    """Tensors of a batch, a mapping or a sequence."""
    stores = getattr(batch, "stores", None)
    values = tree_leaves(batch) if stores is None else [v for s in stores for v in s.values()]
    for value in values:
        for leaf in tree_leaves(value):
            if isinstance(leaf, Tensor):
                yield leaf


def _is_in_place(name: str) -> bool:
    """Whether autograd changes its own tensor: it does not if tensors have no data."""
    autograd: Any = torch._C
    return name in _IN_PLACE_IN_BACKWARD and autograd._current_graph_task_id() >= 0


def _cast_bytes(inputs: Sequence[Tensor], output: Tensor) -> int:
    """Bytes of the inputs that are converted to the type of the output."""
    converted = (t for t in inputs if t.dtype != output.dtype and t.dim())
    return sum(tensor.numel() * output.element_size() for tensor in converted)


def _is_floating(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _has_no_values(tensor: Tensor) -> bool:
    return isinstance(tensor, FakeTensor) or (_is_floating(tensor) and tensor.numel() > _FEW_VALUES)


def _is_mask(tensor: Tensor) -> bool:
    return tensor.dtype in (torch.bool, torch.uint8) and not isinstance(tensor, FakeTensor)
