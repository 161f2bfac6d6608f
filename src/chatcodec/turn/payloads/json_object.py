"""Arguments as one JSON object: `{"city": "Paris", "days": 2}`. What is written includes its braces."""

from __future__ import annotations

import json
import re
from typing import Any

from ..format import WHITESPACE, JsonArguments
from ..stream import Broken, Cut, Reading, Stream
from .reading import Deliver, Sink, name, paired, string, unescaped, value
from .values import json_spelling

_BARE_KEY = re.compile(r"[^\w-]")


def write(payload: JsonArguments, arguments: dict[str, Any]) -> str:
    spelling = json_spelling(payload.ascii, payload.comma, payload.colon, payload.indent)
    text = spelling.write(arguments, "arguments")
    return spelling.write(text, "arguments") if payload.encoded else text


def read(stream: Stream, call: Sink) -> Reading[None]:
    """Read one object, or a string that holds one, and emit its JSON: a string as it comes in, other values whole."""
    character = yield from stream.skip_space()
    call.plausible()
    if character in ("'", '"'):
        stream.position += 1
        yield from _read_encoded(stream, character, call)
    else:
        yield from _read_object(stream, call.emit, call.note)


def _read_object(stream: Stream, emit: Deliver, note: Deliver) -> Reading[None]:
    if (yield from stream.skip_space()) != "{":
        raise _unexpected(stream, "an object")
    stream.position += 1
    emit("{")
    empty, comma = True, True
    while True:
        character = yield from stream.skip_space()
        if not character:
            raise Cut
        stream.position += 1
        if character == "}":
            if comma and not empty:
                note("a comma stands before the end")
            emit("}")
            return
        if character == ",":
            comma = True
            continue
        if not comma:
            note("a comma is missing")
        stream.position -= 1
        key = yield from key_of(stream, note)
        emit(f'{"" if empty else ", "}"{key}": ')
        empty, comma = False, False
        yield from _read_value(stream, emit, note)


def key_of(stream: Stream, note: Deliver) -> Reading[str]:
    """Read a key and its colon, and return the inside of its JSON."""
    quote = yield from stream.next()
    if quote in ("'", '"'):
        stream.position += 1
        parts: list[str] = []
        yield from string(stream, quote, parts.append)
        key = "".join(parts)
        if quote == "'":
            note("single quotes stand for double ones")
    else:
        key = yield from name(stream, _BARE_KEY)
        if not key:
            raise _unexpected(stream, "a key")
        note("a key has no quotes")
    if (yield from stream.skip_space()) != ":":
        raise _unexpected(stream, "a colon")
    stream.position += 1
    return key


def _read_value(stream: Stream, emit: Deliver, note: Deliver) -> Reading[None]:
    character = yield from stream.skip_space()
    if not character:
        raise Cut
    if character in "'\"":
        if character == "'":
            note("single quotes stand for double ones")
        stream.position += 1
        emit('"')
        yield from string(stream, character, emit)
        emit('"')
    else:
        emit((yield from value(stream)))


def _read_encoded(stream: Stream, quote: str, call: Sink) -> Reading[None]:
    """What the string says is read by a reader of its own, piece by piece."""
    inner = Stream()
    reader = _read_object(inner, call.emit, call.note)
    over = False
    broken: Broken | None = None

    def deliver(piece: str) -> None:
        nonlocal over, broken
        text = unescaped(piece)
        inner.append(paired(text) if "\\u" in piece else text)
        try:
            if not over and broken is None:
                next(reader)
        except StopIteration:
            over = True
        except Broken as error:
            broken = error
        if over and broken is None and inner.text[inner.position :].strip(WHITESPACE):
            broken = Broken("text stands behind the object in the string")
        if over or broken:
            inner.position = len(inner.text)

    yield from string(stream, quote, deliver)
    if broken is not None:
        raise broken
    if not over:
        raise Broken("the string's object does not end")


def _unexpected(stream: Stream, wanted: str) -> Exception:
    found = stream.text[stream.position : stream.position + 1]
    return Broken(f"{wanted} is missing before {json.dumps(found, ensure_ascii=False)}") if found else Cut()
