"""Calls, read where one may begin.

What looks like a call is read as one, and is one only when that succeeds far enough; else the reading goes back, and it
was text. Of a call that breaks, the rest is found, so that its neighbours are safe.
"""

from __future__ import annotations

from ..events import Event, Status
from .calls import CallReader, CallRecord
from .grammar import Start, is_certain, is_strong, markers
from .looking import CONTROL_TOKEN, Looking
from .passage import Passage
from .state import Turn
from .stream import CUT, LOOKAHEAD, NO, Broken, Cut, Reading, Record

READ_AGAIN = 4
LEAST_READ_AGAIN = 4096
NOISE = 256
"""Characters between the wrapper's opening and the first call that are passed over."""
BRACKETS = '()[]{}"\\'


class Place:
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


class Attempts(Looking):
    """Attempts at a call in one turn."""

    def call_at(self, place: Place, passage: Passage) -> Reading[str]:
        """Read the call that begins here, if one does."""
        grammar, stream = self.grammar, self.stream
        if grammar.call is None or not place.may_try(stream.offset):
            return ""
        record = stream.record()
        try:
            start = yield from self._start(place)
        except Cut:
            start = Start((), is_cut=True)
        if start is None:
            stream.go_back(record)
            return ""
        strong = self._is_strong(start, place)
        if not strong and passage.begun and self.turn.schemas.names is None:
            stream.go_back(record)
            return ""
        return "content" if (yield from self._read_call(place, passage, start, record)) else ""

    def bare_call(self, place: Place, passage: Passage) -> Reading[bool]:
        """Read the next call of a wrapper in which no marker tells where one begins."""
        stream, close = self.stream, self.grammar.section_close.tokens
        record = stream.record()
        if not (yield from stream.skip_space()) or (yield from stream.look(close)) != NO:
            stream.go_back(record)
            return False
        return (yield from self._read_call(place, passage, Start(()), record))

    def _read_call(self, place: Place, passage: Passage, start: Start, record: Record) -> Reading[bool]:
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
    def _is_strong(start: Start, place: Place) -> bool:
        return place.in_section or (bool(start.tokens) and is_strong(start.tokens[0]))

    def _new_call(self, start: Start, strong: bool, ahead: int = 0) -> CallRecord:
        assert self.grammar.call is not None
        form = self.grammar.call
        call = self.turn.new_call(strict=not strong, awaits_id=form.awaits_id, id_is_late=form.id_is_late, ahead=ahead)
        call.certain = bool(start.tokens) and is_certain(start.tokens[0])
        call.note(start.note)
        return call

    def _start(self, place: Place) -> Reading[Start | None]:
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
                return Start(start.tokens, is_cut=True)
        if grammar.is_unmarked:
            return (yield from self._announced_start())
        return (yield from self._noisy_start(place))

    def _announced_start(self) -> Reading[Start | None]:
        """A call without markers of its own behind a control token that the template does not write."""
        stream = self.stream
        end = yield from self.control_token()
        if end < 0:
            return None
        for start in self.grammar.starts:
            first = yield from stream.look(start.tokens or ("{",), end)
            if first >= 0:
                stream.position += first if start.tokens else end
                return Start((CONTROL_TOKEN + "…",), "a control token stands before the call")
        return None

    def _noisy_start(self, place: Place) -> Reading[Start | None]:
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
                if (yield from self.stands(stop, at)):
                    return None
            if (yield from self.stands(opening[0], at)):
                opened = yield from stream.look(opening, at)
                if opened >= 0:
                    stream.position += opened
                    return Start(wrapper + opening, "text stands between the wrapper and the first call")
        return None

    def empty_section(self, place: Place, passage: Passage) -> Reading[bool]:
        """Read a wrapper with no call in it."""
        grammar, stream = self.grammar, self.stream
        wrapper, close = grammar.section_open.tokens, grammar.section_close.tokens
        if not (wrapper and close and is_strong(wrapper[0])):
            return False
        end = yield from stream.look(wrapper + close)
        if end < 0 or not (yield from self.ends_here(end)):
            return False
        stream.position += end
        _Opening(self.turn, place, passage, None).open()
        place.after_call = True
        return True

    def _attempt(self, call: CallRecord, start: Start) -> Reading[tuple[Status, str]]:
        if start.is_cut:
            return "incomplete", ""
        reader = CallReader(self.stream, self.grammar, self.turn.schemas, call)
        try:
            yield from reader.read()
        except Cut:
            self.stream.position = len(self.stream.text)
            call.name = call.name or reader.pending
            if call.whole and self.turn.told != "length":
                call.unclosed = True
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

    def calls_end_reasoning(self, place: Place, passage: Passage) -> Reading[bool]:
        """Whether calls stand here that end the turn, reasoning never closed; a call with more behind it is a draft."""
        grammar, stream = self.grammar, self.stream
        if grammar.call is None or not place.may_try(stream.offset):
            return False
        record = stream.record()
        events: list[list[Event]] = []
        calls: list[CallRecord] = []
        pieces: list[tuple[int, str]] = []
        inner = Place()
        while True:
            whole = stream.record()
            start = yield from self._start_or_none(inner)
            if start is None:
                stream.go_back(whole)
                break
            call = self._new_call(start, True, len(calls))
            events.append([])
            call.say = events[-1].append
            status, _ = yield from self._attempt(call, start)
            raw = stream.kept(whole)
            if status != "ok" or call.unclosed:
                calls.clear()
                break
            calls.append(call)
            pieces.append((whole.offset, raw))
            inner.in_section = inner.after_call = True
        if calls:
            yield from self.take(grammar.section_close)
        if not calls or not ((yield from stream.look(("\0",))) == CUT or (yield from self.at_end())):
            place.tried(record.offset, stream.offset)
            stream.go_back(record)
            return False
        stream.kept(record)
        passage.close(grammar.lead.lead)
        for call, said, (offset, raw) in zip(calls, events, pieces, strict=True):
            self.turn.events.extend(said)
            call.say = self.turn.events.append
            call.note("the reasoning is not closed")
            self.turn.finish(call, "ok", raw, offset)
        return True

    def _start_or_none(self, place: Place) -> Reading[Start | None]:
        if not (yield from self.stream.need(1)):
            return None
        try:
            start = yield from self._start(place)
        except Cut:
            return None
        return start if start is not None and not start.is_cut else None


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


class _Opening:
    """Holds back what is said of a call until the text before it is closed."""

    def __init__(self, turn: Turn, place: Place, passage: Passage, call: CallRecord | None) -> None:
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
