"""Strategies for what a model writes in a format: messages that it may mean, and texts made to mislead a reader."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from hypothesis import strategies as st

from chatcodec.turn.compose import compose
from chatcodec.turn.document import to_document
from chatcodec.turn.format import CallId, TurnFormat

Message = dict[str, Any]
Tool = dict[str, Any]
Draw = Callable[[st.SearchStrategy[Any]], Any]

NAMES = ("get_weather", "now", "search-web", "f2")
WORDS = ("Paris", "the", "if a < b", "see [1]", "x = {1: 2}", "1,5", "no.", "a/b", "1", "true", "null", "f(x)")
FOREIGN = ("你好", "Ünïcödé", "e\u0301", "שלום", "🙂", "👩‍👩‍👧", "\u00a0", "\u2028", "ＡＢ", "\ufeff")
SPACES = (" ", " ", "\n", "\n\n", "\t", "  ", "\r\n")
QUOTES = ('"', "'", "`", "\\", "\\n", '\\"', '"x"', "'y'", "```json\n", "\n```", "&amp;", "%s", "\\u00e9")
BRACKETS = ("{", "}", "[", "]", "(", ")", "<", ">", "</", "<|", "|>", "{}", "[]", "}}", '{"a": 1}', "</b>", "<b>")
KEYS = ("city", "days", "a_b", "query", "x2", "Where", "unit")
ODD_KEYS = ("a b", "", "x-y.z", "城市", "it's", "0", "name", "id", "arguments", "a\n", '"', "a=b", "</k>")
INTEGERS = (0, 1, -1, 42, 2**53 + 1, -(2**70), 10**40)
DECIMALS = ("0.1", "-2.50", "1e-9", "1.0", "3.141592653589793238462643383279", "1E+3")


@cache
def literals(form: TurnFormat) -> tuple[str, ...]:
    """Every text of the format's own, and the lines and words of each."""
    found: set[str] = set()
    for text in _texts(to_document(form)):
        found |= {text, text.strip(), *text.split("\n"), *text.split()}
    return tuple(sorted(text for text in found if text.strip()))


def _texts(document: Any) -> Iterator[str]:
    match document:
        case str():
            yield document
        case dict():
            for value in document.values():
                yield from _texts(value)
        case list():
            for value in document:
                yield from _texts(value)


def near_misses(form: TurnFormat) -> tuple[str, ...]:
    """Beginnings of the format's markers, and markers with a character too few or too many."""
    marks = [text for text in literals(form) if len(text) > 2]
    cut = {mark[:-1] for mark in marks} | {mark[1:] for mark in marks} | {mark[: len(mark) // 2] for mark in marks}
    return tuple(sorted(cut | {mark.replace("<", "< ") for mark in marks} | {mark.upper() for mark in marks}))


def may_reason(form: TurnFormat) -> bool:
    """Whether a turn has reasoning, and the prompt has not closed it."""
    close = form.reasoning.close.strip() if form.reasoning else ""
    return form.channels is not None or bool(close and close not in form.prompt)


def names_in_ids(form: TurnFormat) -> bool:
    return form.calls is not None and CallId(names=True) in form.calls.call.pieces


# -- texts


def benign_texts() -> st.SearchStrategy[str]:
    """Prose, code and other scripts, with none of any format's markers, and no white space around it."""
    pieces = st.sampled_from((*WORDS, *FOREIGN, *SPACES, *SPACES, *QUOTES[:4]))
    return st.lists(pieces, min_size=1, max_size=8).map("".join).map(lambda text: text.strip(" \t\r\n")).filter(bool)


def texts(form: TurnFormat) -> st.SearchStrategy[str]:
    """Text with the format's own markers in it, quotes, brackets, white space at its ends, other scripts."""
    own = st.sampled_from(literals(form) + near_misses(form))
    other = st.sampled_from((*WORDS, *FOREIGN, *SPACES, *QUOTES, *BRACKETS))
    return st.lists(st.one_of(other, other, other, own, st.text(max_size=3)), max_size=8).map("".join)


def hostile_texts(form: TurnFormat) -> st.SearchStrategy[str]:
    """Output that no format describes: markers, pieces of calls and of JSON in any order."""
    own = st.sampled_from(literals(form))
    near = st.sampled_from(near_misses(form))
    other = st.sampled_from((*WORDS, *SPACES, *QUOTES, *BRACKETS, *NAMES, *JSON_PIECES, *FOREIGN[:4]))
    pieces = st.one_of(own, own, other, near, st.text(max_size=2), st.sampled_from(_calls(form)))
    return st.lists(pieces, max_size=14).map("".join)


JSON_PIECES = (
    '{"name": "now", "arguments": {}}',
    '{"name": "',
    '"name": "now"',
    '"arguments": ',
    '"parameters": {"city": "Paris"}',
    '{"city": "Paris"}',
    '{"city": ',
    "{'city': 'Par",
    '", "',
    "null",
    '"\\u00',
    "\\ud83d",
    "[1, 2",
    "1e",
    ",}",
)


def _calls(form: TurnFormat) -> tuple[str, ...]:
    """Whole calls in the format's writing."""
    given: tuple[Any, ...] = ({}, {"city": "Paris"}, {"city": "a", "days": 2})
    return tuple(compose(_message("", "", [_call("now", each, None)]), form) for each in given) if form.calls else ()


def cuts(text: str) -> st.SearchStrategy[list[str]]:
    """The text in pieces, cut at random."""
    places = st.lists(st.integers(0, len(text)), max_size=12).map(sorted)
    return places.map(lambda at: [text[a:b] for a, b in zip([0, *at], [*at, len(text)], strict=True)])


# -- messages


@dataclass(frozen=True)
class Spoken:
    """A message, and the tools that declare what it calls."""

    message: Message
    tools: list[Tool] = field(default_factory=list)


@st.composite
def messages(draw: Draw, form: TurnFormat, *, benign: bool = False) -> Spoken:
    """What the format may carry: reasoning, content and calls as far as it has them.

    A `benign` message says what models commonly say; any other is made to be hard to carry.
    """
    return _Writer(draw, form, benign).spoken()


class _Writer:
    def __init__(self, draw: Draw, form: TurnFormat, benign: bool) -> None:
        self.draw = draw
        self.form = form
        self.benign = benign
        self.texts = benign_texts() if benign else st.one_of(benign_texts(), texts(form))
        self.types: dict[str, dict[str, str]] = {}

    def one(self, *values: Any) -> Any:
        return self.draw(st.sampled_from(values))

    def text(self) -> str:
        return str(self.draw(self.texts))

    def spoken(self) -> Spoken:
        reasoning = self.one("", self.text()) if may_reason(self.form) else ""
        several = self.form.calls is not None and self.form.calls.several
        count = self.one(0, 1, 1, *((2, 3) if several else ())) if self.form.calls else 0
        calls = [self.call(index) for index in range(count)]
        content = self.one("", self.text()) if calls or reasoning else self.text()
        return Spoken(_message(reasoning, content, calls), [_tool(name, types) for name, types in self.types.items()])

    def call(self, index: int) -> Message:
        name = self.one(*NAMES)
        self.types.setdefault(name, {})
        keys = KEYS if self.benign else KEYS + ODD_KEYS
        picked = self.draw(st.lists(st.sampled_from(keys), max_size=3, unique=True))
        identity = f"functions.{name}:{index}" if names_in_ids(self.form) else f"aB3xYz0{index:02d}"
        return _call(name, {key: self.argument(name, key) for key in picked}, identity)

    def argument(self, name: str, key: str) -> Any:
        """A value of the type that the tool declares for it."""
        types = self.types[name]
        types.setdefault(key, self.one("string", "string", "integer", "number", "boolean", "null", "array", "object"))
        return self.value(types[key])

    def value(self, kind: str, depth: int = 0) -> Any:
        match kind:
            case "string":
                return self.text()
            case "integer":
                return self.one(*INTEGERS)
            case "number":
                return Number(self.one(*DECIMALS))
            case "boolean":
                return self.one(True, False)
            case "null":
                return None
            case "array":
                return [self.inner(depth) for _ in range(self.one(0, 1, 2))]
            case _:
                keys = ("k", "a b", "名") if not self.benign else ("k", "key", "k2")
                return {key: self.inner(depth) for key in keys[: self.one(0, 1, 2)]}

    def inner(self, depth: int) -> Any:
        kinds = ("string", "integer", "number", "boolean", "null") + (("array", "object") if depth < 2 else ())
        return self.value(self.one(*kinds), depth + 1)


class Number(float):
    """A number that is written in JSON with just these digits."""

    def __new__(cls, text: str) -> Number:
        number = super().__new__(cls, text)
        number.text = text
        return number

    def __repr__(self) -> str:
        return self.text


def _message(reasoning: str, content: str, calls: list[Message]) -> Message:
    message: Message = {"role": "assistant", "content": content or None}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = calls
    return message


def _call(name: str, arguments: Any, identity: str | None) -> Message:
    """With its arguments as JSON text, whose numbers keep their digits."""
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": exact_json(arguments)}}


def exact_json(value: Any) -> str:
    match value:
        case Number():
            return value.text
        case dict():
            return "{" + ", ".join(f"{json.dumps(key)}: {exact_json(item)}" for key, item in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(exact_json, value)) + "]"
        case _:
            return json.dumps(value, ensure_ascii=False)


def _tool(name: str, types: dict[str, str]) -> Tool:
    properties = {key: {"type": kind} for key, kind in types.items()}
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "description": "", "parameters": parameters}}
