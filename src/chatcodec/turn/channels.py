"""Reading a turn of messages to channels (`format.Channels`): the recipient and the channel tell what a message is.

The recipient may stand after the role or after the channel, a content type after either, and models write headers that
are none; what such a header says is content.
"""

from __future__ import annotations

import re

from ..events import Status
from .format import WHITESPACE, Channels
from .grammar import Edge, is_certain, markers, tokens
from .passage import Passage
from .payloads import json_object
from .state import Turn
from .stream import CUT, NO, Broken, Cut, Reading, Record

LONGEST_HEADER = 1_000
MOST_HEADER_WORDS = 4
HEADER_CHARACTERS = "_-.=:/"
"""What words of a header are made of beside letters and digits."""
_HEADER_WORD = re.compile(r"[\w.-]+|to=\S*")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")


def read(turn: Turn) -> Reading[None]:
    yield
    reader = _Reader(turn)
    while (yield from reader.message()):
        pass
    turn.end()


class _Reader:
    def __init__(self, turn: Turn) -> None:
        channels = turn.grammar.format.channels
        assert channels is not None
        self.turn = turn
        self.stream = turn.stream
        self.channels: Channels = channels
        self.message_mark = tokens(channels.message)
        self.start = tokens(channels.start)
        ends = [channels.end, channels.call_end, *turn.grammar.format.ends]
        self.ends = [Edge.of(end).tokens for end in dict.fromkeys(ends) if end.strip()]
        self.turn_ends = {end.tokens for end in turn.grammar.ends}
        self.opening = ""
        """What begins the message that is read, of what has been read."""
        self.prefix = channels.recipient.partition("=")[2]
        self.ended = markers(*(end[0] for end in self.ends), self.start[0])
        self.inner_marks = [tokens(mark) for mark in (channels.channel, channels.constrain) if mark.strip()]

    def message(self) -> Reading[bool]:
        """Read one message; False at the end of the turn."""
        turn, stream = self.turn, self.stream
        record = stream.record()
        header = yield from self._header()
        if header is None:
            said = stream.kept(record)
            if stream.ended and stream.position == len(stream.text) and self._is_cut_header(said, record.offset):
                return False
            if said:
                turn.say_content(turn.shown(self.opening + said))
            return (yield from self._end())
        recipient, channel = self._parse(header)
        if recipient.startswith(self.prefix) and self.prefix:
            yield from self._call(recipient.removeprefix(self.prefix), record)
        elif recipient and recipient != self.channels.role:
            yield from self._call(recipient, record, foreign=True)
        else:
            stream.kept(record)
            fits = self._fits(header) and (channel or not header.strip())
            if not fits:
                turn.say_content(turn.shown(self.opening + header))
            yield from self._text(channel if fits else "")
        return (yield from self._end())

    def _is_cut_header(self, said: str, offset: int) -> bool:
        """Whether `said` is a header that the output ends in. One of a call is then a cut call."""
        recipient, channel = self._parse(said)
        if not self._fits(said) or not (recipient or channel or self.opening):
            return False
        if not recipient:
            self.turn.rest.append(self.turn.shown(self.opening + said))
        else:
            call = self.turn.new_call(strict=False)
            call.name = recipient.removeprefix(self.prefix)
            self.turn.cut_inside = True
            self.turn.finish(call, "incomplete", said, offset)
        return True

    def _fits(self, header: str) -> bool:
        """Whether a header is made of the words that headers are made of."""
        words = header.replace(self.channels.channel, " ").replace(self.channels.constrain, " ").split()
        return len(words) <= MOST_HEADER_WORDS and all(map(_HEADER_WORD.fullmatch, words))

    def _header(self) -> Reading[str | None]:
        """A message's header; None where what stands here is none: what cannot be one is then read, as a text."""
        stream = self.stream
        at = words = 0
        in_word = False
        while at < LONGEST_HEADER and (yield from stream.need(at + 1)):
            character = stream.text[stream.position + at]
            if (yield from self._stands(self.message_mark, at)):
                header = stream.text[stream.position : stream.position + at]
                stream.position += at
                yield from stream.take(self.message_mark)
                return header
            end = yield from self._after_inner_mark(at)
            if end:
                at, in_word = end, False
            elif character in WHITESPACE:
                at, in_word = at + 1, False
            elif (character.isalnum() or character in HEADER_CHARACTERS) and (in_word or words < MOST_HEADER_WORDS):
                words += not in_word
                at, in_word = at + 1, True
            else:
                break
        if not at and stream.unread and not (yield from self._at_end()):
            at = 1
        stream.position += at
        return None

    def _stands(self, marks: tuple[str, ...], at: int) -> Reading[bool]:
        """Whether `marks` begin just at `at`."""
        stream = self.stream
        if stream.text[stream.position + at] != marks[0][0]:
            return False
        return (yield from stream.look(marks, at)) >= 0

    def _after_inner_mark(self, at: int) -> Reading[int]:
        """Where a mark that stands within headers ends, when it begins just at `at`; else 0."""
        for mark in self.inner_marks:
            if (yield from self._stands(mark, at)):
                return (yield from self.stream.look(mark, at))
        return 0

    def _parse(self, header: str) -> tuple[str, str]:
        match = _RECIPIENT.search(header.replace(self.channels.channel, " ").replace(self.channels.constrain, " "))
        channel = (
            header.rpartition(self.channels.channel)[2].strip(WHITESPACE) if self.channels.channel in header else ""
        )
        word = re.split(r"[\s<]", channel, maxsplit=1)[0]
        return match[1] if match else "", word

    def _text(self, channel: str) -> Reading[None]:
        turn, stream = self.turn, self.stream
        is_reasoning = channel == self.channels.reasoning
        passage = Passage(turn.say_reasoning if is_reasoning else turn.say_content)
        turn.passage = passage
        turn.cut_inside = is_reasoning
        while True:
            until, found = self.ended.find(stream.text, stream.position, stream.ended)
            passage.write(stream.text[stream.position : until])
            stream.position = until
            if found:
                if (yield from self._at_end()):
                    break
                passage.write(stream.text[stream.position])
                stream.position += 1
            elif not (yield from stream.more()):
                passage.close()
                return
        turn.cut_inside = False
        passage.close()

    def _at_end(self) -> Reading[bool]:
        """Whether a message ends here: the marker is certain, or another message or nothing follows."""
        stream = self.stream
        for end in (*self.ends, ()):
            at = (yield from stream.look(end)) if end else 0
            if at < 0:
                continue
            if end and is_certain(end[0]):
                return True
            if end and (yield from stream.look(self.start, at)) >= 0:
                return True
            if not end and (yield from self._message_follows(at)):
                return True
            if end and (yield from stream.look(("\0",), at)) == CUT:
                return True
        return False

    def _message_follows(self, at: int) -> Reading[bool]:
        """Whether another message begins at `at`: its header ends in the marker that it must end in, or is cut."""
        stream = self.stream
        opened = yield from stream.look(self.start, at)
        if opened < 0:
            return False
        if is_certain(self.start[0]):
            return True
        if (yield from stream.look((self.channels.role,), opened)) == NO:
            return False
        for place in range(opened, opened + LONGEST_HEADER):
            if not (yield from stream.need(place + 1)):
                return True
            character = stream.text[stream.position + place]
            if character == self.message_mark[0][0] and (yield from stream.look(self.message_mark, place)) >= 0:
                return True
            if character == self.start[0][0] and (yield from stream.look(self.start, place)) >= 0:
                return False
        return False

    def _end(self) -> Reading[bool]:
        """Read what ends a message and begins the next; False where the turn is over."""
        turn, stream = self.turn, self.stream
        turn.ended_by_marker = False
        over = False
        for end in self.ends:
            if (yield from self._takes(end)):
                turn.ended_by_marker = True
                over = end in self.turn_ends
                break
        record = stream.record()
        if not (yield from self._takes(self.start)):
            self.opening = ""
            stream.go_back(record)
            return not over and (yield from stream.look(("\0",))) != CUT
        if not (yield from self._takes((self.channels.role,))):
            stream.go_back(record)
            return False
        turn.ended_by_marker = False
        self.opening = stream.kept(record)
        return True

    def _takes(self, marks: tuple[str, ...]) -> Reading[bool]:
        end = yield from self.stream.look(marks)
        self.stream.position += max(0, end)
        return end >= 0

    def _call(self, name: str, record: Record, *, foreign: bool = False) -> Reading[None]:
        """A message to a function, or to somebody else, which is a tool of the model's own."""
        stream = self.stream
        call = self.turn.new_call(strict=False)
        if foreign:
            call.name, call.foreign = name, True
            call.note(f"{name!r} is no function")
        elif name:
            call.named(name)
        status: Status = "ok"
        try:
            if not name:
                raise Broken("the function has no name")
            yield from json_object.read(stream, call)
            yield from stream.skip_space()
            if stream.position < len(stream.text) and not (yield from self._at_end()):
                raise Broken("text stands behind the arguments")
        except Cut:
            status = "incomplete"
        except Broken as broken:
            status = "malformed"
            call.note(broken.reason)
            yield from self._skip()
        self.turn.cut_inside = status == "incomplete"
        self.turn.finish(call, status, stream.kept(record), record.offset)

    def _skip(self) -> Reading[None]:
        stream = self.stream
        while True:
            until, found = self.ended.find(stream.text, stream.position, stream.ended)
            stream.position = until
            if found:
                if (yield from self._at_end()):
                    return
                stream.position += 1
            elif not (yield from stream.more()):
                return
