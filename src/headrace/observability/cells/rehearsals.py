"""Notebook cells of simulations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.observability.cells.frame import busiest, cell, facts
from headrace.observability.report.charts import meter
from headrace.observability.report.markup import Content, Html, el, table
from headrace.observability.report.words import percent, seconds

_ROLES = {"store": "stores", "sampler": "samplers", "trainer": "trainers", "ps": "servers"}


def simulation_cell(found: Mapping[str, Any], sentence: str) -> Html:
    """Create the cell of one simulation from the output of `headrace simulate --json`."""
    machines: Sequence[Mapping[str, Any]] = found["machines"]
    roles = [role for role in _ROLES if any(role in each["tasks"] for each in machines)]
    shown, hidden = busiest([max(m["in_utilisation"], m["out_utilisation"]) for m in machines])
    rows: list[tuple[Content, ...]] = [
        (
            machines[m]["name"],
            *(str(machines[m]["tasks"].get(role, "")) for role in roles),
            meter(machines[m]["in_utilisation"]),
            meter(machines[m]["out_utilisation"], "out"),
        )
        for m in shown
    ]
    heads = ("machine", *(_ROLES[role] for role in roles), "busy in", "busy out")
    return cell(
        f"{seconds(found['iteration_time_s'])} per iteration, simulated",
        sentence,
        table(heads, rows, "t" + "n" * len(roles) + "tt"),
        el("p", hidden) if hidden else None,
        facts(
            {
                "makespan": f"{seconds(found['makespan_s'])} for {found['iterations']} iterations",
                "placement": str(found["placement"]),
                "flow policy": str(found["policy"]),
                "window": str(found["window"]),
                "profile": str(found["profile"]["source"]),
            }
        ),
    )


def comparison_cell(found: Mapping[str, Any]) -> Html:
    """Create the cell of a comparison from the output of `headrace simulate --compare --json`."""
    most = max(each["relative_makespan"] for each in found["policies"])
    rows: list[tuple[Content, ...]] = []
    for each in found["policies"]:
        is_best = each["policy"] == found["best"]
        excess = "best" if is_best else percent(each["relative_makespan"] - 1, signed=True)
        bar = el(
            "i",
            style=f"width:{100 * each['relative_makespan'] / most:.1f}%",
            class_="good" if is_best else None,
        )
        rows.append(
            (
                each["policy"],
                el("span", el("b", bar, aria_hidden="true"), seconds(each["makespan_s"]),
                   class_="meter"),
                excess,
                each["bottleneck"]["nic"] or "none",
                percent(each["bottleneck"]["utilisation"]),
            )
        )  # fmt: skip
    heads = ("flow policy", "makespan", "over the best", "busiest NIC", "busy")
    lead = f"{found['iterations']} iterations, window {found['window']}, placement "
    return cell(
        f"Best: {found['best']}", f"{lead}{found['placement']}.", table(heads, rows, "ttntn")
    )
