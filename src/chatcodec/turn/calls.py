"""Reading one tool call, behind the markers that open it.

`CallReader` follows the format; what it finds it gives to a `CallRecord`, which says it on as events once it is certain
that this is a call, and not a text that quotes one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

from ..events import ArgumentsDelta, Event, Status, ToolCall, ToolCallEnd, ToolCallStart
from . import call_ids
from .format import Arguments, CallId, Index, JsonArguments, Literal, Name, Piece, TaggedArguments
from .grammar import Grammar, tokens
from .payloads import json_object, read
from .payloads.reading import name as read_name
from .payloads.reading import raw_value, unescaped, whole_string
from .schemas import Reading as Type
from .schemas import Schemas
from .stream import CUT, NO, Broken, Cut, Reading, Stream

LONGEST_NAME = 256
NAME_STARTS = "_-"
"""What a function's name may begin with beside letters and digits."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a decoder takes. `arguments`: characters of one call's JSON; `calls`: attempts at a call in one turn."""

    arguments: int = 64_000_000
    calls: int = 10_000


class CallRecord:
    """What is known of a call while it is read.

    `certain`: it is a call whatever comes. Until then nothing of it is said, and it may yet be taken for text. With
    `strict` (a format whose calls have no marker of their own) only a declared function's name, or where none is
    declared its arguments, make it certain.
    """

    def __init__(
        self,
        say: Callable[[Event], None],
        schemas: Schemas,
        limits: Limits,
        *,
        index: int,
        own_id: str,
        strict: bool,
        awaits_id: bool,
        id_is_late: bool = False,
        show: Callable[[str], str] | None = None,
    ) -> None:
        self.say = say
        self._schemas = schemas
        self._limits = limits
        self._strict = strict
        self._awaits_id = awaits_id
        self._id_is_late = id_is_late
        self._show = show
        self._size = 0
        self._said = 0
        self.index = index
        self.own_id = own_id
        self.id = ""
        self.name = ""
        self.certain = False
        self.started = False
        self.foreign = False
        """The call is to no function at all."""
        self.unclosed = False
        """The output ended before the call's close."""
        self.whole = False
        """The arguments are complete beyond doubt, whatever of the call is missing."""
        self.is_too_long = False
        """Some of the arguments were not kept."""
        self.parts: list[str] = []
        self.notes: list[str] = []

    @property
    def declared(self) -> bool:
        return not self.foreign and (self._schemas.names is None or self.name in self._schemas.names)

    def named(self, name: str) -> None:
        if self._show is not None:
            name = self._show(name)
        if self.name:
            self.note("a second name")
            return
        if not name.isprintable() and any("\ud800" <= character <= "\udfff" for character in name):
            raise Broken("the name is no text")
        if self._strict and self._schemas.names is not None and name not in self._schemas.names:
            raise Broken(f"{name!r} is no declared function")
        self.name = name
        if not self._strict or self._schemas.names is not None:
            self.certain = True
        self._start()

    def plausible(self) -> None:
        """The call's arguments have begun. An id that should stand before them will not come any more."""
        self._awaits_id = self._awaits_id and self._id_is_late
        if self.name or not self._strict:
            self.certain = True
        self._start()

    def identified(self, identity: str) -> None:
        self.id = self.id or identity
        self._start()

    def emit(self, json: str) -> None:
        if self._show is not None:
            json = self._show(json)
        room = self._limits.arguments - self._size
        self._size += len(json)
        if len(json) > room:
            self.note(f"the arguments are longer than {self._limits.arguments:,} characters")
            self.is_too_long = True
            json = json[: max(0, room)]
        self.parts.append(json)
        if self.started:
            self._said += 1
            if json:
                self.say(ArgumentsDelta(self.index, json))

    def note(self, text: str) -> None:
        if self._show is not None:
            text = self._show(text)
        if text and text not in self.notes:
            self.notes.append(text)

    def _start(self, anyway: bool = False) -> None:
        ready = self.certain and self.name and (anyway or self.id or not self._awaits_id)
        if not self.started and ready and self.declared:
            self.started = True
            self.say(ToolCallStart(self.index, self.id or self.own_id, self.name))
            self._deliver()

    def _deliver(self) -> None:
        for part in self.parts[self._said :]:
            if part:
                self.say(ArgumentsDelta(self.index, part))
        self._said = len(self.parts)

    def end(self, status: Status, raw: str, span: tuple[int, int]) -> ToolCall:
        if status == "ok" and self.is_too_long:
            status = "malformed"
        if status == "ok" and not self.declared:
            status = "unknown_tool"
        if status == "ok":
            self._start(anyway=True)
        call = ToolCall(
            self.index,
            self.id or self.own_id,
            self.name,
            "".join(self.parts),
            status,
            raw,
            span,
            tuple(self.notes),
        )
        self.say(ToolCallEnd(self.index, call))
        return call


class CallReader:
    """Reads the call that `record` is of. It is what the readers of arguments know of the call (`payloads.Caller`)."""

    def __init__(self, stream: Stream, grammar: Grammar, schemas: Schemas, record: CallRecord) -> None:
        assert grammar.call is not None
        self.stream = stream
        self.grammar = grammar
        self.call = grammar.call
        self.schemas = schemas
        self.record = record
        self.emit = record.emit
        self.pending = ""
        """A name that has been read, and may yet turn out to be a word of a text."""
        self.confirmed = False
        """What stands behind a name stood there."""

    def read(self) -> Reading[None]:
        """Raises `Broken` where the call is not what the format says, and `Cut` where the output ends inside it."""
        if self.call.is_object:
            yield from self._object()
        else:
            if (yield from self._steps()):
                return
        yield from self._closing()

    # -- what readers of arguments ask

    def note(self, text: str, /) -> None:
        self.record.note(text)

    def plausible(self) -> None:
        self.record.plausible()

    def type_of(self, argument: str) -> Type:
        return self.schemas.argument(self.record.name, argument)

    def declares(self, argument: str) -> bool:
        return argument in self.schemas.properties(self.record.name)

    def closing_firsts(self) -> tuple[str, ...]:
        return self.call.closing.tokens

    def closes(self, at: int) -> Reading[int]:
        """Where what closes the call, or the rest of it, ends when it stands at `at`; `NO`, or `CUT`."""
        closing = self.call.closing.tokens
        if not closing:
            return at if (yield from self.is_over(at)) else NO
        for first in range(len(closing)):
            end = yield from self.stream.look(closing[first:], at)
            if end != NO:
                return end
        return NO

    def is_over(self, at: int) -> Reading[bool]:
        """Whether what stands at `at` may follow a call."""
        grammar, stream = self.grammar, self.stream
        followers = [start.tokens for start in (*grammar.inner_starts, *grammar.starts)]
        for follower in (*followers, grammar.section_close.tokens, *grammar.next_turns):
            if follower and (yield from stream.look(follower, at)) != NO:
                return True
        for edge in grammar.ends:
            end = (yield from stream.look(edge.tokens, at)) if edge.tokens else NO
            if end == CUT or (end != NO and (yield from self._nothing_follows(end))):
                return True
        return (yield from stream.look(("\0",), at)) == CUT

    def _nothing_follows(self, at: int) -> Reading[bool]:
        """Whether the output ends at `at`, or another turn begins there."""
        for turn in self.grammar.next_turns:
            if (yield from self.stream.look(turn, at)) != NO:
                return True
        return (yield from self.stream.look(("\0",), at)) == CUT

    # -- one JSON object

    def _object(self) -> Reading[None]:
        stream, record = self.stream, self.record
        yield from self._brace()
        path: tuple[str, ...] = ()
        argued = False
        while True:
            character = yield from stream.skip_space()
            if not character:
                raise Cut
            if character == "}":
                stream.position += 1
                if not path:
                    break
                path = path[:-1]
            elif character == ",":
                stream.position += 1
            elif record.name and argued and not path and (yield from self._closes_here()):
                record.note("the object is not closed")
                break
            else:
                key = yield from self._key()
                role = self._role((*path, key))
                if role == "arguments" and not argued:
                    argued = True
                    if not record.name:
                        record.note("the arguments stand before the name")
                    yield from self._arguments()
                elif role == "inside" and (yield from stream.skip_space()) == "{":
                    stream.position += 1
                    path = (*path, key)
                else:
                    yield from self._field(role)
        if not record.name:
            raise Broken("the call has no name")
        record.plausible()
        if not argued:
            record.note("the arguments are missing")
            record.emit("{}")
        record.whole = True

    def _closes_here(self) -> Reading[bool]:
        closing = self.call.closing.tokens
        return bool(closing) and (yield from self.stream.look(closing)) >= 0

    def _brace(self) -> Reading[None]:
        if (yield from self.stream.skip_space()) != "{":
            raise Broken("the call's object is missing") if not self.stream.ended else Cut
        self.stream.position += 1

    def _key(self) -> Reading[str]:
        key = yield from json_object.key_of(self.stream, self.note)
        return unescaped(key)

    def _role(self, path: tuple[str, ...]) -> str:
        call = self.call.call
        if path in (call.name_path, ("name",)):
            return "name"
        if path == call.arguments_path:
            return "arguments"
        if path in (("arguments",), ("parameters",)):
            self.note(f"the arguments are called {path[0]!r}")
            return "arguments"
        if path == call.id_path:
            return "id"
        if path == call.name_path[: len(path)] or path == call.arguments_path[: len(path)]:
            return "inside"
        return ""

    def _arguments(self) -> Reading[None]:
        payload = self.call.payload
        quote = yield from self.stream.skip_space()
        encoded = isinstance(payload, JsonArguments) and payload.encoded
        if (quote in "'\"") != encoded and quote:
            self.note("the arguments are encoded twice" if not encoded else "the arguments are not encoded")
        if quote in ("}", ",") or (yield from self.stream.take(("null",))):
            self.note("the arguments are null" if quote == "n" else "the arguments are missing")
            self.emit("{}")
            return
        yield from json_object.read(self.stream, self)

    def _field(self, role: str) -> Reading[None]:
        quote = yield from self.stream.skip_space()
        if not quote:
            raise Cut
        if quote in "'\"":
            self.stream.position += 1
            if role == "name":
                yield from self._name_begins()
            text = yield from whole_string(self.stream, quote, LONGEST_NAME if role else None)
        else:
            text = yield from raw_value(self.stream)
        if role == "name" and quote in "'\"" and text:
            self.record.named(text)
        elif role == "name":
            raise Broken("the name is no text")
        elif role == "id" and text != "null":
            self.record.identified(text)

    def _name_begins(self) -> Reading[None]:
        """Raises `Broken` where what stands here begins no name."""
        first = yield from self.stream.next()
        if first and not (first.isalnum() or first in NAME_STARTS):
            raise Broken(f"no name begins with {first!r}")

    # -- piece by piece

    def _steps(self) -> Reading[bool]:
        """Whether the call closed by itself, as `<invoke name="f"/>` does."""
        steps = self.call.steps
        left_out = -1
        for place, step in enumerate(steps):
            if place == left_out:
                self.note("the id is missing")
                continue
            match step:
                case Literal() if not tokens(step.text):
                    continue
                case Literal() if (yield from self._leaves_out_id(steps, place)):
                    left_out = place + 1
                case Literal():
                    if self.pending and (yield from self._closed_by_itself(step)):
                        return True
                    yield from self.stream.expect(tokens(step.text))
                    self.confirmed = bool(self.pending)
                case Name():
                    self.pending = yield from self._word(steps, place)
                case CallId():
                    self._identify(step, (yield from self._word(steps, place)))
                case Index():
                    yield from self._word(steps, place)
                case Arguments():
                    yield from self._before_arguments(step)
                    if self.pending:
                        self.record.named(self.pending)
                    yield from read(self.stream, step.payload, self)
                    self.record.whole = isinstance(step.payload, JsonArguments)
                case _:
                    assert_never(step)
        return False

    @property
    def is_named(self) -> bool:
        """Whether what has been read can hardly be anything but a call of a function."""
        names = self.schemas.names
        return bool(self.pending) and (self.confirmed if names is None else self.pending in names)

    def _leaves_out_id(self, steps: tuple[Piece, ...], place: int) -> Reading[bool]:
        """Whether an id, that the format has next, is not there, nor what announces it."""
        step, following = steps[place], steps[place + 1] if place + 1 < len(steps) else None
        if not isinstance(step, Literal) or following != CallId():
            return False
        return (yield from self.stream.look(tokens(step.text))) == NO

    def _closed_by_itself(self, step: Literal) -> Reading[bool]:
        marks = tokens(step.text)
        if not marks or marks[0][-1] != ">":
            return False
        end = yield from self.stream.look((marks[0][:-1] + "/>",))
        if end < 0:
            return False
        self.stream.position += end
        self.record.named(self.pending)
        self.note("the call closes itself")
        self.emit("{}")
        return True

    def _before_arguments(self, step: Arguments) -> Reading[None]:
        """A name is one only where its arguments, or the call's end, follow."""
        match step.payload:
            case TaggedArguments():
                openings: tuple[tuple[str, ...], ...] = (tokens(step.payload.open),)
            case JsonArguments():
                openings = (("{",), ('"',), ("'",))
            case _:
                return
        for opening in openings:
            if (yield from self.stream.look(opening)) != NO:
                return
        if (yield from self.closes(0)) == NO:
            raise Broken("neither arguments nor the call's end follow the name")

    def _word(self, steps: tuple[Piece, ...], place: int) -> Reading[str]:
        """A name, an id or a number: up to white space, or to what follows it in the format."""
        yield from self.stream.skip_space()
        if steps[place] in (Name(), CallId(names=True)):
            yield from self._name_begins()
        word = yield from read_name(self.stream, self._stop(steps, place))
        if not word:
            raise Broken("the name is missing")
        return word

    def _stop(self, steps: tuple[Piece, ...], place: int) -> re.Pattern[str]:
        following = steps[place + 1] if place + 1 < len(steps) else None
        marks = tokens(following.text) if isinstance(following, Literal) else ()
        if isinstance(steps[place], CallId):
            return _stop_before(marks[0][0] if marks else "", "<[{`\"'")
        return _stop_before(marks[0][0] if marks else "", "<>(){}[]\"'`,;=")

    def _identify(self, step: CallId, word: str) -> None:
        """Take an id; the name, where the id holds it."""
        self.record.identified(word)
        if step.names:
            self.pending = call_ids.read(word) or ""
            if not self.pending:
                raise Broken("the id holds no name")

    def _closing(self) -> Reading[None]:
        closing = self.call.closing.tokens
        for first in range(len(closing)):
            if (yield from self.stream.take(closing[first:])):
                if first:
                    self.note("a marker of the call's close is missing")
                return
        if closing and not (yield from self.is_over(0)):
            raise Broken("the call does not close")
        if closing:
            self.note("the call's close is missing")


def _stop_before(*characters: str) -> re.Pattern[str]:
    return re.compile(r"[\s" + re.escape("".join(characters)) + "\udc00-\udfff]")
