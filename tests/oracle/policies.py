"""The eight flow policies in plain Python: dicts and loops, nothing shared with the package.

A rule takes open flows, NIC capacities and the pace, and returns bytes per second by edge. Ports
are `("out", m)` and `("in", m)`; every flow uses one of each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Port = tuple[str, int]
Rates = dict[int, float]

GRAPH, BATCH, GRADIENT, PARAMETER, RING = 0, 1, 2, 3, 4


@dataclass
class OpenFlow:
    """An open flow; the fields are those of the package's `Flow`, `remaining` changes over time."""

    src: int
    dst: int
    task: int
    edge: int
    kind: int
    iteration: int
    volume: float
    remaining: float
    opened: float

    def __post_init__(self) -> None:
        self.ports: tuple[Port, Port] = ("out", self.src), ("in", self.dst)


def capacities(nic_out: Sequence[float], nic_in: Sequence[float]) -> dict[Port, float]:
    """Capacity of every port."""
    ports: dict[Port, float] = {}
    for m, capacity in enumerate(nic_out):
        ports["out", m] = capacity
    for m, capacity in enumerate(nic_in):
        ports["in", m] = capacity
    return ports


def progressive_filling(
    flows: Sequence[OpenFlow],
    left: Mapping[Port, float],
    weights: Mapping[int, float] | None = None,
) -> Rates:
    """Weighted max-min: all rates grow in proportion to weight; a full port freezes its flows."""
    weight = {f.edge: 1 if weights is None else weights[f.edge] for f in flows}
    left = dict(left)
    growing = list(flows)
    rates: Rates = {}
    while growing:
        total: dict[Port, float] = {}
        for f in growing:
            for port in f.ports:
                total[port] = total.get(port, 0) + weight[f.edge]
        full = min(total, key=lambda port: left[port] / total[port])
        # A zero of the same type: fractions stay fractions.
        level = max(0 * left[full], left[full]) / total[full]
        for f in growing:
            if full in f.ports:
                rates[f.edge] = level * weight[f.edge]
                for port in f.ports:
                    left[port] -= rates[f.edge]
        growing = [f for f in growing if full not in f.ports]
    return rates


def degrees(flows: Sequence[OpenFlow]) -> Counter[Port]:
    """Flows per port."""
    return Counter(port for f in flows for port in f.ports)


def oes(flows: Sequence[OpenFlow], ports: Mapping[Port, float], pace_s: float) -> Rates:
    """min(B_out / deg_out, B_in / deg_in) (Alg. 1, line 21)."""
    degree = degrees(flows)
    return {f.edge: min(ports[port] / degree[port] for port in f.ports) for f in flows}


def maxmin(flows: Sequence[OpenFlow], ports: Mapping[Port, float], pace_s: float) -> Rates:
    """Progressive filling, equal weights."""
    return progressive_filling(flows, ports)


def priority_class(f: OpenFlow) -> tuple[int, int, int]:
    """Synchronisation by iteration; then the rest by iteration, batches before graph data."""
    if f.kind in (GRADIENT, PARAMETER, RING):
        return (0, f.iteration, 0)
    return (1, f.iteration, 0 if f.kind == BATCH else 1)


def priority(flows: Sequence[OpenFlow], ports: Mapping[Port, float], pace_s: float) -> Rates:
    """Strict classes, max-min inside a class on what earlier classes left."""
    left = dict(ports)
    rates: Rates = {}
    for wanted in sorted({priority_class(f) for f in flows}):
        members = [f for f in flows if priority_class(f) == wanted]
        granted = progressive_filling(members, left)
        for f in members:
            for port in f.ports:
                left[port] = max(0 * left[port], left[port] - granted[f.edge])
        rates.update(granted)
    return rates


def paced(flows: Sequence[OpenFlow], ports: Mapping[Port, float], pace_s: float) -> Rates:
    """Every flow at volume / pace, scaled to fit its ports; what is left by max-min on top."""
    wanted = {f.edge: f.volume / pace_s for f in flows}
    asked: dict[Port, float] = {}
    for f in flows:
        for port in f.ports:
            asked[port] = asked.get(port, 0.0) + wanted[f.edge]
    base: Rates = {}
    for f in flows:
        scale = 1.0
        for port in f.ports:
            if asked[port] > ports[port]:
                scale = min(scale, ports[port] / asked[port])
        base[f.edge] = wanted[f.edge] * scale
    left = dict(ports)
    for f in flows:
        for port in f.ports:
            left[port] = left[port] - base[f.edge]
    extra = progressive_filling(flows, left)
    return {f.edge: base[f.edge] + extra[f.edge] for f in flows}


def shortest_first(flows: Sequence[OpenFlow], ports: Mapping[Port, float]) -> list[OpenFlow]:
    """By remaining time alone on the network, then by edge."""
    return sorted(flows, key=lambda f: (f.remaining / min(ports[port] for port in f.ports), f.edge))


def mrtf(flows: Sequence[OpenFlow], ports: Mapping[Port, float], pace_s: float) -> Rates:
    """Shortest first; each takes all that is left at both its ports."""
    left = dict(ports)
    rates: Rates = {}
    for f in shortest_first(flows, ports):
        rates[f.edge] = min(left[port] for port in f.ports)
        for port in f.ports:
            left[port] -= rates[f.edge]
    return rates


def mrtf_exclusive(flows: Sequence[OpenFlow], ports: Mapping[Port, float], pace_s: float) -> Rates:
    """Shortest first; one flow per port."""
    taken: set[Port] = set()
    rates: Rates = {}
    for f in shortest_first(flows, ports):
        if taken.isdisjoint(f.ports):
            rates[f.edge] = min(ports[port] for port in f.ports)
            taken.update(f.ports)
        else:
            rates[f.edge] = 0.0
    return rates


def omcoflow(flows: Sequence[OpenFlow], ports: Mapping[Port, float], pace_s: float) -> Rates:
    """Weighted max-min, weight 1 / (finish predicted for a flow alone with its coflow)."""
    weights: dict[int, float] = {}
    for f in flows:
        coflow = [g for g in flows if (g.task, g.iteration) == (f.task, f.iteration)]
        degree = degrees(coflow)
        tau = f.remaining / min(ports[port] / degree[port] for port in f.ports)
        weights[f.edge] = 1.0 / tau
    return progressive_filling(flows, ports, weights)


def fifo(flows: Sequence[OpenFlow], ports: Mapping[Port, float], pace_s: float) -> Rates:
    """Every sender serves its oldest flow only; the chosen share by max-min."""
    oldest: dict[int, OpenFlow] = {}
    for f in flows:
        head = oldest.get(f.src)
        if head is None or (f.opened, f.edge) < (head.opened, head.edge):
            oldest[f.src] = f
    rates = {f.edge: 0.0 for f in flows}
    rates.update(progressive_filling(list(oldest.values()), ports))
    return rates


Rule = Callable[[Sequence[OpenFlow], Mapping[Port, float], float], Rates]

POLICIES: dict[str, Rule] = {
    "oes": oes,
    "maxmin": maxmin,
    "priority": priority,
    "paced": paced,
    "mrtf": mrtf,
    "mrtf-exclusive": mrtf_exclusive,
    "omcoflow": omcoflow,
    "fifo": fifo,
}
