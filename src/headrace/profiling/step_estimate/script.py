"""Trace of the training step of a script, in a process that runs it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from headrace.core.values import Value
from headrace.graph.loader import neighbor_loader
from headrace.linux.atomic_write import atomic_write
from headrace.linux.malloc import return_freed_memory
from headrace.linux.memory import memory_bytes
from headrace.profiling.step_estimate.batch_shape import (
    NUM_BATCHES,
    seeds_of,
    shape_of,
    upper_batch,
)
from headrace.profiling.step_estimate.measured_step import memory_profile, peak_of
from headrace.profiling.step_estimate.replay import resident_bytes
from headrace.profiling.step_estimate.tracer import StepTracer, tensors_of


class EstimateRequest(Value):
    """What to estimate.

    Attributes:
        output: File for the result; it is empty if the step cannot be traced.
        batch_size: Seeds of a batch; None for the script's.
        is_real: Whether to run a step instead of tracing it.
    """

    output: Path
    batch_size: int | None = None
    is_real: bool = False


class ScriptStep(Value):
    """The training step of a script.

    Attributes:
        peak_bytes: Largest tensor memory of a step.
        made_of: Its parts at the peak; empty if the step was run.
        resident_bytes: Anonymous memory that these tensors take.
        base_bytes: Anonymous memory of the process without them.
        batch_bytes: Bytes of a batch.
        batch_size: Seeds of a batch.
        shape: Nodes and edges of the upper batch, in total.
        num_batches: Sampled batches from which the upper shape follows.
        counts: What a step of the median batch does; None if the step was run, or if the batch is
            a part of the full graph.
        parameter_bytes: Bytes of all parameters.
        is_real: Whether the step was run.
        is_full_graph: Whether the batch is a part of the full graph.
    """

    peak_bytes: int
    made_of: Mapping[str, int]
    resident_bytes: int
    base_bytes: int
    batch_bytes: int
    batch_size: int
    shape: tuple[int, int]
    num_batches: int
    counts: tuple[float, ...] | None
    parameter_bytes: int
    is_real: bool
    is_full_graph: bool = False


class ScriptEstimator:
    """Estimates the first training loop of the script; it ends the process.

    Args:
        request: What to estimate.
    """

    def __init__(self, request: EstimateRequest) -> None:
        self._request = request

    def install(self) -> None:
        """Take the batches of all loaders of this process."""
        neighbor_loader.wrap_batches(self._wrap, self._request.batch_size)

    def _wrap(self, begin: Callable[[], Iterator[Any]], is_constant: bool) -> Iterator[Any]:
        # An evaluation before the first training loop runs without gradients.
        return self._steps(begin, is_constant) if torch.is_grad_enabled() else begin()

    def _steps(self, begin: Callable[[], Iterator[Any]], is_constant: bool) -> Iterator[Any]:
        if is_constant:
            # What was needed to read the graph is used again by the steps.
            return_freed_memory()
        base = memory_bytes()
        if is_constant:
            batch = median = next(begin())
            shape, sizes, num_batches = shape_of(batch), [1.0], 1
            # It exists already.
            base = max(0, base - sum(_sizes(batch).values()))
        else:
            epochs = chain.from_iterable(begin() for _ in range(NUM_BATCHES))
            taken = list(islice(epochs, NUM_BATCHES))
            batch, shape, sizes = upper_batch(taken)
            num_batches = len(taken)
            median = taken[sorted(range(num_batches), key=sizes.__getitem__)[num_batches // 2]]
            del taken
        nodes = sum(num for kind, num in shape.items() if not isinstance(kind, tuple))
        edges = sum(num for kind, num in shape.items() if isinstance(kind, tuple))
        batch_bytes = sum(_sizes(batch).values())
        common = {
            "batch_bytes": batch_bytes,
            "batch_size": seeds_of(batch),
            "shape": (nodes, edges),
            "num_batches": num_batches,
            "is_real": self._request.is_real,
            "is_full_graph": is_constant,
        }
        if self._request.is_real:
            yield from self._run_steps(batch, base, common)
        else:
            yield from self._trace_steps(batch, median, base, sizes, common)

    def _trace_steps(
        self, batch: Any, median: Any, base: int, sizes: list[float], common: dict[str, Any]
    ) -> Iterator[Any]:
        tracer = StepTracer(on_untraceable=self._request.output.touch)
        tracer.add_batch(batch)
        with tracer:
            # The first step creates the optimizer's state.
            yield copy.copy(batch)
            first, counts = tracer.result(), None
            tracer.next_step()
            yield copy.copy(batch)
            traced, allocations = tracer.result(), tracer.allocations()
            if not common["is_full_graph"]:
                tracer.next_step()
                yield copy.copy(median)
                counts = tuple(tracer.result().counts)
        parameters = traced.made_of["parameters"]
        resident = resident_bytes(*allocations, sizes)
        if common["is_full_graph"] and first.peak_bytes > traced.peak_bytes:
            # It also prepares constants of the graph.
            traced, resident = first, max(resident, first.peak_bytes)
        self._write(
            ScriptStep(
                peak_bytes=traced.peak_bytes,
                made_of=traced.made_of,
                resident_bytes=resident,
                base_bytes=max(0, base - parameters),
                counts=counts,
                parameter_bytes=parameters,
                **common,
            )
        )

    def _run_steps(self, batch: Any, base: int, common: dict[str, Any]) -> Iterator[Any]:
        models: list[nn.Module] = []
        hook = register_module_forward_pre_hook(lambda module, _: models.append(module))
        with memory_profile() as profiler:
            for _ in range(3):
                yield copy.copy(batch)
        hook.remove()
        parameters = {id(p): p.nbytes for model in models for p in model.parameters()}
        num_bytes = sum(parameters.values())
        self._write(
            ScriptStep(
                peak_bytes=peak_of(profiler, common["batch_bytes"] + num_bytes),
                made_of={},
                resident_bytes=max(0, memory_bytes() - base) + num_bytes,
                base_bytes=max(0, base - num_bytes),
                counts=None,
                parameter_bytes=num_bytes,
                **common,
            )
        )

    def _write(self, found: ScriptStep) -> NoReturn:
        atomic_write(self._request.output, found.model_dump_json())
        raise SystemExit(0)


def _sizes(batch: Any) -> dict[int, int]:
    storages = (tensor.untyped_storage() for tensor in tensors_of(batch))
    return {storage._cdata: storage.nbytes() for storage in storages}
