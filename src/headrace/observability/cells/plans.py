"""Notebook cells of plans and explanations."""

from __future__ import annotations

from collections import Counter

import numpy as np

from headrace.core.plan import Explanation, Plan, Remedy
from headrace.core.units import format_bytes, format_bytes_per_s, format_seconds
from headrace.observability.cells.frame import busiest, cell, facts
from headrace.observability.report.charts import meter
from headrace.observability.report.markup import Content, Html, el, table
from headrace.observability.report.words import percent, seconds


def plan_cell(plan: Plan, bottleneck: str, loads_s: tuple[np.ndarray, np.ndarray]) -> Html:
    """Create the cell of a plan; `loads_s` are the NICs' receive and send times per iteration."""
    lead = f"The bottleneck is {bottleneck}."
    return cell(f"Plan: {_pace(plan)}", lead, _machines(plan, *loads_s), _facts(plan))


def explanation_cell(explanation: Explanation) -> Html:
    """Create the cell of an explanation: bottleneck and changes that help."""
    rows: list[tuple[Content, ...]] = []
    for each in explanation.remedies:
        rows.append((each.change, _saving(each), seconds(each.time_s)))
    basis = "simulated" if explanation.is_rehearsed else "by the objective"
    lead = " ".join([f"The bottleneck is {explanation.bottleneck}.", *explanation.idle])
    found = table(("change (each re-planned)", "saves", "per iteration"), rows, "ttn")
    title = f"{seconds(explanation.time_s)} per iteration, {basis}"
    return cell(title, lead, found if rows else el("p", "No changes were evaluated."))


def _saving(remedy: Remedy) -> Html:
    if not remedy.matters:
        return el("span", "nothing", class_="faint")
    if remedy.saving < 0:
        return el("span", f"costs {percent(-remedy.saving)}")
    return meter(remedy.saving, "good")


def _pace(plan: Plan) -> str:
    if plan.predicted is None:
        return f"{seconds(plan.time_s)} per iteration by the objective"
    pace = f"{seconds(plan.time_s)} per iteration on average"
    whole_s = plan.time_s * plan.job.iterations
    return f"{pace}, {format_seconds(float(f'{whole_s:.3g}'))} for {plan.job.iterations:,}"


def _machines(plan: Plan, in_s: np.ndarray, out_s: np.ndarray) -> Html:
    counts = {
        "trainers": Counter(plan.placement.trainers),
        "samplers": Counter(plan.placement.samplers),
        "servers": Counter(plan.placement.servers),
    }
    roles = [role for role, found in counts.items() if found]
    loads = np.maximum(in_s, out_s).tolist()
    shown, hidden = busiest(loads)
    whole_s = plan.time_s or 1.0
    rows: list[tuple[Content, ...]] = []
    for m in shown:
        host = plan.cluster.hosts[m]
        speed = format_bytes_per_s(host.nic_in)
        if host.nic_in != host.nic_out:
            speed = f"{speed} in, {format_bytes_per_s(host.nic_out)} out"
        tasks = (str(counts[role][host.name] or "") for role in roles)
        meters = meter(float(in_s[m]) / whole_s), meter(float(out_s[m]) / whole_s, "out")
        rows.append((host.name, *tasks, speed, *meters))
    heads = ("machine", *roles, "NIC", "busy in", "busy out")
    kinds = "t" + "n" * len(roles) + "ttt"
    return el("div", table(heads, rows, kinds), el("p", hidden) if hidden else None)


def _facts(plan: Plan) -> Html:
    objective = f"{seconds(plan.terms.time_s)} per iteration"
    if plan.proven:
        objective += "; no placement has a smaller one (proven)"
    else:
        objective += f", {percent(plan.gap)} above the bound of all placements"
    network = f"{format_bytes(plan.network_bytes)} per iteration between machines"
    if plan.network_bytes < plan.uniform_network_bytes:
        saved = 1 - plan.network_bytes / plan.uniform_network_bytes
        network += f", {percent(saved)} less than with uniform seeds"
    return facts(
        {
            "made by": f"{plan.method}, {plan.seed_mix_name} seeds",
            "flow policy": plan.policy,
            "objective": objective,
            "network": network,
            "profile": plan.profile.source,
        }
    )
