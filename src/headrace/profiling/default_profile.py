"""What stands in for a measurement nobody has made yet, and says so."""

from __future__ import annotations

from headrace.core.job import Role
from headrace.core.profile import BatchTraffic, Profile, StoreTraffic, TaskTime, Variation

# All figures as in examples/testbed/profile.yaml, which derives every one of them.
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
    """A synthetic profile for a first look when none is given: GraphSAGE on ogbn-products.

    Volumes follow from the fan-out and the features, times are estimates for a GTX 1080Ti server;
    `examples/testbed/profile.yaml` derives both. All stores send alike. The profile's `note` names
    the figures, for whoever shows results that rest on them.

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
