"""Files named on the command line: found before long work starts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli import voice

if TYPE_CHECKING:
    from headrace.core.profile import Profile


def find_profile(path: Path | None) -> Profile:
    """Read a profile; without one take the synthetic one, and say so.

    Raises:
        SpecError: The file cannot be understood.
    """
    from headrace.api.defaults import default_profile
    from headrace.api.files import load_profile

    if path is not None:
        return load_profile(path)
    profile = default_profile()
    voice.note(f"note: no --profile, so all times and volumes are synthetic: {profile.note}")
    return profile


def check_can_write(path: Path | None) -> None:
    """Refuse early what could not be written later.

    Raises:
        SpecError: The path is a directory, or its directory does not exist.
    """
    from headrace.core.errors import SpecError

    if path is not None and path.is_dir():
        raise SpecError(f"{path} is a directory", "name the file to write")
    if path is not None and not path.parent.is_dir():
        raise SpecError(f"{path.parent} is no directory, so {path} cannot be written", "make it")
