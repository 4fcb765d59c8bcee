"""From how many tasks a machine holds to which ones."""

from __future__ import annotations

import numpy as np

from headrace.planner.packing import Counts


def give_identities(
    counts: Counts, order: np.ndarray, samplers_per_trainer: int
) -> tuple[np.ndarray, np.ndarray]:
    """Say which trainers and samplers the counts stand for, keeping a trainer's samplers together.

    A machine's places for samplers go to its own trainers first, one trainer after the other, so
    that as many as possible have all of theirs. What a trainer lacks goes to few machines.

    Args:
        counts: Tasks per machine.
        order: Machines in the order in which trainers are numbered.
        samplers_per_trainer: Samplers of each trainer.

    Returns:
        The machine of every trainer, and of every sampler, shape (trainers, samplers per trainer).
    """
    trainers = np.repeat(order, counts.trainers[order])
    samplers = np.full((len(trainers), samplers_per_trainer), -1, dtype=np.int64)
    places = counts.samplers.copy()
    for w, machine in enumerate(trainers.tolist()):
        beside = min(samplers_per_trainer, int(places[machine]))
        samplers[w, :beside] = machine
        places[machine] -= beside
    for w in np.flatnonzero((samplers < 0).any(axis=1)).tolist():
        missing = np.flatnonzero(samplers[w] < 0)
        while len(missing):
            # The tightest machine that takes all of them, or else the roomiest one.
            enough = np.flatnonzero(places >= len(missing))
            if len(enough):
                machine = int(enough[np.argmin(places[enough])])
            else:
                machine = int(np.argmax(places))
            here = min(len(missing), int(places[machine]))
            samplers[w, missing[:here]] = machine
            places[machine] -= here
            missing = missing[here:]
    return trainers, samplers
