"""No password is shown, whatever text an address is in."""

from __future__ import annotations

import pytest

from headrace.observability.passwords import without_passwords


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://me:secret@host/x", "https://host/x"),
        ("request to https://me:se@cret@host:5/a failed", "request to https://host:5/a failed"),
        ("postgresql://me:secret@db/a and http://x@y", "postgresql://db/a and http://y"),
        ("https://host/people/me@home", "https://host/people/me@home"),
        ("https://host?mail=me@home", "https://host?mail=me@home"),
        ("sqlite:////tmp/a@b.db", "sqlite:////tmp/a@b.db"),
        ("no server", "no server"),
    ],
)  # fmt: skip
def test_users_and_passwords_are_left_out(text: str, shown: str) -> None:
    assert without_passwords(text) == shown
