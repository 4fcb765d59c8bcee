"""Converts a policy's rates to HTB classes of NICs.

Every flow has a class at the NIC of its sender. Its rate is the policy's, but at least a floor, as
a starved flow recovers slowly. Classes borrow unused bandwidth in proportion to their rates, so a
NIC is not idle until new rates arrive: flows are often shorter than the time to detect them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

QUANTUM_BYTES = 65_536
"""Smallest HTB quantum: the largest packet, so that quanta stay proportional to rates."""

DEFAULT_PRIO = 1
"""Priority of unclassified traffic, and of flows if the policy has no priorities."""

_FLOOR = 0.02
_MOST_FLOORS = 0.5
_IDLE = 0.005
_MOST_IDLE = 0.05
_DEFAULT = 0.02
_DEFAULT_BYTES_PER_S = 1e6
_MOST_DEFAULT = 0.1
_MOST_QUANTA = 10.0
_SEND_THRESHOLD = 0.02
_SAME = 0.01


def default_rate(nic_bytes_per_s: float) -> float:
    """Guaranteed rate of Ray, requests and acknowledgements: heartbeats must not starve."""
    least = min(_DEFAULT_BYTES_PER_S, _MOST_DEFAULT * nic_bytes_per_s)
    return max(least, _DEFAULT * nic_bytes_per_s)


@dataclass(frozen=True)
class ClassShare:
    """HTB parameters of a flow's class: guaranteed rate, largest rate, weight for borrowing."""

    rate_bytes_per_s: float
    ceil_bytes_per_s: float
    quantum_bytes: int = QUANTUM_BYTES


def share_to(number: int, share: ClassShare) -> tuple[int, ...]:
    """Encode a flow's class parameters for a message."""
    rate, ceil = round(share.rate_bytes_per_s), round(share.ceil_bytes_per_s)
    return number, rate, ceil, share.quantum_bytes


def shares_of(
    nic_bytes_per_s: float,
    paths: Mapping[int, float],
    given: Mapping[int, float],
    most: Mapping[int, float] | None = None,
) -> dict[int, ClassShare]:
    """Divide a NIC's bandwidth among its outgoing flows.

    `paths` has all flows, with the bandwidth of the slower of the two NICs of each; `given` the
    policy's rates of open flows, within the NIC's bandwidth; `most` upper limits of some flows.
    """
    nic, limits = nic_bytes_per_s, most or {}
    num_idle = len(paths) - len(given)
    idle = min(_IDLE * nic, _MOST_IDLE * nic / max(1, num_idle))
    highest = _MOST_FLOORS * nic / max(1, len(given))
    floors = {number: min(_FLOOR * paths[number], highest) for number in given}
    fitted = _fit(given, floors, nic - default_rate(nic) - idle * num_idle)
    least = min(fitted.values(), default=1.0)
    ceils = {number: min(path, limits.get(number, path)) for number, path in paths.items()}
    shares = {number: ClassShare(idle, max(idle, ceil)) for number, ceil in ceils.items()}
    for number, rate in fitted.items():
        quantum = round(QUANTUM_BYTES * min(rate / least, _MOST_QUANTA))
        shares[number] = ClassShare(rate, max(ceils[number], rate), quantum)
    return shares


def _fit(
    rates: Mapping[int, float], floors: Mapping[int, float], budget: float
) -> dict[int, float]:
    """Scale rates down to a budget, none below its floor."""
    low: set[int] = set()
    while True:
        rest = sum(rate for number, rate in rates.items() if number not in low)
        left = budget - sum(floors[number] for number in low)
        scale = min(1.0, left / rest) if rest > 0 else 1.0
        fallen = {n for n, rate in rates.items() if n not in low and rate * scale < floors[n]}
        if not fallen:
            return {n: floors[n] if n in low else rate * scale for n, rate in rates.items()}
        low |= fallen


@dataclass
class Port:
    """The NIC of a sender, and the class parameters that were sent last (`told`).

    `paths` has all flows with a class, with the bandwidth of the slower of the two NICs of each.
    """

    nic_bytes_per_s: float
    paths: dict[int, float] = field(default_factory=dict)
    sent: dict[int, ClassShare] = field(default_factory=dict)

    def change(
        self, given: Mapping[int, float], most: Mapping[int, float] | None = None
    ) -> dict[int, ClassShare]:
        """Return the class parameters to send; none if all changes are negligible."""
        own = {number: given[number] for number in self.paths if number in given}
        shares = shares_of(self.nic_bytes_per_s, self.paths, own, most)
        worth = _SEND_THRESHOLD * self.nic_bytes_per_s
        if all(
            number in self.sent and _differ(self.sent[number], share) <= worth
            for number, share in shares.items()
        ):
            return {}
        # Send all of them, so that the rates do not exceed the bandwidth.
        changed = {
            number: share
            for number, share in shares.items()
            if number not in self.sent
            or _differ(self.sent[number], share) > _SAME * self.sent[number].rate_bytes_per_s
        }
        self.sent.update(changed)
        return changed


def _differ(one: ClassShare, other: ClassShare) -> float:
    return max(
        abs(one.rate_bytes_per_s - other.rate_bytes_per_s),
        abs(one.ceil_bytes_per_s - other.ceil_bytes_per_s),
    )
