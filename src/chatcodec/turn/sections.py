"""Reading a turn of reasoning, content and calls, each between markers of its own.

Content is what is no marker's. A marker counts where what follows can be what the format says, so a call is read before
it is one: where it turns out to be none, the reading goes back, and it was text.
"""

from __future__ import annotations

from typing import Any

from ..events import Event, Status
from .calls import CallReader, CallRecord
from .format import WHITESPACE
from .grammar import Edge, Start, is_certain, is_strong, markers
from .passage import Passage
from .state import Turn
from .stream import CUT, LOOKAHEAD, NO, Broken, Cut, Reading, Record

CUT_SHORT = "cut"
"""The note of a start inside which the output ends."""
CONTROL_TOKEN = "<|"
"""How a control token begins, in the writing that most vocabularies share."""
LONGEST_TOKEN = 40
MOST_END_TOKENS = 4
READ_AGAIN = 4
LEAST_READ_AGAIN = 4096
NOISE = 256
"""Characters between the wrapper's opening and the first call that are passed over."""


def read(turn: Turn) -> Reading[None]:
    """Read a turn from behind its header."""
    return _Reader(turn).read()


class _Reader:
    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self.stream = turn.stream
        self.grammar = turn.grammar

    # -- the turn

    def read(self) -> Reading[None]:
        yield
        place = _Place()
        while not (yield from self._read_content(place)):
            yield from self._read_reasoning(place)
            place.has_reasoning = True
            if self.turn.ended_by_marker or (self.stream.ended and self.stream.position >= len(self.stream.text)):
                break
        self.turn.end()

    def _read_content(self, place: _Place) -> Reading[bool]:
        """Read up to where reasoning opens, or, and then it is true, to the end of the turn."""
        if not place.has_content and not place.after_call:
            grammar = self.grammar
            space = grammar.content_space if place.has_reasoning else grammar.before_content
            yield from self.stream.skip_exact(space)
        form = self.grammar.format
        while True:
            passage = Passage(
                self.turn.say_content,
                form.content.strip_left if not place.has_content else "",
                form.content.strip_right,
                self.grammar.hold,
                loose=place.after_call,
                before=place.space,
            )
            self.turn.passage = passage
            if place.in_section and self.grammar.inner_is_bare and (yield from self._bare_call(place, passage)):
                continue
            step = yield from self._read_passage(place, passage)
            if step == "end":
                return True
            if step == "reasoning":
                return False

    def _read_passage(self, place: _Place, passage: Passage) -> Reading[str]:
        """Read content up to the next marker that counts, and what it announces. Returns what is next: "end",
        "reasoning" or "content"."""
        stream = self.stream
        found = self._content_markers(place)
        while True:
            until, is_marker = found.find(stream.text, stream.position, stream.ended)
            self._write(passage, until)
            if not is_marker:
                if stream.ended:
                    place.has_content |= passage.begun
                    passage.close(self.grammar.ends[0].lead if self.grammar.ends else "")
                    return "end"
                yield
                continue
            step = yield from self._at_marker(place, passage)
            if step:
                return step
            self._write(passage, stream.position + 1)

    def _write(self, passage: Passage, until: int) -> None:
        """The text up to `until` is the passage's, but for what the prompt says of it."""
        stream = self.stream
        start = stream.position if stream.before >= 0 else stream.position + max(0, -stream.offset)
        if until > start:
            passage.write(stream.text[start:until])
        stream.position = until

    def _content_markers(self, place: _Place) -> Any:
        grammar = self.grammar
        names = [edge.tokens[0] for edge in grammar.ends if edge.tokens]
        names += [turn[0] for turn in grammar.next_turns]
        names += [edge.tokens[0] for edge in (grammar.reasoning_open, grammar.reasoning_close) if edge.tokens]
        names += [edge.tokens[0] for edge in (grammar.content_open, grammar.content_close) if edge.tokens]
        names += [grammar.first_of(start) for start in grammar.starts]
        if grammar.is_unmarked:
            names.append(CONTROL_TOKEN)
        if place.in_section or place.after_call:
            names += [grammar.first_of(start) for start in grammar.inner_starts]
            names += grammar.section_close.tokens[:1]
            if grammar.call is not None:
                names += grammar.call.closing.tokens[-1:]
        return markers(*names)

    def _at_marker(self, place: _Place, passage: Passage) -> Reading[str]:
        """What stands here, "" where it is text. Where it is no text, it is read, and the passage closed."""
        grammar = self.grammar
        if grammar.ends_open_calls and (yield from self._call_at(place, passage)):
            return "content"
        if (yield from self._at_end()):
            place.has_content |= passage.begun
            lead = next((edge.lead for edge in grammar.ends), "")
            passage.close(lead)
            return "end"
        opened = grammar.reasoning_open
        if not passage.begun and not place.has_content and (yield from self._take(opened)):
            passage.close(opened.lead)
            return "reasoning"
        if not passage.begun and (yield from self._stray(place)):
            place.space = passage.close()
            return "content"
        if (yield from self._content_edge(place, passage)) or (yield from self._empty_section(place, passage)):
            return "content"
        return (yield from self._call_at(place, passage))

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
                self.turn.ended_by_marker = True
                stream.position += end
                return True
        for turn in self.grammar.next_turns:
            end = yield from stream.look(turn)
            if end >= 0 and (is_certain(turn[0]) or (yield from stream.look(("\0",), end)) == CUT):
                self.turn.ended_by_marker = True
                return True
        return False

    def _ends_output(self, at: int) -> Reading[bool]:
        """Whether the output ends at `at`, perhaps after more control tokens, or another turn begins there."""
        stream = self.stream
        for turn in self.grammar.next_turns:
            if (yield from stream.look(turn, at)) != NO:
                return True
        for _ in range(MOST_END_TOKENS):
            if (yield from stream.look(("\0",), at)) == CUT:
                return True
            at = yield from self._after_token(at)
            if at < 0:
                return at == CUT
        return False

    def _after_token(self, at: int) -> Reading[int]:
        """Where a word in angle brackets that stands at `at` ends."""
        stream = self.stream
        at = yield from stream.look(("<",), at)
        if at < 0:
            return at
        for end in range(at, at + LONGEST_TOKEN):
            if not (yield from stream.need(end + 1)):
                return CUT
            character = stream.text[stream.position + end]
            if character == ">":
                return end + 1 if end > at else NO
            if character in WHITESPACE or character == "<":
                return NO
        return NO

    def _stray(self, place: _Place) -> Reading[bool]:
        """Read what closes reasoning that is not open, or calls that are closed: a marker too many."""
        grammar = self.grammar
        if not place.has_content and not place.after_call and (yield from self._take(grammar.reasoning_close)):
            return True
        if place.in_section and (yield from self._take(grammar.section_close)):
            place.in_section = False
            return True
        if place.after_call and grammar.call is not None and grammar.call.closing.tokens:
            last = grammar.call.closing.tokens[-1]
            if is_strong(last) and (yield from self._take(Edge((last,)))):
                return True
        if place.after_call and grammar.is_unmarked:
            end = yield from self._control_token()
            if end >= 0 and (yield from self._ends_output(end)):
                self.stream.position += end
                return True
        return False

    def _content_edge(self, place: _Place, passage: Passage) -> Reading[bool]:
        grammar = self.grammar
        opened, closed = grammar.content_open, grammar.content_close
        if opened.tokens and not place.content_open and not passage.begun and (yield from self._take(opened)):
            passage.close(opened.lead)
            place.content_open = True
            return True
        if closed.tokens and place.content_open and (yield from self._closes_content(closed)):
            place.has_content |= passage.begun
            passage.close(closed.lead)
            place.content_open = False
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

    def _call_at(self, place: _Place, passage: Passage) -> Reading[str]:
        """Read the call that begins here, if one does."""
        grammar, stream = self.grammar, self.stream
        if grammar.call is None or not place.may_try(stream.offset):
            return ""
        record = stream.record()
        try:
            start = yield from self._start(place)
        except Cut:
            start = Start((), CUT_SHORT)
        if start is None:
            stream.go_back(record)
            return ""
        strong = self._is_strong(start, place)
        if not strong and passage.begun and self.turn.schemas.names is None:
            stream.go_back(record)
            return ""
        return "content" if (yield from self._read_call(place, passage, start, record)) else ""

    def _bare_call(self, place: _Place, passage: Passage) -> Reading[bool]:
        """Read the next call of a wrapper in which no marker tells where one begins."""
        stream, close = self.stream, self.grammar.section_close.tokens
        record = stream.record()
        if not (yield from stream.skip_space()) or (yield from stream.look(close)) != NO:
            stream.go_back(record)
            return False
        return (yield from self._read_call(place, passage, Start(()), record))

    def _read_call(self, place: _Place, passage: Passage, start: Start, record: Record) -> Reading[bool]:
        """Read a call behind its start; where it is none, go back to the record's beginning."""
        grammar, stream = self.grammar, self.stream
        strong = self._is_strong(start, place)
        call = self._new_call(start, strong)
        inside = stream.record()
        opened = _Opening(self.turn, place, passage, call)
        status, reason = yield from self._attempt(call, start)
        said = stream.kept(inside)
        if not call.certain and not (status == "incomplete" and strong):
            place.tried(record.offset, stream.offset)
            stream.go_back(record)
            return False
        opened.open()
        if status == "malformed":
            call.note(reason)
            yield from self._recover(said)
        self.turn.finish(call, status, stream.kept(record), record.offset)
        self.turn.cut_inside = status == "incomplete"
        place.after_call = True
        place.in_section = bool(grammar.section_close.tokens)
        return True

    @staticmethod
    def _is_strong(start: Start, place: _Place) -> bool:
        return place.in_section or (bool(start.tokens) and is_strong(start.tokens[0]))

    def _new_call(self, start: Start, strong: bool, ahead: int = 0) -> CallRecord:
        assert self.grammar.call is not None
        form = self.grammar.call
        call = self.turn.new_call(strict=not strong, awaits_id=form.awaits_id, id_is_late=form.id_is_late, ahead=ahead)
        call.certain = bool(start.tokens) and is_certain(start.tokens[0])
        if start.note != CUT_SHORT:
            call.note(start.note)
        return call

    def _start(self, place: _Place) -> Reading[Start | None]:
        """Read the markers that begin a call."""
        grammar, stream = self.grammar, self.stream
        assert grammar.call is not None
        starts = grammar.inner_starts + grammar.starts if place.in_section or place.after_call else grammar.starts
        if len(self.turn.calls) >= self.turn.limits.calls:
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
                return Start(start.tokens, CUT_SHORT)
        if grammar.is_unmarked:
            return (yield from self._announced_start())
        return (yield from self._noisy_start(place))

    def _announced_start(self) -> Reading[Start | None]:
        """A call without markers of its own behind a control token that the template does not write."""
        stream = self.stream
        end = yield from self._control_token()
        if end < 0:
            return None
        for start in self.grammar.starts:
            first = yield from stream.look(start.tokens or ("{",), end)
            if first >= 0:
                stream.position += first if start.tokens else end
                return Start((CONTROL_TOKEN + "…",), "a control token stands before the call")
        return None

    def _control_token(self) -> Reading[int]:
        """Where a control token that stands here ends."""
        stream = self.stream
        if (yield from stream.look((CONTROL_TOKEN,))) < 0:
            return NO
        for at in range(len(CONTROL_TOKEN), LONGEST_TOKEN):
            if not (yield from stream.need(at + 2)):
                return CUT
            if stream.text.startswith("|>", stream.position + at):
                return at + 2 if at > len(CONTROL_TOKEN) else NO
            if not (stream.text[stream.position + at].isalnum() or stream.text[stream.position + at] == "_"):
                return NO
        return NO

    def _noisy_start(self, place: _Place) -> Reading[Start | None]:
        """The wrapper's opening with something between it and the first call."""
        grammar, stream = self.grammar, self.stream
        assert grammar.call is not None
        wrapper, opening = grammar.section_open.tokens, grammar.call.opening.tokens
        if place.in_section or not (wrapper and opening and is_strong(wrapper[0]) and is_strong(opening[0])):
            return None
        end = yield from stream.look(wrapper)
        others = (wrapper[:1], grammar.section_close.tokens[:1], grammar.reasoning_close.tokens[:1])
        stops = [stop[0] for stop in (*others, *(edge.tokens[:1] for edge in grammar.ends)) if stop]
        for at in range(end, end + NOISE if end >= 0 else end):
            if not (yield from stream.need(at + 1)):
                return None
            for stop in stops:
                if (yield from self._stands(stop, at)):
                    return None
            if (yield from self._stands(opening[0], at)):
                opened = yield from stream.look(opening, at)
                if opened >= 0:
                    stream.position += opened
                    return Start(wrapper + opening, "text stands between the wrapper and the first call")
        return None

    def _stands(self, marker: str, at: int) -> Reading[bool]:
        """Whether `marker` stands just at `at`."""
        stream = self.stream
        if stream.text[stream.position + at] != marker[0]:
            return False
        return (yield from stream.look((marker,), at)) >= 0

    def _empty_section(self, place: _Place, passage: Passage) -> Reading[bool]:
        """Read a wrapper with no call in it."""
        grammar, stream = self.grammar, self.stream
        wrapper, close = grammar.section_open.tokens, grammar.section_close.tokens
        if not (wrapper and close and is_strong(wrapper[0])):
            return False
        end = yield from stream.look(wrapper + close)
        if end < 0:
            return False
        stream.position += end
        _Opening(self.turn, place, passage, None).open()
        place.after_call = True
        return True

    def _attempt(self, call: CallRecord, start: Start) -> Reading[tuple[Status, str]]:
        if start.note == CUT_SHORT:
            return "incomplete", ""
        reader = CallReader(self.stream, self.grammar, self.turn.schemas, call)
        try:
            yield from reader.read()
        except Cut:
            self.stream.position = len(self.stream.text)
            call.name = call.name or reader.pending
            if call.whole and self.turn.told != "length":
                call.note("the call's close is missing")
                return "ok", ""
            return "incomplete", ""
        except Broken as broken:
            if reader.is_named and not call.certain and (yield from self._closes_soon()):
                call.name, call.certain = reader.pending, True
            return "malformed", broken.reason
        return "ok", ""

    def _closes_soon(self) -> Reading[bool]:
        """Whether what closes a call follows before another begins: then what is broken here was meant to be one."""
        grammar, stream = self.grammar, self.stream
        assert grammar.call is not None
        closing = grammar.call.closing.tokens[-1:]
        if not closing or not is_strong(closing[0]):
            return False
        starts = [start.tokens[0] for start in grammar.starts if start.tokens]
        found = markers(*closing, *starts)
        at = 0
        while at < LOOKAHEAD:
            until, is_marker = found.find(stream.text, stream.position + at, stream.ended)
            at = until - stream.position
            if is_marker:
                return at < LOOKAHEAD and (yield from stream.look(closing, at)) >= 0
            if not (yield from stream.more()):
                return False
        return False

    def _recover(self, said: str) -> Reading[None]:
        """Read on to where a broken call ends, of which `said` has been read.

        That is what closes it, where that is a marker; else the bracket that closes the call's first.
        """
        grammar, stream = self.grammar, self.stream
        assert grammar.call is not None
        closing = grammar.call.closing.tokens[-1:]
        closing = closing if closing and is_strong(closing[0]) else ()
        others = [grammar.first_of(start) for start in grammar.starts if start.tokens and is_strong(start.tokens[0])]
        others += grammar.section_close.tokens[:1] if is_strong("".join(grammar.section_close.tokens[:1])) else ()
        others += [edge.tokens[0] for edge in grammar.ends if edge.tokens] + [turn[0] for turn in grammar.next_turns]
        brackets = None if closing or grammar.call.opening.tokens else Brackets(said)
        found = markers(*closing, *others, *(BRACKETS if brackets else ()))
        while True:
            until, is_marker = found.find(stream.text, stream.position, stream.ended)
            stream.position = until
            if not is_marker:
                if not (yield from stream.more()):
                    return
                continue
            character = stream.text[stream.position]
            if brackets is not None and character in BRACKETS:
                escaped = character == "\\" and (yield from stream.need(2))
                stream.position += 2 if escaped else 1
                if brackets.closed_by(character):
                    return
                continue
            if closing and (yield from stream.look(closing)) >= 0:
                yield from stream.take(closing)
            return

    # -- reasoning

    def _read_reasoning(self, place: _Place) -> Reading[None]:
        """Read reasoning up to and with its close."""
        grammar, stream, form = self.grammar, self.stream, self.grammar.format
        assert form.reasoning is not None
        hold = max(grammar.hold, len(grammar.reasoning_close.lead))
        passage = Passage(
            self.turn.say_reasoning, form.reasoning.strip_left, form.reasoning.strip_right, hold, loose=False
        )
        self.turn.passage = passage
        names = [
            grammar.reasoning_close.tokens[0],
            grammar.reasoning_open.tokens[0] if grammar.reasoning_open.tokens else "",
        ]
        names += [edge.tokens[0] for edge in grammar.ends if edge.tokens] + [turn[0] for turn in grammar.next_turns]
        names += [start.tokens[0] for start in grammar.starts if start.tokens and is_strong(start.tokens[0])]
        names += grammar.content_open.tokens[:1]
        found = markers(*names)
        self.turn.cut_inside = True
        while True:
            until, is_marker = found.find(stream.text, stream.position, stream.ended)
            self._write(passage, until)
            if not is_marker:
                if stream.ended:
                    passage.close()
                    return
                yield
                continue
            if (yield from self._take(grammar.reasoning_close)):
                passage.close(grammar.reasoning_close.lead)
                self.turn.cut_inside = False
                return
            if (yield from self._at_end()):
                passage.close()
                return
            if not passage.begun and (yield from self._take(grammar.reasoning_open)):
                continue
            if not passage.begun and (yield from self._take(grammar.content_open)):
                place.content_open = True
                self.turn.cut_inside = False
                return
            if grammar.call and place.may_try(stream.offset) and (yield from self._calls_end_reasoning(place, passage)):
                self.turn.cut_inside = False
                return
            self._write(passage, stream.position + 1)

    def _calls_end_reasoning(self, place: _Place, passage: Passage) -> Reading[bool]:
        """Whether calls stand here that end the turn, reasoning never closed; a call with more behind it is a draft."""
        grammar, stream = self.grammar, self.stream
        record = stream.record()
        events: list[Event] = []
        calls: list[CallRecord] = []
        pieces: list[tuple[int, str]] = []
        inner = _Place()
        while True:
            whole = stream.record()
            start = yield from self._start_or_none(inner)
            if start is None:
                stream.go_back(whole)
                break
            call = self._new_call(start, True, len(calls))
            call.say = events.append
            status, _ = yield from self._attempt(call, start)
            raw = stream.kept(whole)
            if status != "ok" or (call.whole and self.stream.ended and "close is missing" in "".join(call.notes)):
                calls.clear()
                break
            calls.append(call)
            pieces.append((whole.offset, raw))
            inner.in_section = inner.after_call = True
        if calls:
            yield from self._take(grammar.section_close)
        if not calls or not ((yield from stream.look(("\0",))) == CUT or (yield from self._at_end())):
            place.tried(record.offset, stream.offset)
            stream.go_back(record)
            return False
        stream.kept(record)
        passage.close(grammar.lead.lead)
        for call, (offset, raw) in zip(calls, pieces, strict=True):
            call.note("the reasoning is not closed")
            self.turn.finish(call, "ok", raw, offset)
        self.turn.events.extend(events)
        return True

    def _start_or_none(self, place: _Place) -> Reading[Start | None]:
        if not (yield from self.stream.need(1)):
            return None
        try:
            start = yield from self._start(place)
        except Cut:
            return None
        return start if start is not None and start.note != CUT_SHORT else None


BRACKETS = '()[]{}"\\'


class Brackets:
    """Counts brackets, but not those in strings, until those that are open have closed."""

    def __init__(self, said: str) -> None:
        self._open = 0
        self._in_string = False
        characters = iter(said)
        for character in characters:
            if character == "\\":
                next(characters, None)
            elif character in BRACKETS:
                self.closed_by(character)

    def closed_by(self, character: str) -> bool:
        if character == '"':
            self._in_string = not self._in_string
        elif not self._in_string and character in "([{":
            self._open += 1
        elif not self._in_string and character in ")]}":
            self._open -= 1
            return self._open <= 0
        return False


class _Place:
    """Where in its turn the model stands."""

    def __init__(self) -> None:
        self.has_reasoning = False
        self.has_content = False
        self.content_open = False
        self.after_call = False
        self.in_section = False
        self.space = ""
        """White space that is content's if more content comes."""
        self._read_again = 0
        self._tried_to = 0

    def may_try(self, offset: int) -> bool:
        """Whether what stands here may be read as a call. Text that was so read in vain is read again, but not without
        end: what is read twice stays in proportion to the output."""
        return offset >= self._tried_to or self._read_again <= READ_AGAIN * offset + LEAST_READ_AGAIN

    def tried(self, start: int, end: int) -> None:
        """From `start` to `end` something was read as a call, and is none."""
        self._tried_to = max(self._tried_to, end)
        self._read_again += end - start


class _Opening:
    """Holds back what is said of a call until the text before it is closed."""

    def __init__(self, turn: Turn, place: _Place, passage: Passage, call: CallRecord | None) -> None:
        self._turn = turn
        self._call = call
        if call is not None:
            call.say = self.say
        self._state = place
        self._passage: Passage | None = passage

    def say(self, event: Event) -> None:
        self.open()
        self._turn.events.append(event)

    def open(self) -> None:
        if self._passage is not None:
            passage, self._passage = self._passage, None
            if self._call is not None:
                self._call.say = self._turn.events.append
            calls = self._turn.grammar.calls
            self._state.has_content |= passage.begun
            alone = calls is not None and not self._state.has_content
            self._state.space = passage.close((calls.lead_alone if alone else calls.lead) if calls else "")
