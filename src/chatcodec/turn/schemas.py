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
from functools import cached_property
from typing import Any

from ..messages import Tool
from .declared import ANY, NUMBER, Analysis
from .relaxed import (
    JSON_NUMBER,
    MAX_DEPTH,
    NUMBER_START,
    WORDS,
    WORDS_IN_LOWER_CASE,
    Relaxed,
    exact_integer,
    exact_number,
    relaxed_json,
    string_literal,
)

UNDECIDED = 64
"""A text's first characters, by which it is known that it is a string."""

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
        return Analysis((self.schema, *self.roots)).properties(self.schema) or _bare_properties(self.schema)

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
    values = Analysis(roots).values(schema)
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
        self._quoted = frozenset(map(string_literal, texts))

    def may_be_text(self, start: str) -> bool:
        """Whether a text that starts so is known to be a string, as it is, whatever follows."""
        if self.text_only:
            return True
        start = start.lstrip()[:UNDECIDED].rstrip()
        if not start or "string" not in self.kinds:
            return False
        if (start[0] == "{" and "object" in self.kinds) or (start[0] == "[" and "array" in self.kinds):
            return False
        if any(word.startswith(start) and kind in self.kinds for word, (_, kind) in WORDS.items()):
            return False
        if start[0] == '"' and self._quoted:
            return False
        return not (self.kinds & NUMBER and NUMBER_START.fullmatch(start))

    def read(self, raw: str) -> str:
        """The value, as JSON text."""
        if self.text_only:
            return string_literal(raw)
        value = self._literal(raw) if "string" in self.kinds else self._declared(raw) or _literal(raw.strip(), ANY)
        return string_literal(raw) if value is None else value

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


def _literal(text: str, kinds: frozenset[str]) -> str | None:
    """What is plainly a literal of one of `kinds` other than a string; None for any other text."""
    word, kind = WORDS.get(text, ("", ""))
    if kind in kinds:
        return word
    number = JSON_NUMBER.fullmatch(text)
    if number:
        return text if ("number" if number[3] or number[4] else "integer") in kinds else None
    return _container(text, kinds, loose=False)


def _value(text: str, kinds: frozenset[str]) -> str | None:
    """What reads as one of `kinds`, where none of them is a string; None for any other text."""
    word, kind = WORDS_IN_LOWER_CASE.get(text[:6].lower(), ("", ""))
    if kind in kinds:
        return word
    number = exact_number(text, zeros=True) if kinds & NUMBER else None
    if number:
        return number if "number" in kinds else exact_integer(number)
    return _container(text, kinds, loose=True)


def _container(text: str, kinds: frozenset[str], loose: bool) -> str | None:
    """An object or array; `loose` says whether it may have bare keys, or be a tuple."""
    if not kinds & CONTAINER or text.lstrip()[:1] not in (("[", "{", "(") if loose else ("[", "{")):
        return None
    value = Relaxed(MAX_DEPTH, bare_keys=loose).convert(text) or ""
    kind = {"[": "array", "{": "object"}.get(value[:1])
    return value if kind in kinds else None


PLAIN = Reading(ANY)
"""How a text is read of which nothing is declared."""
