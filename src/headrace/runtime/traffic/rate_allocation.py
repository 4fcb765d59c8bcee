"""Decides how fast every flow of a run may go, from what agents report; knows no sockets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from headrace.core.plan import Plan
from headrace.policies.flow import FAIR, FLOW_POLICIES, Flow
from headrace.runtime.traffic.class_shares import Port, share_to
from headrace.runtime.traffic.connections import ConnectionMatcher, Way, end_from
from headrace.runtime.traffic.flows import Flows, LiveFlow
from headrace.runtime.traffic.messages import Said
from headrace.runtime.traffic.policy_rates import BY_KIND, DATA_PRIOS, Rates, prio_of

_LINGER_S = 2.0
"""A flow that was open so lately will be soon again: its share of a receiver's card is kept."""


class RateAllocator:
    """Knows all flows and ports of a run.

    Args:
        plan: Whose policy is applied.
        tell: Sends something to the agent of a machine.
    """

    def __init__(self, plan: Plan, tell: Callable[[str, Said], None]) -> None:
        self._tell, self._policy = tell, plan.policy
        self._flows, self._joiner = Flows(plan), ConnectionMatcher()
        self._names = [machine.name for machine in plan.cluster.hosts]
        self._nic_out = plan.cluster.nic_out_bytes_per_s()
        self._nic_in = plan.cluster.nic_in_bytes_per_s()
        policy = FAIR if plan.policy in BY_KIND else FLOW_POLICIES[plan.policy]
        self._rates = Rates(policy, self._nic_out, self._nic_in, plan.terms.nic_s)
        self._ports: dict[str, Port] = {}
        self._open: dict[str, dict[int, float]] = defaultdict(dict)
        self._opened_s: dict[int, float] = {}
        self._lately_s: dict[int, float] = {}
        self._at: dict[str, int] = {}
        self.is_dirty = False
        self.num_decisions = 0

    @property
    def num_flows(self) -> int:
        """Flows between tasks that were seen."""
        return len(self._flows)

    def warm(self) -> None:
        """Load the policy's compiled rule, before anybody waits for it."""
        self._rates.of([Flow(0, len(self._names) - 1, 0, 0, 0, 0, 1.0, 1.0, 0.0)])

    def hear(self, machine: str, said: Said, now_s: float) -> None:
        """Take what an agent says.

        Raises:
            ValueError: It makes no sense.
        """
        if "nic_out" in said:
            self.forget(machine)
            # What the card can do indeed, if somebody has limited it.
            self._nic_out[self._names.index(machine)] = float(said["nic_out"])
            self._ports[machine] = Port(float(said["nic_out"]))
        if "nic" in said:
            self._resize(machine, float(said["nic"]))
        closed = [end_from(each) for each in said.get("gone", ())]
        self._remove(self._joiner.remove(machine, [end.key for end in closed]))
        self._add(self._joiner.add(machine, [end_from(each) for each in said.get("ends", ())]))
        if "at" in said:
            self._at |= {str(task): int(number) for task, number in said["at"].items()}
            self.is_dirty |= bool(self._opened_s)
        if "open" in said:
            flows = {int(number): float(sent) for number, sent in said["open"]}
            self._open[machine] = flows
            for number in flows:
                self._opened_s.setdefault(number, now_s)
            self.is_dirty = True

    def forget(self, machine: str) -> None:
        """An agent is gone."""
        self._ports.pop(machine, None)
        self._open.pop(machine, None)
        self._remove(self._joiner.forget(machine))

    def _resize(self, machine: str, nic_bytes_per_s: float) -> None:
        """A card has become faster or slower, and its classes with it."""
        number = self._names.index(machine)
        self._nic_out[number] = nic_bytes_per_s
        paths = {
            flow: min(nic_bytes_per_s, float(self._nic_in[self._flows[flow].dst_machine]))
            for flow in self._ports[machine].paths
        }
        self._ports[machine] = Port(nic_bytes_per_s, paths)
        self.is_dirty = True

    def decide(self, now_s: float) -> None:
        """Ask the policy for rates, and tell those whose rates change."""
        self.num_decisions += 1
        sent = {number: num for flows in self._open.values() for number, num in flows.items()}
        self._opened_s = {number: self._opened_s[number] for number in sent}
        most: dict[int, float] = {}
        self.is_dirty = False
        if self._policy in BY_KIND:
            # All have a floor for sure and borrow the rest.
            given = {number: 0.0 for port in self._ports.values() for number in port.paths}
            most = self._most(sent, now_s)
        else:
            given = self._rates.of([self._opened(number, num) for number, num in sent.items()])
        for machine, port in self._ports.items():
            changed = port.change(given, most)
            if changed:
                shares = [share_to(number, share) for number, share in changed.items()]
                self._tell(machine, {"shares": shares})

    def _most(self, sent: Iterable[int], now_s: float) -> dict[int, float]:
        """What data flows get at most: a fair share among those that are open or were lately."""
        self._lately_s |= dict.fromkeys(sent, now_s)
        self._lately_s = {
            number: at_s for number, at_s in self._lately_s.items() if now_s - at_s <= _LINGER_S
        }
        # Who was open lately has to be forgotten some time.
        self.is_dirty = self._lately_s.keys() != set(sent)
        flows = [self._flows[number] for number in self._lately_s]
        data = [flow.opened(0.0, 0.0) for flow in flows if flow.kind in DATA_PRIOS]
        return self._rates.of(data)

    def _opened(self, number: int, sent_bytes: float) -> Flow:
        flow = self._flows[number]
        # What a sampler gets or sends is of the iteration that it is at.
        at = max(self._at.get(flow.src, 0), self._at.get(flow.dst, 0))
        return flow.opened(sent_bytes, self._opened_s[number], at)

    def _add(self, ways: list[Way]) -> None:
        told: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
        for way, flow, machine in self._controlled(ways):
            path = min(self._nic_out[flow.src_machine], self._nic_in[flow.dst_machine])
            self._ports[machine].paths[flow.number] = float(path)
            prio = prio_of(self._policy, flow.kind)
            told[machine].append((flow.number, prio, way.sender[1], *way.receiver))
            self.is_dirty = True
        for machine, added in told.items():
            self._tell(machine, {"add": added})

    def _remove(self, ways: list[Way]) -> None:
        told: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
        for way, _, machine in self._controlled(ways):
            told[machine].append((way.sender[1], *way.receiver))
        for machine, removed in told.items():
            self._tell(machine, {"remove": removed})

    def _controlled(self, ways: list[Way]) -> Iterator[tuple[Way, LiveFlow, str]]:
        """Ways that have a class, their flows and the machines that send."""
        for way in ways:
            flow = self._flows.find(way.src, way.dst)
            if flow is not None and self._names[flow.src_machine] in self._ports:
                yield way, flow, self._names[flow.src_machine]
