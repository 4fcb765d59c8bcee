"""Synthetic profile that is used without a measurement."""

from __future__ import annotations

from headrace.core.job import Role
from headrace.core.profile import BatchTraffic, Profile, StoreTraffic, TaskTime, Variation

# Derived in examples/testbed/profile.yaml.
_BYTES_PER_SEED = 93_480.0
_PEAK_TO_MEAN = 1.16
_SEEDS_PER_SAMPLER, _SEEDS_PER_TRAINER = 1000.0, 2000.0
_TASK_TIMES_S = {
    Role.STORE: 28e-3,
    Role.SAMPLER: 29e-3,
    Role.TRAINER: 37e-3,
    Role.SERVER: 2e-3,
}


def default_profile() -> Profile:
    """Return a synthetic profile: GraphSAGE on ogbn-products.

    Volumes follow from fan-out and features; times are estimates for a GTX 1080Ti server. Both are
    derived in `examples/testbed/profile.yaml`. All stores send equally. `note` lists the figures.

    Example:
        >>> import headrace
        >>> headrace.default_profile().source
        'synthetic'
    """
    times = ", ".join(f"{role.value} {1e3 * time:g} ms" for role, time in _TASK_TIMES_S.items())
    variation = Variation(peak_to_mean=_PEAK_TO_MEAN)
    return Profile(
        source="synthetic",
        note=(
            f"GraphSAGE on ogbn-products, {_BYTES_PER_SEED / 1e3:.1f} KB per seed from all stores "
            f"alike and again to the trainer, peak-to-mean {_PEAK_TO_MEAN} from the stores; at "
            f"{_SEEDS_PER_SAMPLER:,.0f} seeds per sampler and {_SEEDS_PER_TRAINER:,.0f} per "
            f"trainer {times} (estimates for a GTX 1080Ti)"
        ),
        seeds_per_sampler=_SEEDS_PER_SAMPLER,
        seeds_per_trainer=_SEEDS_PER_TRAINER,
        task_times={role: {"default": TaskTime(mean=time)} for role, time in _TASK_TIMES_S.items()},
        store_traffic=StoreTraffic(bytes_per_seed=_BYTES_PER_SEED, variation=variation),
        batch_traffic=BatchTraffic(bytes_per_seed=_BYTES_PER_SEED),
    )
