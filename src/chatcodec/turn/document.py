"""`TurnFormat` as a JSON document: saved, written by hand, and read back.

An object's keys are the fields of its node; a field that has its default is left out. Where one of several nodes may
stand, `kind` tells which. The document's `version` changes when old documents would be read as something else. Reading
checks everything, and raises `SourceError` with the place in the document and what is expected there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from ..errors import SourceError
from ..messages import child_path
from .format import (
    Arguments,
    BareArguments,
    CallId,
    Index,
    JsonArguments,
    KeywordArguments,
    Literal,
    Name,
    TaggedArguments,
    TurnFormat,
)

VERSION = 1
KINDS: dict[type, str] = {
    Literal: "literal",
    Name: "name",
    CallId: "call_id",
    Index: "index",
    Arguments: "arguments",
    JsonArguments: "json",
    TaggedArguments: "tagged",
    KeywordArguments: "keyword",
    BareArguments: "bare",
}
"""What the nodes are called that stand where others may."""

_STRINGS = ("json", "ascii", "python")
_OTHERS = (*_STRINGS, "mixed")
JSON_TYPES = ("string", "integer", "number", "boolean", "null", "array", "object")
CHOICES: dict[tuple[type, str], tuple[str, ...]] = {
    (TaggedArguments, "strings"): ("raw", *_STRINGS),
    (TaggedArguments, "others"): _OTHERS,
    (KeywordArguments, "strings"): (*_STRINGS, "bare", "single", "raw"),
    (KeywordArguments, "others"): _OTHERS,
}
"""The fields whose strings are words of ours."""
ORDER = ("reasoning", "content", "calls")
EXPECTED = {str: "a string", int: "an integer", bool: "true or false"}


def dumps(format: TurnFormat) -> str:
    return json.dumps(to_document(format), ensure_ascii=False, indent=2) + "\n"


def loads(text: str) -> TurnFormat:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"the format is no JSON document: {error}") from None
    return from_document(document)


def to_document(format: TurnFormat) -> dict[str, Any]:
    return {"version": VERSION, **_written_fields(format)}


def from_document(document: Any) -> TurnFormat:
    if not isinstance(document, dict):
        raise _unexpected("format", "an object", document)
    if "version" not in document:
        raise SourceError(f"format.version: it is missing; {VERSION} is expected")
    if document["version"] != VERSION or isinstance(document["version"], bool | float):
        raise _unexpected("format.version", str(VERSION), document["version"])
    format = _read_node(TurnFormat, {key: value for key, value in document.items() if key != "version"}, "format")
    assert isinstance(format, TurnFormat)
    return format


# -- writing


def _write(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_write(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        kind = KINDS.get(type(value))
        return {**({"kind": kind} if kind else {}), **_written_fields(value)}
    return value


def _written_fields(node: Any) -> dict[str, Any]:
    values = ((field, getattr(node, field.name)) for field in fields(node))
    return {field.name: _write(value) for field, value in values if _is_required(field) or value != _default(field)}


# -- reading


def _read(kind: Any, value: Any, path: str) -> Any:
    """`value` as the type that a field is declared with."""
    if get_origin(kind) in (Union, UnionType):
        return _read_union(get_args(kind), value, path)
    if get_origin(kind) is tuple:
        return _read_tuple(get_args(kind), value, path)
    if isinstance(kind, type) and is_dataclass(kind):
        return _read_node(kind, value, path)
    if type(value) is not kind:
        raise _unexpected(path, EXPECTED[kind], value)
    return value


def _read_union(members: tuple[Any, ...], value: Any, path: str) -> Any:
    if value is None and NoneType in members:
        return None
    members = tuple(member for member in members if member is not NoneType)
    if len(members) == 1:
        return _read(members[0], value, path)
    if not isinstance(value, dict):
        raise _unexpected(path, "an object", value)
    nodes = {KINDS[member]: member for member in members}
    if "kind" not in value:
        raise SourceError(f"{path}.kind: it is missing; one of {_listed(nodes)} is expected")
    kind = _chosen(value["kind"], nodes, f"{path}.kind")
    return _read_node(nodes[kind], value, path)


def _read_tuple(members: tuple[Any, ...], value: Any, path: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise _unexpected(path, "a list", value)
    if members[-1] is Ellipsis:
        members = (members[0],) * len(value)
    elif len(members) != len(value):
        raise SourceError(f"{path}: a list of {len(members)} is expected, not of {len(value)}")
    return tuple(
        _read(member, item, child_path(path, index))
        for index, (member, item) in enumerate(zip(members, value, strict=True))
    )


def _read_node(node: type, value: Any, path: str) -> Any:
    if not isinstance(value, dict):
        raise _unexpected(path, "an object", value)
    known = {field.name: field for field in fields(node)}
    for key in value:
        if key not in known and not (key == "kind" and node in KINDS):
            raise SourceError(f"{child_path(path, key)}: no such key; those known here are {_listed(known)}")
    for name, field in known.items():
        if name not in value and _is_required(field):
            raise SourceError(f"{child_path(path, name)}: it is missing")
    types = _types(node)
    return node(**{name: _read_field(node, name, types[name], value[name], path) for name in known if name in value})


def _read_field(node: type, name: str, kind: Any, value: Any, path: str) -> Any:
    path = child_path(path, name)
    read = _read(kind, value, path)
    if (node, name) in CHOICES:
        _chosen(read, CHOICES[node, name], path)
    if node is TaggedArguments and name == "kinds":
        for index, (json_type, _) in enumerate(read):
            _chosen(json_type, JSON_TYPES, f"{path}[{index}][0]")
    if node is TurnFormat and name == "order" and sorted(read) != sorted(ORDER):
        raise SourceError(f"{path}: {_listed(ORDER)} are expected, in any order, not {_listed(read)}")
    return read


def _chosen(value: Any, choices: Iterable[str], path: str) -> str:
    if isinstance(value, str) and value in choices:
        return value
    raise _unexpected(path, f"one of {_listed(choices)}", value)


# -- nodes


@cache
def _types(node: type) -> dict[str, Any]:
    return get_type_hints(node)


def _is_required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


# -- errors


def _unexpected(path: str, expected: str, value: Any) -> SourceError:
    return SourceError(f"{path}: {expected} is expected, {_kind(value)}")


def _kind(value: Any) -> str:
    match value:
        case dict():
            return "not an object"
        case list():
            return "not a list"
        case str() if len(value) > 40:
            return f"not {value[:40]!r}…"
        case str():
            return f"not {value!r}"
        case _:
            return f"not {json.dumps(value)}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "nothing"
