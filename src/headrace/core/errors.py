"""Exception hierarchy. Every error has a problem and a remedy."""

from __future__ import annotations

DOCS_URL = "https://github.com/headrace/headrace/blob/main/docs/"
"""Base URL of the pages in `docs/`."""

ERRORS_PAGE = "reference/errors.md"
"""Documentation page of exit codes and common errors."""

LOST_PEER_CODE = 9
"""Exit code of a trainer that ends because another one has; no command exits with it."""


class HeadraceError(Exception):
    """Base class of all errors that headrace raises deliberately.

    Args:
        problem: What was requested and what was found, in one sentence.
        remedy: What the user can do, in one sentence.

    Attributes:
        exit_code: Exit code of the command line.
        page: Page of `docs/` for errors of this class; empty to use the command's page.
    """

    exit_code = 1
    page = ""

    def __init__(self, problem: str, remedy: str) -> None:
        # Exception pickles `args`, so pass all arguments to the base class.
        super().__init__(problem, remedy)
        self.problem = problem
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.problem}: {self.remedy}"


class SpecError(HeadraceError, ValueError):
    """A file or value is invalid. A `ValueError`, so that pydantic validators may raise it.

    Args:
        problem: What was requested and what was found, in one sentence.
        remedy: What the user can do, in one sentence.
        at: Location of the error, as keys and indices relative to the validated value.
    """

    exit_code = 2

    def __init__(self, problem: str, remedy: str, at: tuple[str | int, ...] = ()) -> None:
        super().__init__(problem, remedy)
        self.args = (problem, remedy, at)
        self.at = at


class FileError(SpecError):
    """A cluster, job, profile, placement or plan file is invalid."""

    page = "reference/files.md"


class DamagedGraphError(SpecError):
    """A graph file does not match its checksum, or holds values that cannot be."""

    exit_code = 8

    remedy = "copy or partition the graph again; `headrace graph verify` checks all of it"

    def __init__(self, problem: str, remedy: str = remedy) -> None:
        super().__init__(problem, remedy)


class InfeasibleError(HeadraceError):
    """The job does not fit the cluster under any placement."""

    exit_code = 3
    page = f"{ERRORS_PAGE}#a-job-that-does-not-fit"


class ValueDependentError(HeadraceError):
    """A training step cannot be traced, because its shapes depend on values."""


class MissingExtraError(HeadraceError):
    """A required optional dependency is not installed."""

    exit_code = 4
    page = f"{ERRORS_PAGE}#a-part-that-is-not-installed"


class RunError(HeadraceError):
    """A task failed to start or exited; the message names the task and its machine."""

    exit_code = 7


class NotFiniteError(RunError):
    """A loss or gradient is infinite or NaN."""
