"""Base classes of all values: frozen, rejecting unknown keys, checksummed where stored."""

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
    """A frozen value.

    Nested mappings are typed `Mapping`, so type checkers reject writes; they are not protected at
    run time.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def fingerprint(self) -> str:
        """Sixteen hex digits of a hash over all fields; equal values have equal fingerprints."""
        # Keys are sorted because the order of a mapping is not part of the value.
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Copy with some fields changed, without validation; drops cached properties."""
        copied = super().model_copy(update=update, deep=deep)
        for name in copied.__dict__.keys() - type(self).model_fields.keys():
            del copied.__dict__[name]
        return copied


class Spec(Value):
    """A value written by users, in a file or in Python; invalid input raises `SpecError`."""

    def __init__(self, /, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise spec_error(error, type(self), data) from None

    # Otherwise pydantic calls __init__ for nested values too, and error locations get lost.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]


KEY = "checksum"


class CheckedFile(Value):
    """A value that is stored with a checksum."""

    def to_text(self, indent: int | None = None) -> str:
        """Serialize to JSON with a checksum."""
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
                "the file was changed after it was written",
                f"create it again, or remove its {KEY} if the change was intended",
            )
        return made


def _checksum(document: Mapping[str, Any]) -> str:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), default=str)
    return f"crc32:{zlib.crc32(text.encode()):08x}"
