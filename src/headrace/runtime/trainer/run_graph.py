"""Opens graphs for scripts: in a run, the run's graph."""

from __future__ import annotations

import os
from contextlib import suppress

from headrace.core.errors import SpecError
from headrace.graph.format import partitioned_graph
from headrace.graph.format.partitioned_graph import PartitionedGraph
from headrace.runtime.protocol.run_context import current_run
from headrace.runtime.protocol.trainer_messages import Note, send


def open_graph(path: str | os.PathLike[str]) -> PartitionedGraph:
    """Open a graph that `headrace partition` wrote.

    Takes milliseconds for any size: arrays are memory-mapped at first access, and all processes of
    a machine share their pages. In a script started by `headrace run --graph DIR`, every path opens
    DIR, wherever the machine's copy is.

    Raises:
        SpecError: There is no graph, or its manifest is invalid.
    """
    run = current_run()
    if run is None or run.parts is None:
        return partitioned_graph.open_graph(path)
    graph = partitioned_graph.open_graph(run.parts)
    with suppress(SpecError):
        # Most machines have no graph at this path.
        if run.rank == 0 and partitioned_graph.open_graph(path).manifest != graph.manifest:
            text = f"open_graph({os.fspath(path)!r}) opens the run's graph: {graph!r}"
            send(run.messages, Note(text))
    return graph
