"""Seeded random sets of open flows for the policies."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.policies.flow import Flow
from tests.oracle.policies import OpenFlow


@dataclass(frozen=True)
class OpenSet:
    """Open flows, the NICs they cross and a pace."""

    flows: list[Flow]
    nic_out: np.ndarray
    nic_in: np.ndarray
    pace_s: float

    def twins(self) -> list[OpenFlow]:
        """The same flows for the plain-Python rules."""
        return [OpenFlow(**vars(flow)) for flow in self.flows]

    def port_use(self, rates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Bytes per second through every outgoing and incoming port."""
        use_out, use_in = np.zeros(len(self.nic_out)), np.zeros(len(self.nic_in))
        for flow, rate in zip(self.flows, rates, strict=True):
            use_out[flow.src] += rate
            use_in[flow.dst] += rate
        return use_out, use_in


def random_open_set(seed: int, *, symmetric: bool = False) -> OpenSet:
    """Draw open flows, listed in no particular order.

    Args:
        seed: Same seed, same flows.
        symmetric: Draw all quantities from a few round numbers, so that ties abound.
    """
    rng = np.random.default_rng([seed, 0xF10])
    num_machines = int(rng.integers(2, 7))
    num_flows = int(rng.integers(1, 25))

    def quantity(low: float, high: float) -> float:
        if symmetric:
            return float(rng.choice([low, 2 * low, 4 * low]))
        return float(np.exp(rng.uniform(np.log(low), np.log(high))))

    flows = []
    for edge in rng.choice(1_000, size=num_flows, replace=False):
        src = int(rng.integers(num_machines))
        volume = quantity(64, 1e4)
        flows.append(
            Flow(
                src=src,
                dst=(src + int(rng.integers(1, num_machines))) % num_machines,
                task=int(rng.integers(6)),
                edge=int(edge),
                kind=int(rng.integers(5)),
                iteration=int(rng.integers(4)),
                volume=volume,
                remaining=volume / 2 if symmetric else volume * float(rng.uniform(0.01, 1)),
                opened=quantity(1, 100),
            )
        )
    return OpenSet(
        flows=flows,
        nic_out=np.array([quantity(128, 4e3) for _ in range(num_machines)]),
        nic_in=np.array([quantity(128, 4e3) for _ in range(num_machines)]),
        pace_s=quantity(0.5, 50),
    )
