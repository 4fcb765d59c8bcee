"""Redaction of credentials in URLs."""

from __future__ import annotations

import re

_USER = re.compile(r"//[^/?#\s]*@")


def without_passwords(text: str) -> str:
    """Remove users and passwords from the URLs in a text."""
    return _USER.sub("//", text)
