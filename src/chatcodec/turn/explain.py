"""`TurnFormat` for people: the grammar of what the model writes after the generation prompt, in plain text.

What stands in quotes is literal, with Python's escapes; words in capitals stand for what the message holds. `( … )*`
may come any number of times, `X+` once or more. The example at the end is written by `compose`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from typing import Any, TypeAlias, assert_never

from ..errors import UnsupportedInput
from . import payloads
from .compose import State, begin, compose, reasoning_open
from .format import (
    WHITESPACE,
    Arguments,
    BareArguments,
    Call,
    CallId,
    Calls,
    Channels,
    Index,
    JsonArguments,
    KeywordArguments,
    Literal,
    Name,
    Payload,
    Piece,
    Section,
    TaggedArguments,
    TurnFormat,
)

Rows: TypeAlias = Iterator[tuple[str, str]]
"""A label, empty where the line goes on with what the last one said, and its text."""

WIDTH = 11
EXAMPLE_ARGUMENTS = {"city": "Paris", "days": 2}
BARE_START = re.compile(r"\s*\[?\s*(?:\{|$)")
"""Calls that begin without a marker, and so stand alone."""
STRINGS = {
    "raw": "strings raw",
    "json": "strings as JSON",
    "ascii": "strings as JSON in ASCII",
    "python": "strings as Python quotes them",
    "bare": "strings in quotes, nothing escaped",
    "single": "strings in single quotes, nothing escaped",
}
OTHERS = {
    "json": "other values as JSON",
    "ascii": "other values as JSON in ASCII",
    "python": "other values as Python prints them",
    "mixed": "lists and objects as JSON, other values as Python prints them",
}


def explain(format: TurnFormat) -> str:
    rows = [*_prompt(format), *(_channels(format, format.channels) if format.channels else _sections(format))]
    rows += _ends(format)
    example = list(_example(format))
    return _lines(rows) + ("\n" + _lines(example) if example else "")


def _lines(rows: list[tuple[str, str]]) -> str:
    return "".join(f"{label:<{WIDTH}}{text}\n" for label, text in rows)


# -- the turn


def _prompt(format: TurnFormat) -> Rows:
    yield "header", repr(format.header)
    yield "prompt", repr(format.prompt)
    if format.reasoning:
        yield "", f"reasoning is {begin(format).state.value}"
    if not format.channels:
        present = {"reasoning": format.reasoning, "content": format.content, "calls": format.calls}
        yield "turn", " ".join(f"[{name}]" for name in format.order if present[name]) + " end"


def _sections(format: TurnFormat) -> Rows:
    for name in format.order:
        match name:
            case "reasoning" if format.reasoning:
                yield from _reasoning(format, format.reasoning)
            case "content":
                yield "content", _joined(format.content.open, "C", format.content.close)
                yield from _stripped(format.content)
            case "calls" if format.calls:
                yield from _calls(format, format.calls)


def _reasoning(format: TurnFormat, section: Section) -> Rows:
    begun = begin(format)
    closed = begun.state is State.CLOSED
    yield "reasoning", _joined(section.open if closed else reasoning_open(section, begun), "R", section.close)
    yield "", f"{'after this prompt' if closed else 'without any'}: {_or_nothing(compose({}, format))}"
    yield from _stripped(section)


def _stripped(section: Section) -> Rows:
    left, right = (_characters(characters) for characters in (section.strip_left, section.strip_right))
    if left == right != "":
        yield "", f"no {left} at its start or end"
    else:
        yield from (("", f"no {found} at its {place}") for found, place in ((left, "start"), (right, "end")) if found)


def _characters(characters: str) -> str:
    return "white space" if set(characters) == set(WHITESPACE) else " or ".join(map(repr, characters))


def _ends(format: TurnFormat) -> Rows:
    yield "end", " or ".join(map(repr, format.ends)) or "none: the engine stops"
    if format.next_turns:
        yield "", f"or where {' or '.join(map(repr, format.next_turns))} opens another turn"


# -- calls


def _calls(format: TurnFormat, calls: Calls) -> Rows:
    yield "calls", _joined(calls.open, _repeated(calls), calls.close)
    if calls.lead or calls.lead_alone:
        place = "before" if format.order.index("content") < format.order.index("calls") else "after"
        alone = f" where there is content, else {_or_nothing(calls.lead_alone)}"
        yield "", f"{place} them: {_or_nothing(calls.lead)}" + (alone if calls.lead != calls.lead_alone else "")
    yield from _call(calls.call)


def _repeated(calls: Calls) -> str:
    if not calls.several:
        return "CALL"
    return f"CALL ( {calls.separator!r} CALL )*" if calls.separator else "CALL+"


def _call(call: Call) -> Rows:
    yield "call", " ".join(map(_piece, call.pieces))
    if call.no_arguments is not None:
        yield "", "without arguments: " + " ".join(map(_piece, call.no_arguments))
    if call.name_path:
        paths = {"NAME": call.name_path, "ARGUMENTS": call.arguments_path, "ID": call.id_path}
        keys = ", ".join(f"{_path(path)} is {word}" for word, path in paths.items() if path)
        yield "", f"one JSON object, its keys in any order: {keys}"
    for piece in call.pieces:
        match piece:
            case Arguments():
                yield from _payload(piece.payload)
            case CallId(names=True):
                yield "", "ID is functions.NAME:INDEX"
            case Index():
                yield "", f"INDEX counts the turn's calls from {piece.first}"
            case Literal() | Name() | CallId():
                pass
            case _:
                assert_never(piece)


def _piece(piece: Piece) -> str:
    match piece:
        case Literal():
            return repr(piece.text)
        case Name():
            return "NAME"
        case CallId():
            return "ID"
        case Index():
            return "INDEX"
        case Arguments():
            return "ARGUMENTS"
        case _:
            assert_never(piece)


# -- arguments


def _payload(payload: Payload) -> Rows:
    match payload:
        case JsonArguments():
            yield "arguments", _json(payload)
        case TaggedArguments():
            yield from _tagged(payload)
        case KeywordArguments():
            yield "arguments", f"KEY {payload.equals!r} VALUE" + _between(payload.separator)
            yield "", f"{STRINGS[payload.strings]}, {OTHERS[payload.others]}"
        case BareArguments():
            yield "arguments", f"KEY {payload.colon!r} VALUE" + _between(payload.comma)
            yield "", f"strings raw between {payload.quote!r}, other values as JSON with bare keys"
        case _:
            assert_never(payload)


def _json(payload: JsonArguments) -> str:
    parts = ["one JSON object"]
    if payload.encoded:
        parts.append("in a JSON string")
    if payload.ascii:
        parts.append("in ASCII")
    return f"{' '.join(parts)}, as {payloads.write(payload, EXAMPLE_ARGUMENTS)!r}"


def _tagged(payload: TaggedArguments) -> Rows:
    middle = "MIDDLE" if payload.kinds else repr(payload.middle)
    close = repr(payload.close) if payload.named_close is None else f"{payload.close!r} KEY {payload.named_close!r}"
    yield "arguments", f"{payload.open!r} KEY {middle} VALUE {close}" + _between(payload.separator)
    for mark, kinds in groupby(payload.kinds, key=lambda pair: pair[1]):
        yield "", f"MIDDLE is {mark!r} for {', '.join(kind for kind, _ in kinds)}"
    yield "", f"{STRINGS[payload.strings]}, {OTHERS[payload.others]}"
    if payload.escaped_names:
        yield "", "KEY with HTML's escapes"


def _between(separator: str) -> str:
    return f", {separator!r} between two" if separator else ""


# -- channels


def _channels(format: TurnFormat, channels: Channels) -> Rows:
    def opening(channel: str) -> str:
        return repr(f"{channels.channel}{channel}{channels.message}")

    yield "turn", f"messages, {channels.start + channels.role!r} before each but the first"
    yield "reasoning", f"{opening(channels.reasoning)} R {channels.end!r}"
    yield "content", f"{opening(channels.content)} C"
    if format.calls:
        yield "", f"before calls: {opening(channels.calls)} C {channels.end!r}"
        end = channels.call_end or channels.end
        yield "calls", f"CALL+, each ends with {end!r}" if format.calls.several else f"CALL {end!r}"
        yield from _call(format.calls.call)


# -- the example


def _example(format: TurnFormat) -> Rows:
    try:
        text = compose(_example_message(format), format, end=True)
    except UnsupportedInput:
        return
    for place, line in enumerate(text.splitlines(keepends=True)):
        yield "" if place else "example", repr(line)


def _example_message(format: TurnFormat) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": "Let me look."}
    if format.channels or (format.reasoning and begin(format).state is not State.CLOSED):
        message["reasoning_content"] = "Weather, then."
    if format.calls:
        cities = (EXAMPLE_ARGUMENTS, {"city": "Rome"})[: 2 if format.calls.several else 1]
        message["tool_calls"] = [{"function": {"name": "get_weather", "arguments": given}} for given in cities]
        if not format.channels and BARE_START.match(format.calls.open + _first_text(format.calls.call)):
            del message["content"]
    return message


def _first_text(call: Call) -> str:
    first = call.pieces[0] if call.pieces else None
    return first.text if isinstance(first, Literal) else ""


# -- words


def _path(keys: tuple[str, ...]) -> str:
    return ".".join(key if key.isidentifier() else repr(key) for key in keys)


def _joined(before: str, inner: str, after: str) -> str:
    return " ".join([*([repr(before)] if before else []), inner, *([repr(after)] if after else [])])


def _or_nothing(text: str) -> str:
    return repr(text) if text else "nothing"
