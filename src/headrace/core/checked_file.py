"""Files that know whether they were changed: their last key is a checksum of all others.

Files without one are read as they are: people write some by hand, and older ones have none.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any, Self

from pydantic import ModelWrapValidatorHandler, model_validator

from headrace.core.errors import SpecError
from headrace.core.values import Value

KEY = "checksum"


class CheckedFile(Value):
    """A value that is written to a file with its checksum."""

    def to_text(self, indent: int | None = None) -> str:
        """JSON with a checksum."""
        document = self.model_dump(mode="json")
        return json.dumps({**document, KEY: _checksum(document)}, indent=indent, ensure_ascii=False)

    @model_validator(mode="wrap")
    @classmethod
    def _compare(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if not isinstance(data, Mapping) or KEY not in data:
            return handler(data)
        document = {name: each for name, each in data.items() if name != KEY}
        made = handler(document)
        if data[KEY] != _checksum(document):
            raise SpecError(
                "it was changed after it was written",
                f"make it again, or remove its {KEY} if you changed it on purpose",
            )
        return made


def _checksum(document: Mapping[str, Any]) -> str:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), default=str)
    return f"crc32:{zlib.crc32(text.encode()):08x}"
