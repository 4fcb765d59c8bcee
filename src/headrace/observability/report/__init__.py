"""Report of a run as a self-contained HTML page."""

from headrace.observability.report.assumptions import assumptions_of
from headrace.observability.report.gantt import Stretch
from headrace.observability.report.page import draw_page
from headrace.observability.report.pairing import (
    Seen,
    machines_of,
    stretches_of,
    tasks_of,
    trainers_of,
)
from headrace.observability.report.reading import (
    command_of,
    curve_over_bytes,
    curves_of,
    decisions_of,
    phases_of,
    read_lines,
    versions_of,
)
from headrace.observability.report.steady import Steady, steady_iterations
from headrace.observability.report.words import headline, verdict

__all__ = [
    "Seen",
    "Steady",
    "Stretch",
    "assumptions_of",
    "command_of",
    "curve_over_bytes",
    "curves_of",
    "decisions_of",
    "draw_page",
    "headline",
    "machines_of",
    "phases_of",
    "read_lines",
    "steady_iterations",
    "stretches_of",
    "tasks_of",
    "trainers_of",
    "verdict",
    "versions_of",
]
