"""Interface of flow policies: rates of the open flows given the NIC bandwidths.

A policy is a numba function over a structured array of flows (`FLOW_DTYPE`), so that the simulator
calls it from compiled code. `FlowPolicy.rates` calls the same function for live flows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

FLOW_DTYPE = np.dtype(
    [
        ("src", np.int32),
        ("dst", np.int32),
        ("task", np.int32),
        ("edge", np.int32),
        ("kind", np.int32),
        ("iteration", np.int32),
        ("volume", np.float64),
        ("remaining", np.float64),
        ("opened", np.float64),
    ],
    align=True,
)
"""Open flow in the kernels; the fields are those of `Flow`."""


@dataclass(frozen=True)
class Flow:
    """One open flow between two machines.

    Attributes:
        src: Sending machine.
        dst: Receiving machine.
        task: Consuming task.
        edge: Task pair; unique among open flows, breaks ties.
        kind: `EdgeKind` of the data.
        iteration: Iteration of the producer.
        volume: Total bytes.
        remaining: Bytes not yet sent; positive.
        opened: Opening time in seconds.
    """

    src: int
    dst: int
    task: int
    edge: int
    kind: int
    iteration: int
    volume: float
    remaining: float
    opened: float


Kernel = Callable[[np.ndarray, np.ndarray, np.ndarray, float, np.ndarray], float | None]
"""(flows, nic_out, nic_in, pace_s, rates): writes bytes per second per flow to `rates`.

Rates hold until the set of open flows changes, or at most for the returned seconds, if any.
"""


@dataclass(frozen=True)
class FlowPolicy:
    """A named rate allocation rule.

    Every policy keeps each NIC within its capacity, gives at least one open flow a positive rate,
    and does not depend on the order of flows.

    Attributes:
        name: Name in plans and options.
        code: Number in the kernels.
        rule: One-line description.
        kernel: The compiled rule.
    """

    name: str
    code: int
    rule: str
    kernel: Kernel

    def rates(
        self,
        flows: Sequence[Flow],
        nic_out_bytes_per_s: np.ndarray,
        nic_in_bytes_per_s: np.ndarray,
        pace_s: float = np.inf,
    ) -> np.ndarray:
        """Rates of live flows.

        Args:
            flows: All open flows between machines.
            nic_out_bytes_per_s: Outgoing bandwidth per machine.
            nic_in_bytes_per_s: Incoming bandwidth per machine.
            pace_s: Period of `paced`: the plan's largest NIC load per iteration.

        Returns:
            Bytes per second, in the order of `flows`.
        """
        table = np.array(
            [
                (f.src, f.dst, f.task, f.edge, f.kind, f.iteration, f.volume, f.remaining, f.opened)
                for f in flows
            ],
            dtype=FLOW_DTYPE,
        )
        # Sort by edge: the summation order must not depend on the order of the caller's list.
        order = np.argsort(table["edge"], kind="stable")
        sorted_rates = np.zeros(len(table))
        nic_out = np.ascontiguousarray(nic_out_bytes_per_s, dtype=np.float64)
        nic_in = np.ascontiguousarray(nic_in_bytes_per_s, dtype=np.float64)
        self.kernel(table[order], nic_out, nic_in, float(pace_s), sorted_rates)
        rates = np.empty(len(table))
        rates[order] = sorted_rates
        return rates
