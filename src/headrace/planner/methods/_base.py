"""Interface of placement methods."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from headrace.core.placement import Placement
from headrace.core.profile import Problem


class PlacementMethod(ABC):
    """Assigns each sampler, trainer and parameter server to a machine.

    A method is a pure function: it reads no clock and draws random numbers only from `seed`, so
    equal arguments give equal placements. Stores are not placed, every machine has one.
    `tests/contract/test_placements.py` runs on every method.

    Attributes:
        name: Value of `--placement`.
    """

    name: ClassVar[str]

    @abstractmethod
    def place(self, problem: Problem, seed: int) -> Placement:
        """Find a placement within every machine's resources (eqs 1-5).

        Args:
            problem: The machines, the job and its profile; some methods ignore the profile.
            seed: Seed of all random draws.

        Returns:
            A placement that passes `Placement.check`.

        Raises:
            InfeasibleError: The job does not fit; the message names the missing resource, the
                shortage and a remedy.
        """
