"""Addresses as they may be shown."""

from __future__ import annotations

import re

_USER = re.compile(r"//[^/?#\s]*@")


def without_passwords(text: str) -> str:
    """A text without users and passwords of the addresses that are in it."""
    return _USER.sub("//", text)
