"""How often a task of a service is restarted: as long as it works for a while in between."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from headrace.policies.recovery.events import Limits

SETTLED_S = 60.0
"""A task that worked for this long starts counting again: clients wait as long for a restart."""


@dataclass(frozen=True)
class ServiceRestarts:
    """Restarts of the tasks of a service.

    Attributes:
        limit: Restarts in a row.
        counts: Restarts in a row, by task.
        restarted_s: Time of the last restart, by task.
    """

    limit: int = Limits().restarts
    counts: Mapping[str, int] = field(default_factory=dict)
    restarted_s: Mapping[str, float] = field(default_factory=dict)

    def after(self, task: str, now_s: float) -> ServiceRestarts | None:
        """State after a restart of a task that ended now; None if it must not be restarted."""
        is_settled = now_s - self.restarted_s.get(task, -SETTLED_S) >= SETTLED_S
        count = 1 if is_settled else self.counts.get(task, 0) + 1
        if count > self.limit:
            return None
        return replace(
            self,
            counts={**self.counts, task: count},
            restarted_s={**self.restarted_s, task: now_s},
        )
