"""NIC utilisation and the network bottleneck."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.core.units import format_bytes_per_s

SATURATED = 0.9
"""Utilisation from which a NIC is the bottleneck: at most 10 % can be gained elsewhere."""


@dataclass(frozen=True)
class NicSummary:
    """Utilisation of every NIC over a simulation or run.

    Attributes:
        machine_names: Name per machine.
        in_utilisation: Ingress utilisation per machine, between 0 and 1.
        out_utilisation: Egress utilisation per machine, between 0 and 1.
        busiest: The busiest NIC and direction, such as `m2 in`; empty without traffic.
        busiest_utilisation: Its utilisation.
        busiest_bytes_per_s: Its bandwidth.
    """

    machine_names: tuple[str, ...]
    in_utilisation: np.ndarray
    out_utilisation: np.ndarray
    busiest: str
    busiest_utilisation: float
    busiest_bytes_per_s: float

    def sentence(self) -> str:
        """Describe the bottleneck in one sentence."""
        if not self.busiest:
            return "There is no network traffic: task times are the bottleneck."
        name, direction = self.busiest.rsplit(" ", 1)
        verb = "receives" if direction == "in" else "sends"
        speed = format_bytes_per_s(self.busiest_bytes_per_s)
        nic = f"{name} {verb} at {self.busiest_utilisation:.0%} of its {speed}"
        # Rounded as in the text, so that a printed 90 % is classified as 90 %.
        if round(self.busiest_utilisation, 2) >= SATURATED:
            return f"The network is the bottleneck: {nic}."
        return f"No NIC is saturated (the busiest: {nic}): task times and waits are the bottleneck."


def nic_summary(
    machine_names: tuple[str, ...],
    in_bytes: np.ndarray,
    out_bytes: np.ndarray,
    nic_in_bytes_per_s: np.ndarray,
    nic_out_bytes_per_s: np.ndarray,
    makespan_s: float,
) -> NicSummary:
    """Compute the utilisation of every NIC from its bytes, its bandwidth and the makespan."""
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
