"""For mkdocstrings: `Example:` in a docstring is a section of code, as `Examples:` is."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object


class Examples(Extension):
    """Gives sections with one example the name that griffe knows."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Rename the section, if there is one."""
        if obj.docstring is not None:
            told = obj.docstring.value
            obj.docstring.value = re.sub(r"^(\s*)Example:$", r"\1Examples:", told, flags=re.M)
