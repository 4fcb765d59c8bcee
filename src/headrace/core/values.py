"""The base of all values: frozen, strict about unknown keys, versioned where they are files."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping
from typing import Any, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)

from headrace.core.errors import SpecError
from headrace.core.validation_errors import spec_error


class Value(BaseModel):
    """A frozen value; a stage that changes something returns a new one.

    Mappings inside are typed `Mapping`, so the type checker rejects a write; nothing guards them at
    run time.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def fingerprint(self) -> str:
        """Sixteen hex digits that differ when any field differs; equal values have equal ones."""
        # Sorted keys: the order in which a file lists a mapping does not make another value.
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Copy with some fields changed, unchecked; nothing derived from the old ones stays."""
        copied = super().model_copy(update=update, deep=deep)
        for name in copied.__dict__.keys() - type(self).model_fields.keys():
            del copied.__dict__[name]
        return copied


class Spec(Value):
    """A value that people write, in a file or in Python; a mistake is a `SpecError` of one line."""

    def __init__(self, /, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise spec_error(error, type(self), data) from None

    # Else pydantic would call it for values within values too, which lose their place then.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]


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
