"""How plans, traces and rehearsals show themselves in notebooks and shells."""

from __future__ import annotations

import sys
import webbrowser
from dataclasses import dataclass
from functools import singledispatch
from pathlib import Path
from tempfile import NamedTemporaryFile

from headrace.api.documents.load import AnyPath
from headrace.core.errors import SpecError
from headrace.core.plan import Explanation, Plan
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
    """What a notebook shows of a value."""
    raise TypeError(f"a {type(value).__name__} has no picture")


@html.register
def _(plan: Plan) -> str:
    traffic = traffic_of(plan.cluster, plan.job, plan.profile, plan.placed, plan.seeds)
    return plan_cell(plan, bottleneck_of(plan), traffic.loads_s(plan.cluster))


@html.register
def _(explanation: Explanation) -> str:
    return explanation_cell(explanation)


@html.register
def _(trace: Trace) -> str:
    return gantt_cell(stretch_of(trace))


@dataclass(frozen=True, repr=False)
class Gantt:
    """Some iterations of a rehearsal or a run: a picture in a notebook, letters in a shell.

    Attributes:
        stretch: Which iterations, and when they ran.
    """

    stretch: Stretch

    def html(self) -> str:
        """For a notebook's cell."""
        return gantt_cell(self.stretch)

    def text(self, width: int = 100) -> str:
        """Lines of letters: a digit is an iteration's last one, a block is network use.

        Args:
            width: Letters of a line.
        """
        return text_gantt(self.stretch, width)

    def show(self) -> Path | None:
        """Show it: in a notebook below its cell, else in a browser.

        Returns:
            The file that the browser was given; none in a notebook.
        """
        return show(self, whole_page("headrace", self.html()))

    def save(self, path: AnyPath) -> Path:
        """Write it to a file, whose name says how: `.html`, `.txt`, or `.png` with matplotlib.

        Raises:
            SpecError: It cannot be written, or not like this.
            MissingExtraError: A `.png` needs matplotlib, which is not installed.
        """
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
                    f"{file.name} does not say what to draw", "call it gantt.html, .txt or .png"
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
    """Some iterations of a trace as a Gantt chart.

    Args:
        trace: Of a rehearsal or a run.
        first: Iteration to begin with; if neither is given, all of a short trace, else some that
            are like most.
        last: Iteration to end with.

    Raises:
        SpecError: There are no such iterations.
    """
    return Gantt(stretch_of(trace, first, last))


def is_notebook() -> bool:
    """Whether cells are run here, whose output can be HTML."""
    # Only a notebook has loaded IPython before us; its shell in a terminal has no kernel.
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


def show(value: object, page: str) -> Path | None:
    """Show something.

    Args:
        value: What a notebook shows, with `_repr_html_`.
        page: The same as a whole page, for a browser.

    Returns:
        The file that the browser was given, for where there is none; none in a notebook.
    """
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
