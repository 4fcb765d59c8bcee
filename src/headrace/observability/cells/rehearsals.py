"""A rehearsal, or several of them, for a notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.observability.cells.frame import busiest, cell, facts
from headrace.observability.report.charts import meter
from headrace.observability.report.markup import Content, Html, el, table
from headrace.observability.report.words import percent, seconds

_ROLES = {"store": "stores", "sampler": "samplers", "trainer": "trainers", "ps": "servers"}


def rehearsal_cell(found: Mapping[str, Any], sentence: str) -> Html:
    """One rehearsal.

    Args:
        found: Its figures by the names that `headrace simulate --json` gives them.
        sentence: What holds it back.
    """
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
        f"{seconds(found['iteration_time_s'])} per iteration, rehearsed",
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
    """The same job under several flow policies.

    Args:
        found: Its figures by the names that `headrace simulate --compare --json` gives them.
    """
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
