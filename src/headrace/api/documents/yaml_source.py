"""YAML and JSON parsing with line numbers for error messages."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import yaml

from headrace.core.errors import FileError
from headrace.core.units import quote
from headrace.core.validation_errors import At, format_place

# libyaml's parser is about ten times faster than PyYAML's own.
_Loader: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_MAX_DEPTH = 64
_MERGE_TAG = "tag:yaml.org,2002:merge"
_SAFE_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("str", "null", "bool")}


@dataclass(frozen=True)
class Document:
    """Content of a file: its path, expected format (`kind`), raw text and parsed data."""

    path: Path
    kind: str
    text: str
    data: dict[str, Any]

    @cached_property
    def _root(self) -> yaml.Node | None:
        try:
            loader = _Loader(_without_tabs(self.path, self.text))
            root = loader.get_single_node()
            if root is not None:
                loader.construct_document(root)  # resolves merge keys in place
        except (yaml.YAMLError, ValueError):
            return None  # not valid YAML, e.g. JSON with a key of more than 1,024 characters
        return root

    def line(self, at: At) -> int:
        """Line of a location, or of its innermost enclosing location in the file."""
        node, line = self._root, 1
        if node is not None:
            line = _line_of(node)
        for step in at:
            if isinstance(node, yaml.MappingNode):
                # The last key wins, as in the data: merged keys precede the mapping's own.
                pairs = [(key, value) for key, value in node.value if key.value == str(step)]
                if not pairs:
                    break
                line, node = _line_of(pairs[-1][0]), pairs[-1][1]
            elif isinstance(node, yaml.SequenceNode) and isinstance(step, int):
                if not 0 <= step < len(node.value):
                    break
                node = node.value[step]
                line = _line_of(node)
            else:
                break
        return line

    def error(self, problem: str, remedy: str, at: At = ()) -> FileError:
        """Create an error for a location of this file, with its line."""
        place = f"{format_place(at)}: " if at else ""
        return FileError(f"{self.path}, line {self.line(at)}: {place}{problem}", remedy, at)


def read_document(path: str | os.PathLike[str], kind: str) -> Document:
    """Read a YAML or JSON file with one mapping; raises `FileError` if it is invalid."""
    path = Path(path)
    text = _read_text(path, kind)
    try:
        data = _parse_json(path, text) if path.suffix == ".json" else _parse_yaml(path, text)
    except RecursionError:
        raise FileError(f"{path} is nested too deeply", _write_one(kind)) from None
    if data is None or data == {}:
        raise FileError(f"{path} is empty", _write_one(kind))
    if not isinstance(data, dict):
        found = quote(data) if isinstance(data, list) else f"only {quote(data)}"
        raise FileError(
            f"{path}, line 1: a {kind} file must be a mapping, found {found}", _write_one(kind)
        )
    return Document(path, kind, text, data)


def _write_one(kind: str) -> str:
    return f"write `key: value` lines; `headrace schema {kind}` lists the keys of a {kind} file"


def _read_text(path: Path, kind: str) -> str:
    try:
        raw = path.read_bytes()
    except IsADirectoryError:
        files = sorted(entry.name for entry in path.iterdir() if entry.is_file())
        likely = difflib.get_close_matches(f"{kind}.yaml", files, n=1, cutoff=0.5)
        raise FileError(
            f"{path} is a directory, not a {kind} file",
            f"did you mean {path / likely[0]}?" if likely else "name a file in it",
        ) from None
    except (FileNotFoundError, NotADirectoryError):
        siblings = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        likely = difflib.get_close_matches(path.name, siblings, n=1, cutoff=0.8)
        raise FileError(
            f"the {kind} file {path} does not exist",
            f"did you mean {path.with_name(likely[0])}?" if likely else "check the path",
        ) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or error
        raise FileError(
            f"the {kind} file {path} cannot be read ({reason})", "check its permissions"
        ) from None
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise FileError(f"{path}, line 1: this is UTF-16 text", "save the file as UTF-8")
    if b"\0" in raw:
        line = raw[: raw.index(b"\0")].count(b"\n") + 1
        raise FileError(f"{path}, line {line}: this is not a text file", _write_one(kind))
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise FileError(
            f"{path}, line {line}: byte 0x{raw[error.start]:02x} is not UTF-8 text",
            "save the file as UTF-8",
        ) from None


def _without_tabs(path: Path, text: str) -> str:
    # JSON allows indentation by tabs, YAML does not; in JSON strings tabs are always escaped.
    return text.replace("\t", " ") if path.suffix == ".json" else text


def _parse_json(path: Path, text: str) -> object:
    has_double_keys = False

    def to_dict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal has_double_keys
        mapping = dict(pairs)
        has_double_keys |= len(mapping) < len(pairs)
        return mapping

    if not text.strip():
        return None
    try:
        data: object = json.loads(text, object_pairs_hook=to_dict)
    except json.JSONDecodeError as error:
        raise FileError(
            f"{path}, line {error.lineno}: this is not JSON ({error.msg.lower()})",
            "check the commas, colons, quotes and brackets around this line",
        ) from None
    if has_double_keys:
        _parse_yaml(path, _without_tabs(path, text))  # raises an error with the line
    return data


def _parse_yaml(path: Path, text: str) -> object:
    try:
        _check_depth(path, text)
        loader = _Loader(text)
        root = loader.get_single_node()
        if root is None:
            return None
        _check_keys_are_single(path, root)
        _check_scalars_convert(path, root, loader)
        return loader.construct_document(root)
    except yaml.YAMLError as error:
        _fail_on_syntax(path, text, error)


def _check_depth(path: Path, text: str) -> None:
    # libyaml's composer is recursive and crashes the process on stack overflow.
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > _MAX_DEPTH:
            assert event.start_mark is not None  # set by the parser
            raise FileError(
                f"{path}, line {event.start_mark.line + 1}: more than {_MAX_DEPTH} nested levels",
                "check the brackets; no headrace file needs more than ten",
            )


def _nodes(root: yaml.Node) -> Iterator[yaml.Node]:
    """Iterate over all nodes, visiting aliased nodes once."""
    seen: set[int] = set()
    todo = [root]
    while todo:
        node = todo.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        if isinstance(node, yaml.SequenceNode):
            todo.extend(reversed(node.value))
        elif isinstance(node, yaml.MappingNode):
            todo.extend(value for _, value in reversed(node.value))


def _check_keys_are_single(path: Path, root: yaml.Node) -> None:
    for node in _nodes(root):
        first: dict[str, int] = {}
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE_TAG:
                continue
            if key.value in first:
                raise FileError(
                    f"{path}, line {_line_of(key)}: duplicate key `{key.value}`, "
                    f"first on line {first[key.value]}",
                    "remove one of the two",
                )
            first[key.value] = _line_of(key)


def _check_scalars_convert(path: Path, root: yaml.Node, loader: yaml.SafeLoader) -> None:
    # PyYAML raises conversion errors without a line, e.g. for the date 2026-13-01.
    for node in _nodes(root):
        if isinstance(node, yaml.ScalarNode) and node.tag not in _SAFE_TAGS:
            try:
                loader.construct_object(node)
            except ValueError as error:
                raise FileError(
                    f"{path}, line {_line_of(node)}: {node.value!r} cannot be converted ({error})",
                    "put it in quotes",
                ) from None


def _fail_on_syntax(path: Path, text: str, error: yaml.YAMLError) -> NoReturn:
    line, reason = 1, "it cannot be read"
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        reason = error.problem or error.context or reason
    elif isinstance(error, yaml.reader.ReaderError):
        line = text[: error.position].count("\n") + 1
        reason = f"character U+{_code_point(error.character):04X} is not allowed"
    lines = text.splitlines()
    written = lines[line - 1] if line <= len(lines) else ""
    if "single document" in (getattr(error, "context", None) or ""):
        reason, remedy = "it contains several documents", "keep one, and remove the `---` line"
    elif "\t" in written[: len(written) - len(written.lstrip())]:
        remedy = "indent with spaces, not with tabs"
    elif "constructor for the tag" in reason:
        remedy = "remove the `!tag`: only plain text and numbers are allowed"
    else:
        remedy = "check the indentation, colons, quotes and brackets around this line"
    raise FileError(f"{path}, line {line}: this is not YAML ({reason})", remedy) from None


def _code_point(character: object) -> int:
    if isinstance(character, bytes):
        return character[0]
    return ord(character) if isinstance(character, str) else int(str(character))


def _line_of(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
