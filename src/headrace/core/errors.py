"""Failures people can act on: what was asked, what was there, what to try."""

from __future__ import annotations


class HeadraceError(Exception):
    """Base of every error headrace raises on purpose.

    Args:
        problem: What was asked and what was found, in one sentence.
        remedy: What the user can do about it, in one sentence.
    """

    exit_code = 1

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem}: {remedy}")
        self.problem = problem
        self.remedy = remedy


class SpecError(HeadraceError):
    """A file or value the user wrote cannot be understood."""

    exit_code = 2


class InfeasibleError(HeadraceError):
    """The job does not fit the cluster, whatever the placement."""

    exit_code = 3


class MissingExtraError(HeadraceError):
    """An optional part is needed that is not installed."""

    exit_code = 4
