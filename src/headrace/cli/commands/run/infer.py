"""`headrace infer`: predictions and embeddings of all nodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli import completions
from headrace.cli.options import AsJson, Config, Runs, Settings
from headrace.cli.output.progress import Stages

EXAMPLE = (
    "Example: headrace infer best.pt --model sage --graph parts -o out\n\n"
    "Example: headrace infer latest --model train.py:make_model --graph parts -o out "
    "--write prediction,embedding"
)


def infer(
    weights: Annotated[
        str,
        typer.Argument(
            help="best.pt, model.safetensors, a checkpoint, or a run.",
            metavar="WEIGHTS",
            autocompletion=completions.runs,
        ),
    ],
    model: Annotated[
        str,
        typer.Option(
            help="sage, gcn, gat, or a script's FILE.py:FUNCTION.",
            metavar="MODEL",
            autocompletion=completions.one_of(*completions.MODELS),
        ),
    ],
    graph: Annotated[Path, typer.Option(help="Partitioned graph.", metavar="DIR")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Directory of nodes.parquet.", metavar="DIR")
    ],
    write: Annotated[
        str,
        typer.Option(
            help="prediction, output, embedding.",
            metavar="NAMES",
            autocompletion=completions.some_of(*completions.WRITABLE),
        ),
    ] = "prediction",
    node_type: Annotated[
        str | None, typer.Option(help="Only this node type.", metavar="TYPE")
    ] = None,
    column: Annotated[str, typer.Option(help="Node feature column.", metavar="NAME")] = "x",
    edge_weight: Annotated[
        str | None, typer.Option(help="Edge column for edge_weight.", metavar="NAME")
    ] = None,
    edge_attr: Annotated[
        str | None, typer.Option(help="Edge column for edge_attr.", metavar="NAME")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="Torch device; default CPU.", metavar="DEVICE")
    ] = None,
    memory: Annotated[
        str, typer.Option(help="Memory per chunk of nodes.", metavar="SIZE")
    ] = "256MiB",
    config: Config = None,
    settings: Settings = None,
    runs: Runs = None,
    as_json: AsJson = False,
) -> None:
    """Run a trained model on all nodes, with all neighbours, and write Parquet.

    Computes layer by layer with activations on disk, so memory stays small.
    """
    from headrace.api.inference import find_weights, load_model, load_weights
    from headrace.api.inference import infer as infer_all
    from headrace.cli.commands.run.run import read_settings
    from headrace.core.units import parse_bytes

    found = find_weights(weights, runs)
    made = load_model(model, load_weights(found), read_settings(config, settings or []))
    with Stages() as stages:
        done = infer_all(
            made,
            graph,
            output,
            write=[name.strip() for name in write.split(",") if name.strip()],
            node_type=node_type,
            column=column,
            edge_weight=edge_weight,
            edge_attr=edge_attr,
            device=device,
            memory_bytes=int(parse_bytes(memory)),
            watcher=stages,
        )
    if as_json:
        typer.echo(json.dumps({"weights": str(found), **done.summary()}))
        return
    for name, table in done.tables.items():
        typer.echo(f"{done.num_nodes[name]:,} nodes are in {table}.")
        shares = done.accuracy.get(name, {})
        if shares:
            text = ", ".join(f"{split} {share:.4f}" for split, share in shares.items())
            typer.echo(f"Accuracy: {text}.")
