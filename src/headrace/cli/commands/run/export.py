"""`headrace export`: write a trained model to a file that does not require headrace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli import completions
from headrace.cli.options import AsJson, Runs
from headrace.cli.paths import check_can_write

EXAMPLE = "Example: headrace export latest -o model.safetensors"


def export(
    weights: Annotated[
        str,
        typer.Argument(
            help="best.pt, model.safetensors, a checkpoint, or a run.",
            metavar="WEIGHTS",
            autocompletion=completions.runs,
        ),
    ],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="model.safetensors or model.pt.", metavar="FILE"),
    ],
    runs: Runs = None,
    as_json: AsJson = False,
) -> None:
    """Write the parameters of a trained model as safetensors or as a state_dict.

    PyG scripts load them without headrace.
    """
    check_can_write(output)
    from headrace.api.inference import export as write_weights
    from headrace.api.inference import find_weights

    found = find_weights(weights, runs)
    state = write_weights(found, output)
    num_values = sum(value.numel() for value in state.values() if hasattr(value, "numel"))
    if as_json:
        summary = {
            "weights": str(found),
            "output": str(output),
            "num_tensors": len(state),
            "num_values": num_values,
            "bytes": output.stat().st_size,
        }
        typer.echo(json.dumps(summary))
        return
    typer.echo(f"wrote {len(state)} tensors, {num_values:,} values of {found} to {output}")
