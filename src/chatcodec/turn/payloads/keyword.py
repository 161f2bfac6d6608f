"""Arguments as in a call in Python: `city="Paris", days=2`. What is written has no parentheses around it."""

from __future__ import annotations

import json
import re
from typing import Any

from ...errors import UnsupportedInput
from ...messages import child_path
from ..format import KeywordArguments
from ..stream import NO, Broken, Cut, Reading, Stream
from .reading import Caller, at_close, name, raw_value, scalar_end, string, value
from .values import spell

UNFIT = re.compile(r"""[\s=,:()\[\]{}"']""")
"""What would end a keyword, or open something else."""


def write(payload: KeywordArguments, arguments: dict[str, Any]) -> str:
    return payload.separator.join(_argument(payload, name, value) for name, value in arguments.items())


def _argument(payload: KeywordArguments, name: str, value: Any) -> str:
    path = child_path("arguments", name)
    if not name or UNFIT.search(name) or payload.equals in name:
        raise UnsupportedInput(path, f"{name!r} cannot be a keyword")
    return f"{name}{payload.equals}{spell(value, payload.strings, payload.others, path)}"


UNESCAPED = {"bare": '"', "single": "'", "raw": ""}
"""The ways of writing a string without escapes, and the quotes around it."""
_KEY_END = re.compile(r"""[\s=,()\[\]{}"':]""")
_BARE_END = re.compile(r"[,)]")


def read(stream: Stream, payload: KeywordArguments, call: Caller) -> Reading[None]:
    """Read arguments up to where the call closes."""
    call.emit("{")
    empty = True
    while not (yield from at_close(call)):
        if (yield from stream.skip_space()) == "," and not empty:
            stream.position += 1
            continue
        key = yield from name(stream, _KEY_END)
        if not key or not (yield from stream.take((payload.equals.strip(),))):
            raise Broken("neither an argument nor the end of the call stands here")
        call.plausible()
        call.emit(f"{'' if empty else ', '}{json.dumps(key, ensure_ascii=False)}: ")
        empty = False
        yield from _read_value(stream, payload, call, key)
    call.plausible()
    call.emit("}")


def _read_value(stream: Stream, payload: KeywordArguments, call: Caller, key: str) -> Reading[None]:
    quote = yield from stream.skip_space()
    if not quote:
        raise Cut
    if payload.strings in UNESCAPED:
        yield from _read_bare(stream, call, key, UNESCAPED[payload.strings])
    elif quote in "'\"":
        stream.position += 1
        call.emit('"')
        yield from string(stream, quote, call.emit, python=True)
        call.emit('"')
    else:
        call.emit((yield from value(stream, stops=scalar_end(call))))


def _read_bare(stream: Stream, call: Caller, key: str, quote: str) -> Reading[None]:
    """A value that may be a text without escapes: it ends where another argument or the call's end can follow."""
    parts: list[str] = []
    while True:
        if not parts and (yield from stream.next()) in ("{", "["):
            parts.append((yield from raw_value(stream)))
        match = _BARE_END.search(stream.text, stream.position)
        end = match.start() if match else len(stream.text)
        parts.append(stream.text[stream.position : end])
        stream.position = end
        if match is None:
            if not (yield from stream.more()):
                raise Cut
            continue
        if (yield from _may_end(stream, call)):
            break
        parts.append(stream.text[stream.position])
        stream.position += 1
    text = "".join(parts)
    if quote and len(text) > 1 and text[0] == text[-1] == quote:
        call.emit(json.dumps(text[1:-1], ensure_ascii=False))
    else:
        call.emit(call.type_of(key).read(text))


def _may_end(stream: Stream, call: Caller) -> Reading[bool]:
    closed = yield from call.closes(0)
    if closed != NO:
        return closed < 0 or (yield from call.is_over(closed))
    at = 1
    while (yield from stream.need(at + 1)) and at < LONGEST_KEY:
        character = stream.text[stream.position + at]
        if character == "=":
            return at > 1
        if UNFIT.match(character) and not (character == " " and at == 1):
            return False
        at += 1
    return False


LONGEST_KEY = 128
