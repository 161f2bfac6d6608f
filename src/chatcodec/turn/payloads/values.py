"""Single values as text, as JSON, Python and their like spell them, and JSON text as values.

In go values as JSON has them, with `Decimal` for numbers that a float would change. What is no such value, or what a
spelling cannot carry, raises `UnsupportedInput` with the path of the value.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from json.encoder import encode_basestring, encode_basestring_ascii
from typing import Any

from ...errors import UnsupportedInput
from ...messages import MAX_BITS, MAX_DEPTH, child_path

LONGEST_INT = 4_000
"""Digits. Python reads and writes longer integers only as `Decimal`."""


class Spelled(Decimal):
    """A number that is written as it was read."""

    text: str

    def __new__(cls, text: str) -> Spelled:
        number = super().__new__(cls, text)
        number.text = text
        return number

    def __str__(self) -> str:
        return self.text


def loads(text: str) -> Any:
    """The value of a JSON text, its numbers exact. Raises `ValueError` or `RecursionError`."""
    try:
        return json.loads(text, parse_int=_integer, parse_float=Spelled, parse_constant=_no_constant)
    except InvalidOperation:
        raise ValueError("a number is out of all bounds") from None


def _integer(text: str) -> int | Decimal:
    return int(text) if len(text) <= LONGEST_INT and text != "-0" else Spelled(text)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def json_type(value: Any) -> str:
    """The JSON type of a value; of a Decimal, that of its spelling."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case str():
            return "string"
        case int():
            return "integer"
        case Decimal():
            return "number" if set(str(value)) & set(".eE") else "integer"
        case float():
            return "number"
        case Mapping():
            return "object"
        case _:
            return "array"


@dataclass(frozen=True, slots=True)
class Spelling:
    """How values are written. `text` and `key` write a string and a key, and are told its path."""

    text: Callable[[str, str], str]
    key: Callable[[str, str], str]
    constants: tuple[str, str, str] = ("true", "false", "null")
    comma: str = ", "
    colon: str = ": "
    indent: int | None = None

    def write(self, value: Any, path: str, depth: int = 0) -> str:
        if depth > MAX_DEPTH:
            raise UnsupportedInput(path, f"nested more than {MAX_DEPTH} levels deep")
        match value:
            case str():
                return self.text(str.__str__(value), path)
            case None | bool():
                true, false, null = self.constants
                return null if value is None else true if value else false
            case int() | float() | Decimal():
                return number(value, path)
            case Mapping():
                items = [self._item(key, item, path, depth) for key, item in value.items()]
                return self._block("{", items, "}", depth)
            case list() | tuple():
                items = [self.write(item, child_path(path, index), depth + 1) for index, item in enumerate(value)]
                return self._block("[", items, "]", depth)
            case _:
                raise UnsupportedInput(path, f"a value of type {type(value).__name__} is not JSON")

    def _item(self, key: Any, value: Any, path: str, depth: int) -> str:
        if not isinstance(key, str):
            raise UnsupportedInput(path, f"keys are strings, not a value of type {type(key).__name__}")
        inner = child_path(path, key)
        return f"{self.key(key, inner)}{self.colon}{self.write(value, inner, depth + 1)}"

    def _block(self, opening: str, items: list[str], closing: str, depth: int) -> str:
        if self.indent is None or not items:
            return f"{opening}{self.comma.join(items)}{closing}"
        outer = "\n" + " " * self.indent * depth
        inner = outer + " " * self.indent
        return f"{opening}{inner}{(self.comma + inner).join(items)}{outer}{closing}"


def number(value: int | float | Decimal, path: str) -> str:
    match value:
        case Decimal() if value.is_finite():
            return str(value)
        case int():
            return int.__repr__(value) if value.bit_length() <= MAX_BITS else str(Decimal(value))
        case float() if math.isfinite(value):
            return float.__repr__(value)
        case _:
            raise UnsupportedInput(path, f"{value} is no JSON number")


def json_spelling(ascii: bool = False, comma: str = ", ", colon: str = ": ", indent: int | None = None) -> Spelling:
    quote = encode_basestring_ascii if ascii else encode_basestring

    def text(value: str, path: str) -> str:
        return quote(value)

    return Spelling(text, text, comma=comma, colon=colon, indent=indent)


def _python_text(value: str, path: str) -> str:
    return repr(value)


def _bare_text(value: str, quote: str, path: str) -> str:
    if quote in value:
        raise UnsupportedInput(path, "the format cannot carry a quote in a string")
    return f"{quote}{value}{quote}"


JSON = json_spelling()
ASCII = json_spelling(ascii=True)
PYTHON = Spelling(_python_text, _python_text, ("True", "False", "None"))
SPELLINGS = {"json": JSON, "ascii": ASCII, "python": PYTHON}


def spell(value: Any, strings: str, others: str, path: str) -> str:
    """A value of its own: a string as `strings` says, any other as `others` says."""
    if not isinstance(value, str):
        if others == "mixed":
            others = "json" if isinstance(value, Mapping | list | tuple) else "python"
        return SPELLINGS[others].write(value, path)
    match strings:
        case "raw":
            return str.__str__(value)
        case "bare":
            return _bare_text(value, '"', path)
        case "single":
            return _bare_text(value, "'", path)
        case _:
            return SPELLINGS[strings].write(value, path)
