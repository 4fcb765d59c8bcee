"""How many examples Hypothesis tries: few for a change, many fresh ones in a campaign."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from hypothesis import settings

CAMPAIGN_VARIABLE = "HEADRACE_CAMPAIGN"
"""Set by `benchmarks/campaign.py`: tests with `examples` belong to the campaign then, too."""

Test = TypeVar("Test", bound=Callable[..., Any])


def examples(few: int, many: int) -> Callable[[Test], Test]:
    """Let a test try few examples for a change, and many others in every campaign."""
    is_campaign = bool(os.environ.get(CAMPAIGN_VARIABLE))

    def decorate(test: Test) -> Test:
        limited = machine_settings(few, many)(test)
        return pytest.mark.campaign(limited) if is_campaign else limited

    return decorate


def machine_settings(few: int, many: int) -> settings:
    """Settings of a test: a change repeats the same examples, a campaign draws new ones."""
    if not os.environ.get(CAMPAIGN_VARIABLE):
        return settings(max_examples=few)
    # What fails is printed with a line that repeats it.
    return settings(max_examples=many, derandomize=False, print_blob=True)
