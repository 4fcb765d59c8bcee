"""How many examples Hypothesis tries: few for a change, many in a campaign."""

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
    """Let a test try few examples for a change, and many in a campaign."""
    is_campaign = bool(os.environ.get(CAMPAIGN_VARIABLE))

    def decorate(test: Test) -> Test:
        limited = settings(max_examples=many if is_campaign else few)(test)
        return pytest.mark.campaign(limited) if is_campaign else limited

    return decorate
