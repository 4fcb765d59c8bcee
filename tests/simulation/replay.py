"""Repeats one simulated run and prints what happened: `python -m tests.simulation.replay SEED`."""

from __future__ import annotations

import sys
import time

from tests.simulation.simulation import simulate


def main() -> int:
    """Simulate the seeds of the command line."""
    num_failed = 0
    for word in sys.argv[1:]:
        began_s = time.perf_counter()
        result = simulate(int(word))
        for fault in result.faults:
            print(f"fault  {fault}")
        for line in result.done:
            print(f"done   {line}")
        for at_s, line in result.lines:
            print(f"{at_s:7.1f}  {line}")
        print(f"{result.outcome} after {result.virtual_s:.1f} s, {result.num_events} events")
        print(f"took {time.perf_counter() - began_s:.3f} s")
        print(f"FAILED: {result.problem}" if result.problem else "well")
        num_failed += bool(result.problem)
    return 1 if num_failed else 0


if __name__ == "__main__":
    sys.exit(main())
