"""Sections of the report page."""

from __future__ import annotations

from headrace.core.report import Curve, Report, Split
from headrace.core.units import format_bytes, format_bytes_per_s, format_seconds
from headrace.observability.report.charts import line_chart, meter, stacked_bar
from headrace.observability.report.markup import Content, Html, coded, el, join, table
from headrace.observability.report.words import (
    counted_sentence,
    difference,
    percent,
    quantity,
    seconds,
    split_parts,
)

_MOST_CURVES = 8
_MOST_DECISIONS = 50
_MOST_ROWS = 200
_LEGEND = (
    ("compute", "compute"),
    ("peers", "wait for other trainers"),
    ("exchange", "gradient exchange"),
    ("wait", "wait for samplers"),
    ("other", "other"),
)


def section(title: str, lead: str, *content: Content, anchor: str = "") -> Html:
    """Create a section with a heading."""
    return el(
        "section",
        el("h2", title),
        el("p", lead, class_="lead") if lead else None,
        *content,
        id=anchor or None,
    )


def time_section(report: Report) -> Html | None:
    """Time components of trainers, and task utilisation."""
    known = [t for t in report.trainers if t.measured is not None or t.predicted is not None]
    if not known:
        return None
    splits = [split for t in known for split in (t.predicted, t.measured) if split is not None]
    whole = max(split.total_s for split in splits) or 1.0
    rows = []
    for trainer in known[:_MOST_ROWS]:
        name = el("b", trainer.name), el("small", f" on {trainer.machine}")
        rows.append(el("div", *name, class_="who"))
        for kind, split in (("predicted", trainer.predicted), ("measured", trainer.measured)):
            if split is not None:
                rows.append(el("span", kind, class_="kind"))
                rows.append(_split_bar(trainer.name, kind, split, whole))
                rows.append(el("span", seconds(split.total_s), class_="sum"))
    legend = [el("span", el("i", class_=kind), words) for kind, words in _LEGEND]
    return section(
        "Where the time went",
        counted_sentence(report.pace) if report.pace.num_steady else "",
        el("div", *legend, class_="legend", aria_hidden="true"),
        el("div", *rows, class_="splits"),
        _more("Trainers in figures", _split_table(report)),
        _task_table(report),
        anchor="time",
    )


def _split_bar(name: str, kind: str, split: Split, whole: float) -> Html:
    parts = split_parts(split)
    label = f"{name}, {kind}: " + ", ".join(words for _, words, _ in parts)
    return stacked_bar(parts, whole, label)


def _split_table(report: Report) -> Html:
    rows: list[tuple[Content, ...]] = []
    for trainer in report.trainers[:_MOST_ROWS]:
        for kind, split in (("predicted", trainer.predicted), ("measured", trainer.measured)):
            if split is not None:
                parts = [seconds(size) for _, _, size in split_parts(split)]
                rows.append((trainer.name, kind, *parts, seconds(split.total_s)))
    waits = ("wait for trainers", "exchange", "wait for samplers")
    heads = ("trainer", "", "compute", *waits, "other", "total")
    return table(heads, rows, "ttnnnnnn")


def _task_table(report: Report) -> Html | None:
    if not report.tasks:
        return None
    rows: list[tuple[Content, ...]] = [
        (task.name, task.machine, meter(task.predicted, "pale"), meter(task.measured))
        for task in report.tasks[:_MOST_ROWS]
    ]
    shown = table(("task", "machine", "busy, predicted", "busy, measured"), rows, "ttnn")
    return _more("Task utilisation", shown)


def memory_section(report: Report) -> Html | None:
    """Estimated and measured peak memory of tasks."""
    if not report.memory:
        return None
    rows: list[tuple[Content, ...]] = []
    for task in report.memory[:_MOST_ROWS]:
        ratio = ""
        if task.estimated_bytes and task.measured_bytes:
            ratio = difference(task.estimated_bytes, task.measured_bytes)
        sizes = quantity(task.estimated_bytes, "B"), quantity(task.measured_bytes, "B")
        rows.append((task.name, task.machine, *sizes, ratio))
    lead = "Largest memory that each process allocated, without cached files and shared memory."
    if not any(task.estimated_bytes for task in report.memory):
        lead += " Plan with `--script` to estimate it."
    shown = table(("task", "machine", "estimated", "measured", "difference"), rows, "ttnnn")
    return section("Memory", coded(lead), shown, anchor="memory")


def advice_section(report: Report) -> Html | None:
    """Changes that would help most."""
    advice = report.advice
    if advice is None:
        return None
    best = advice.best()
    rests = "the profile measured in this run" if advice.profile == "run" else "the plan's profile"
    lead = (
        f"Each change was simulated separately with {rests}; the unchanged plan takes "
        f"{seconds(advice.time_s)} per iteration."
    )
    if not best:
        content = el("p", f"None of the {len(advice.tried)} simulated changes saves 1 %.")
    else:
        content = el(
            "ol",
            *(
                el(
                    "li",
                    el("span", percent(change.saving), class_="gain"),
                    el(
                        "div",
                        el("b", change.change[:1].upper() + change.change[1:]),
                        el(
                            "small",
                            f"{seconds(change.time_s)} per iteration. ",
                            coded(change.remark),
                        ),
                    ),
                )
                for change in best
            ),
            class_="advice",
        )
    if 0 < len(best) < 3:
        left = len(advice.tried) - len(best)
        content = join(content, el("p", f"None of the {left} other changes saves 1 %."))
    rows: list[tuple[Content, ...]] = [
        (change.change, seconds(change.time_s), percent(change.saving, signed=True))
        for change in advice.tried
    ]
    heads = ("change", "per iteration", "saving per seed")
    title = "Changes that would help most"
    everything = _more("All simulated changes", table(heads, rows, "tnn"))
    return section(title, lead, content, everything, anchor="advice")


def curve_section(report: Report) -> Html | None:
    """Metrics that the script reported."""
    if not report.curves:
        return None
    shown = report.curves[:_MOST_CURVES]
    figures = [el("figure", _curve_caption(curve), _curve_chart(curve)) for curve in shown]
    rows: list[tuple[Content, ...]] = [
        (curve.name, f"{at:g}", f"{value:.6g}")
        for curve in shown
        for at, value in list(zip(curve.at, curve.values, strict=True))[-_MOST_ROWS:]
    ]
    return section(
        "Metrics",
        "Reported by the script.",
        el("div", *figures, class_="curves"),
        _more("As a table", table(("metric", "at", "value"), rows, "tnn")),
        anchor="learning",
    )


def _curve_caption(curve: Curve) -> Html:
    last = f"{curve.values[-1]:.4g} at the end"
    extreme = ""
    if len(curve.values) > 1:
        extreme = f", from {min(curve.values):.4g} to {max(curve.values):.4g}"
    return el("figcaption", el("b", curve.name), el("small", f" {last}{extreme}"))


def _curve_chart(curve: Curve) -> Html:
    label = (
        f"{curve.name} over {curve.axis}: {len(curve.values)} values, "
        f"first {curve.values[0]:.4g}, last {curve.values[-1]:.4g}"
    )
    return line_chart(curve.at, curve.values, label, curve.axis)


def decision_section(report: Report) -> Html | None:
    """Faults and the decisions taken."""
    if not report.decisions and not report.earlier:
        return None
    rows: list[tuple[Content, ...]] = [
        (format_seconds(moment.at_s), moment.text) for moment in report.decisions[-_MOST_DECISIONS:]
    ]
    attempts = "1 attempt" if report.attempts == 1 else f"{report.attempts} attempts"
    times = "once" if report.restarts == 1 else f"{report.restarts} times"
    return section(
        "Faults and decisions",
        f"{attempts}; tasks restarted {times}.",
        table(("after", "decision"), rows, "nt") if rows else None,
        _earlier(report),
        anchor="decisions",
    )


def _earlier(report: Report) -> Html | None:
    """Table of attempts under other plans, and the current one."""
    if not report.earlier:
        return None
    rows: list[tuple[Content, ...]] = [
        (
            each.attempt,
            each.num_machines,
            f"{each.num_iterations:,}",
            quantity(each.measured_s, "s"),
        )
        for each in report.earlier
    ]
    num_machines = "-" if report.plan is None else len(report.plan.machines)
    pace = report.pace
    rows.append(
        (
            f"{report.attempts}, this report",
            num_machines,
            f"{pace.num_iterations:,}",
            quantity(pace.measured_s, "s"),
        )
    )
    heads = ("attempt", "machines", "up to iteration", "measured per iteration")
    return join(el("h3", "Attempts under other plans"), table(heads, rows, "tnnn"))


def assumption_section(report: Report) -> Html | None:
    """The plan's profile compared with this run."""
    if not report.assumptions:
        return None
    rows: list[tuple[Content, ...]] = []
    for each in report.assumptions:
        ratio = ""
        if each.assumed is not None and each.measured is not None:
            ratio = difference(each.assumed, each.measured)
        figures = quantity(each.assumed, each.unit), quantity(each.measured, each.unit)
        rows.append((each.what, *figures, ratio))
    note = f"The plan's profile is {report.pace.profile}: {report.pace.profile_note}."
    if not report.pace.profile_note:
        note = f"The plan's profile is {report.pace.profile}."
    heads = ("figure", "plan", "this run", "difference")
    shown = table(heads, rows, "tnnn")
    return section("Assumptions of the plan", note, shown, anchor="assumed")


def plan_section(report: Report) -> Html | None:
    """The plan: placement and quality."""
    plan = report.plan
    if plan is None:
        return None
    rows: list[tuple[Content, ...]] = []
    for machine in plan.machines[:_MOST_ROWS]:
        speed = format_bytes_per_s(machine.nic_in_bytes_per_s)
        if machine.nic_out_bytes_per_s != machine.nic_in_bytes_per_s:
            speed = f"{speed} in, {format_bytes_per_s(machine.nic_out_bytes_per_s)} out"
        has = ", ".join(_resource(key, amount) for key, amount in machine.resources.items())
        rows.append((machine.name, machine.kind, has, speed, ", ".join(machine.tasks)))
    near = (
        "No placement has a smaller objective."
        if plan.proven
        else (
            f"The objective is {percent(plan.gap)} above its bound over all placements, "
            f"{seconds(plan.bound_s)}."
        )
    )
    saved = ""
    if plan.uniform_network_bytes > plan.network_bytes:
        saved = f" ({format_bytes(plan.uniform_network_bytes)} with uniform seeds)"
    facts = (
        ("made by", f"{plan.method}, {plan.seed_mix} seeds, flow policy {plan.policy}"),
        (
            "job",
            f"{plan.trainers} trainers with {plan.samplers_per_trainer} samplers each, "
            f"{plan.batch_size:,} seeds per trainer and iteration, sync by {plan.sync}, "
            f"window {plan.window}",
        ),
        ("objective", f"{seconds(plan.time_s)} per iteration. {near}"),
        ("limit", plan.limit),
        ("network", f"{format_bytes(plan.network_bytes)} per iteration between machines{saved}"),
        ("inputs", ", ".join(f"{key} {value}" for key, value in plan.fingerprints.items())),
    )
    listed = [join(el("dt", key), el("dd", value)) for key, value in facts if value]
    return section(
        "The plan",
        "",
        table(("machine", "class", "resources", "NIC", "tasks"), rows),
        el("dl", *listed),
        anchor="plan",
    )


def repeat_section(report: Report) -> Html:
    """Command and versions to repeat the run."""
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    facts = (
        ("ran with", versions or "not recorded"),
        ("report by", f"headrace {report.made_by}"),
    )
    listed = [join(el("dt", key), el("dd", value)) for key, value in facts]
    command = el("pre", el("code", report.command), tabindex="0") if report.command else None
    lead = "In the run directory, on a machine of the cluster:" if report.command else ""
    return section("Repeat the run", lead, command, el("dl", *listed), anchor="again")


def _resource(name: str, amount: float) -> str:
    return format_bytes(amount) if amount >= 1e6 else f"{amount:g} {name}"


def _more(title: str, content: Html) -> Html:
    return el("details", el("summary", title), content)
