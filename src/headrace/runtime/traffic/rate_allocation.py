"""Allocates rates to the flows of a run from the agents' reports; does no I/O."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from headrace.core.plan import Plan
from headrace.policies.flow import FAIR, FLOW_POLICIES, Flow
from headrace.runtime.traffic.class_shares import Port, share_to
from headrace.runtime.traffic.connections import ConnectionMatcher, Way, end_from
from headrace.runtime.traffic.flows import Flows, LiveFlow
from headrace.runtime.traffic.messages import AgentReport, Message
from headrace.runtime.traffic.policy_rates import BY_KIND, DATA_PRIOS, Rates, prio_of

_LINGER_S = 2.0
"""How long a closed flow keeps its share of a receiver's NIC, as it may open again soon."""


class RateAllocator:
    """Tracks all flows and NICs of a run; `send` sends a message to a machine's agent."""

    def __init__(self, plan: Plan, send: Callable[[str, Message], None]) -> None:
        self._send, self._policy = send, plan.policy
        self._flows, self._matcher = Flows(plan), ConnectionMatcher()
        self._names = [machine.name for machine in plan.cluster.hosts]
        self._nic_out = plan.cluster.nic_out_bytes_per_s()
        self._nic_in = plan.cluster.nic_in_bytes_per_s()
        policy = FAIR if plan.policy in BY_KIND else FLOW_POLICIES[plan.policy]
        self._rates = Rates(policy, self._nic_out, self._nic_in, plan.terms.nic_s)
        self._ports: dict[str, Port] = {}
        self._open: dict[str, dict[int, float]] = defaultdict(dict)
        self._opened_s: dict[int, float] = {}
        self._recent_s: dict[int, float] = {}
        self._at: dict[str, int] = {}
        self.is_dirty = False
        self.num_decisions = 0

    @property
    def num_flows(self) -> int:
        """Number of flows seen so far."""
        return len(self._flows)

    def warm(self) -> None:
        """Compile the policy before its first use."""
        self._rates.of([Flow(0, len(self._names) - 1, 0, 0, 0, 0, 1.0, 1.0, 0.0)])

    def update(self, machine: str, report: AgentReport, now_s: float) -> None:
        """Process an agent's message.

        Raises `ValueError`, and changes nothing, if it does not fit what is known.
        """
        number = self._names.index(machine)
        if report.nic_out is None and machine not in self._ports:
            raise ValueError(f"{machine} has not sent the bandwidth of its NIC")
        flows = dict(report.open or ())
        if any(flow >= len(self._flows) for flow in flows):
            raise ValueError(f"{machine} sent a flow that does not exist")
        if report.nic_out is not None:
            self.forget(machine)
            # The actual bandwidth, if the NIC is limited.
            self._nic_out[number] = report.nic_out
            self._ports[machine] = Port(report.nic_out)
        if report.nic is not None:
            self._resize(machine, report.nic)
        closed = [end_from(each) for each in report.gone]
        self._remove(self._matcher.remove(machine, [end.key for end in closed]))
        self._add(self._matcher.add(machine, [end_from(each) for each in report.ends]))
        if report.at:
            self._at |= report.at
            self.is_dirty |= bool(self._opened_s)
        if report.open is not None:
            self._open[machine] = flows
            for flow in flows:
                self._opened_s.setdefault(flow, now_s)
            self.is_dirty = True

    def forget(self, machine: str) -> None:
        """Remove the state of a lost agent."""
        self._ports.pop(machine, None)
        self._open.pop(machine, None)
        self._remove(self._matcher.forget(machine))

    def _resize(self, machine: str, nic_bytes_per_s: float) -> None:
        number = self._names.index(machine)
        self._nic_out[number] = nic_bytes_per_s
        paths = {
            flow: min(nic_bytes_per_s, float(self._nic_in[self._flows[flow].dst_machine]))
            for flow in self._ports[machine].paths
        }
        self._ports[machine] = Port(nic_bytes_per_s, paths)
        self.is_dirty = True

    def decide(self, now_s: float) -> None:
        """Compute rates, and send those that change."""
        self.num_decisions += 1
        sent = {number: num for flows in self._open.values() for number, num in flows.items()}
        self._opened_s = {number: self._opened_s[number] for number in sent}
        most: dict[int, float] = {}
        self.is_dirty = False
        if self._policy in BY_KIND:
            # All flows have a guaranteed floor and borrow the rest.
            given = {number: 0.0 for port in self._ports.values() for number in port.paths}
            most = self._most(sent, now_s)
        else:
            given = self._rates.of([self._opened(number, num) for number, num in sent.items()])
        for machine, port in self._ports.items():
            changed = port.change(given, most)
            if changed:
                shares = [share_to(number, share) for number, share in changed.items()]
                self._send(machine, {"shares": shares})

    def _most(self, sent: Iterable[int], now_s: float) -> dict[int, float]:
        """Fair shares of data flows that are open or were recently.

        A flow gets its share by planned volume, and at least an equal share: a small flow of which
        the plan expects too little would delay every iteration, and does not use more than it
        needs.
        """
        self._recent_s |= dict.fromkeys(sent, now_s)
        self._recent_s = {
            number: at_s for number, at_s in self._recent_s.items() if now_s - at_s <= _LINGER_S
        }
        # Decide again until recently closed flows have expired.
        self.is_dirty = self._recent_s.keys() != set(sent)
        flows = [self._flows[number] for number in self._recent_s]
        data = [flow.opened(0.0, 0.0) for flow in flows if flow.kind in DATA_PRIOS]
        equal = self._rates.of([replace(flow, volume=1.0) for flow in data])
        return {number: max(rate, equal[number]) for number, rate in self._rates.of(data).items()}

    def _opened(self, number: int, sent_bytes: float) -> Flow:
        flow = self._flows[number]
        # Traffic of a sampler belongs to its current iteration.
        at = max(self._at.get(flow.src, 0), self._at.get(flow.dst, 0))
        return flow.opened(sent_bytes, self._opened_s[number], at)

    def _add(self, ways: list[Way]) -> None:
        messages: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
        for way, flow, machine in self._controlled(ways):
            path = min(self._nic_out[flow.src_machine], self._nic_in[flow.dst_machine])
            self._ports[machine].paths[flow.number] = float(path)
            prio = prio_of(self._policy, flow.kind)
            messages[machine].append((flow.number, prio, way.sender[1], *way.receiver))
            self.is_dirty = True
        for machine, added in messages.items():
            self._send(machine, {"add": added})

    def _remove(self, ways: list[Way]) -> None:
        messages: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
        for way, _, machine in self._controlled(ways):
            messages[machine].append((way.sender[1], *way.receiver))
        for machine, removed in messages.items():
            self._send(machine, {"remove": removed})

    def _controlled(self, ways: list[Way]) -> Iterator[tuple[Way, LiveFlow, str]]:
        """Directions with a class, their flows and the sending machines."""
        for way in ways:
            flow = self._flows.find(way.src, way.dst)
            if flow is not None and self._names[flow.src_machine] in self._ports:
                yield way, flow, self._names[flow.src_machine]
