"""What a JSON schema says of an argument: the types that may stand there, and the members of its enums.

Schemas are read as tools write them: JSON Schema, OpenAPI's `nullable`, Python's and other languages' names for types.
Whatever the schema, nothing here raises, and the work is bounded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import unquote

MAX_SCHEMA_DEPTH = 32
MAX_SCHEMAS = 10_000
"""How many schemas are looked at for one argument; what lies beyond may be anything."""

ANY = frozenset({"string", "integer", "number", "boolean", "null", "array", "object"})
NUMBER = frozenset({"integer", "number"})
"""Wherever a number can stand, an integer can."""

# -- schemas

_TYPES = {
    "string": "string str text varchar char enum",
    "integer": "integer int uint long short bigint",
    "number": "number num numeric float double decimal",
    "boolean": "boolean bool",
    "null": "null none nonetype",
    "array": "array list tuple set sequence",
    "object": "object dict dictionary map mapping",
}
_KINDS = {name: frozenset({kind}) for kind, names in _TYPES.items() for name in names.split()}
_KINDS |= dict.fromkeys(_TYPES["number"].split(), NUMBER)


@dataclass(frozen=True, slots=True)
class Values:
    """What can stand: values of `kinds`. Where they are listed, `texts` are the strings and `others` the JSON texts of
    the numbers, booleans and nulls."""

    kinds: frozenset[str]
    texts: frozenset[str] = frozenset()
    others: frozenset[str] = frozenset()


_ANYTHING = Values(ANY)
_NOTHING = Values(frozenset())


_Read = TypeVar("_Read")


class Analysis:
    """Reads one schema. References are looked up in `roots`, the first that has it; cycles add nothing."""

    def __init__(self, roots: tuple[Any, ...]) -> None:
        self.roots = roots
        self.left = MAX_SCHEMAS
        self.followed: list[int] = []

    def values(self, schema: Any, depth: int = 0) -> Values:
        """What can stand under this schema."""
        self.left -= 1
        if schema is False:
            return _NOTHING
        if isinstance(schema, str):
            return Values(_named(schema))
        if not isinstance(schema, dict) or depth > MAX_SCHEMA_DEPTH or self.left < 0:
            return _ANYTHING
        found = _ANYTHING
        for constraint in self._constraints(schema, depth + 1):
            found = _both(found, constraint)
        if found.kinds == ANY:
            found = _implied(schema)
        return _either((found, Values(_KINDS["null"]))) if schema.get("nullable") is True else found

    def _constraints(self, schema: dict[str, Any], depth: int) -> Iterator[Values]:
        if "type" in schema:
            yield _typed(schema["type"])
        if "const" in schema:
            yield _listed([schema["const"]])
        yield _listed(schema.get("enum"))
        if "$ref" in schema:
            yield self._follow(schema["$ref"], self.values, _NOTHING, depth)
        for name in ("anyOf", "oneOf"):
            if _schemas(schema, name):
                yield _either(self.values(item, depth) for item in _schemas(schema, name))
        for item in _schemas(schema, "allOf"):
            yield self.values(item, depth)

    def _follow(self, reference: Any, read: Callable[[Any, int], _Read], nothing: _Read, depth: int) -> _Read:
        target = self._resolve(reference)
        if id(target) in self.followed:
            return nothing
        self.followed.append(id(target))
        found = read(target, depth)
        self.followed.pop()
        return found

    def _resolve(self, reference: Any) -> Any:
        """The schema at a local pointer, or by its bare name; None, which says nothing, where there is none."""
        if not isinstance(reference, str):
            return None
        pointer = reference.partition("#")[2] if "#" in reference else reference
        start, *path = [unquote(step).replace("~1", "/").replace("~0", "~") for step in pointer.split("/")]
        paths = [] if start or not (path or "#" in reference) else [path]
        paths += [[definitions, path[-1] if path else start] for definitions in ("$defs", "definitions")]
        targets = (_at(root, steps) for steps in paths for root in self.roots)
        return next((target for target in targets if target is not None), None)

    def properties(self, schema: Any, depth: int = 0) -> dict[str, Any]:
        """The schemas of an object's properties, those of its variants included."""
        self.left -= 1
        if not isinstance(schema, dict) or depth > MAX_SCHEMA_DEPTH or self.left < 0:
            return {}
        own = schema.get("properties")
        parts = [own if isinstance(own, dict) else {}]
        if "$ref" in schema:
            parts.append(self._follow(schema["$ref"], self.properties, {}, depth + 1))
        parts += [self.properties(item, depth + 1) for item in _schemas(schema, "allOf")]
        for name in ("anyOf", "oneOf"):
            parts.append(_joined("anyOf", [self.properties(item, depth + 1) for item in _schemas(schema, name)]))
        return _joined("allOf", parts)


def _joined(keyword: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
    """The properties of all parts; what several declare is joined by `keyword`."""
    found: dict[str, list[Any]] = {}
    for part in parts:
        for name, schema in part.items():
            found.setdefault(name, []).append(schema)
    return {name: schemas[0] if len(schemas) == 1 else {keyword: schemas} for name, schemas in found.items()}


def _schemas(schema: dict[str, Any], keyword: str) -> list[Any]:
    items = schema.get(keyword)
    return items if isinstance(items, list) else []


def _at(root: Any, path: list[str]) -> Any:
    for step in path:
        if isinstance(root, dict):
            root = root.get(step)
        elif isinstance(root, list) and re.fullmatch("[0-9]{1,6}", step):
            root = root[int(step)] if int(step) < len(root) else None
        else:
            return None
    return root


def _both(one: Values, other: Values) -> Values:
    """What can stand under both; where they contradict each other, the first that says anything holds."""
    kinds = one.kinds & other.kinds
    if kinds:
        return Values(kinds, one.texts | other.texts, one.others | other.others)
    return one if one.kinds and one.kinds != ANY else other


def _either(values: Iterable[Values]) -> Values:
    kinds: set[str] = set()
    texts: set[str] = set()
    others: set[str] = set()
    for item in values:
        kinds |= item.kinds
        texts |= item.texts
        others |= item.others
    return Values(frozenset(kinds), frozenset(texts), frozenset(others))


def _implied(schema: dict[str, Any]) -> Values:
    """What a schema without a type is for."""
    kinds = {kind for kind, keyword in (("object", "properties"), ("array", "items")) if keyword in schema}
    return Values(frozenset(kinds)) if kinds else _ANYTHING


def _typed(name: Any) -> Values:
    names = name if isinstance(name, list) and name else [name]
    return Values(frozenset().union(*(_named(item) if isinstance(item, str) else ANY for item in names)))


def _named(name: str) -> frozenset[str]:
    """The kinds of a type's name, as JSON Schema and Python write it: `integer`, `int64`, `Optional[List[str]]`."""
    kinds: set[str] = set()
    inside = [False]
    word = ""
    for mark in re.findall(r"[a-z]+|[][<>(){}]", name[:1000].lower()):
        if mark in "[<({":
            inside.append(inside[-1] or word not in ("optional", "union"))
            kinds |= _KINDS["null"] if word == "optional" and not inside[-1] else set()
        elif mark in "]>)}":
            inside = inside[:-1] or [False]
        elif not inside[-1] and mark not in ("optional", "union", "or"):
            kinds |= _KINDS.get(mark, ANY)
        word = mark
    return frozenset(kinds) or ANY


def _listed(members: Any) -> Values:
    """The values of an `enum`."""
    if not isinstance(members, list) or not members:
        return _ANYTHING
    texts = frozenset(member for member in members if isinstance(member, str))
    others = frozenset(_written(member) for member in members if not isinstance(member, str))
    return Values(frozenset().union(*map(_kinds_of, members)), texts, others)


def _kinds_of(value: Any) -> frozenset[str]:
    names = {str: "string", bool: "boolean", int: "integer", float: "number", dict: "object", list: "array"}
    name = "null" if value is None else names.get(type(value))
    return _KINDS[name] if name else ANY


def _written(value: Any) -> str:
    """A number, boolean or null as JSON; nothing for any other, and for a number that Python does not write."""
    try:
        return json.dumps(value) if value is None or isinstance(value, int | float) else ""
    except ValueError:
        return ""
