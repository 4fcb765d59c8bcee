"""Failures people can act on: what was asked, what was there, what to try."""

from __future__ import annotations

DOCS_URL = "https://github.com/headrace/headrace/blob/main/docs/"
"""Where the pages of `docs/` are read; the one place that says so."""

ERRORS_PAGE = "reference/errors.md"
"""The page that lists exit codes and common errors."""


class HeadraceError(Exception):
    """Base of every error headrace raises on purpose.

    Args:
        problem: What was asked and what was found, in one sentence.
        remedy: What the user can do about it, in one sentence.

    Attributes:
        exit_code: What the command line ends with.
        page: Page of `docs/` that helps with errors of this class; empty if that of the command
            helps more.
    """

    exit_code = 1
    page = ""

    def __init__(self, problem: str, remedy: str) -> None:
        # All arguments go to the base, so that the error survives pickling.
        super().__init__(problem, remedy)
        self.problem = problem
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.problem}: {self.remedy}"


class SpecError(HeadraceError, ValueError):
    """A file or value the user wrote cannot be understood.

    It is a `ValueError`, so that a value's validators may raise it.

    Args:
        problem: What was asked and what was found, in one sentence.
        remedy: What the user can do about it, in one sentence.
        at: Where in the value it is, as keys and indices from the value that raised it.
    """

    exit_code = 2

    def __init__(self, problem: str, remedy: str, at: tuple[str | int, ...] = ()) -> None:
        super().__init__(problem, remedy)
        self.args = (problem, remedy, at)
        self.at = at


class FileError(SpecError):
    """A cluster, job, profile, placement or plan file cannot be understood."""

    page = "files.md"


class DamagedGraphError(SpecError):
    """A file of a graph has not the bytes that were written."""

    exit_code = 8


class InfeasibleError(HeadraceError):
    """The job does not fit the cluster, whatever the placement."""

    exit_code = 3
    page = f"{ERRORS_PAGE}#a-job-that-does-not-fit"


class MissingExtraError(HeadraceError):
    """An optional part is needed that is not installed."""

    exit_code = 4
    page = f"{ERRORS_PAGE}#a-part-that-is-not-installed"


class RunError(HeadraceError):
    """A task of a run did not start or is gone; the message names it and its machine."""

    exit_code = 7


class NotFiniteError(RunError):
    """A loss or a gradient is infinite or not a number."""
