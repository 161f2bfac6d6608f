"""The declared tools, and how an argument that is written as raw text is read as the type that its schema declares.

In come tools in OpenAI's shape and raw texts; out comes JSON text. What holds:

- Nothing here raises, whatever the tools or the text, and the time is linear in the text.
- The schema decides. Where only a string can stand, the text is the string, white space included. Where no string
  can stand, the text is read as what is declared, in JSON's writing or Python's (`None`, `['a']`, `+5`), with white
  space around it ignored, also if it was written as a string that holds it. Where both can, a text that is exactly a
  literal of another declared type is that, any other is the string. Without a schema everything can stand.
- A text that fits no declared type is what it would be without a schema: `null` is null, `abc` a string. `fits` tells.
- Numbers are exact: their digits are never taken through a float. `NaN` and `Infinity` are no JSON; they are strings.
- The types of what an object or array holds are what the text says; schemas are followed to the argument, no deeper.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar
from urllib.parse import unquote

from ..messages import Tool

MAX_DEPTH = 100
"""How deep a value may be nested."""
MAX_SCHEMA_DEPTH = 32
MAX_SCHEMAS = 10_000
"""How many schemas are looked at for one argument; what lies beyond may be anything."""
MAX_EXPONENT = 400
"""An integer that is written with an exponent (`1e20`) is written out up to here."""
UNDECIDED = 64
"""A text's first characters, by which it is known that it is a string."""

ANY = frozenset({"string", "integer", "number", "boolean", "null", "array", "object"})
NUMBER = frozenset({"integer", "number"})
"""Wherever a number can stand, an integer can."""
CONTAINER = frozenset({"object", "array"})


# -- tools


class Schemas:
    """The declared tools: their names, and how each argument's raw text is to be read.

    `names` is None where no tools were given. Tools are in OpenAI's shape or bare (`{"name": …, "parameters": …}`);
    what is no tool is passed over.
    """

    names: frozenset[str] | None

    def __init__(self, tools: list[Tool] | None) -> None:
        self._functions: dict[str, _Function] = {}
        for tool in tools if isinstance(tools, list | tuple) else ():
            function = _function(tool)
            if function is not None:
                self._functions.setdefault(function["name"], _Function(tool, function))
        self.names = frozenset(self._functions) if isinstance(tools, list | tuple) else None

    def argument(self, function: str, name: str) -> Reading:
        """How to read this argument; plainly, where nothing is declared."""
        known = self._functions.get(function)
        return known.reading(name) if known else PLAIN

    def properties(self, function: str) -> frozenset[str]:
        """The declared arguments; empty where unknown."""
        known = self._functions.get(function)
        return frozenset(known.declared) if known else frozenset()


def reading(schema: Any) -> Reading:
    """How to read a text under this one schema."""
    return _reading(schema, (schema,))


def _function(tool: Any) -> dict[str, Any] | None:
    if not isinstance(tool, dict):
        return None
    function = tool.get("function")
    function = function if isinstance(function, dict) else tool
    return function if isinstance(function.get("name"), str) else None


class _Function:
    """One tool's arguments."""

    def __init__(self, tool: dict[str, Any], function: dict[str, Any]) -> None:
        self.schema = function.get("parameters")
        self.roots = (function, tool)
        self.readings: dict[str | None, Reading] = {}

    @cached_property
    def declared(self) -> dict[str, Any]:
        """The schemas of the declared arguments."""
        return _Analysis((self.schema, *self.roots)).properties(self.schema) or _bare_properties(self.schema)

    def reading(self, name: str) -> Reading:
        key = name if name in self.declared else None
        if key not in self.readings:
            schema = self._undeclared() if key is None else self.declared[key]
            self.readings[key] = _reading(schema, (self.schema, schema, *self.roots))
        return self.readings[key]

    def _undeclared(self) -> Any:
        return self.schema.get("additionalProperties") if isinstance(self.schema, dict) else None


def _bare_properties(schema: Any) -> dict[str, Any]:
    """Some write the properties themselves as the parameters: `{"city": {"type": "str"}}`."""
    if isinstance(schema, dict) and all(isinstance(item, dict) and "type" in item for item in schema.values()):
        return schema
    return {}


def _reading(schema: Any, roots: tuple[Any, ...]) -> Reading:
    values = _Analysis(roots).values(schema)
    return Reading(values.kinds, values.texts, values.others) if values.kinds else PLAIN


# -- readings


class Reading:
    """How a raw text is read: as one of `kinds`, JSON Schema's types.

    Where the schema lists the values, `texts` are its strings, and `others` what else it lists, as JSON.
    """

    def __init__(
        self, kinds: frozenset[str], texts: frozenset[str] = frozenset(), others: frozenset[str] = frozenset()
    ) -> None:
        self.kinds = kinds
        self.text_only = kinds == {"string"}
        """Only a string can stand here: the raw text is the value, as it is, and can be streamed."""
        self._texts = texts - others
        self._quoted = frozenset(map(_string, texts))

    def may_be_text(self, start: str) -> bool:
        """Whether a text that starts so is known to be a string, as it is, whatever follows."""
        if self.text_only:
            return True
        start = start.lstrip()[:UNDECIDED].rstrip()
        if not start or "string" not in self.kinds:
            return False
        if (start[0] == "{" and "object" in self.kinds) or (start[0] == "[" and "array" in self.kinds):
            return False
        if any(word.startswith(start) and kind in self.kinds for word, (_, kind) in _WORDS.items()):
            return False
        if start[0] == '"' and self._quoted:
            return False
        return not (self.kinds & NUMBER and _NUMBER_START.fullmatch(start))

    def read(self, raw: str) -> str:
        """The value, as JSON text."""
        if self.text_only:
            return _string(raw)
        value = self._literal(raw) if "string" in self.kinds else self._declared(raw) or _literal(raw.strip(), ANY)
        return _string(raw) if value is None else value

    def fits(self, raw: str) -> bool:
        """Whether the text can be read as what is declared; what it must be beyond its type is not looked at."""
        return "string" in self.kinds or self._declared(raw) is not None

    def _literal(self, raw: str) -> str | None:
        """Where a string can stand too: what is exactly a literal, or one of the strings in quotes."""
        if raw in self._texts:
            return None
        return raw if raw in self._quoted else _literal(raw, self.kinds)

    def _declared(self, raw: str) -> str | None:
        """Where no string can stand: what is declared, or a string that holds it."""
        text = raw.strip()
        value = _value(text, self.kinds)
        if value is None and text[:1] in ('"', "'"):
            quoted = relaxed_json(text)
            value = _value(json.loads(quoted).strip(), self.kinds) if quoted else None
        return value


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _literal(text: str, kinds: frozenset[str]) -> str | None:
    """What is plainly a literal of one of `kinds` other than a string; None for any other text."""
    word, kind = _WORDS.get(text, ("", ""))
    if kind in kinds:
        return word
    number = _JSON_NUMBER.fullmatch(text)
    if number:
        return text if ("number" if number[3] or number[4] else "integer") in kinds else None
    return _container(text, kinds, loose=False)


def _value(text: str, kinds: frozenset[str]) -> str | None:
    """What reads as one of `kinds`, where none of them is a string; None for any other text."""
    word, kind = _WORDS_IN_LOWER_CASE.get(text[:6].lower(), ("", ""))
    if kind in kinds:
        return word
    number = _number(text, zeros=True) if kinds & NUMBER else None
    if number:
        return number if "number" in kinds else _integer(number)
    return _container(text, kinds, loose=True)


def _container(text: str, kinds: frozenset[str], loose: bool) -> str | None:
    """An object or array; `loose` says whether it may have bare keys, or be a tuple."""
    if not kinds & CONTAINER or text.lstrip()[:1] not in (("[", "{", "(") if loose else ("[", "{")):
        return None
    value = _Relaxed(MAX_DEPTH, bare_keys=loose).convert(text) or ""
    kind = {"[": "array", "{": "object"}.get(value[:1])
    return value if kind in kinds else None


PLAIN = Reading(ANY)
"""How a text is read of which nothing is declared."""


# -- numbers

_JSON_NUMBER = re.compile(r"(-?)(0|[1-9][0-9]*+)(?:\.([0-9]++))?(?:[eE]([+-]?[0-9]++))?")
_NUMBER_START = re.compile(r"-?(?:(?:0|[1-9][0-9]*+)(?:\.[0-9]*+)?(?:[eE][+-]?[0-9]*+)?)?")
_NUMBER = re.compile(r"([+-]?)(D?)(?:\.(D?))?(?:[eE]([+-]?D))?".replace("D", "(?:[0-9]++(?:_[0-9]++)*+)"))


def _number(text: str, zeros: bool) -> str | None:
    """A number in JSON's writing, from that or Python's (`+5`, `1_000`, `.5`); `zeros` says whether zeros may lead."""
    if _JSON_NUMBER.fullmatch(text):
        return text
    number = _NUMBER.fullmatch(text)
    if number is None or not (number[2] or number[3]):
        return None
    sign, whole, fraction, exponent = (part and part.replace("_", "") for part in number.groups())
    if len(whole) > 1 and whole[0] == "0" and not zeros:
        return None
    sign, whole = sign.replace("+", ""), whole.lstrip("0") or "0"
    fraction = "" if fraction is None else f".{fraction or 0}"
    return f"{sign}{whole}{fraction}" if exponent is None else f"{sign}{whole}{fraction}e{exponent}"


def _integer(number: str) -> str | None:
    """An integral number in JSON's writing, without fraction and exponent; None for any other, or a huge exponent."""
    match = _JSON_NUMBER.fullmatch(number)
    sign, whole, fraction, exponent = match.groups("") if match else ("", "", "", "")
    if not fraction and not exponent:
        return number
    if len(exponent) > 4 or abs(int(exponent or "0")) > MAX_EXPONENT:
        return None
    shift = int(exponent or "0") - len(fraction)
    digits, rest = whole + fraction + "0" * shift, ""
    if shift < 0:
        digits, rest = digits[:shift], digits[shift:]
    if rest.strip("0"):
        return None
    digits = digits.lstrip("0") or "0"
    return digits if digits == "0" else sign + digits


# -- values written loosely

_WORDS = {
    "true": ("true", "boolean"),
    "True": ("true", "boolean"),
    "false": ("false", "boolean"),
    "False": ("false", "boolean"),
    "null": ("null", "null"),
    "None": ("null", "null"),
}
_WORDS_IN_LOWER_CASE = {word.lower(): meaning for word, meaning in _WORDS.items()}
_NO_JSON = ("NaN", "Infinity", "-Infinity")
_JSON_SPACE = " \t\n\r"
_TOKEN = re.compile(
    r"""(?P<space>\s++)
    | (?P<string>"[^"\\]*+(?:\\.[^"\\]*+)*+" | '[^'\\]*+(?:\\.[^'\\]*+)*+')
    | (?P<number>[+-]?\.?[0-9][\w.+-]*+)
    | (?P<word>-?(?:[^\W\d]|\$)[\w$-]*+)
    | (?P<mark>[][{}(),:])""",
    re.DOTALL | re.VERBOSE,
)
_TO_REWRITE = re.compile(
    r"""\\(?:u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|U00(?:0[0-9a-fA-F]|10)[0-9a-fA-F]{4}|.)|["\x00-\x1f]""", re.DOTALL
)


def relaxed_json(text: str, *, max_depth: int = MAX_DEPTH) -> str | None:
    """The value as strict JSON, from JSON or Python's literals written more or less right; None where it is not one
    complete value, or nested deeper than `max_depth`.

    What is strict JSON stays as it is, save for white space around it. Beyond that are accepted: single quotes,
    control characters in strings, trailing commas, bare keys, tuples, Python's words and numbers. An escape that is
    none (`\\d`) is its characters; `\\'`, `\\x41` and `\\U0001F642` are what they are in Python.
    """
    return _Relaxed(max_depth, bare_keys=True).convert(text)


@dataclass(slots=True)
class _Open:
    """An object or array that is still open: how it is closed, which part opened it, which is its last comma."""

    closer: str
    opener: int
    comma: int = 0


class _Relaxed:
    """Writes a value as strict JSON, token by token. `needs` is what must come next: "value"; "item" or "key", which
    a closing bracket may stand for; "colon"; "comma", which a closing bracket or the end may stand for."""

    def __init__(self, max_depth: int, bare_keys: bool) -> None:
        self.max_depth = max_depth
        self.bare_keys = bare_keys
        self.parts: list[str] = []
        self.open: list[_Open] = []
        self.needs = "value"

    def convert(self, text: str) -> str | None:
        position = 0
        while position < len(text):
            token = _TOKEN.match(text, position)
            if token is None or not self._take(token.lastgroup, token[0]):
                return None
            position = token.end()
        return "".join(self.parts).strip() if self.needs == "comma" and not self.open else None

    def _take(self, kind: str | None, text: str) -> bool:
        if kind == "space":
            self.parts.append(" " if text.strip(_JSON_SPACE) else text)
            return True
        if kind != "mark":
            return self._scalar(kind, text)
        if text in "[{(":
            return self._enter(text)
        return self._separate(text) if text in ",:" else self._leave(text)

    def _scalar(self, kind: str | None, text: str) -> bool:
        value = _scalar(kind, text)
        if self.needs == "key":
            return self._key(text if value is None and kind == "word" and self.bare_keys else value)
        if value is None or self.needs not in ("value", "item"):
            return False
        self.parts.append(value)
        self.needs = "comma"
        return True

    def _key(self, key: str | None) -> bool:
        if key is None:
            return False
        self.parts.append(key if key[0] == '"' else f'"{key}"')
        self.needs = "colon"
        return True

    def _enter(self, mark: str) -> bool:
        if self.needs not in ("value", "item") or len(self.open) >= self.max_depth:
            return False
        self.open.append(_Open({"[": "]", "{": "}", "(": ")"}[mark], len(self.parts)))
        self.parts.append("{" if mark == "{" else "[")
        self.needs = "key" if mark == "{" else "item"
        return True

    def _separate(self, mark: str) -> bool:
        if mark == ":":
            accepted, self.needs = self.needs == "colon", "value"
        else:
            accepted = self.needs == "comma" and bool(self.open)
        if accepted and mark == ",":
            self.open[-1].comma = len(self.parts)
            self.needs = "key" if self.open[-1].closer == "}" else "item"
        self.parts.append(mark)
        return accepted

    def _leave(self, mark: str) -> bool:
        if not self.open or self.open[-1].closer != mark or self.needs in ("value", "colon"):
            return False
        left = self.open.pop()
        if self.needs != "comma" and left.comma:
            self.parts[left.comma] = ""
        if mark == ")" and self.needs == "comma" and not left.comma:
            self.parts[left.opener] = ""
        else:
            self.parts.append("}" if mark == "}" else "]")
        self.needs = "comma"
        return True


def _scalar(kind: str | None, text: str) -> str | None:
    if kind == "string":
        return f'"{_TO_REWRITE.sub(_rewrite, text[1:-1])}"'
    if kind == "number":
        return _number(text, zeros=False)
    return _string(text) if text in _NO_JSON else _WORDS.get(text, (None,))[0]


def _rewrite(match: re.Match[str]) -> str:
    """One escape, quote or control character, as it stands in a JSON string."""
    text = match[0]
    if text[0] == "\\" and (text[1] in '"\\/bfnrt' or (text[1] == "u" and len(text) > 2)):
        return text
    if text == "\\'":
        return "'"
    if len(text) > 2:
        text = chr(int(text[2:], 16))
    return _string(text)[1:-1]


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
class _Values:
    """What can stand: values of `kinds`. Where they are listed, `texts` are the strings and `others` the JSON texts of
    the numbers, booleans and nulls."""

    kinds: frozenset[str]
    texts: frozenset[str] = frozenset()
    others: frozenset[str] = frozenset()


_ANYTHING = _Values(ANY)
_NOTHING = _Values(frozenset())


_Read = TypeVar("_Read")


class _Analysis:
    """Reads one schema. References are looked up in `roots`, the first that has it; cycles add nothing."""

    def __init__(self, roots: tuple[Any, ...]) -> None:
        self.roots = roots
        self.left = MAX_SCHEMAS
        self.followed: list[int] = []

    def values(self, schema: Any, depth: int = 0) -> _Values:
        """What can stand under this schema."""
        self.left -= 1
        if schema is False:
            return _NOTHING
        if isinstance(schema, str):
            return _Values(_named(schema))
        if not isinstance(schema, dict) or depth > MAX_SCHEMA_DEPTH or self.left < 0:
            return _ANYTHING
        found = _ANYTHING
        for constraint in self._constraints(schema, depth + 1):
            found = _both(found, constraint)
        if found.kinds == ANY:
            found = _implied(schema)
        return _either((found, _Values(_KINDS["null"]))) if schema.get("nullable") is True else found

    def _constraints(self, schema: dict[str, Any], depth: int) -> Iterator[_Values]:
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


def _both(one: _Values, other: _Values) -> _Values:
    """What can stand under both; where they contradict each other, the first that says anything holds."""
    kinds = one.kinds & other.kinds
    if kinds:
        return _Values(kinds, one.texts | other.texts, one.others | other.others)
    return one if one.kinds and one.kinds != ANY else other


def _either(values: Iterable[_Values]) -> _Values:
    kinds: set[str] = set()
    texts: set[str] = set()
    others: set[str] = set()
    for item in values:
        kinds |= item.kinds
        texts |= item.texts
        others |= item.others
    return _Values(frozenset(kinds), frozenset(texts), frozenset(others))


def _implied(schema: dict[str, Any]) -> _Values:
    """What a schema without a type is for."""
    kinds = {kind for kind, keyword in (("object", "properties"), ("array", "items")) if keyword in schema}
    return _Values(frozenset(kinds)) if kinds else _ANYTHING


def _typed(name: Any) -> _Values:
    names = name if isinstance(name, list) and name else [name]
    return _Values(frozenset().union(*(_named(item) if isinstance(item, str) else ANY for item in names)))


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


def _listed(members: Any) -> _Values:
    """The values of an `enum`."""
    if not isinstance(members, list) or not members:
        return _ANYTHING
    texts = frozenset(member for member in members if isinstance(member, str))
    others = frozenset(_written(member) for member in members if not isinstance(member, str))
    return _Values(frozenset().union(*map(_kinds_of, members)), texts, others)


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
