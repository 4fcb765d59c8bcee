"""The base of all values: frozen, strict about unknown keys, versioned where they are files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from headrace.core.explaining import spec_error


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
