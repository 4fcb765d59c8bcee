"""`headrace partition`: partition a graph into memory-mapped files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli import completions
from headrace.cli.options import AsJson
from headrace.cli.output.progress import Stages
from headrace.cli.paths import check_can_write

EXAMPLE = (
    "Example: headrace partition generated:nodes=1e5,edges=2e6 --parts 4 -o parts\n\n"
    "Example: headrace partition graph.yaml --cluster cluster.yaml -o parts"
)


def partition(
    source: Annotated[
        str,
        typer.Argument(
            help="PyG file, OGB directory, graph.yaml of tables, or generated:...",
            metavar="SOURCE",
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Output directory.", metavar="DIR")
    ],
    parts: Annotated[
        int | None, typer.Option(help="Number of equal partitions.", metavar="K", min=1)
    ] = None,
    cluster: Annotated[
        Path | None,
        typer.Option(help="One partition per machine, by memory and NIC.", metavar="FILE"),
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            help="metis, kaminpar, fennel, hash, range.",
            metavar="NAME",
            autocompletion=completions.one_of("auto", *completions.PARTITIONERS),
        ),
    ] = "auto",
    balance: Annotated[
        str,
        typer.Option(
            help="nodes, edges, train, val, test.",
            metavar="NAMES",
            autocompletion=completions.some_of(*completions.BALANCED),
        ),
    ] = "train,edges",
    tolerance: Annotated[
        float, typer.Option(help="Allowed imbalance of a partition.", metavar="X", min=0.0)
    ] = 0.05,
    clusters: Annotated[int, typer.Option(help="Clusters per partition.", metavar="C", min=1)] = 1,
    features: Annotated[
        str | None,
        typer.Option(
            help="auto (the smallest lossless form), float32, float16, bfloat16, int8 or int4.",
            metavar="TYPE",
            autocompletion=completions.one_of(*completions.FEATURE_TYPES),
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed.", metavar="S", min=0)] = 0,
    plot: Annotated[
        Path | None, typer.Option(help="Draw partitions (PNG).", metavar="FILE")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Partition a graph into memory-mapped files; an interrupted run can be resumed."""
    from headrace.core.errors import SpecError

    if (parts is None) == (cluster is None):
        raise SpecError(
            "exactly one of --parts and --cluster is required", "give --parts N or --cluster FILE"
        )
    check_can_write(plot)
    if plot:
        from headrace.observability.gantt import check_can_draw

        check_can_draw()
    from headrace.api.documents.load import load_cluster
    from headrace.api.graph import partition as make_parts

    wanted = parts if parts is not None else load_cluster(cluster) if cluster is not None else 1
    with Stages() as stages:
        graph = make_parts(
            source,
            output,
            wanted,
            method=method,
            balance=tuple(name.strip() for name in balance.split(",") if name.strip()),
            tolerance=tolerance,
            clusters=clusters,
            features=features,
            seed=seed,
            watcher=stages,
        )
    from headrace.cli.output.graph_tables import show_graph, summary_of

    summary = summary_of(graph)
    if plot:
        from headrace.observability.parts import draw_parts

        draw_parts(summary, plot)
    if as_json:
        typer.echo(json.dumps(summary))
        return
    show_graph(summary)
    if plot:
        typer.echo(f"The picture is in {plot}.")
