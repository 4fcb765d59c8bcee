"""Notebook and terminal output of plans, traces and simulations."""

from __future__ import annotations

import sys
import webbrowser
from dataclasses import dataclass
from functools import singledispatch
from pathlib import Path
from tempfile import NamedTemporaryFile

from headrace.api.documents.load import AnyPath
from headrace.core.errors import SpecError
from headrace.core.plan import Explanation, Plan, problem_of
from headrace.core.trace import Trace
from headrace.observability.cells import (
    explanation_cell,
    gantt_cell,
    plan_cell,
    stretch_of,
    text_gantt,
    whole_page,
)
from headrace.observability.gantt import draw_gantt
from headrace.observability.report import Stretch
from headrace.observability.report.gantt import cut
from headrace.planner.cost.traffic_matrix import traffic_of
from headrace.planner.explain import bottleneck_of


@singledispatch
def html(value: object) -> str:
    """HTML representation of a value."""
    raise TypeError(f"a {type(value).__name__} has no HTML representation")


@html.register
def _(plan: Plan) -> str:
    traffic = traffic_of(problem_of(plan), plan.placed, plan.seeds)
    return plan_cell(plan, bottleneck_of(plan), traffic.loads_s(plan.cluster))


@html.register
def _(explanation: Explanation) -> str:
    return explanation_cell(explanation)


@html.register
def _(trace: Trace) -> str:
    return gantt_cell(stretch_of(trace))


@dataclass(frozen=True, repr=False)
class Gantt:
    """Gantt chart of some iterations: HTML in a notebook, text in a terminal."""

    stretch: Stretch

    def html(self) -> str:
        """HTML for a notebook cell."""
        return gantt_cell(self.stretch)

    def text(self, width: int = 100) -> str:
        """Render `width` characters per line: iterations as last digits, NIC use as blocks."""
        return text_gantt(self.stretch, width)

    def show(self) -> Path | None:
        """Show below the notebook cell, or in a browser; see `Picture.show`."""
        return show(self, whole_page("headrace", self.html()))

    def save(self, path: AnyPath) -> Path:
        """Write to a file; the suffix selects the format; see `Picture.save`."""
        file = Path(path)
        try:
            if file.suffix == ".html":
                file.write_text(whole_page(file.stem, self.html()), encoding="utf-8")
            elif file.suffix == ".txt":
                file.write_text(self.text() + "\n", encoding="utf-8")
            elif file.suffix == ".png":
                stretch = self.stretch
                draw_gantt(cut(stretch.trace, stretch.begin_s, stretch.end_s), file)
            else:
                raise SpecError(
                    f"{file.name} has an unknown suffix", "use gantt.html, gantt.txt or gantt.png"
                )
        except OSError as error:
            reason = error.strerror or error
            raise SpecError(f"{file} cannot be written ({reason})", "choose another path") from None
        return file

    def __repr__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return self.html()


def gantt(trace: Trace, first: int | None = None, last: int | None = None) -> Gantt:
    """Create a Gantt chart of some iterations; see `Trace.gantt`."""
    return Gantt(stretch_of(trace, first, last))


def is_notebook() -> bool:
    """Whether the code runs in a notebook."""
    # A notebook imports IPython first; IPython in a terminal has no kernel.
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


def show(value: object, page: str) -> Path | None:
    """Show a value in a notebook, otherwise open `page` in a browser and return its file."""
    if is_notebook():
        from IPython.display import display  # type: ignore[import-not-found,unused-ignore]

        display(value)
        return None
    with NamedTemporaryFile(
        "w", prefix="headrace-", suffix=".html", delete=False, encoding="utf-8"
    ) as file:
        file.write(page)
    path = Path(file.name)
    webbrowser.open(path.as_uri())
    return path
