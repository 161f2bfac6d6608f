"""Arguments with bare keys and strings between marks of their own: `city:<|"|>Paris<|"|>,days:2`.

What is written has no braces around it; an object in it has.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from ...errors import UnsupportedInput
from ..format import BareArguments
from ..grammar import markers
from ..stream import Broken, Cut, Reading, Stream
from .reading import MAX_DEPTH, Caller, at_close, name, scalar_end, strict, unescaped
from .values import Spelling

UNFIT = re.compile(r"""[,:\[\]{}"]|^\s|\s$""")
"""What would end a key, or open something else."""


def write(payload: BareArguments, arguments: dict[str, Any]) -> str:
    return _spelling(payload).write(arguments, "arguments")[1:-1]


def _spelling(payload: BareArguments) -> Spelling:
    def text(value: str, path: str) -> str:
        if (value + payload.quote).find(payload.quote) < len(value):
            raise UnsupportedInput(path, f"the format cannot carry a string with {payload.quote!r} in it")
        return f"{payload.quote}{value}{payload.quote}"

    def key(name: str, path: str) -> str:
        if UNFIT.search(name) or payload.quote in name or payload.colon in name:
            raise UnsupportedInput(path, f"{name!r} cannot be a bare key")
        return name

    return Spelling(text, key, comma=payload.comma, colon=payload.colon)


def read(stream: Stream, payload: BareArguments, call: Caller) -> Reading[None]:
    """Read arguments up to where the call closes."""
    reader = _Reader(stream, payload, scalar_end(call))
    call.emit("{")
    empty = True
    while not (yield from at_close(call)):
        if (yield from stream.skip_space()) == payload.comma.strip() and not empty:
            stream.position += 1
            continue
        key = yield from reader.key()
        call.plausible()
        call.emit(f"{'' if empty else ', '}{key}: ")
        empty = False
        yield from reader.value(call.emit)
    call.emit("}")


class _Reader:
    def __init__(self, stream: Stream, payload: BareArguments, scalar_end: re.Pattern[str]) -> None:
        self.scalar_end = scalar_end
        self.stream = stream
        self.payload = payload
        self.key_end = re.compile(f"[{re.escape(payload.colon[0])}{{}}\\[\\],]")
        self.quotes = markers(payload.quote)

    def key(self) -> Reading[str]:
        """Read a key and its colon; the key's JSON."""
        stream = self.stream
        quoted: list[str] = []
        if (yield from stream.take((self.payload.quote,))):
            yield from self._string(quoted.append)
        text = (yield from name(stream, self.key_end)).strip()
        if not (yield from stream.take((self.payload.colon.strip(),))):
            raise Broken("a key has no colon")
        if len(text) > 1 and text[0] == text[-1] == '"':
            text = text[1:-1]
        return json.dumps("".join(map(unescaped, quoted)) if quoted else text, ensure_ascii=False)

    def value(self, emit: Callable[[str], None]) -> Reading[None]:
        stream = self.stream
        character = yield from stream.skip_space()
        if not character:
            raise Cut
        if (yield from stream.take((self.payload.quote,))):
            emit('"')
            yield from self._string(emit)
            emit('"')
        elif character in "{[":
            parts: list[str] = []
            yield from self._composite(parts.append)
            emit("".join(parts))
        else:
            emit((yield from self._scalar()))

    def _string(self, emit: Callable[[str], None]) -> Reading[None]:
        """Read up to the next quote."""
        stream = self.stream
        while True:
            until, found = self.quotes.find(stream.text, stream.position, stream.ended)
            if until > stream.position:
                emit(json.dumps(stream.text[stream.position : until], ensure_ascii=False)[1:-1])
                stream.position = until
            if found:
                stream.position += len(self.payload.quote)
                return
            if not (yield from stream.more()):
                raise Cut

    def _scalar(self) -> Reading[str]:
        stream = self.stream
        parts: list[str] = []
        while True:
            match = self.scalar_end.search(stream.text, stream.position)
            end = match.start() if match else len(stream.text)
            parts.append(stream.text[stream.position : end])
            stream.position = end
            if match:
                break
            if not (yield from stream.more()):
                raise Cut
        text = "".join(parts)
        if not text:
            raise Broken("a value is missing")
        return _SPELLED.get(text) or strict(text) or json.dumps(text, ensure_ascii=False)

    def _composite(self, emit: Callable[[str], None]) -> Reading[None]:
        """Read a nested object or list."""
        stream = self.stream
        open_: list[str] = []
        first = True
        while True:
            character = yield from stream.skip_space()
            if not character:
                raise Cut
            if character in "]}":
                if not open_ or open_.pop() != character:
                    raise Broken(f"{character} closes nothing")
                stream.position += 1
                emit(character)
                first = False
                if not open_:
                    return
                continue
            if character == self.payload.comma.strip():
                stream.position += 1
                continue
            if not first:
                emit(", ")
            if open_ and open_[-1] == "}":
                emit((yield from self.key()) + ": ")
                character = yield from stream.skip_space()
            if character and character in "{[":
                if len(open_) >= MAX_DEPTH:
                    raise Broken(f"values are nested more than {MAX_DEPTH} deep")
                stream.position += 1
                open_.append("}" if character == "{" else "]")
                emit(character)
                first = True
            else:
                yield from self.value(emit)
                first = False


_SPELLED = {"True": "true", "False": "false", "None": "null"}
