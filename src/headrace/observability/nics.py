"""How busy every NIC was, and which one holds the job back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.core.units import format_bytes_per_s

SATURATED = 0.9
"""From this share of its bandwidth on, a NIC counts as the bottleneck.

A NIC at 90 % leaves a tenth of the makespan at most to gain elsewhere.
"""


@dataclass(frozen=True)
class NicSummary:
    """Share of its bandwidth that every NIC used over a whole rehearsal or run.

    Attributes:
        machine_names: Name per machine.
        in_utilisation: Incoming, per machine, between 0 and 1.
        out_utilisation: Outgoing, per machine, between 0 and 1.
        busiest: The busiest NIC and direction, such as `m2 in`; empty if nothing was sent.
        busiest_utilisation: Its share.
        busiest_bytes_per_s: Its bandwidth.
    """

    machine_names: tuple[str, ...]
    in_utilisation: np.ndarray
    out_utilisation: np.ndarray
    busiest: str
    busiest_utilisation: float
    busiest_bytes_per_s: float

    def sentence(self) -> str:
        """Say in one sentence what holds the job back."""
        if not self.busiest:
            return "Nothing crosses the network: tasks alone set the pace."
        name, direction = self.busiest.rsplit(" ", 1)
        verb = "receives" if direction == "in" else "sends"
        speed = format_bytes_per_s(self.busiest_bytes_per_s)
        nic = f"{name} {verb} at {self.busiest_utilisation:.0%} of its {speed}"
        # As precise as the text, which should not say 90 % and then that it is less.
        if round(self.busiest_utilisation, 2) >= SATURATED:
            return f"The network is the bottleneck: {nic}."
        return f"No NIC is saturated ({nic}, the most of all): tasks and waiting set the pace."


def nic_summary(
    machine_names: tuple[str, ...],
    in_bytes: np.ndarray,
    out_bytes: np.ndarray,
    nic_in_bytes_per_s: np.ndarray,
    nic_out_bytes_per_s: np.ndarray,
    makespan_s: float,
) -> NicSummary:
    """Compare what every NIC carried with what it could have carried.

    Args:
        machine_names: Name per machine.
        in_bytes: Bytes received per machine.
        out_bytes: Bytes sent per machine.
        nic_in_bytes_per_s: Incoming bandwidth per machine.
        nic_out_bytes_per_s: Outgoing bandwidth per machine.
        makespan_s: Time it took.
    """
    time_s = makespan_s if makespan_s > 0 else np.inf
    received = np.asarray(in_bytes) / (np.asarray(nic_in_bytes_per_s) * time_s)
    sent = np.asarray(out_bytes) / (np.asarray(nic_out_bytes_per_s) * time_s)
    into, out_of = int(np.argmax(received)), int(np.argmax(sent))
    if received[into] >= sent[out_of]:
        name, share = f"{machine_names[into]} in", float(received[into])
        bandwidth = float(nic_in_bytes_per_s[into])
    else:
        name, share = f"{machine_names[out_of]} out", float(sent[out_of])
        bandwidth = float(nic_out_bytes_per_s[out_of])
    return NicSummary(
        machine_names=machine_names,
        in_utilisation=received,
        out_utilisation=sent,
        busiest=name if share > 0 else "",
        busiest_utilisation=share,
        busiest_bytes_per_s=bandwidth,
    )
