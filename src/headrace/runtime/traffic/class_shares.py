"""From a policy's rates to classes of network cards.

Every flow has a class at the card of its sender. Its rate is what the policy gives it, but never
below a floor, as a flow that is starved takes long to come back. Beyond that classes borrow what
others leave, in proportion to their rates, so that a card is never idle while the next rates are on
their way: flows are often shorter than it takes to notice them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

QUANTUM_BYTES = 65_536
"""What a class borrows at a time, at least: the largest packet, lest all borrow alike."""

DEFAULT_PRIO = 1
"""Of what is nobody's flow, and of flows if the policy knows no classes."""

_FLOOR = 0.02
_MOST_FLOORS = 0.5
_IDLE = 0.005
_MOST_IDLE = 0.05
_DEFAULT = 0.02
_DEFAULT_BYTES_PER_S = 1e6
_MOST_DEFAULT = 0.1
_MOST_QUANTA = 10.0
_WORTH_TELLING = 0.02
_SAME = 0.01


def default_rate(nic_bytes_per_s: float) -> float:
    """What Ray, requests and acknowledgements have for sure: heartbeats must not starve."""
    least = min(_DEFAULT_BYTES_PER_S, _MOST_DEFAULT * nic_bytes_per_s)
    return max(least, _DEFAULT * nic_bytes_per_s)


@dataclass(frozen=True)
class ClassShare:
    """What a class of a flow is told.

    Attributes:
        rate_bytes_per_s: What it has for sure.
        ceil_bytes_per_s: What it gets at most.
        quantum_bytes: It borrows in proportion to this.
    """

    rate_bytes_per_s: float
    ceil_bytes_per_s: float
    quantum_bytes: int = QUANTUM_BYTES


def share_to(number: int, share: ClassShare) -> tuple[int, ...]:
    """A flow's share as it is sent."""
    rate, ceil = round(share.rate_bytes_per_s), round(share.ceil_bytes_per_s)
    return number, rate, ceil, share.quantum_bytes


def shares_of(
    nic_bytes_per_s: float,
    paths: Mapping[int, float],
    given: Mapping[int, float],
    most: Mapping[int, float] | None = None,
) -> dict[int, ClassShare]:
    """Share a card among flows that leave it; their rates are within what it can do.

    Args:
        nic_bytes_per_s: Of the card.
        paths: All flows, and what the slower of the two cards of each can do.
        given: Bytes per second that the policy gives those that are open.
        most: What those that are named here get at most.
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
    """The card of a sender, and what its classes were told last.

    Attributes:
        nic_bytes_per_s: Of the card.
        paths: All flows that have a class, and what the slower of the two cards of each can do.
        told: Their last shares.
    """

    nic_bytes_per_s: float
    paths: dict[int, float] = field(default_factory=dict)
    told: dict[int, ClassShare] = field(default_factory=dict)

    def change(
        self, given: Mapping[int, float], most: Mapping[int, float] | None = None
    ) -> dict[int, ClassShare]:
        """What to tell anew; nothing as long as nobody would notice.

        Args:
            given: What the policy gives open flows, of this card or others.
            most: What flows get at most, if that is less than their cards can do.
        """
        own = {number: given[number] for number in self.paths if number in given}
        shares = shares_of(self.nic_bytes_per_s, self.paths, own, most)
        worth = _WORTH_TELLING * self.nic_bytes_per_s
        if all(
            number in self.told and _differ(self.told[number], share) <= worth
            for number, share in shares.items()
        ):
            return {}
        # All of them, lest rates sum up to more than there is.
        changed = {
            number: share
            for number, share in shares.items()
            if number not in self.told
            or _differ(self.told[number], share) > _SAME * self.told[number].rate_bytes_per_s
        }
        self.told.update(changed)
        return changed


def _differ(one: ClassShare, other: ClassShare) -> float:
    return max(
        abs(one.rate_bytes_per_s - other.rate_bytes_per_s),
        abs(one.ceil_bytes_per_s - other.ceil_bytes_per_s),
    )
