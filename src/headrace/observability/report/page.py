"""Assembly of the self-contained report page."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.resources import files

from headrace.core.report import Report
from headrace.core.trace import Trace
from headrace.core.units import format_bytes, format_bytes_per_s, format_seconds
from headrace.observability.report import sections
from headrace.observability.report.charts import mirror_chart, stacked_bar
from headrace.observability.report.gantt import NUM_COLOURS, Stretch, gantt_panel
from headrace.observability.report.markup import Html, coded, el, join
from headrace.observability.report.use import nic_series
from headrace.observability.report.words import (
    busiest_nic,
    headline,
    percent,
    seconds,
    unbroken,
    verdict,
)

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
_NUM_INTERVALS = 240
_MOST_NICS = 32
_WORTH_DRAWING = 0.02
_STATES = {"done": "good", "failed": "bad", "interrupted": "bad"}


def draw_page(
    report: Report,
    measured: Trace | None = None,
    stretches: Sequence[tuple[str, Stretch]] = (),
) -> str:
    """Render a report as HTML, with a Gantt chart per stretch."""
    parts = [
        _head(report),
        _missing(report),
        gantt_section(stretches),
        sections.time_section(report),
        sections.memory_section(report),
        nic_section(report, measured),
        sections.advice_section(report),
        sections.curve_section(report),
        sections.decision_section(report),
        sections.assumption_section(report),
        sections.plan_section(report),
        sections.repeat_section(report),
    ]
    body = el("main", *parts)
    return (
        "<!doctype html>\n"
        + el(
            "html",
            el(
                "head",
                el("meta", charset="utf-8"),
                el("meta", http_equiv="Content-Security-Policy", content=_POLICY),
                el("meta", name="viewport", content="width=device-width, initial-scale=1"),
                el("meta", name="color-scheme", content="light dark"),
                el("title", f"{report.run_id}: headrace report"),
                el("style", Html(_asset("page.css"))),
            ),
            el("body", body, el("script", Html(_asset("page.js")))),
            lang="en",
        )
        + "\n"
    )


def _asset(name: str) -> str:
    return files("headrace.observability.report").joinpath(name).read_text(encoding="utf-8")


def _head(report: Report) -> Html:
    began = datetime.fromtimestamp(report.began_s, UTC).strftime("%d %B %Y, %H:%M UTC").lstrip("0")
    state = el("span", report.state, class_=f"state {_STATES.get(report.state, '')}".strip())
    facts = join(
        state, f" {report.run_id} · {began} · {format_seconds(round(report.elapsed_s, 1))}"
    )
    trouble = None
    if report.problem:
        trouble = el(
            "p", el("b", report.problem), el("br"), "Try: ", coded(report.remedy), class_="trouble"
        )
    return el(
        "header",
        el("p", facts, class_="facts"),
        el("h1", unbroken(headline(report.pace))),
        trouble,
        *(
            el("p", coded(unbroken(each)), class_="lead" if number else "verdict")
            for number, each in enumerate(verdict(report))
        ),
        _tiles(report),
        _phases(report),
    )


def _tiles(report: Report) -> Html | None:
    tiles = []
    if report.samples_per_s is not None:
        tiles.append((f"{report.samples_per_s:,.0f}", "seeds per second"))
    splits = [each.measured for each in report.trainers if each.measured is not None]
    if splits:
        total_s = sum(split.total_s for split in splits) or 1.0
        share = sum(split.compute_s for split in splits) / total_s
        tiles.append((percent(share), "of the trainers' time is compute"))
    nic = busiest_nic(report)
    if nic is not None:
        tiles.append((percent(nic[1]), f"of its bandwidth used by {nic[0]}, the busiest NIC"))
    if report.epoch_bytes:
        total = sum(report.epoch_bytes.values())
        kinds = sorted(report.epoch_bytes.items(), key=lambda item: -item[1])
        shares = ", ".join(f"{kind} {percent(num / (total or 1.0))}" for kind, num in kinds)
        tiles.append((format_bytes(total), f"between machines per epoch: {shares}"))
    if report.plan is not None:
        gap = percent(0.0 if report.plan.proven else report.plan.gap)
        tiles.append((gap, "gap between objective and its bound"))
    if not tiles:
        return None
    return el(
        "div", *(el("div", el("b", big), el("span", small)) for big, small in tiles), class_="tiles"
    )


def _phases(report: Report) -> Html | None:
    if not report.phases:
        return None
    whole = max(phase.end_s for phase in report.phases) or 1.0
    kinds = {"starting": "other", "training": "compute", "stopping": "wait"}
    parts = [
        (kinds.get(phase.name, "other"), f"{phase.name}: {seconds(took_s)}", took_s)
        for phase in report.phases
        if (took_s := phase.end_s - phase.start_s) > 0
    ]
    sums: dict[str, float] = {}
    for phase in report.phases:
        sums[phase.name] = sums.get(phase.name, 0.0) + phase.end_s - phase.start_s
    legend = [
        el("span", el("i", class_=kinds.get(name, "other")), f"{name} {seconds(took_s)}")
        for name, took_s in sums.items()
    ]
    label = "Phases of the run: " + ", ".join(words for _, words, _ in parts)
    return el(
        "div",
        stacked_bar(parts, whole, label),
        el("div", *legend, class_="legend"),
        class_="phases",
    )


def _missing(report: Report) -> Html | None:
    if not report.missing:
        return None
    listed = el("ul", *(el("li", coded(each)) for each in report.missing))
    return el("aside", el("h2", "Missing in this report"), listed)


def gantt_section(stretches: Sequence[tuple[str, Stretch]]) -> Html | None:
    """Section with the same iterations, predicted and measured, on one time scale."""
    if not stretches:
        return None
    span_s = 1.04 * max(stretch.end_s - stretch.begin_s for _, stretch in stretches)
    if span_s <= 0:
        return None
    panels = []
    for name, stretch in stretches:
        done_s = stretch.end_s - stretch.begin_s
        title = f"{name}: {stretch.num} iterations in {seconds(done_s)}"
        label = (
            f"{title}. A band per machine: NIC ingress, a row per task, NIC egress; "
            f"bars for iterations {stretch.first} to {stretch.last}."
        )
        panels.append(gantt_panel(stretch, span_s, title, label))
    first = stretches[0][1]
    legend = [
        el("span", el("i", class_=f"c{n % NUM_COLOURS}"), str(n))
        for n in range(first.first, min(first.last + 1, first.first + NUM_COLOURS))
    ]
    zoom = el(
        "span",
        *(
            el("button", f"{times}\N{MULTIPLICATION SIGN}", type="button", data_zoom=str(times))
            for times in (1, 2, 4)
        ),
        class_="zoom",
        hidden="",
    )
    same = "The same iterations on the same time scale. " if len(stretches) > 1 else ""
    lead = (
        f"{same}Colours and numbers denote iterations; grey areas show NIC utilisation; the "
        "dashed line marks the end of the last iteration."
    )
    title = "Predicted and measured" if len(stretches) > 1 else "Some iterations"
    return sections.section(
        title,
        lead,
        el("div", el("span", "iteration "), *legend, zoom, class_="legend"),
        el("div", el("div", *panels, class_="inner"), class_="gantt scroll", tabindex="0"),
        el("p", "", class_="readout", aria_live="polite"),
        anchor="gantt",
    )


def nic_section(report: Report, measured: Trace | None) -> Html | None:
    """Section with the utilisation of every NIC over the run."""
    if measured is None or not len(measured.flows.src) or measured.makespan_s <= 0:
        return None
    series = nic_series(measured, 0.0, measured.makespan_s, _NUM_INTERVALS)
    most = float(max(series.into.max(), series.out_of.max()))
    if most < _WORTH_DRAWING:
        lead = f"No NIC exceeded {percent(most)} utilisation."
        return sections.section("NICs", lead, anchor="network")
    marks_s = [mark.at_s for mark in measured.marks]
    used = {machine.name: machine for machine in report.machines}
    busy = series.into.mean(axis=0) + series.out_of.mean(axis=0)
    shown = sorted(busy.argsort()[::-1][:_MOST_NICS].tolist())
    rows = []
    for machine in shown:
        name = measured.machine_names[machine]
        into, out_of = measured.nic_in_bytes_per_s[machine], measured.nic_out_bytes_per_s[machine]
        known = used.get(name)
        lines = []
        for way, speed in (("in", into), ("out", out_of)):
            share = None if known is None else getattr(known, f"measured_{way}")
            planned = None if known is None else getattr(known, f"predicted_{way}")
            text = "" if share is None else f" {percent(share)}"
            if planned is not None:
                text += f" (predicted {percent(planned)})"
            lines.append(
                el("small", el("i", class_=way), f" {way}{text} of {format_bytes_per_s(speed)}")
            )
        label = (
            f"NIC of {name} over {seconds(measured.makespan_s)}: at most "
            f"{percent(series.into[:, machine].max())} in and "
            f"{percent(series.out_of[:, machine].max())} out"
        )
        chart = mirror_chart(
            series.edges_s, series.into[:, machine], series.out_of[:, machine], marks_s, label
        )
        rows.append(
            el("div", el("div", el("b", name), *lines, class_="who"), chart, class_="nicrow")
        )
    hidden = len(measured.machine_names) - len(shown)
    lead = (
        f"Recorded flows over the {seconds(measured.makespan_s)} of the trace: ingress upwards, "
        "egress downwards; fine lines mark the full bandwidth. "
        "Figures are for the steady iterations."
    )
    if hidden:
        lead += f" {hidden} machines with less traffic are not shown."
    if marks_s:
        lead += " Dashed lines: decisions."
    return sections.section("NICs", lead, *rows, anchor="network")
