"""Two measured runs one above the other, on the same scale: a page, to be photographed.

    python benchmarks/closed_loop_picture.py RUN_OF_DISTDGL RUN_OF_OURS --output page.html
    chromium --headless --screenshot=picture.png --window-size=1200,1500 page.html

Runs are folders that `closed_loop.py --scratch DIR` leaves.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from headrace.core.plan import Plan
from headrace.observability.cells.frame import cell, whole_page
from headrace.observability.cells.gantt import stretch_of
from headrace.observability.report.gantt import Stretch, gantt_panel
from headrace.profiling.trace_assembly import trace_of_folder

FIRST, NUM = 25, 8


def main() -> int:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("runs", type=Path, nargs=2, help="folders of runs: DistDGL's, ours")
    parser.add_argument("--output", type=Path, required=True, help="page to write")
    args = parser.parse_args()
    stretches = []
    for folder in args.runs:
        plan = Plan.model_validate_json((folder / "plan.json").read_bytes())
        stretches.append(
            stretch_of(trace_of_folder(folder.resolve(), plan), FIRST, FIRST + NUM - 1)
        )
    span_s = max(each.end_s - each.begin_s for each in stretches)
    names = ("Placed as DistDGL does, network left to TCP", "Planned and shared by headrace")
    panels = [
        gantt_panel(each, span_s, f"{name}: {_per_iteration(each)}", name)
        for name, each in zip(names, stretches, strict=True)
    ]
    lead = (
        f"{NUM} iterations of the same job on the same six machines, measured, on one scale of time"
    )
    args.output.write_text(whole_page("headrace", str(cell("", lead, *panels))), encoding="utf-8")
    return 0


def _per_iteration(stretch: Stretch) -> str:
    seconds = (stretch.end_s - stretch.begin_s) / NUM
    return f"{seconds * 1e3:.0f} ms per iteration"


if __name__ == "__main__":
    sys.exit(main())
