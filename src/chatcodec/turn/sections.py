"""Reading a turn of reasoning, content and calls, each between markers of its own.

Content is what is no marker's, and a marker counts where what follows can be what the format says.
"""

from __future__ import annotations

from .attempts import Attempts, Place
from .grammar import Edge, Markers, is_certain, is_strong, markers
from .looking import CONTROL_TOKEN, Looking
from .passage import Passage
from .state import Turn
from .stream import NO, Reading


def read(turn: Turn) -> Reading[None]:
    """Read a turn from behind its header."""
    return _Reader(turn).read()


class _Reader(Looking):
    def __init__(self, turn: Turn) -> None:
        super().__init__(turn)
        self.attempts = Attempts(turn)

    def read(self) -> Reading[None]:
        yield
        place = Place()
        while not (yield from self._read_content(place)):
            yield from self._read_reasoning(place)
            place.has_reasoning = True
            if self.turn.ended_by_marker or (self.stream.ended and self.stream.position >= len(self.stream.text)):
                break
        self.turn.end()

    def _read_content(self, place: Place) -> Reading[bool]:
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
            if place.in_section and self.grammar.inner_is_bare and (yield from self.attempts.bare_call(place, passage)):
                continue
            step = yield from self._read_passage(place, passage)
            if step == "end":
                return True
            if step == "reasoning":
                return False

    def _read_passage(self, place: Place, passage: Passage) -> Reading[str]:
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

    def _content_markers(self, place: Place) -> Markers:
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

    def _at_marker(self, place: Place, passage: Passage) -> Reading[str]:
        """What stands here, "" where it is text. Where it is no text, it is read, and the passage closed."""
        grammar = self.grammar
        if grammar.ends_open_calls and (yield from self.attempts.call_at(place, passage)):
            return "content"
        if (yield from self.at_end()):
            place.has_content |= passage.begun
            lead = next((edge.lead for edge in grammar.ends), "")
            passage.close(lead)
            return "end"
        opened = grammar.reasoning_open
        may_open = not passage.begun and not place.has_content and (place.after_call or not place.has_reasoning)
        if may_open and (yield from self.take(opened)):
            passage.close(opened.lead)
            return "reasoning"
        if not passage.begun and (yield from self._stray(place)):
            place.space = passage.close()
            return "content"
        if (yield from self._content_edge(place, passage)) or (yield from self.attempts.empty_section(place, passage)):
            return "content"
        return (yield from self.attempts.call_at(place, passage))

    def _stray(self, place: Place) -> Reading[bool]:
        """Read what closes reasoning that is not open, or calls that are closed: a marker too many."""
        grammar = self.grammar
        if not place.has_content and not place.after_call and (yield from self.take(grammar.reasoning_close)):
            return True
        if place.in_section and (yield from self.take(grammar.section_close)):
            place.in_section = False
            return True
        if place.after_call and grammar.call is not None and grammar.call.closing.tokens:
            last = grammar.call.closing.tokens[-1]
            if is_strong(last) and (yield from self.take(Edge((last,)))):
                return True
        if place.after_call and grammar.is_unmarked:
            end = yield from self.control_token()
            if end >= 0 and (yield from self.ends_output(end)):
                self.stream.position += end
                return True
        return False

    def _content_edge(self, place: Place, passage: Passage) -> Reading[bool]:
        grammar = self.grammar
        opened, closed = grammar.content_open, grammar.content_close
        if opened.tokens and not place.content_open and not passage.begun and (yield from self.take(opened)):
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
            follows = yield from self.ends_output(end)
            for edge in (*self.grammar.ends, self.grammar.reasoning_open):
                follows = follows or bool(edge.tokens and (yield from self.stream.look(edge.tokens, end)) != NO)
            for start in self.grammar.starts:
                follows = follows or bool(start.tokens and (yield from self.stream.look(start.tokens, end)) != NO)
            if not follows:
                return False
        self.stream.position += end
        yield from self.stream.skip_exact(closed.trail)
        return True

    def _read_reasoning(self, place: Place) -> Reading[None]:
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
            if (yield from self.take(grammar.reasoning_close)):
                passage.close(grammar.reasoning_close.lead)
                self.turn.cut_inside = False
                return
            if (yield from self.at_end()):
                passage.close()
                return
            if not passage.begun and (yield from self.take(grammar.reasoning_open)):
                continue
            if not passage.begun and (yield from self.take(grammar.content_open)):
                place.content_open = True
                self.turn.cut_inside = False
                return
            if (
                grammar.call
                and place.may_try(stream.offset)
                and (yield from self.attempts.calls_end_reasoning(place, passage))
            ):
                self.turn.cut_inside = False
                return
            self._write(passage, stream.position + 1)
