"""Write the folder of a run that went as rehearsed, to see a report of it: part of first_hour.py.

    python benchmarks/first_report.py FOLDER [--without-plan]

Needs nothing but an installed headrace: no training, no Ray.
"""

from __future__ import annotations

import sys
from pathlib import Path

import headrace
from headrace.runtime.run_dir.run_dir import RunDirectory
from headrace.runtime.run_dir.status import RunState, Status

BEGAN_S = 1_794_700_800.0


def main() -> None:
    """Rehearse, and write it down as if it had been run."""
    cluster, job = headrace.load_cluster("cluster.yaml"), headrace.load_job("job.yaml")
    trace = headrace.simulate(cluster, job, iterations=40).trace()
    path = Path(sys.argv[1])
    path.mkdir()
    folder = RunDirectory(path)
    status = Status(
        run_id=path.name,
        state=RunState.DONE,
        since_s=BEGAN_S,
        updated_s=BEGAN_S + trace.makespan_s,
        job=job.name,
        iterations=40,
    )
    folder.write_status(status)
    headrace.save_trace(trace, path / "trace.npz")
    if "--without-plan" not in sys.argv:
        plan = headrace.plan(cluster, job, method="colocate", policy="priority")
        headrace.save_plan(plan, folder.plan)


if __name__ == "__main__":
    main()
