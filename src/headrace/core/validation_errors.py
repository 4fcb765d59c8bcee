"""Conversion of pydantic validation errors to messages with remedies."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from headrace.core.errors import SpecError
from headrace.core.units import quote

At = tuple[str | int, ...]
"""Location in a value: keys and indices from its root."""

_SHORT_FORMS = {"nic_in": "nic", "nic_out": "nic"}
_OTHER_WORDS = {
    "bandwidth": "nic",
    "hosts": "machines",
    "nodes": "machines",
    "prefetch": "window",
    "servers": "parameter_servers",
    "workers": "trainers",
}


@dataclass(frozen=True)
class InvalidValue:
    """An invalid value at a location; `is_missing` marks a missing required key."""

    problem: str
    remedy: str
    at: At
    is_missing: bool = False


def problems_of(error: ValidationError, model: type[BaseModel], data: object) -> list[InvalidValue]:
    """Return all distinct problems of `data`, which should be a `model`."""
    schema = model.model_json_schema()
    details = [detail for detail in error.errors(include_url=False) if _is_own(detail)]
    problems = [_explain(detail, data, schema) for detail in details]
    return list({(each.at, each.problem): each for each in problems}.values())


def spec_error(error: ValidationError, model: type[BaseModel], data: object) -> SpecError:
    """Convert the first problem of a value constructed in Python to a one-line error."""
    # A missing key is often a misspelt one, so report present but invalid values first.
    first = min(problems_of(error, model, data), key=lambda each: each.is_missing)
    place = f"{format_place(first.at)}: " if first.at else ""
    return SpecError(f"{model.__name__}: {place}{first.problem}", first.remedy, first.at)


def first_problem(error: ValidationError) -> str:
    """Location and message of the first problem, of bounded length, without the invalid value."""
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(map(str, first["loc"]))[:100]
    return f"{place}: {first['msg'][:200]}" if place else first["msg"][:200]


def format_place(at: At) -> str:
    """Format a location: `machines[0].nic`."""
    text = ""
    for step in at:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else str(step)
    return text


def as_written(data: object, at: At) -> At:
    """Map a location to the key as written, where a short form sets several fields."""
    if at and at[-1] in _SHORT_FORMS and not _has(data, at):
        short = (*at[:-1], _SHORT_FORMS[str(at[-1])])
        return short if _has(data, short) else at
    return at


def _has(data: Any, at: At) -> bool:
    try:
        for step in at:
            data = data[step]
    except (LookupError, TypeError):
        return False
    return True


def _is_own(detail: ErrorDetails) -> bool:
    """Exclude secondary errors: a list with invalid entries is also reported as too short."""
    return detail["type"] != "too_short" or not detail["input"]


def _explain(detail: ErrorDetails, data: object, schema: dict[str, Any]) -> InvalidValue:
    error = detail.get("ctx", {}).get("error")
    at: At = tuple(detail["loc"])
    if isinstance(error, SpecError):
        at = as_written(data, at + error.at)
        return InvalidValue(error.problem, error.remedy, at)
    is_key = bool(at) and at[-1] == "[key]"
    if is_key:
        at = at[:-1]
    at = as_written(data, at)
    kind, value = detail["type"], at[-1] if is_key else detail["input"]
    if kind == "missing":
        problem, remedy = _explain_missing(at, schema)
        return InvalidValue(problem, remedy, at[:-1], is_missing=True)
    if kind == "extra_forbidden":
        problem, remedy = _explain_unknown(at, schema)
    else:
        problem, remedy = _explain_wrong(kind, value, detail, at)
    return InvalidValue(problem, remedy, at)


def _explain_missing(at: At, schema: dict[str, Any]) -> tuple[str, str]:
    key = str(at[-1])
    if key in _SHORT_FORMS:
        return (
            f"`{key}` is missing",
            f"add `{_SHORT_FORMS[key]}: 10Gbps`, or `nic_in` and `nic_out`",
        )
    part = schema_at(schema, at)
    example = {"integer": "4", "string": "some text", "array": "[...]"}.get(part.get("type", ""))
    example = str(part.get("examples", [example or "..."])[0])
    return f"`{key}` is missing", f"add `{key}: {example}`"


def _explain_unknown(at: At, schema: dict[str, Any]) -> tuple[str, str]:
    key = str(at[-1])
    part = schema_at(schema, at[:-1])
    known = list(part.get("properties", {}))
    for choice in part.get("anyOf", ()):
        known += choice.get("properties", {})
    guess = _OTHER_WORDS.get(key.lower())
    if guess not in known:
        guess = _closest(key, known)
    remedy = f"did you mean `{guess}`?" if guess else f"remove it; known keys: {', '.join(known)}"
    return "unknown key", remedy


def _explain_wrong(kind: str, value: object, detail: ErrorDetails, at: At) -> tuple[str, str]:
    problem = f"{quote(value)} is not valid here"
    if kind in ("enum", "literal_error"):
        choices = re.findall(r"'([^']*)'", str(detail.get("ctx", {}).get("expected", "")))
        guess = _closest(str(value), choices)
        did_you_mean = f"did you mean `{guess}`? " if guess else ""
        return f"{quote(value)} is not known", f"{did_you_mean}It is one of {', '.join(choices)}"
    if kind in ("too_short", "string_too_short"):
        return "it is empty", "write at least one entry"
    if kind.startswith("int_") or kind == "finite_number":
        what = "finite" if kind == "finite_number" else "whole"
        return f"{quote(value)} is not a {what} number", "write one such as 4"
    if kind in ("float_parsing", "float_type"):
        return f"{quote(value)} is not a number", "write one such as 0.5"
    if kind == "string_type":
        is_scalar = not isinstance(value, list | dict) and value is not None
        text = f'put it in quotes: "{value}"' if is_scalar else "write some text"
        return f"{quote(value)} is not text", text
    if kind in ("tuple_type", "list_type"):
        return (
            f"expected a list, found {quote(value)}",
            "write one `- ` line per entry, or [a, b, c]",
        )
    if kind in ("mapping_type", "dict_type", "model_type", "model_attributes_type"):
        remedy = "write `key: value` lines below it, or remove it"
        if len(at) == 2 and at[0] == "task_times":
            remedy = f"name the machine class, as in `{at[1]}: {{default: 20ms}}`"
        return f"expected a mapping, found {quote(value)}", remedy
    return problem, detail["msg"].replace("Input should", "it should")


def _closest(word: str, known: list[str]) -> str | None:
    """Closest known word, if any is similar."""
    by_lower = {each.lower(): each for each in known}
    likely = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[likely[0]] if likely else None


def schema_at(schema: Mapping[str, Any], at: At) -> dict[str, Any]:
    """Subschema at a location; empty if there is none."""
    part: dict[str, Any] = _resolve(schema, schema)
    for step in at:
        found: object = None
        for choice in (part, *part.get("anyOf", ())):
            choice = _resolve(schema, choice)
            if isinstance(step, int):
                found = found or choice.get("items")
            else:
                found = found or choice.get("properties", {}).get(step)
                found = found or choice.get("additionalProperties")
        if not isinstance(found, dict):
            return {}
        part = _resolve(schema, found)
    return part


def _resolve(schema: Mapping[str, Any], part: Mapping[str, Any]) -> dict[str, Any]:
    while "$ref" in part:
        part = schema["$defs"][part["$ref"].removeprefix("#/$defs/")]
    return dict(part)
