"""Peak of a step that runs: for models whose shapes depend on values, and to check estimates."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor
from torch.profiler import ProfilerActivity, profile

_MEMORY = "[memory]"


def measured_peak(run: Callable[[], object], held: Iterable[Tensor] = ()) -> int:
    """Largest tensor memory while a function runs, by torch's profiler.

    The profiler does not see that memory is freed which was allocated before, so models are to be
    created by the function.

    Args:
        run: The function.
        held: Tensors that exist before it and are kept.
    """
    sizes = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in held}
    with memory_profile() as profiler:
        run()
    return peak_of(profiler, sum(sizes.values()))


def memory_profile() -> profile:
    """A profiler of tensor memory."""
    return profile(activities=[ProfilerActivity.CPU], profile_memory=True)


def peak_of(profiler: profile, held_bytes: int) -> int:
    """Largest tensor memory that a profiler has seen, with what existed before."""
    results: Any = profiler.profiler
    events = [
        (event.start_ns(), event.nbytes())
        for event in results.kineto_results.events()
        if event.name() == _MEMORY
    ]
    live = peak = held_bytes
    for _, num_bytes in sorted(events, key=lambda event: event[0]):
        live += num_bytes
        peak = max(peak, live)
    return peak
