"""Each argument in tags of its own: `<parameter=city>\\nParis\\n</parameter>`."""

from __future__ import annotations

import html
from json.encoder import encode_basestring
from typing import Any

from markupsafe import escape

from ...errors import UnsupportedInput
from ...messages import child_path
from ..format import TaggedArguments
from ..grammar import Edge, Markers, markers, tokens
from ..passage import Passage
from ..relaxed import relaxed_json
from ..schemas import PLAIN
from ..schemas import Reading as Type
from ..stream import CUT, NO, Broken, Cut, Reading, Stream
from .reading import LONGEST_NAME, Caller, at_close, raw_value, strict, take_name
from .values import json_type, spell

CDATA = ("<![CDATA[", "]]>")

_CONTAINERS = frozenset({"array", "object", "null"})


def write(payload: TaggedArguments, arguments: dict[str, Any]) -> str:
    """Raises `UnsupportedInput` for a name that would end early; whether a value would, only a reader can tell."""
    return payload.separator.join(_argument(payload, name, value) for name, value in arguments.items())


def _argument(payload: TaggedArguments, name: str, value: Any) -> str:
    path = child_path("arguments", name)
    written = _name(payload, name, path)
    middle = dict(payload.kinds).get(json_type(value), payload.middle)
    close = payload.close if payload.named_close is None else f"{payload.close}{written}{payload.named_close}"
    text = spell(value, payload.strings, payload.others, path)
    if payload.cdata and isinstance(value, str) and any(mark in value for mark in "<&\n"):
        text = f"{CDATA[0]}{text}{CDATA[1]}"
    return f"{payload.open}{written}{middle}{text}{close}"


def _name(payload: TaggedArguments, name: str, path: str) -> str:
    written = str(escape(name)) if payload.escaped_names else name
    for mark in (payload.middle, *(middle for _, middle in payload.kinds)):
        if (written + mark).find(mark) < len(written):
            raise UnsupportedInput(path, f"the format cannot carry a name with {mark!r} in it")
    return written


def read(stream: Stream, payload: TaggedArguments, call: Caller) -> Reading[None]:
    """Read arguments up to where the call closes."""
    reader = _Reader(stream, payload, call)
    call.emit("{")
    while not (yield from at_close(call)):
        yield from reader.argument()
    call.emit("}")


class _Reader:
    def __init__(self, stream: Stream, payload: TaggedArguments, call: Caller) -> None:
        self.stream = stream
        self.payload = payload
        self.call = call
        self.opening = tokens(payload.open)
        kinds = payload.kinds or (("", payload.middle),)
        self.middles = [
            (Edge.of(middle), frozenset(kind for kind, other in kinds if other == middle))
            for middle in dict.fromkeys((payload.middle, *(middle for _, middle in kinds)))
        ]
        self.key_end = markers(*(edge.tokens[0] for edge, _ in self.middles))
        self.given: set[str] = set()

    def argument(self) -> Reading[None]:
        if not (yield from self.stream.take(self.opening)):
            raise Broken("neither an argument nor the end of the call stands here")
        written = (yield from self._key()).strip()
        key = html.unescape(written) if self.payload.escaped_names else written
        for middle, kinds_here in self.middles:
            if (yield from self.stream.take(middle.tokens)):
                kinds = kinds_here
                break
        else:
            raise Broken(f"the value of {key!r} does not begin")
        yield from self.stream.skip_exact(middle.trail)
        self.call.plausible()
        self.call.emit(f"{', ' if self.given else ''}{encode_basestring(key)}: ")
        self.given.add(key)
        yield from self._value(written, self._type(key, kinds))

    def _key(self) -> Reading[str]:
        stream = self.stream
        parts: list[str] = []
        last = stream.offset + LONGEST_NAME
        while True:
            until, found = self.key_end.find(stream.text, stream.position, stream.ended)
            take_name(stream, until, last, parts)
            if found:
                return "".join(parts)
            if not (yield from stream.more()):
                raise Cut

    def _type(self, key: str, kinds: frozenset[str]) -> Type | None:
        """How the value is read; None where it is a string whatever it says."""
        if kinds == {"string"}:
            return None
        declared = self.call.type_of(key)
        if self.payload.kinds:
            return PLAIN if declared.text_only else declared
        return None if declared.text_only and self.payload.strings == "raw" else declared

    def _close(self, written: str) -> Edge:
        close = self.payload.close
        return Edge.of(close if self.payload.named_close is None else close + written + self.payload.named_close)

    def _value(self, written: str, type_: Type | None) -> Reading[None]:
        close = self._close(written)
        if type_ is not None and type_.kinds <= _CONTAINERS and (yield from self._container(type_, close)):
            return
        firsts = markers(close.tokens[0], self.opening[0], *self.call.closing_firsts())
        value = _Value(self.call, type_, quoted=self.payload.strings != "raw")
        passage = Passage(value.write, hold=len(close.lead))
        if self.payload.cdata and (yield from self.stream.look(CDATA[:1])) >= 0:
            yield from self.stream.take(CDATA[:1])
            close = Edge.of(CDATA[1] + close.lead + "".join(close.tokens))
            firsts = markers(close.tokens[0], *self.call.closing_firsts())
            value.is_text()
        yield from self._text(passage, firsts, close)
        passage.close(close.lead)
        value.close()

    def _container(self, type_: Type, close: Edge) -> Reading[bool]:
        """Read a declared list or object by its own brackets, so that a marker in one of its strings is a string's."""
        stream = self.stream
        record = stream.record()
        try:
            if (yield from stream.skip_space()) in ("[", "{"):
                text = yield from raw_value(stream)
                if (yield from stream.take(close.tokens)):
                    stream.kept(record)
                    self.call.emit(type_.read(text))
                    return True
        except (Broken, Cut):
            pass
        stream.go_back(record)
        return False

    def _text(self, passage: Passage, firsts: Markers, close: Edge) -> Reading[None]:
        stream = self.stream
        while True:
            until, found = firsts.find(stream.text, stream.position, stream.ended)
            if until > stream.position:
                passage.write(stream.text[stream.position : until])
                stream.position = until
            if found:
                if (yield from self._ends_here(close)):
                    return
                passage.write(stream.text[stream.position])
                stream.position += 1
            elif stream.ended:
                raise Cut
            else:
                yield

    def _ends_here(self, close: Edge) -> Reading[bool]:
        """Whether the value ends here; its close is then read."""
        end = yield from self.stream.look(close.tokens)
        if end == CUT:
            raise Cut
        if end != NO:
            if not (yield from self._goes_on(end)):
                return False
            self.stream.position += end
            return True
        call_end = yield from self.call.closes(0)
        if call_end >= 0 and (yield from self.call.is_over(call_end)):
            self.call.note("the close of a value is missing")
            return True
        if (yield from self._next_declared(0)):
            self.call.note("the close of a value is missing")
            return True
        return False

    def _goes_on(self, at: int) -> Reading[bool]:
        """Whether another argument, or the end of the call, stands at `at`."""
        if (yield from self.call.closes(at)) != NO:
            return True
        opened = yield from self.stream.look(self.opening, at)
        return opened == CUT or (opened != NO and (yield from self._key_at(opened)) is not None)

    def _key_at(self, at: int) -> Reading[str | None]:
        """The key that stands at `at` with what opens its value behind it; "?" where the output ends before that."""
        stream = self.stream
        for length in range(LONGEST_KEY):
            if not (yield from stream.need(at + length + 1)):
                return "?"
            character = stream.text[stream.position + at + length]
            for middle, _ in self.middles:
                if character != middle.tokens[0][0]:
                    continue
                if (yield from stream.look(middle.tokens, at + length)) != NO:
                    return stream.text[stream.position + at : stream.position + at + length].strip()
            if character == "\n":
                return None
        return None

    def _next_declared(self, at: int) -> Reading[bool]:
        opened = yield from self.stream.look(self.opening, at)
        if opened < 0:
            return False
        key = yield from self._key_at(opened)
        return key is not None and key not in self.given and self.call.declares(key)


LONGEST_KEY = LONGEST_NAME


class _Value:
    """A value on its way to JSON: a string goes out as it comes in, any other when it is whole."""

    def __init__(self, call: Caller, type_: Type | None, *, quoted: bool) -> None:
        self._call = call
        self._type = type_
        self._quoted = quoted
        self._parts: list[str] = []
        self._start = ""
        self._streams = False
        if type_ is None:
            self._stream()

    def is_text(self) -> None:
        """Whatever the value says, it is a string."""
        if not self._streams:
            self._stream()

    def _stream(self) -> None:
        self._streams = True
        self._call.emit('"')
        for part in self._parts:
            self._call.emit(_inside(part))

    def write(self, text: str) -> None:
        if self._streams:
            self._call.emit(_inside(text))
            return
        self._parts.append(text)
        if self._type is not None and not self._quoted and len(self._start) < DECIDED:
            self._start = (self._start + text).lstrip()[:DECIDED]
            if self._start and self._type.may_be_text(self._start):
                self._stream()

    def close(self) -> None:
        if self._streams:
            self._call.emit('"')
            return
        text = "".join(self._parts)
        assert self._type is not None
        literal = (strict(text.strip()) or relaxed_json(text.strip())) if self._quoted else None
        if literal and self._type.text_only and not literal.startswith('"'):
            literal = None
        self._call.emit(literal or self._type.read(text))


DECIDED = 64


def _inside(text: str) -> str:
    return encode_basestring(text)[1:-1]
