"""What the readers of arguments share: strings and values of JSON and Python, read as they come in.

What goes out is JSON, in pieces that are each handed on as soon as they are certain.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache
from json.encoder import encode_basestring
from typing import Any, Protocol

from ..relaxed import relaxed_json
from ..schemas import Reading as Type
from ..stream import CUT, NO, Broken, Cut, Reading, Stream

Deliver = Callable[[str], None]

LONGEST_NAME = 512
MAX_DEPTH = 100


class Sink(Protocol):
    """Where arguments go, in pieces of JSON."""

    def emit(self, json: str, /) -> None: ...
    def note(self, text: str, /) -> None: ...
    def plausible(self) -> None: ...


class Caller(Sink, Protocol):
    """The call that the arguments belong to, as a reader of arguments sees it."""

    def type_of(self, argument: str) -> Type: ...
    def declares(self, argument: str) -> bool: ...
    def closes(self, at: int) -> Reading[int]: ...
    def is_over(self, at: int) -> Reading[bool]: ...
    def closing_firsts(self) -> tuple[str, ...]: ...


def at_close(call: Caller) -> Reading[bool]:
    """Whether the call closes here. Raises `Cut` where the output ends before that is told."""
    end = yield from call.closes(0)
    if end == CUT:
        raise Cut
    return end != NO


_ESCAPES = r"""\\["\\/bfnrt] | \\u(?![dD][89abAB])[0-9a-fA-F]{4}"""
_PLAIN = {
    quote: re.compile(rf"""(?: [^{quotes}\\\x00-\x1f]++ | {_ESCAPES} )++""", re.VERBOSE)
    for quote, quotes in (('"', '"'), ("'", "'\""))
}
"""What stands in a string as it stands in JSON's. (A surrogate's escape waits for the other half's.)"""
_CONTROLS = re.compile(r"[\x00-\x1f][\x00-\x20]*")
_HEX = re.compile(r"[0-9a-fA-F]+")
_PYTHON_ESCAPES = {"a": "\\u0007", "v": "\\u000b", "0": "\\u0000", "'": "'", "\n": ""}


def string(
    stream: Stream, quote: str, deliver: Deliver, *, python: bool = False, limit: int | None = None
) -> Reading[None]:
    """Read a string behind its opening quote, up to and with its closing one, and deliver the inside of its JSON.

    Raises `Broken` where it is longer than `limit`.
    """
    plain = _PLAIN[quote]
    last = None if limit is None else stream.offset + limit
    while True:
        text = stream.text
        end = len(text) if last is None else min(len(text), stream.position + last - stream.offset)
        match = plain.match(text, stream.position, end)
        if match:
            stream.position = match.end()
            deliver(match.group())
        if last is not None and stream.offset >= last:
            raise Broken("a name is too long")
        if stream.position == len(text):
            if stream.ended:
                raise Cut
            yield
            continue
        character = text[stream.position]
        if character == "\\":
            yield from _escape(stream, deliver, python)
            continue
        controls = _CONTROLS.match(text, stream.position)
        stream.position = controls.end() if controls else stream.position + 1
        if character == quote:
            return
        deliver(encode_basestring(controls.group() if controls else character)[1:-1])


def _escape(stream: Stream, deliver: Deliver, python: bool) -> Reading[None]:
    if not (yield from stream.need(2)):
        raise Cut
    kind = stream.text[stream.position + 1]
    if kind in '"\\/bfnrt':
        deliver("\\" + kind)
        stream.position += 2
    elif kind == "u" or (python and kind in "xU"):
        yield from _code_point(stream, deliver, {"u": 4, "x": 2, "U": 8}[kind])
    elif kind == "'" or (python and kind in _PYTHON_ESCAPES):
        deliver(_PYTHON_ESCAPES[kind])
        stream.position += 2
    else:
        deliver("\\\\")
        stream.position += 1


def _code_point(stream: Stream, deliver: Deliver, digits: int) -> Reading[None]:
    length = 2 + digits
    if not (yield from stream.need(length)):
        raise Cut
    code = stream.text[stream.position + 2 : stream.position + length]
    if not _HEX.fullmatch(code) or int(code, 16) > 0x10FFFF:
        deliver("\\\\")
        stream.position += 1
        return
    if digits != 4:
        deliver(json.dumps(chr(int(code, 16)))[1:-1])
        stream.position += length
        return
    if code[0] in "dD" and code[1] in "89abAB":
        length = yield from _pair_length(stream)
    deliver(stream.text[stream.position : stream.position + length])
    stream.position += length


def _pair_length(stream: Stream) -> Reading[int]:
    """The length of a surrogate's escape, with the other half's where that follows: they go out together."""
    if not (yield from stream.need(8)) or not stream.text.startswith("\\u", stream.position + 6):
        return 6
    if not (yield from stream.need(12)):
        raise Cut
    return 12 if _HEX.fullmatch(stream.text, stream.position + 8, stream.position + 12) else 6


def whole_string(stream: Stream, quote: str, limit: int | None = None) -> Reading[str]:
    """Read a string behind its opening quote, as the text that it says."""
    parts: list[str] = []
    yield from string(stream, quote, parts.append, limit=limit)
    return unescaped("".join(parts))


def unescaped(inside: str) -> str:
    """The text of a JSON string's inside."""
    text: str = json.loads(f'"{inside}"')
    return text


def paired(text: str) -> str:
    """Text whose surrogates are characters where they make pairs, and replaced where they are alone."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


_OUTSIDE = re.compile(r"""["'{}\[\]()]""")
_INSIDE = {quote: re.compile(rf"[{quote}\\]") for quote in "\"'"}
_SCALAR_END = re.compile(r"[,\]})\s]")


@lru_cache(maxsize=64)
def _scalar_end(closing: str) -> re.Pattern[str]:
    return re.compile(r"[,\]})\s" + re.escape(closing) + "]")


def scalar_end(call: Caller) -> re.Pattern[str]:
    """What a number or a word ends before, in a call whose close has no bracket before it."""
    return _scalar_end("".join(first[0] for first in call.closing_firsts()[:1] if not first[0].isalnum()))


def value(stream: Stream, *, stops: re.Pattern[str] = _SCALAR_END) -> Reading[str]:
    """Read one value that is no string, and return its JSON. Raises `Broken` where it is none."""
    text = yield from raw_value(stream, stops)
    json_text = strict(text)
    if json_text is None:
        json_text = relaxed_json(text, max_depth=MAX_DEPTH)
    if json_text is None:
        raise Broken(f"{_shortened(text)} is no value")
    return json_text


def raw_value(stream: Stream, stops: re.Pattern[str] = _SCALAR_END) -> Reading[str]:
    character = yield from stream.next()
    if not character:
        raise Cut
    if character in "{[(":
        return (yield from _composite(stream))
    parts: list[str] = []
    while True:
        match = stops.search(stream.text, stream.position)
        end = match.start() if match else len(stream.text)
        parts.append(stream.text[stream.position : end])
        stream.position = end
        if match:
            return "".join(parts)
        if not (yield from stream.more()):
            raise Cut


def _composite(stream: Stream) -> Reading[str]:
    parts: list[str] = []
    depth = 0
    quote = ""
    while True:
        pattern = _INSIDE[quote] if quote else _OUTSIDE
        match = pattern.search(stream.text, stream.position)
        end = match.end() if match else len(stream.text)
        parts.append(stream.text[stream.position : end])
        stream.position = end
        if match is None:
            if not (yield from stream.more()):
                raise Cut
            continue
        character = match.group()
        if character == "\\":
            if not (yield from stream.need(1)):
                raise Cut
            parts.append(stream.text[stream.position])
            stream.position += 1
        elif quote:
            quote = ""
        elif character in "\"'":
            quote = character
        elif character in "{[(":
            depth += 1
            if depth > MAX_DEPTH:
                raise Broken(f"values are nested more than {MAX_DEPTH} deep")
        else:
            depth -= 1
            if not depth:
                return "".join(parts)


def _refuse(name: str) -> Any:
    raise ValueError(name)


_STRICT = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=_refuse)


def strict(text: str) -> str | None:
    """`text`, where it is JSON to the letter."""
    try:
        _STRICT.decode(text)
    except (ValueError, RecursionError):
        return None
    return text


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:40] + "…")


def name(stream: Stream, stop: re.Pattern[str]) -> Reading[str]:
    """Read up to where `stop` matches; "" where it does at once. Raises `Broken` where the name is too long."""
    parts: list[str] = []
    last = stream.offset + LONGEST_NAME
    while True:
        match = stop.search(stream.text, stream.position)
        end = match.start() if match else len(stream.text)
        take_name(stream, end, last, parts)
        if match:
            return "".join(parts)
        if not (yield from stream.more()):
            raise Cut


def take_name(stream: Stream, end: int, last: int, parts: list[str]) -> None:
    """Read up to `end`, but not beyond the offset `last`."""
    over = stream.offset + end - stream.position - last
    parts.append(stream.text[stream.position : end - max(0, over)])
    stream.position = end - max(0, over)
    if over > 0:
        raise Broken("a name is too long")
