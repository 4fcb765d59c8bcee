"""Sentences and number formats of a report."""

from __future__ import annotations

import re

from headrace.core.report import Pace, Report, Split
from headrace.core.units import format_bytes, format_seconds

SATURATED = 0.85
"""Utilisation from which a NIC counts as saturated, given TCP overhead and uneven iterations."""

IMPOSSIBLE = 1.1
"""Utilisation that indicates a wrong bandwidth; recorded bytes are accurate to 1.25 %
(`cluster_runtime.json`)."""

_WORTH_NAMING = 0.04
_FAR = 4.0
_MINUS = "\N{MINUS SIGN}"
_PARTS = (
    ("compute", "compute", "compute_s"),
    ("peers", "wait for other trainers", "peers_s"),
    ("exchange", "exchange gradients", "exchange_s"),
    ("wait", "wait for samplers", "wait_s"),
    ("other", "do other work", "other_s"),
)


def seconds(value: float) -> str:
    """Format a duration with three digits: `41.2 ms`."""
    return format_seconds(float(f"{value:.3g}"))


def percent(share: float, signed: bool = False) -> str:
    """Format a fraction: `6.8 %`, or `+6.8 %`."""
    size = 100 * abs(share)
    written = f"{size:.0f}" if size >= 9.95 else f"{size:.1f}".removesuffix(".0")
    sign = ("+" if share >= 0 else _MINUS) if signed and float(written) else ""
    return f"{sign}{written} %"


def difference(assumed: float, found: float) -> str:
    """Format a relative difference: `+6.8 %`, or `5.2 times` if it is large."""
    if not assumed:
        return ""
    ratio = found / assumed
    return f"{ratio:.3g} times" if ratio >= _FAR else percent(ratio - 1, signed=True)


def headline(pace: Pace) -> str:
    """Predicted and measured time per iteration in one sentence."""
    if pace.measured_s is not None and pace.excess is not None and pace.predicted_s is not None:
        return (
            f"Predicted {seconds(pace.predicted_s)} per iteration, measured "
            f"{seconds(pace.measured_s)} ({difference(pace.predicted_s, pace.measured_s)})"
        )
    if pace.measured_s is not None:
        return f"Measured {seconds(pace.measured_s)} per iteration, without a prediction"
    if pace.predicted_s is not None:
        return f"Predicted {seconds(pace.predicted_s)} per iteration, too few iterations to measure"
    return "Too few iterations to measure"


def verdict(report: Report) -> list[str]:
    """Conclusions, one sentence each."""
    sentences = [limit_sentence(report)]
    pace = report.pace
    if pace.profile == "synthetic" and pace.predicted_s is not None:
        sentences.append(
            "The prediction is based on a synthetic profile and may be far off for this graph and "
            "these machines: measure a profile with `headrace profile`."
        )
    if pace.rehearsed_s is not None and pace.measured_s:
        off = pace.rehearsed_s / pace.measured_s - 1
        sentences.append(
            "Simulated with the times and volumes of this run, the plan takes "
            f"{seconds(pace.rehearsed_s)}, {percent(off)} {'more' if off >= 0 else 'less'} than "
            "measured: this is the model error; the remaining difference is due to the profile."
        )
    return [each for each in sentences if each]


def limit_sentence(report: Report) -> str:
    """Describe the bottleneck."""
    splits = [trainer.measured for trainer in report.trainers if trainer.measured is not None]
    is_seen = bool(splits)
    if not is_seen:
        splits = [each.predicted for each in report.trainers if each.predicted is not None]
    if not splits:
        return ""
    would = "" if is_seen else "would "
    text = f"Trainers {would}{_and(parts_of(splits))}"
    nic = busiest_nic(report)
    if nic is None:
        return f"{text}; there is no network traffic."
    name, used = nic
    if used >= IMPOSSIBLE:
        return (
            f"{name} carried {percent(used)} of its bandwidth in the plan's cluster file: correct "
            f"the file, or start the testbed with --shaped, and plan again. {text}."
        )
    if used >= SATURATED:
        return f"The network is the bottleneck: {name} at {percent(used)} of its bandwidth. {text}."
    return f"{text}; no NIC is saturated (the busiest is {name} with {percent(used)})."


def parts_of(splits: list[Split]) -> list[str]:
    """Describe the trainers' time components, largest first; negligible ones are omitted."""
    total_s = sum(split.total_s for split in splits) or 1.0
    shares = {
        words: sum(getattr(split, field) for split in splits) / total_s
        for _, words, field in _PARTS
    }
    ranked = sorted(shares.items(), key=lambda each: -each[1])
    listed = [each for each in ranked if each[1] >= _WORTH_NAMING] or ranked[:1]
    first = " of the time"
    return [
        f"{words} for {percent(share)}{first if number == 0 else ''}"
        for number, (words, share) in enumerate(listed)
    ]


def unbroken(text: str) -> str:
    """Join figures and units with no-break spaces."""
    return re.sub(r"(?<=\d) (?=(%|ms|us|s|min|h)\b|%)", "\N{NO-BREAK SPACE}", text)


def _and(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def busiest_nic(report: Report) -> tuple[str, float] | None:
    """The busiest NIC and direction with its utilisation, measured if available."""
    for seen in ("measured", "predicted"):
        found = [
            (f"{machine.name} {way}", share)
            for machine in report.machines
            for way in ("in", "out")
            if (share := getattr(machine, f"{seen}_{way}")) is not None
        ]
        if found:
            name, share = max(found, key=lambda each: each[1])
            return (name, share) if share > 0 else None
    return None


def split_parts(split: Split) -> list[tuple[str, str, float]]:
    """Class, description and seconds of each component of a trainer's iteration."""
    return [
        (kind, f"{words}: {seconds(getattr(split, field))}", getattr(split, field))
        for kind, words, field in _PARTS
    ]


def quantity(value: float | None, unit: str) -> str:
    """Format seconds or bytes; `-` for None."""
    if value is None:
        return "-"
    if unit == "%":
        return percent(value)
    return seconds(value) if unit == "s" else format_bytes(float(f"{value:.3g}"))


def counted_sentence(pace: Pace) -> str:
    """Describe which iterations were counted."""
    text = f"Measured over {pace.num_steady:,} of {pace.num_iterations:,} iterations"
    left = []
    if pace.num_skipped:
        left.append(f"the first {pace.num_skipped}")
    if pace.num_pauses:
        times = "1 pause" if pace.num_pauses == 1 else f"{pace.num_pauses} pauses"
        left.append(
            f"{times} of {seconds(pace.pauses_s)} in total (validation, a new epoch, a fault) with "
            "the iterations sampled meanwhile"
        )
    return f"{text}; {' and '.join(left)} are excluded." if left else f"{text}."
