"""JSON, to and from traced text: what `json.dumps` and `json.loads` give, and who wrote it."""

from __future__ import annotations

import json
from collections.abc import Callable
from json.encoder import encode_basestring, encode_basestring_ascii
from typing import Any

from .traced import (
    Traced,
    TracedBool,
    TracedFloat,
    TracedInt,
    TracedKey,
    as_input,
    by_segment,
    combine,
    written,
)


def dumps(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """`json.dumps(value, …)`; a string's escapes belong to the string."""
    if separators is None:
        separators = (", ", ": ") if indent is None else (",", ": ")
    if indent is not None and not isinstance(indent, str):
        indent = " " * indent
    quote = encode_basestring_ascii if ensure_ascii else encode_basestring
    writer = _Writer(quote, indent, *separators, sort_keys)
    writer.write(value, "" if indent is None else "\n")
    return combine(writer.parts)


def loads(text: str) -> Any:
    """`json.loads(text)`; what a traced text held has paths that go on from the text's own."""
    return as_input(json.loads(text), text)


class _Writer:
    """Writes a value in traced pieces."""

    def __init__(self, quote: Callable[[str], str], indent: str | None, item: str, key: str, sort: bool) -> None:
        self.parts: list[str] = []
        self.quote = quote
        self.indent = indent
        self.item = item
        self.key = key
        self.sort = sort

    def write(self, value: Any, newline: str) -> None:
        """Write `value`; `newline` stands before a line at the depth of its container, and is empty without indent."""
        parts = self.parts
        if isinstance(value, str):
            self.string(value)
        elif value is None:
            parts.append("null")
        elif value is True or value is False or isinstance(value, TracedBool):
            parts.append(_like("true" if value else "false", value))
        elif isinstance(value, int):
            parts.append(_like(int.__repr__(value), value))
        elif isinstance(value, float):
            parts.append(_like(_float(value), value))
        elif isinstance(value, list | tuple):
            inner = newline if self.indent is None else newline + self.indent
            separator = "[" + inner
            for item in value:
                parts.append(separator)
                self.write(item, inner)
                separator = self.item + inner
            parts.append(newline + "]" if value else "[]")
        elif isinstance(value, dict):
            inner = newline if self.indent is None else newline + self.indent
            separator = "{" + inner
            for key, item in sorted(value.items()) if self.sort else value.items():
                parts.append(separator)
                self.string(key if isinstance(key, str) else _key(key))
                parts.append(self.key)
                if item is None and isinstance(key, TracedKey):
                    parts.append(written("null", (key._parent, key._key)))
                else:
                    self.write(item, inner)
                separator = self.item + inner
            parts.append(newline + "}" if value else "{}")
        else:
            raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")

    def string(self, value: str) -> None:
        quoted = self.quote(value)
        if not isinstance(value, Traced):
            self.parts.append(quoted)
        elif len(quoted) == len(value) + 2:
            self.parts += ('"', value, '"')
        else:
            quote = self.quote
            self.parts += ('"', by_segment(value, lambda plain: quote(plain)[1:-1]), '"')


def _like(text: str, value: Any) -> str:
    return written(text, value) if isinstance(value, TracedInt | TracedFloat | TracedBool) else text


def _float(value: float) -> str:
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    return float.__repr__(value)


def _key(key: Any) -> str:
    if key is None:
        return "null"
    if key is True or key is False or isinstance(key, TracedBool):
        return _like("true" if key else "false", key)
    if isinstance(key, int):
        return _like(int.__repr__(key), key)
    if isinstance(key, float):
        return _like(_float(key), key)
    raise TypeError(f"keys must be str, int, float, bool or None, not {type(key).__name__}")
