"""`headrace simulate`: simulate a job under one or several flow policies."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

import typer

from headrace.cli import completions
from headrace.cli.options import AsJson
from headrace.cli.output.progress import steps
from headrace.cli.paths import check_can_write, find_profile

if TYPE_CHECKING:
    from headrace.api.simulate import AnyWindow, Simulation
    from headrace.core.cluster import Cluster
    from headrace.core.job import Job
    from headrace.core.profile import Profile

EXAMPLE = (
    "Example: headrace simulate --cluster c.yaml --job j.yaml --trace t.json\n\n"
    "Example: headrace simulate --cluster c.yaml --job j.yaml --compare all\n\n"
    "Example: headrace simulate --coflows examples/coflows/coflows.yaml --compare all"
)


def simulate(
    cluster: Annotated[Path | None, typer.Option(help="Cluster file.", metavar="FILE")] = None,
    job: Annotated[Path | None, typer.Option(help="Job file.", metavar="FILE")] = None,
    coflows: Annotated[
        Path | None, typer.Option(help="Tasks and coflows instead of a job.", metavar="FILE")
    ] = None,
    profile: Annotated[
        Path | None, typer.Option(help="Profile; default synthetic.", metavar="FILE")
    ] = None,
    placement: Annotated[
        str,
        typer.Option(
            help="Method, placement file or plan.",
            metavar="NAME",
            autocompletion=completions.one_of(*completions.METHODS),
        ),
    ] = "colocate",
    policy: Annotated[
        str | None,
        typer.Option(
            help="Default the plan's, or priority.",
            metavar="NAME",
            autocompletion=completions.one_of(*completions.POLICIES),
        ),
    ] = None,
    compare: Annotated[
        str | None,
        typer.Option(
            help="Compare policies: a,b,c or all.",
            metavar="NAMES",
            autocompletion=completions.some_of("all", *completions.POLICIES),
        ),
    ] = None,
    iterations: Annotated[
        int | None, typer.Option(help="Overrides the job's.", metavar="N", min=1)
    ] = None,
    window: Annotated[
        str | None,
        typer.Option(
            help="Iterations in flight, or unlimited.",
            metavar="K",
            autocompletion=completions.one_of(*completions.WINDOWS),
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed.", metavar="S", min=0)] = 0,
    trace: Annotated[
        Path | None, typer.Option(help="Write a file for ui.perfetto.dev.", metavar="FILE")
    ] = None,
    gantt: Annotated[
        Path | None, typer.Option(help="Draw a Gantt chart (PNG).", metavar="FILE")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Simulate a training job, or coflows, and show its bottleneck."""
    from headrace.core.errors import SpecError

    if compare is not None and policy is not None:
        raise SpecError("--policy and --compare exclude each other", "keep one of them")
    if coflows is not None:
        unused = {
            "cluster": cluster,
            "job": job,
            "profile": profile,
            "placement": placement != "colocate",
            "iterations": iterations,
            "window": window,
            "seed": seed,
            "trace": trace,
            "gantt": gantt,
        }
        for name, value in unused.items():
            if value:
                raise SpecError(
                    f"--{name} does not apply to --coflows", "use --policy, --compare and --json"
                )
        _simulate_coflows(coflows, policy, compare, as_json)
        return
    if cluster is None or job is None:
        name = "--cluster" if cluster is None else "--job"
        raise SpecError(
            f"headrace simulate: {name} is missing", f"add {name} FILE, or --coflows FILE instead"
        )
    if compare is not None and (trace or gantt):
        raise SpecError("a trace or chart shows one policy", "use --policy instead of --compare")
    for path in (trace, gantt):
        check_can_write(path)
    if gantt:
        from headrace.observability.gantt import check_can_draw

        check_can_draw()

    from headrace.api.documents.load import load_cluster, load_job

    settings = _Settings(
        cluster=load_cluster(cluster),
        job=load_job(job),
        profile=find_profile(profile),
        placement=placement,
        iterations=iterations,
        window=_parse_window(window),
        seed=seed,
    )
    if compare is not None:
        _compare(settings, compare, as_json)
    else:
        _simulate(settings, policy, trace, gantt, as_json)


class _Settings(TypedDict):
    """Common arguments of a simulation and a comparison."""

    cluster: Cluster
    job: Job
    profile: Profile
    placement: str
    iterations: int | None
    window: AnyWindow
    seed: int


def _simulate(
    settings: _Settings, policy: str | None, trace: Path | None, gantt: Path | None, as_json: bool
) -> None:
    from headrace.api.simulate import default_policy, simulate

    policy = policy or default_policy(settings["placement"])
    num_iterations = settings["iterations"] or settings["job"].iterations
    # Compiling the kernel of one policy takes no longer than interpreting it once.
    with steps(1, interpret=False) as begin:
        begin(f"simulating {num_iterations} iterations under {policy}")
        found = simulate(**settings, policy=policy, record=bool(trace or gantt))
        if trace or gantt:
            _write_pictures(found, trace, gantt)
    if as_json:
        written = {"trace": _text(trace), "gantt": _text(gantt)}
        typer.echo(json.dumps(found.summary() | written))
        return
    from headrace.cli.output.simulation_tables import show_simulation

    show_simulation(found)
    if trace:
        typer.echo(f"The trace is in {trace}: open it at https://ui.perfetto.dev.")
    if gantt:
        typer.echo(f"The Gantt chart is in {gantt}.")


def _simulate_coflows(path: Path, policy: str | None, names: str | None, as_json: bool) -> None:
    from headrace.api.coflows import simulate_coflows
    from headrace.api.documents.load import load_coflows
    from headrace.api.results.coflows import CoflowComparison
    from headrace.api.simulate import DEFAULT_POLICY, check_policies
    from headrace.cli.output.simulation_tables import show_coflow_comparison, show_coflows

    graph = load_coflows(path)
    policies = check_policies([policy or DEFAULT_POLICY] if names is None else _policies(names))
    found = []
    with steps(len(policies), interpret=False) as begin:
        for name in policies:
            begin(f"simulating {len(graph.tasks)} tasks under {name}" if names is None else name)
            found.append(simulate_coflows(graph, name))
    result = found[0] if names is None else CoflowComparison(tuple(found))
    if as_json:
        typer.echo(json.dumps(result.summary()))
    elif isinstance(result, CoflowComparison):
        show_coflow_comparison(result)
    else:
        show_coflows(result)


def _policies(names: str) -> list[str]:
    from headrace.policies.flow import FLOW_POLICIES

    policies = [name.strip() for name in names.split(",") if name.strip()]
    return list(FLOW_POLICIES) if policies == ["all"] else policies


def _compare(settings: _Settings, names: str, as_json: bool) -> None:
    policies = _policies(names)
    with steps(len(set(policies))) as begin:
        from headrace.api.simulate import compare

        found = compare(**settings, policies=policies, on_step=begin)
    if as_json:
        typer.echo(json.dumps(found.summary()))
        return
    from headrace.cli.output.simulation_tables import show_comparison

    show_comparison(found)


def _parse_window(text: str | None) -> AnyWindow:
    from headrace.core.errors import SpecError

    if text is None:
        return None
    if text == "unlimited":
        return "unlimited"
    if not text.isdecimal() or int(text) < 1:
        raise SpecError(f"--window {text} is invalid", "use 1, 2, ... or unlimited")
    return int(text)


def _write_pictures(simulation: Simulation, trace: Path | None, gantt: Path | None) -> None:
    from headrace.observability.gantt import draw_gantt
    from headrace.observability.perfetto import write_perfetto

    seen = simulation.trace()
    if gantt:
        title = f"{simulation.job.name}: {simulation.policy}"
        _write(gantt, lambda path: draw_gantt(seen, path, title))
    if trace:
        _write(trace, lambda path: write_perfetto(seen, path))


def _write(path: Path, write: Callable[[Path], None]) -> None:
    from headrace.core.errors import SpecError

    try:
        write(path)
    except OSError as error:
        reason = error.strerror or error
        raise SpecError(f"{path} cannot be written ({reason})", "choose another path") from None


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
