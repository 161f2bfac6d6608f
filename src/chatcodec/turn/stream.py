"""The output as it comes in, and reading it in steps.

A reader is a generator: it reads what is there and yields where it needs more, so that readers call each other like
functions (`yield from`) and a piece of output, however small, takes them on from where they stand. Positions are
counted from where reading stands (`peek(0)` is the next character), for what is read is let go.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias, TypeVar

from .format import WHITESPACE

T = TypeVar("T")
Reading: TypeAlias = Generator[None, None, T]

LOOKAHEAD = 512
"""Characters of white space that are looked across for a marker."""
NO, CUT = -1, -2


class Cut(Exception):
    """The output ends inside of what is being read."""


class Broken(Exception):
    """What stands here is not what the format says."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class Record:
    """What is read from some place on. `offset` is that place in the output; it is negative in what the prompt says."""

    __slots__ = ("offset", "parts", "start")

    def __init__(self, start: int, offset: int) -> None:
        self.parts: list[str] = []
        self.start = start
        self.offset = offset


class Stream:
    """The unread part of the output: `text` from `position` on. `ended`: no more will come."""

    def __init__(self) -> None:
        self.text = ""
        self.position = 0
        self.ended = False
        self.before = 0
        """How much of the output stands before `text`; less than nothing where the prompt's own words are read."""
        self._records: list[Record] = []

    @property
    def offset(self) -> int:
        """How many characters of the output have been read."""
        return self.before + self.position

    @property
    def unread(self) -> int:
        return len(self.text) - self.position

    def append(self, piece: str) -> None:
        text, position = self.text, self.position
        if not position:
            self.text = text + piece if text else piece
            return
        for record in self._records:
            record.parts.append(text[record.start : position])
            record.start = 0
        self.before += position
        self.position = 0
        self.text = piece if position == len(text) else text[position:] + piece

    def _let_go(self) -> None:
        if self.position:
            for record in self._records:
                record.parts.append(self.text[record.start : self.position])
                record.start = 0
            self.before += self.position
            self.text = self.text[self.position :]
            self.position = 0

    # -- going back

    def record(self) -> Record:
        """Remember what is read from here on. Records end in the reverse order of their beginning."""
        record = Record(self.position, self.offset)
        self._records.append(record)
        return record

    def so_far(self, record: Record) -> str:
        """What was read since the record began, which goes on."""
        return "".join(record.parts) + self.text[record.start : self.position]

    def kept(self, record: Record) -> str:
        """End the record, and return what was read since."""
        assert self._records.pop() is record
        return self.so_far(record)

    def go_back(self, record: Record) -> None:
        """End the record, and stand again where it began."""
        if not record.parts:
            assert self._records.pop() is record
            self.position = record.start
            return
        kept = self.kept(record)
        pieces = len(record.parts)
        for other in self._records:
            first = other.parts[-pieces]
            other.parts[-pieces:] = [first[: len(first) - len(record.parts[0])]]
            other.start = 0
        self.before = self.offset - len(kept)
        self.text = kept + self.text[self.position :]
        self.position = 0

    def restart(self) -> None:
        """What comes next is the output's start."""
        self._let_go()
        end = self.before + len(self.text)
        self.before -= end
        for record in self._records:
            record.offset -= end

    # -- looking

    def more(self) -> Reading[bool]:
        """Wait for more output; False where no more will come."""
        if self.ended:
            return False
        yield
        return True

    def need(self, count: int) -> Reading[bool]:
        """Whether `count` characters can be read, once they can or the output has ended."""
        while len(self.text) - self.position < count:
            if not (yield from self.more()):
                return False
        return True

    def next(self) -> Reading[str]:
        """The next character, not read yet; "" at the end of the output."""
        if self.position < len(self.text):
            return self.text[self.position]
        return self.text[self.position] if (yield from self.need(1)) else ""

    def look(self, tokens: tuple[str, ...], at: int = 0) -> Reading[int]:
        """Where `tokens`, with any white space before each, end; `NO` where they do not stand at `at`, `CUT` where the
        output ends inside them."""
        spaces = 0
        for token in tokens:
            while True:
                if not (yield from self.need(at + 1)):
                    return CUT
                if self.text[self.position + at] not in WHITESPACE:
                    break
                at += 1
                spaces += 1
                if spaces > LOOKAHEAD:
                    return NO
            while not self.text.startswith(token, self.position + at):
                rest = self.text[self.position + at : self.position + at + len(token)]
                if len(rest) == len(token) or not token.startswith(rest):
                    return NO
                if not (yield from self.more()):
                    return CUT
            at += len(token)
        return at

    # -- reading

    def take(self, tokens: tuple[str, ...]) -> Reading[bool]:
        """Read `tokens` where they stand here. Raises `Cut` where the output ends inside them."""
        end = yield from self.look(tokens)
        if end == CUT:
            raise Cut
        if end == NO:
            return False
        self.position += end
        return True

    def expect(self, tokens: tuple[str, ...]) -> Reading[None]:
        """Read `tokens`. Raises `Broken` where something else stands here, `Cut` where the output ends."""
        if not (yield from self.take(tokens)):
            raise Broken(f"{' '.join(tokens)!r} is missing")

    def skip_space(self) -> Reading[str]:
        """Read all white space here, and return the character behind it, "" at the end."""
        while True:
            text, position = self.text, self.position
            while position < len(text) and text[position] in WHITESPACE:
                position += 1
            self.position = position
            if position < len(text):
                return text[position]
            if not (yield from self.more()):
                return ""

    def skip_exact(self, space: str) -> Reading[None]:
        """Read `space`, or as much of it as stands here."""
        for character in space:
            if (yield from self.next()) != character:
                return
            self.position += 1
