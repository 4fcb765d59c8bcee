"""The base of all values: frozen, strict about unknown keys, versioned where they are files."""

from __future__ import annotations

import hashlib

from pydantic import BaseModel, ConfigDict


class Value(BaseModel):
    """A frozen value; a stage that changes something returns a new one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def fingerprint(self) -> str:
        """Sixteen hex digits that change when any field changes."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:16]
