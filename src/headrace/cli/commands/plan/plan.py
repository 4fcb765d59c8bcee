"""`headrace plan`: place tasks on machines, or compare two plans."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli import completions
from headrace.cli.options import AsJson
from headrace.cli.output.progress import steps
from headrace.cli.paths import check_can_write, check_script, find_full_graph_profile, find_profile

EXAMPLE = (
    "Example: headrace plan --cluster c.yaml --job j.yaml -o plan.json\n\n"
    "Example: headrace plan --diff old.json new.json"
)


def plan(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(help="Script arguments, after --.", metavar="-- ARGS", hidden=True),
    ] = None,
    cluster: Annotated[Path | None, typer.Option(help="Cluster file.", metavar="FILE")] = None,
    job: Annotated[Path | None, typer.Option(help="Job file.", metavar="FILE")] = None,
    profile: Annotated[
        list[Path] | None,
        typer.Option(
            help="Profile; default synthetic. Repeatable with --script.",
            metavar="FILE",
        ),
    ] = None,
    graph: Annotated[
        Path | None, typer.Option(help="Partitioned graph to plan for.", metavar="DIR")
    ] = None,
    fanout: Annotated[
        str | None,
        typer.Option(help="Neighbours per hop of the loader; default 10,5.", metavar="N,N"),
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            help="anneal, etp, colocate, ifs or exact.",
            metavar="NAME",
            autocompletion=completions.one_of(*completions.METHODS),
        ),
    ] = "anneal",
    policy: Annotated[
        str,
        typer.Option(
            help="Flow policy; auto simulates several.",
            metavar="NAME",
            autocompletion=completions.one_of("auto", *completions.POLICIES),
        ),
    ] = "auto",
    seed_mix: Annotated[
        str,
        typer.Option(
            help="auto, uniform or local-first.",
            metavar="NAME",
            autocompletion=completions.one_of(*completions.SEED_MIXES),
        ),
    ] = "auto",
    shares: Annotated[
        str,
        typer.Option(
            help="Batch shares: auto or equal.",
            metavar="NAME",
            autocompletion=completions.one_of(*completions.SHARES),
        ),
    ] = "auto",
    traffic: Annotated[
        str,
        typer.Option(
            help="With --graph: exact, safe or least bytes.",
            metavar="NAME",
            autocompletion=completions.one_of(*completions.LESS_TRAFFIC),
        ),
    ] = "exact",
    cache: Annotated[
        str | None,
        typer.Option(help="With --graph: cache of each sampler, e.g. 8MB or 0.", metavar="SIZE"),
    ] = None,
    script: Annotated[
        Path | None,
        typer.Option(help="With --graph: script to estimate; its ARGS after --.", metavar="FILE"),
    ] = None,
    choose: Annotated[
        str | None,
        typer.Option(
            help="Full graph: choose trainers, sync, bins or all.",
            metavar="NAMES",
            autocompletion=completions.one_of("all", "trainers", "sync", "bins"),
        ),
    ] = None,
    budget: Annotated[
        str | None, typer.Option(help="Minimum search time, e.g. 2s.", metavar="TIME")
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed.", metavar="S", min=0)] = 0,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Plan file to write.", metavar="FILE")
    ] = None,
    diff: Annotated[
        tuple[Path, Path] | None, typer.Option(help="Compare two plans.", metavar="A B")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Place every task on a machine, and predict the time per iteration."""
    from headrace.core.errors import SpecError

    if diff is not None:
        if cluster or job or profile or output:
            raise SpecError("--diff only compares two plans", "omit the other files")
        _diff(*diff, as_json)
        return
    if cluster is None or job is None:
        missing = "--cluster" if cluster is None else "--job"
        raise SpecError(f"{missing} is missing", f"add {missing} FILE, or use --diff A B")

    from headrace.api.documents.load import load_cluster, load_job, load_profile, save_plan
    from headrace.core.job import JobKind
    from headrace.core.units import parse_bytes, parse_seconds

    if script is not None:
        check_script(script)
    elif arguments:
        raise SpecError(f"the argument {arguments[0]} is for a script", "give --script FILE")
    check_can_write(output)
    budget_s = None if budget is None else parse_seconds(budget)
    machines, asked = load_cluster(cluster), load_job(job)
    own = profile[0] if profile else None
    known = (
        find_full_graph_profile(own)
        if asked.kind is JobKind.FULL_GRAPH
        else find_profile(own, has_graph=graph is not None)
    )
    more = [load_profile(path) for path in (profile or [])[1:]]
    inputs = (machines, asked, known)
    with steps(3 + (graph is not None) + (script is not None)) as begin:
        from headrace.api.plan import plan as make_plan
        from headrace.api.plan import plan_summary

        found = make_plan(
            *inputs,
            method=method,
            policy=policy,
            seed_mix=seed_mix,  # type: ignore[arg-type]  # checked by the planner
            shares=shares,  # type: ignore[arg-type]  # likewise
            seed=seed,
            budget_s=budget_s,
            clock=time.monotonic,
            on_step=begin,
            graph=graph,
            num_neighbors=None if fanout is None else read_fanout(fanout),
            traffic=traffic,  # type: ignore[arg-type]  # likewise
            cache_bytes=None if cache is None else parse_bytes(cache),
            script=script,
            arguments=tuple(arguments or ()),
            more_profiles=more,
            choose=choose,
        )
    if output is not None:
        save_plan(found, output)
    if as_json:
        written = None if output is None else str(output)
        typer.echo(json.dumps(plan_summary(found) | {"output": written}))
        return
    from headrace.cli.output.plan_tables import show_plan

    show_plan(found)
    if output is not None:
        typer.echo(f"The plan is in {output}: headrace explain {output} shows improvements.")


def read_fanout(text: str) -> list[int]:
    """Parse the neighbours of each hop, separated by commas."""
    from headrace.core.errors import SpecError

    try:
        return [int(each) for each in text.split(",")]
    except ValueError:
        raise SpecError(
            f"--fanout {text} is not a list of numbers",
            "give the neighbours of each hop separated by commas, such as 15,10",
        ) from None


def _diff(before: Path, after: Path, as_json: bool) -> None:
    from headrace.api.documents.load import load_plan
    from headrace.api.plan import diff_plans

    found = diff_plans(load_plan(before), load_plan(after))
    if as_json:
        typer.echo(json.dumps(found.summary()))
        return
    from headrace.cli.output.plan_tables import show_diff

    show_diff(found, str(before), str(after))
