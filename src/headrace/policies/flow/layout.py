"""Row indices of the network arrays.

Quantities of one shape share an array, one row each: a function with sixty array arguments takes
several times as long to compile as one with twenty.
"""

from __future__ import annotations

# Per port, floats. Times in seconds, rates and capacities in bytes/s, clocks and marks in bytes.
(
    CAPACITY,
    DEGREE,
    BEST,
    RATE,
    SERVICE,
    CLOCK_S,
    NEXT_S,
    REST,
    MEMBERS,
    FULL_CLASS,
    FREE,
    SHARE,
    LEVEL,
    SORTED_RATE,
    SCRATCH,
) = range(15)
NUM_PORT_ROWS = 15

# Per port, integers. `TOUCHED` is a list of ports, `SORTED_PORT` the ports of each side by rate.
BEST_AT, IS_STALE, IS_TOUCHED, TOUCHED, RANK, SORTED_PORT, FILLED_AT, PENDING = range(8)
NUM_PORT_ID_ROWS = 8

# Per pair of machines, floats.
COUNTS, COUNTS_T, CLASSES, CLASSES_T, BASE = range(5)
NUM_PLANES = 5

# Per pair of machines, integers. `DIRTY` is a list of pairs.
SENDER, RECEIVER, NUM_FRONT, NUM_OPEN, IS_DIRTY, DIRTY = range(6)
NUM_PAIR_ROWS = 6

# Per open flow.
ITEM_MARK, ITEM_CLASS = range(2)
NUM_ITEM_ROWS = 2

# Scalars: number of dirty pairs, number of touched ports, whether a full refill is needed.
NUM_DIRTY, NUM_TOUCHED, BROKEN = range(3)
