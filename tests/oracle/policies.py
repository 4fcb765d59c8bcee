"""The flow policies in plain Python: dicts and loops, nothing shared with the package.

A rule takes open flows, NIC capacities and the pace, and returns bytes per second by edge. Ports
are `("out", m)` and `("in", m)`; every flow uses one of each.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Port = tuple[str, int]
Rates = dict[int, float]

GRAPH, BATCH, GRADIENT, PARAMETER, RING = 0, 1, 2, 3, 4
FIRST_COFLOW = 16


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
    """Synchronisation by iteration; then the rest by iteration, batches before graph data.

    Flows of a graph of coflows are never open together with others.
    """
    if f.kind in (GRADIENT, PARAMETER, RING):
        return (0, f.iteration, 0)
    if f.kind >= FIRST_COFLOW:
        return (0, f.kind, 0)
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


TIGHT = 1 - 1e-9
"""Loads within this factor are equal."""
NOTHING = 1e-12
"""Part of a capacity that is a rounding error."""


class _Matching:
    """Rates of one coflow on the capacity left; `capacity` is that of the idle network."""

    def __init__(
        self, flows: Sequence[OpenFlow], capacity: Mapping[Port, float], left: dict[Port, float]
    ) -> None:
        self.capacity, self.left = capacity, left
        self.rates: Rates = {f.edge: 0 for f in flows}
        self.at: dict[Port, list[OpenFlow]] = {}
        for f in sorted(flows, key=lambda f: f.edge):
            for port in f.ports:
                self.at.setdefault(port, []).append(f)
        self.load = {p: sum(f.remaining for f in self.at[p]) / capacity[p] for p in self.at}
        self.most = max(self.load.values())
        self.tight = {p for p in self.at if self.load[p] >= TIGHT * self.most}
        # Senders first, by machine; then receivers.
        ports = sorted(self.at, key=lambda port: (port[0] == "in", port[1]))
        for p in ports:
            if p in self.tight:
                self.fill(p, may_lose=set(self.at) - self.tight)
        for p in ports:
            if p not in self.tight and p[0] == "out":
                self.fill(p, may_lose=set())

    def fill(self, port: Port, may_lose: set[Port]) -> None:
        """Give the port all its capacity, as far as paths allow."""
        while self.left[port] > NOTHING * self.capacity[port]:
            path = self.path(port, may_lose)
            if path is None:
                return
            lowered = [f for k, f in enumerate(path) if k % 2 == 1]
            ports = Counter(p for f in path for p in f.ports)
            end = next(p for p, num in ports.items() if num == 1 and p != port)
            amounts = [self.left[port], *(self.rates[f.edge] for f in lowered)]
            if len(path) % 2 == 1:
                amounts.append(self.left[end])
            amount = min(amounts)
            for k, f in enumerate(path):
                self.rates[f.edge] += amount if k % 2 == 0 else -amount
            self.left[port] -= amount
            self.left[end] += -amount if len(path) % 2 == 1 else amount

    def path(self, start: Port, may_lose: set[Port]) -> list[OpenFlow] | None:
        """Shortest list of flows to raise, lower, raise, ... by turns."""
        paths: dict[Port, list[OpenFlow]] = {start: []}
        waiting = [start]
        for port in waiting:
            raises = port[0] == start[0]
            for f in self.at[port]:
                (other,) = (p for p in f.ports if p != port)
                least = NOTHING * min(self.capacity[p] for p in f.ports)
                if other in paths or not (raises or self.rates[f.edge] > least):
                    continue
                paths[other] = [*paths[port], f]
                if raises and self.left[other] > NOTHING * self.capacity[other]:
                    return paths[other]
                if not raises and other in may_lose:
                    return paths[other]
                waiting.append(other)
        return None

    def hold(self) -> float:
        """Time until another port is tight."""
        used = {p: sum(self.rates[f.edge] for f in self.at[p]) / self.capacity[p] for p in self.at}
        slowest = min(used[p] for p in self.tight)
        return min(
            (
                (self.most - self.load[p]) / (slowest - used[p])
                for p in self.at
                if p not in self.tight and used[p] < slowest
            ),
            default=math.inf,
        )


def matchings(flows: Sequence[OpenFlow], ports: Mapping[Port, float]) -> tuple[Rates, float]:
    """Rates of `matching`, and how long they hold."""
    left, rates, hold = dict(ports), Rates(), math.inf
    for wanted in sorted({priority_class(f) for f in flows}):
        coflow = _Matching([f for f in flows if priority_class(f) == wanted], ports, left)
        rates.update(coflow.rates)
        hold = min(hold, coflow.hold())
    return rates, hold


def matching(flows: Sequence[OpenFlow], ports: Mapping[Port, float], pace_s: float) -> Rates:
    """Coflows in order; each covers its busiest ports, then as much as possible."""
    return matchings(flows, ports)[0]


Rule = Callable[[Sequence[OpenFlow], Mapping[Port, float], float], Rates]

POLICIES: dict[str, Rule] = {
    "oes": oes,
    "maxmin": maxmin,
    "priority": priority,
    "paced": paced,
    "matching": matching,
    "mrtf": mrtf,
    "mrtf-exclusive": mrtf_exclusive,
    "omcoflow": omcoflow,
    "fifo": fifo,
}
