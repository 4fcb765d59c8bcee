"""`headrace stores`: stores of a partitioned graph that outlive runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli import completions, console
from headrace.cli.app import VerbApp
from headrace.cli.errors import INTERRUPTED_EXIT_CODE
from headrace.cli.options import Address, AsJson, NoTls, Runs

if TYPE_CHECKING:
    from headrace.api.stores import StoreSetConfig, StoreSetView

UP_EXAMPLE = (
    "Example: headrace stores up --graph parts --plan plan.json\n\n"
    "Example: headrace stores up --graph parts --local"
)

app = VerbApp(
    help="Keep the stores of a graph up between runs.",
    epilog="Example: headrace stores up --graph parts --local",
)

_Wanted = Annotated[
    str,
    typer.Argument(help="Name of the stores.", metavar="NAME", autocompletion=completions.stores),
]
_Some = Annotated[
    str | None,
    typer.Argument(help="Default all.", metavar="NAME", autocompletion=completions.stores),
]


@app.command(epilog=UP_EXAMPLE)
def up(
    graph: Annotated[Path, typer.Option(help="Partitioned graph.", metavar="DIR")],
    plan: Annotated[
        Path | None, typer.Option(help="Use its machines, on Ray.", metavar="FILE")
    ] = None,
    cluster: Annotated[
        Path | None, typer.Option(help="Use its machines, on Ray.", metavar="FILE")
    ] = None,
    local: Annotated[bool, typer.Option("--local", help="Only this machine, without Ray.")] = False,
    name: Annotated[str, typer.Option(help="Default the graph's folder.", metavar="NAME")] = "",
    address: Address = None,
    cache: Annotated[
        str | None, typer.Option(help="Directory for shipped graphs.", metavar="DIR", hidden=True)
    ] = None,
    no_tls: NoTls = False,
    runs: Runs = None,
    as_json: AsJson = False,
) -> None:
    """Start a graph's stores in the background; `headrace run --stores NAME` uses them."""
    from headrace.api.stores import StoreSet, start, view

    store_set = StoreSet.named(name or graph.resolve().name, runs)
    config = _config(graph, plan, cluster, local, address, cache, not no_tls)
    try:
        start(store_set, config, console.note)
    except KeyboardInterrupt:
        console.note("interrupted; all stores have ended")
        raise typer.Exit(INTERRUPTED_EXIT_CODE) from None
    shown = view(store_set)
    if as_json:
        typer.echo(json.dumps(_summary(shown)))
        return
    _show(shown)
    how = "--local" if local else "--plan PLAN"
    where = "" if runs is None else f" --runs {runs}"
    typer.echo(f"try: headrace run {how} --stores {store_set.name}{where} train.py")


@app.command(epilog="Example: headrace stores down parts")
def down(
    name: _Wanted,
    force: Annotated[bool, typer.Option("--force", help="Even if runs use them.")] = False,
    runs: Runs = None,
    as_json: AsJson = False,
) -> None:
    """End stores and remove their files; refused while runs use them."""
    from headrace.api.stores import StoreSet, stop

    stop(StoreSet.named(name, runs), with_users=force)
    typer.echo(json.dumps({"name": name}) if as_json else f"the stores {name} are down")


@app.command(epilog="Example: headrace stores status parts")
def status(name: _Some = None, runs: Runs = None, as_json: AsJson = False) -> None:
    """Ask stores whether they serve. Exits with 1 if one does not."""
    from headrace.api.stores import StoreSet, view

    found = StoreSet.all(runs) if name is None else [StoreSet.named(name, runs)]
    views = [view(store_set) for store_set in found]
    if as_json:
        each = [_summary(shown) for shown in views]
        typer.echo(json.dumps(each if name is None else each[0]))
    else:
        for shown in views:
            _show(shown)
        if not views:
            typer.echo("no stores are up")
    if any(shown.problems for shown in views):
        raise typer.Exit(1)


def _config(
    graph: Path,
    plan: Path | None,
    cluster: Path | None,
    local: bool,
    address: str | None,
    cache: str | None,
    tls: bool,
) -> StoreSetConfig:
    from headrace.api.documents.load import load_cluster, load_plan
    from headrace.api.stores import local_stores, planned_stores
    from headrace.core.errors import SpecError

    if sum((plan is not None, cluster is not None, local)) != 1:
        raise SpecError("stores need machines", "give one of --plan, --cluster and --local")
    if local:
        if address or cache:
            raise SpecError("--local starts all stores here", "omit --address and --cache")
        return local_stores(graph)
    settings: dict[str, Any] = {"address": address, "cache": cache, "tls": tls}
    if plan is not None:
        return planned_stores(graph, load_plan(plan), **settings)
    assert cluster is not None
    return planned_stores(graph, load_cluster(cluster), **settings)


def _summary(shown: StoreSetView) -> dict[str, Any]:
    return {
        **shown.state.model_dump(mode="json"),
        "is_up": shown.is_up,
        "runs": list(shown.users),
        "problems": [problem for problem, _ in shown.problems],
        "answers": {
            str(part): {"counts": dict(answer.counts), "memory_bytes": answer.memory_bytes}
            for part, answer in shown.answers.items()
        },
    }


def _show(shown: StoreSetView) -> None:
    from rich.table import Table

    state = shown.state
    phase = state.phase.value if shown.is_up or state.error is not None else "not running"
    typer.echo(f"{state.name}: {phase}, {state.graph}")
    table = Table(box=None, pad_edge=False)
    for heading in ("store", "machine", "state", "files"):
        table.add_column(heading, no_wrap=True)
    for heading in ("partitions", "pid", "restarts", "requests"):
        table.add_column(heading, justify="right", no_wrap=True)
    for store in state.stores:
        answers = [shown.answers[part] for part in store.ports if part in shown.answers]
        table.add_row(
            store.task,
            store.machine,
            store.state.value,
            "verified" if store.is_verified else "being verified",
            str(len(store.ports)),
            "-" if store.pid is None else str(store.pid),
            str(store.restarts),
            str(sum(sum(answer.counts.values()) for answer in answers)) if answers else "-",
        )
    console.console(width=None).print(table)
    if shown.users:
        typer.echo(f"used by {', '.join(shown.users)}")
    for problem, remedy in shown.problems:
        typer.echo(f"  {problem}: {remedy}")
