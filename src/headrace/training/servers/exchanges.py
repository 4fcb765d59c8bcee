"""What a trainer and parameter servers have in common: a model, a step, and what it moves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.training.servers.layout import Layout

Options = Mapping[str, Any]
"""Of one group of parameters: learning rate and the like."""

States = Mapping[str, tuple[np.ndarray, np.ndarray]]
"""What an optimizer keeps, by name: values, and which parameters have any."""


@dataclass(frozen=True)
class Exchange:
    """What a step has moved between a trainer and one server.

    Attributes:
        server: Name of the server.
        iteration: Of the training.
        sent_bytes: On the network ...
        got_bytes: ... and back.
        start_s: When gradients were sent.
        end_s: When parameters were there.
        held_s: How much of that time nothing moved: the server worked or waited for others.
    """

    server: str
    iteration: int
    sent_bytes: int
    got_bytes: int
    start_s: float
    end_s: float
    held_s: float

    @property
    def moving_s(self) -> tuple[float, float]:
        """Time on the network: gradients, and parameters; shared by their bytes."""
        moving_s = max(0.0, self.end_s - self.start_s - self.held_s)
        there_s = moving_s * self.sent_bytes / max(self.sent_bytes + self.got_bytes, 1)
        return there_s, moving_s - there_s


Note = Callable[[Sequence[Exchange]], None]
"""Takes the exchanges of one step, one per server."""


@dataclass(frozen=True)
class Shared:
    """A model that servers have.

    Attributes:
        number: Of the model, in the order in which they were prepared.
        layout: Who has what.
        groups: Of which group each parameter is.
        dtype: Of all numbers.
    """

    number: int
    layout: Layout
    groups: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Part:
    """What a trainer has for a step.

    Attributes:
        number: Of the step, from 1.
        iteration: Of the training, for traces.
        gradients: All of them, flat.
        present: Which parameters have any.
        options: Of the optimizer, if they may have changed; those of rank 0 count.
        values: Parameters, if rank 0 has changed them by hand.
    """

    number: int
    iteration: int
    gradients: np.ndarray
    present: np.ndarray
    options: Sequence[Options] | None = None
    values: np.ndarray | None = None
