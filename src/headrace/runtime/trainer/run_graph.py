"""The graph that a script means: inside a run, the one of the run."""

from __future__ import annotations

import os
from contextlib import suppress

from headrace.core.errors import SpecError
from headrace.graph.format import partitioned_graph
from headrace.graph.format.partitioned_graph import PartitionedGraph
from headrace.runtime.protocol.run_context import current_run
from headrace.runtime.protocol.trainer_messages import tell_note


def open_graph(path: str | os.PathLike[str]) -> PartitionedGraph:
    """Open a graph that `headrace partition` wrote.

    Takes milliseconds, whatever the size: arrays are mapped when they are first asked for. All
    processes of a machine share their pages.

    In a script that `headrace run --graph DIR` started, every path means DIR, wherever the machine
    has its copy.

    Raises:
        SpecError: There is no graph, or its manifest cannot be understood.
    """
    run = current_run()
    if run is None or run.parts is None:
        return partitioned_graph.open_graph(path)
    graph = partitioned_graph.open_graph(run.parts)
    with suppress(SpecError):
        # Most machines have nothing at this path.
        if run.rank == 0 and partitioned_graph.open_graph(path).manifest != graph.manifest:
            tell_note(run, f"open_graph({os.fspath(path)!r}) opens the run's graph: {graph!r}")
    return graph
