"""The contract of every placement method."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from headrace.core.cluster import Cluster
from headrace.core.job import Job
from headrace.core.placement import Placement
from headrace.core.profile import Profile


class PlacementMethod(ABC):
    """Decides on which machine every sampler, trainer and parameter server runs.

    A method is a pure function of its arguments: it reads no clock and draws random numbers only
    from a generator made of `seed`, so that equal arguments give equal placements. Stores are not
    its business, every machine has one. `tests/contract/test_placements.py` runs on every method.

    Attributes:
        name: What people write after `--placement`.
    """

    name: ClassVar[str]

    @abstractmethod
    def place(self, cluster: Cluster, job: Job, profile: Profile, seed: int) -> Placement:
        """Find a placement that respects every machine's resources (eqs 1-5).

        Args:
            cluster: The machines.
            job: The tasks and what they occupy.
            profile: Times and volumes, for methods that look at them.
            seed: Seed of all draws.

        Returns:
            A placement that passes `Placement.check`.

        Raises:
            InfeasibleError: The job does not fit; the message names the short resource, by how
                much it is short, and what to change.
        """
