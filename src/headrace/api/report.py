"""Look back at a run: what was predicted, what came of it, and what would help."""

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
"""In the folder of a run, unless it is to go elsewhere."""


@dataclass(frozen=True, repr=False)
class RunReport:
    """A run, looked back at; a notebook shows its page, a shell its sentences.

    Attributes:
        report: What was found.
        measured: What was seen of the run; none if nothing was.
        stretches: The same iterations, rehearsed and seen, by name.
    """

    report: Report
    measured: Trace | None = None
    stretches: tuple[tuple[str, Stretch], ...] = ()

    @property
    def sentence(self) -> str:
        """Prediction beside reality."""
        return headline(self.report.pace)

    @property
    def verdict(self) -> list[str]:
        """What to make of it."""
        return verdict(self.report)

    def html(self) -> str:
        """One page that needs no other file and no network."""
        return draw_page(self.report, self.measured, self.stretches)

    def summary(self) -> dict[str, Any]:
        """As plain values: what `headrace report --json` prints."""
        return self.report.model_dump(mode="json")

    def save(self, path: AnyPath) -> tuple[Path, Path]:
        """Write the page, and its figures as JSON beside it.

        Args:
            path: Of the page.

        Returns:
            Where both are.

        Raises:
            SpecError: They cannot be written.
        """
        page = Path(path)
        figures = page.with_suffix(".json")
        if figures == page:
            raise SpecError(f"{page} is for figures", "name a page, such as report.html")
        try:
            page.write_text(self.html(), encoding="utf-8")
            figures.write_text(self.report.model_dump_json(indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            reason = error.strerror or error
            raise SpecError(f"{page} cannot be written ({reason})", "choose another path") from None
        return page, figures

    def show(self) -> Path | None:
        """Show the page: in a notebook below its cell, else in a browser.

        Returns:
            The file that the browser was given; none in a notebook.
        """
        return show(self, self.html())

    def __repr__(self) -> str:
        return "\n".join([f"{self.report.run_id}: {self.sentence}.", *self.verdict])

    def _repr_html_(self) -> str:
        # A frame of its own: neither page nor notebook changes the other's looks.
        page = escape(self.html(), quote=True)
        style = "width:100%;height:900px;border:0"
        return f'<iframe srcdoc="{page}" sandbox="allow-scripts" style="{style}"></iframe>'


def report_on(
    run: AnyPath | None = None,
    runs: AnyPath | None = None,
    advise: bool = True,
    on_step: Callable[[str], None] = lambda name: None,
) -> RunReport:
    """Look back at a run, from what lies in its folder.

    Args:
        run: Its id or the beginning of it, or its folder; the newest if not given.
        runs: Where runs lie; the usual place if not given.
        advise: Whether to rehearse what would help.
        on_step: Called with the name of every step before it begins.

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
    """The folder of a run; also one that was copied here from elsewhere.

    Raises:
        SpecError: There is no such run.
    """
    if run is not None and (Path(run) / "status.json").is_file():
        return RunDirectory(Path(run).resolve())
    place = runs_folder(None if runs is None else Path(runs))
    return find_run(place, None if run is None else str(run))
