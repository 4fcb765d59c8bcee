"""Reports of runs: predicted and measured figures, and changes that would help."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from headrace.api.documents.load import AnyPath
from headrace.api.report_data import found_in
from headrace.api.results.notebook import show
from headrace.core.errors import SpecError
from headrace.core.report import Report
from headrace.core.trace import Trace
from headrace.observability.report import Stretch, draw_page, headline, verdict
from headrace.runtime.run_dir.run_dir import RunDirectory, find_run, runs_folder

FILE_NAME = "report.html"
"""Default name of the report in the run directory."""


@dataclass(frozen=True, repr=False)
class RunReport:
    """Report of a run; a page in notebooks, else plain text.

    Attributes:
        report: The figures.
        measured: Trace of the run, if any.
        stretches: The same iterations, predicted and measured, by name.
    """

    report: Report
    measured: Trace | None = None
    stretches: tuple[tuple[str, Stretch], ...] = ()

    @property
    def sentence(self) -> str:
        """Predicted and measured time per iteration, in one sentence."""
        return headline(self.report.pace)

    @property
    def verdict(self) -> list[str]:
        """Conclusions, one sentence each."""
        return verdict(self.report)

    def html(self) -> str:
        """Self-contained HTML page."""
        return draw_page(self.report, self.measured, self.stretches)

    def summary(self) -> dict[str, Any]:
        """Plain values: the output of `headrace report --json`."""
        return self.report.model_dump(mode="json")

    def save(self, path: AnyPath) -> tuple[Path, Path]:
        """Write the page, and its figures as JSON next to it.

        Args:
            path: Path of the page.

        Returns:
            Paths of both files.

        Raises:
            SpecError: The files cannot be written.
        """
        page = Path(path)
        figures = page.with_suffix(".json")
        if figures == page:
            raise SpecError(f"{page} is the JSON file", "use a path such as report.html")
        try:
            page.write_text(self.html(), encoding="utf-8")
            figures.write_text(self.report.model_dump_json(indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            reason = error.strerror or error
            raise SpecError(f"{page} cannot be written ({reason})", "choose another path") from None
        return page, figures

    def show(self) -> Path | None:
        """Show the page below the notebook cell, or in a browser.

        Returns:
            The file opened in the browser; None in a notebook.
        """
        return show(self, self.html())

    def __repr__(self) -> str:
        return "\n".join([f"{self.report.run_id}: {self.sentence}.", *self.verdict])

    def _repr_html_(self) -> str:
        # An iframe isolates the styles of page and notebook.
        page = escape(self.html(), quote=True)
        style = "width:100%;height:900px;border:0"
        return f'<iframe srcdoc="{page}" sandbox="allow-scripts" style="{style}"></iframe>'


def report_on(
    run: AnyPath | None = None,
    runs: AnyPath | None = None,
    advise: bool = True,
    on_step: Callable[[str], None] = lambda name: None,
) -> RunReport:
    """Create the report of a run from its directory.

    Args:
        run: Run id, id prefix, or directory; the newest run if not given.
        runs: Directory of all runs; the default location if not given.
        advise: Whether to simulate changes that would help.
        on_step: Called with the name of each step before it starts.

    Raises:
        SpecError: There is no such run, or its status cannot be read.

    Example:
        >>> import headrace
        >>> report = headrace.report_on()  # doctest: +SKIP
        >>> print(report.sentence)  # doctest: +SKIP
        Predicted 29.5 ms per iteration, measured 31.2 ms (+5.8 %)
        >>> report.show()  # doctest: +SKIP
    """
    folder = find_folder(run, runs)
    report, measured, stretches = found_in(folder, advise, on_step)
    return RunReport(report, measured, stretches)


def find_folder(run: AnyPath | None = None, runs: AnyPath | None = None) -> RunDirectory:
    """Find the directory of a run; accepts copied run directories."""
    if run is not None and (Path(run) / "status.json").is_file():
        return RunDirectory(Path(run).resolve())
    place = runs_folder(None if runs is None else Path(runs))
    return find_run(place, None if run is None else str(run))
