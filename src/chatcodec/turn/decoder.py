"""The decoder: an assistant's turn, read while it is written.

It is fed text or token ids in pieces of any size, knows no socket and no engine, and says events. What it guarantees:
the same output gives the same events' texts, calls and message, however it was cut; nothing that the model wrote is
lost; time is linear in the output, and what is held beside the message is bounded.

A marker counts where what follows can be what the format says. To find out, the decoder reads on, and goes back where
it was wrong (`Stream.record`): what it takes for the beginning of a call is said only when it is one.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b
from typing import Any, Protocol

from ..errors import UnsupportedInput
from ..events import ContentDelta, Event, FinishReason, ReasoningDelta, ToolCall, TurnEnd
from ..messages import Message, Tool
from . import channels, controls
from .calls import CallReader, CallRecord, Limits
from .format import WHITESPACE, TurnFormat
from .grammar import Edge, Grammar, Start, grammar, is_certain, is_strong, markers
from .passage import Passage
from .schemas import Schemas
from .stream import CUT, NO, Broken, Cut, Reading, Stream

NOISE = 256
"""Characters between the wrapper's opening and the first call that are passed over."""


class Vocabulary(Protocol):
    """What is needed of a tokenizer to feed ids."""

    def token_bytes(self, token: int) -> bytes:
        """The bytes that the token stands for; they need be no whole characters."""
        ...

    def control_tokens(self) -> Mapping[str, int]:
        """The special tokens: text and id."""
        ...


class Decoder:
    """Decodes one turn.

    `prompt` is what was sent to the model, as text (or its ids, with a `vocabulary`): its end tells whether reasoning
    is open already; without it the format's own generation prompt counts. `tools` are the declared tools in OpenAI's
    shape: they give arguments their types, and calls of others the status "unknown_tool".
    """

    def __init__(
        self,
        turn: TurnFormat,
        *,
        prompt: str | Iterable[int] | None = None,
        tools: list[Tool] | None = None,
        vocabulary: Vocabulary | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._given_format = turn
        self._vocabulary = vocabulary
        self._limits = limits or Limits()
        self._schemas = Schemas(tools or None)
        self._prompt = turn.prompt if prompt is None else self._as_text(prompt)
        self._kind: type | None = None
        self._turn: _Turn | None = None
        self._message: Message | None = None
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._controls: dict[int, str] = {}

    def _as_text(self, prompt: str | Iterable[int]) -> str:
        if isinstance(prompt, str):
            return prompt
        if self._vocabulary is None:
            raise UnsupportedInput("prompt", "ids need a vocabulary to be read with")
        return b"".join(map(self._vocabulary.token_bytes, prompt)).decode("utf-8", "replace")

    # -- feeding

    def feed(self, piece: str | Iterable[int]) -> list[Event]:
        """Take a piece of the output, text or ids, and say what is certain by now.

        Raises `UnsupportedInput` where text follows ids or ids text, and where ids come without a vocabulary.
        """
        text = piece if isinstance(piece, str) else list(piece)
        turn = self._begin(type(text))
        return turn.feed(text if isinstance(text, str) else "".join(map(self._decoded, text)))

    def _begin(self, kind: type) -> _Turn:
        if self._turn is None:
            self._kind = kind
            form, prompt, shown = self._given_format, self._prompt, None
            if kind is list:
                if self._vocabulary is None:
                    raise UnsupportedInput("output", "ids need a vocabulary to be read with")
                control = controls.Controls(form, self._vocabulary.control_tokens())
                form, prompt, shown = control.format, control.hidden(prompt), control.shown
                self._controls = control.characters
            self._turn = _Turn(form, prompt, self._schemas, self._limits, shown)
        if kind is not self._kind:
            raise UnsupportedInput("output", "text and ids cannot be mixed in one turn")
        return self._turn

    def _decoded(self, token: int) -> str:
        character = self._controls.get(token)
        assert self._vocabulary is not None
        if character is not None:
            return self._utf8.decode(b"", True) + character
        return self._utf8.decode(self._vocabulary.token_bytes(token))

    def close(self, finish_reason: FinishReason | None = None) -> list[Event]:
        """The output is over; `finish_reason` is what the engine says about that, "length" where it was cut."""
        turn = self._begin(self._kind or str)
        rest = self._utf8.decode(b"", True)
        return (turn.feed(rest) if rest else []) + turn.close(finish_reason)

    # -- what came

    @property
    def calls(self) -> list[ToolCall]:
        """All attempts at a call so far, whatever their status."""
        return list(self._turn.calls) if self._turn else []

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the turn ended; None while it goes on."""
        return self._turn.reason if self._turn else None

    @property
    def rest(self) -> str:
        """What the output says behind the end of the turn."""
        return self._turn.rest if self._turn else ""

    @property
    def message(self) -> Message:
        """What has come so far, in OpenAI's shape: `role`, `content` (None where there is none), and where there are
        any `reasoning_content` and `tool_calls`, arguments as JSON strings. Only whole calls of declared tools are in it."""
        message: Message = {"role": "assistant", "content": None}
        if self._turn is not None:
            self._turn.write(message)
        return message


class _Turn:
    """The reading of one turn."""

    def __init__(
        self, form: TurnFormat, prompt: str, schemas: Schemas, limits: Limits, shown: Callable[[str], str] | None
    ) -> None:
        self.stream = Stream()
        self.grammar: Grammar = grammar(form)
        self.schemas = schemas
        self.limits = limits
        self.shown = shown or (lambda text: text)
        self.events: list[Event] = []
        self.calls: list[ToolCall] = []
        self.reason: FinishReason | None = None
        self.rest = ""
        self.ended_by_marker = False
        self.told: FinishReason | None = None
        self.reasoning: list[str] = []
        self.content: list[str] = []
        self.passage: Passage | None = None
        self.cut_inside = False
        self._say: Callable[[Event], None] = self.events.append
        self._tail = _tail(self.grammar, prompt)
        self._salt = blake2b(prompt.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
        self._reading = channels.read(self) if form.channels else self.read()
        self._over = False
        self._advance()
        if self._tail:
            self.stream.append(self._tail)
            self._advance()
            self._forget()

    def _forget(self) -> None:
        """What the prompt said already is no part of the message."""
        self.events.clear()
        self.reasoning.clear()
        self.content.clear()
        self.calls.clear()
        if self.passage is not None:
            self.passage.forget()
        self.stream.restart()

    def _advance(self) -> None:
        if not self._over:
            try:
                next(self._reading)
            except StopIteration:
                self._over = True

    def feed(self, text: str) -> list[Event]:
        if self.reason is not None and text:
            self.rest += text
            return []
        if text:
            self.stream.append(text)
            self._advance()
        return self._taken()

    def close(self, told: FinishReason | None) -> list[Event]:
        if self.reason is None:
            self.told = told
            self.stream.ended = True
            self._advance()
            self.end()
        return self._taken()

    def _taken(self) -> list[Event]:
        events = list(self.events)
        self.events.clear()
        return events

    def end(self) -> None:
        if self.reason is not None:
            return
        whole = any(call.status == "ok" for call in self.calls)
        if self.told == "length" or (self.cut_inside and not self.ended_by_marker and self.told is None):
            self.reason = "length"
        else:
            self.reason = "tool_calls" if whole else "stop"
        self.rest += self.shown(self.stream.text[self.stream.position :])
        self.stream.position = len(self.stream.text)
        self.events.append(TurnEnd(self.reason))

    def write(self, message: Message) -> None:
        if self.content:
            message["content"] = "".join(self.content)
        if self.reasoning:
            message["reasoning_content"] = "".join(self.reasoning)
        calls: list[dict[str, Any]] = [call.as_message() for call in self.calls if call.status == "ok"]
        if calls:
            message["tool_calls"] = calls

    # -- texts

    def say_reasoning(self, text: str) -> None:
        text = self.shown(text)
        self.reasoning.append(text)
        self.events.append(ReasoningDelta(text))

    def say_content(self, text: str) -> None:
        text = self.shown(text)
        self.content.append(text)
        self.events.append(ContentDelta(text))

    # -- the turn

    def read(self) -> Reading[None]:
        yield
        state = _State()
        while not (yield from self._read_content(state)):
            yield from self._read_reasoning(state)
            if self.ended_by_marker or (self.stream.ended and self.stream.position >= len(self.stream.text)):
                break
        self.end()

    def _read_content(self, state: _State) -> Reading[bool]:
        """Read up to where reasoning opens, or, and then it is true, to the end of the turn."""
        stream, form = self.stream, self.grammar.format
        while True:
            passage = Passage(
                self.say_content,
                form.content.strip_left if not state.has_content else "",
                form.content.strip_right,
                self.grammar.hold,
                loose=state.after_call,
            )
            self.passage = passage
            step = yield from self._read_passage(state, passage)
            if step == "end":
                return True
            if step == "reasoning":
                return False

    def _read_passage(self, state: _State, passage: Passage) -> Reading[str]:
        """Read content up to the next marker that counts, and what it announces. Returns what is next: "end",
        "reasoning" or "content"."""
        stream = self.stream
        found = self._content_markers(state)
        while True:
            until, is_marker = found.find(stream.text, stream.position, stream.ended)
            if until > stream.position:
                passage.write(stream.text[stream.position : until])
                stream.position = until
            if not is_marker:
                if not (yield from stream.more()):
                    state.has_content |= passage.begun
                    passage.close(self.grammar.ends[0].lead if self.grammar.ends else "")
                    return "end"
                continue
            step = yield from self._at_marker(state, passage)
            if step:
                return step
            passage.write(stream.text[stream.position])
            stream.position += 1

    def _content_markers(self, state: _State) -> Any:
        grammar = self.grammar
        names = [edge.tokens[0] for edge in grammar.ends if edge.tokens]
        names += [turn[0] for turn in grammar.next_turns]
        names += [edge.tokens[0] for edge in (grammar.reasoning_open, grammar.reasoning_close) if edge.tokens]
        names += [edge.tokens[0] for edge in (grammar.content_open, grammar.content_close) if edge.tokens]
        names += [grammar.first_of(start) for start in grammar.starts]
        if state.in_section or state.after_call:
            names += [grammar.first_of(start) for start in grammar.inner_starts]
            names += grammar.section_close.tokens[:1]
            if grammar.call is not None:
                names += grammar.call.closing.tokens[-1:]
        return markers(*names)

    def _at_marker(self, state: _State, passage: Passage) -> Reading[str]:
        """What stands here, "" where it is text. Where it is no text, it is read, and the passage closed."""
        grammar = self.grammar
        if (yield from self._at_end()):
            state.has_content |= passage.begun
            lead = next((edge.lead for edge in grammar.ends), "")
            passage.close(lead)
            return "end"
        opened = grammar.reasoning_open
        if opened.tokens and not passage.begun and not state.has_content:
            if (yield from self._take(opened)):
                passage.close(opened.lead)
                return "reasoning"
        if not passage.begun and (yield from self._stray(state)):
            passage.close()
            return "content"
        if (yield from self._content_edge(state, passage)) or (yield from self._empty_section(state, passage)):
            return "content"
        return (yield from self._call_at(state, passage))

    def _take(self, edge: Edge) -> Reading[bool]:
        """Read a marker and the white space that the template writes behind it."""
        if not edge.tokens:
            return False
        end = yield from self.stream.look(edge.tokens)
        if end < 0:
            return False
        self.stream.position += end
        yield from self.stream.skip_exact(edge.trail)
        return True

    def _at_end(self) -> Reading[bool]:
        """Whether the turn ends here; the marker that ends it is then read."""
        stream = self.stream
        for edge in self.grammar.ends:
            end = (yield from stream.look(edge.tokens)) if edge.tokens else NO
            if end < 0:
                continue
            certain = is_certain(edge.tokens[0])
            if certain or (yield from self._ends_output(end)):
                self.ended_by_marker = True
                stream.position += end
                return True
        for turn in self.grammar.next_turns:
            end = yield from stream.look(turn)
            if end >= 0 and (is_certain(turn[0]) or (yield from stream.look(("\0",), end)) == CUT):
                self.ended_by_marker = True
                return True
        return False

    def _ends_output(self, at: int) -> Reading[bool]:
        """Whether the output ends at `at`, or another turn begins there."""
        for turn in self.grammar.next_turns:
            if (yield from self.stream.look(turn, at)) != NO:
                return True
        return (yield from self.stream.look(("\0",), at)) == CUT

    def _stray(self, state: _State) -> Reading[bool]:
        """Read what closes reasoning that is not open, or calls that are closed: a marker too many."""
        grammar = self.grammar
        if not state.has_content and not state.after_call and (yield from self._take(grammar.reasoning_close)):
            return True
        if state.in_section and (yield from self._take(grammar.section_close)):
            state.in_section = False
            return True
        if state.after_call and grammar.call is not None and grammar.call.closing.tokens:
            last = grammar.call.closing.tokens[-1]
            if is_strong(last) and (yield from self._take(Edge((last,)))):
                return True
        return False

    def _content_edge(self, state: _State, passage: Passage) -> Reading[bool]:
        grammar = self.grammar
        opened, closed = grammar.content_open, grammar.content_close
        if opened.tokens and not state.content_open and not passage.begun and (yield from self._take(opened)):
            passage.close(opened.lead)
            state.content_open = True
            return True
        if closed.tokens and state.content_open and (yield from self._closes_content(closed)):
            state.has_content |= passage.begun
            passage.close(closed.lead)
            state.content_open = False
            return True
        return False

    def _closes_content(self, closed: Edge) -> Reading[bool]:
        end = yield from self.stream.look(closed.tokens)
        if end < 0:
            return False
        if not is_certain(closed.tokens[0]):
            follows = yield from self._ends_output(end)
            for edge in (*self.grammar.ends, self.grammar.reasoning_open):
                follows = follows or bool(edge.tokens and (yield from self.stream.look(edge.tokens, end)) != NO)
            for start in self.grammar.starts:
                follows = follows or bool(start.tokens and (yield from self.stream.look(start.tokens, end)) != NO)
            if not follows:
                return False
        self.stream.position += end
        yield from self.stream.skip_exact(closed.trail)
        return True

    # -- calls

    def _call_at(self, state: _State, passage: Passage) -> Reading[str]:
        """Read the call that begins here, if one does."""
        grammar, stream = self.grammar, self.stream
        if grammar.call is None or stream.offset < state.no_call_before:
            return ""
        record = stream.record()
        offset = stream.offset
        try:
            start = yield from self._start(state)
        except Cut:
            start = Start((), "cut")
        if start is None:
            stream.go_back(record)
            return ""
        strong = self._is_strong(start, state)
        if not strong and passage.begun and self.schemas.names is None:
            stream.go_back(record)
            return ""
        call = self._new_call(start, strong)
        opened = _Opening(self, state, passage)
        call.say = opened.say
        status, reason = yield from self._attempt(call, start)
        if not call.certain and not (status == "incomplete" and strong):
            state.no_call_before = stream.offset
            stream.go_back(record)
            return ""
        opened.open()
        if status == "malformed":
            call.note(reason)
            yield from self._recover()
        raw = self.shown(stream.kept(record))
        self.calls.append(call.end(status, raw, (offset, offset + len(raw))))
        self.cut_inside = status == "incomplete"
        state.after_call = True
        state.in_section = bool(grammar.section_close.tokens)
        return "content"

    def new_call(self, *, strict: bool, awaits_id: bool, ahead: int = 0) -> CallRecord:
        index = len(self.calls) + ahead
        return CallRecord(
            self.events.append,
            self.schemas,
            self.limits,
            index=index,
            own_id=f"call_{self._salt}{index}",
            strict=strict,
            awaits_id=awaits_id,
        )

    @staticmethod
    def _is_strong(start: Start, state: _State) -> bool:
        return state.in_section or (bool(start.tokens) and is_strong(start.tokens[0]))

    def _new_call(self, start: Start, strong: bool, ahead: int = 0) -> CallRecord:
        assert self.grammar.call is not None
        call = self.new_call(strict=not strong, awaits_id=self.grammar.call.id_after_arguments, ahead=ahead)
        call.certain = bool(start.tokens) and is_certain(start.tokens[0])
        call.note(start.note)
        return call

    def _start(self, state: _State) -> Reading[Start | None]:
        """Read the markers that begin a call."""
        grammar, stream = self.grammar, self.stream
        assert grammar.call is not None
        starts = grammar.inner_starts + grammar.starts if state.in_section or state.after_call else grammar.starts
        if len(self.calls) >= self.limits.calls:
            return None
        for start in starts:
            if not start.tokens:
                if stream.text[stream.position] == "{":
                    return start
                continue
            end = yield from stream.look(start.tokens)
            if end >= 0:
                stream.position += end
                return start
            if end == CUT and (yield from stream.look(start.tokens[:1])) >= 0:
                stream.position = len(stream.text)
                return Start(start.tokens, "cut")
        return (yield from self._noisy_start(state))

    def _noisy_start(self, state: _State) -> Reading[Start | None]:
        """The wrapper's opening with something between it and the first call."""
        grammar, stream = self.grammar, self.stream
        assert grammar.call is not None
        wrapper, opening = grammar.section_open.tokens, grammar.call.opening.tokens
        if state.in_section or not (wrapper and opening and is_strong(wrapper[0]) and is_strong(opening[0])):
            return None
        end = yield from stream.look(wrapper)
        for at in range(end, end + NOISE if end >= 0 else end):
            if not (yield from stream.need(at + len(opening[0]))):
                return None
            if stream.text.startswith(opening[0], stream.position + at):
                opened = yield from stream.look(opening, at)
                if opened >= 0:
                    stream.position += opened
                    return Start(wrapper + opening, "text stands between the wrapper and the first call")
        return None

    def _empty_section(self, state: _State, passage: Passage) -> Reading[bool]:
        """Read a wrapper with no call in it."""
        grammar, stream = self.grammar, self.stream
        wrapper, close = grammar.section_open.tokens, grammar.section_close.tokens
        if not (wrapper and close and is_strong(wrapper[0])):
            return False
        end = yield from stream.look(wrapper + close)
        if end < 0:
            return False
        stream.position += end
        _Opening(self, state, passage).open()
        state.after_call = True
        return True

    def _attempt(self, call: CallRecord, start: Start) -> Reading[tuple[Any, str]]:
        if start.note == "cut":
            return "incomplete", ""
        try:
            yield from CallReader(self.stream, self.grammar, self.schemas, call).read()
        except Cut:
            if call.whole and self.told != "length":
                call.note("the call's close is missing")
                return "ok", ""
            return "incomplete", ""
        except Broken as broken:
            return "malformed", broken.reason
        return "ok", ""

    def _recover(self) -> Reading[None]:
        """Read on to where a broken call ends."""
        grammar, stream = self.grammar, self.stream
        assert grammar.call is not None
        closing = grammar.call.closing.tokens[-1:]
        closing = closing if closing and is_strong(closing[0]) else ()
        others = [grammar.first_of(start) for start in grammar.starts if start.tokens and is_strong(start.tokens[0])]
        others += grammar.section_close.tokens[:1]
        others += [edge.tokens[0] for edge in grammar.ends if edge.tokens] + [turn[0] for turn in grammar.next_turns]
        found = markers(*closing, *others)
        while True:
            until, is_marker = found.find(stream.text, stream.position, stream.ended)
            stream.position = until
            if is_marker:
                if closing and (yield from stream.look(closing)) >= 0:
                    yield from stream.take(closing)
                return
            if not (yield from stream.more()):
                return

    # -- reasoning

    def _read_reasoning(self, state: _State) -> Reading[None]:
        """Read reasoning up to and with its close."""
        grammar, stream, form = self.grammar, self.stream, self.grammar.format
        assert form.reasoning is not None
        hold = max(grammar.hold, len(grammar.reasoning_close.lead))
        passage = Passage(self.say_reasoning, form.reasoning.strip_left, form.reasoning.strip_right, hold, loose=False)
        self.passage = passage
        names = [
            grammar.reasoning_close.tokens[0],
            grammar.reasoning_open.tokens[0] if grammar.reasoning_open.tokens else "",
        ]
        names += [edge.tokens[0] for edge in grammar.ends if edge.tokens] + [turn[0] for turn in grammar.next_turns]
        names += [start.tokens[0] for start in grammar.starts if start.tokens and is_strong(start.tokens[0])]
        found = markers(*names)
        self.cut_inside = True
        while True:
            until, is_marker = found.find(stream.text, stream.position, stream.ended)
            if until > stream.position:
                passage.write(stream.text[stream.position : until])
                stream.position = until
            if not is_marker:
                if not (yield from stream.more()):
                    passage.close()
                    return
                continue
            if (yield from self._take(grammar.reasoning_close)):
                passage.close(grammar.reasoning_close.lead)
                self.cut_inside = False
                return
            if (yield from self._at_end()):
                passage.close()
                return
            if not passage.begun and (yield from self._take(grammar.reasoning_open)):
                continue
            if stream.offset >= state.no_call_before and (yield from self._calls_end_reasoning(state, passage)):
                self.cut_inside = False
                return
            passage.write(stream.text[stream.position])
            stream.position += 1

    def _calls_end_reasoning(self, state: _State, passage: Passage) -> Reading[bool]:
        """Whether calls stand here that end the turn, reasoning never closed; a call with more behind it is a draft."""
        grammar, stream = self.grammar, self.stream
        record = stream.record()
        events: list[Event] = []
        calls: list[CallRecord] = []
        pieces: list[tuple[int, str]] = []
        inner = _State()
        while True:
            start = yield from self._start_or_none(inner)
            if start is None:
                break
            whole = stream.record()
            offset = stream.offset
            call = self._new_call(start, True, len(calls))
            call.say = events.append
            status, _ = yield from self._attempt(call, start)
            raw = stream.kept(whole)
            if status != "ok" or (call.whole and self.stream.ended and "close is missing" in "".join(call.notes)):
                calls.clear()
                break
            calls.append(call)
            pieces.append((offset, raw))
            inner.in_section = inner.after_call = True
        if calls:
            yield from self._take(grammar.section_close)
        if not calls or not ((yield from stream.look(("\0",))) == CUT or (yield from self._at_end())):
            state.no_call_before = stream.offset
            stream.go_back(record)
            return False
        stream.kept(record)
        passage.close(grammar.calls.lead if grammar.calls else "")
        for call, (offset, raw) in zip(calls, pieces, strict=True):
            call.note("the reasoning is not closed")
            self.calls.append(call.end("ok", self.shown(raw), (offset, offset + len(raw))))
        self.events.extend(events)
        return True

    def _start_or_none(self, state: _State) -> Reading[Start | None]:
        if not (yield from self.stream.need(1)):
            return None
        try:
            start = yield from self._start(state)
        except Cut:
            return None
        return start if start is not None and start.note != "cut" else None


class _State:
    """Where in its turn the model stands."""

    def __init__(self) -> None:
        self.has_content = False
        self.content_open = False
        self.after_call = False
        self.in_section = False
        self.no_call_before = 0
        """Text up to here has been read as a call, and was none: it is not read so again."""


class _Opening:
    """Holds back what is said of a call until the text before it is closed."""

    def __init__(self, turn: _Turn, state: _State, passage: Passage) -> None:
        self._turn = turn
        self._state = state
        self._passage: Passage | None = passage

    def say(self, event: Event) -> None:
        self.open()
        self._turn.events.append(event)

    def open(self) -> None:
        if self._passage is not None:
            passage, self._passage = self._passage, None
            calls = self._turn.grammar.calls
            self._state.has_content |= passage.begun
            alone = calls is not None and not self._state.has_content
            passage.close((calls.lead_alone if alone else calls.lead) if calls else "")


def _tail(grammar: Grammar, prompt: str) -> str:
    """What the prompt has already written of the turn."""
    header = grammar.format.header
    place = prompt.rfind(header) if header else -1
    if place >= 0:
        return prompt[place + len(header) :]
    core = header.strip(WHITESPACE)
    place = prompt.rfind(core) if core else -1
    if place >= 0:
        return prompt[place + len(core) :].lstrip(WHITESPACE)
    marks = [edge.tokens[0] for edge in (grammar.reasoning_open, grammar.reasoning_close) if edge.tokens]
    places = [prompt.rfind(mark) for mark in marks]
    return prompt[min((place for place in places if place >= 0), default=len(prompt)) :]
