"""Where the turns of a prompt stand: which characters the model writes, and to which message each belongs.

In: the prompt's text, the ranges that the input wrote, each with its message, and the turn's format. Out: ranges of
characters, in order. What holds: of an assistant's turn the model writes what stands between the generation prompt and
the turn's end, that end included, but no white space behind it. A format without an end of its own is ended by the
token that opens the next turn, and that then counts.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from ..errors import UnsupportedInput
from .controls import Range

_LONGEST = 100
_BEGUN = re.compile(r"[<\[][^<>\[\]\s]*\Z")
"""A marker of which only a part is there."""


class Owned(NamedTuple):
    """Characters that the input wrote: `message` did, or, where that is None, something else of the input."""

    start: int
    end: int
    message: int | None


@dataclass(frozen=True, slots=True)
class Marks:
    """What of a turn's format tells turns apart, as the template writes it."""

    header: str
    prompt: str
    ends: tuple[str, ...]
    openers: tuple[str, ...]


class Turn(NamedTuple):
    """An assistant's turn, from `opened` to `closed`.

    The model writes `start` to `end`, of which what ends the turn begins at `marker`.
    """

    message: int
    opened: int
    start: int
    marker: int
    end: int
    closed: int


class Turns:
    """`owned` are in order and do not overlap. `assistants` are the places of the assistants' messages; `before(i)`
    gives the prompt that message i answers, or raises `UnsupportedInput`."""

    def __init__(
        self,
        text: str,
        owned: Sequence[Owned],
        assistants: Iterable[int],
        marks: Marks,
        before: Callable[[int], str],
    ) -> None:
        self._text = text
        self._owned = owned
        self._starts = [span.start for span in owned]
        self._assistants = dict.fromkeys(sorted(assistants))
        self._last = next(reversed(self._assistants), -1)
        self._tails: dict[tuple[bool, int, str], str | None] = {}
        self._marks = marks
        self._before = before
        self._ends = [end.strip() or end for end in marks.ends]
        self._borders = _any([*self._ends, *marks.openers])
        openers = [opener for opener in marks.openers if opener.strip() not in self._ends]
        opening = max([0, *(marks.header.rfind(opener) for opener in openers)])
        self._openers = _any([*openers, marks.header[opening:]])
        self._opening = opening
        self._headers = _loosely(marks.header)
        self._places: dict[int, list[int]] = {}
        for place, span in enumerate(owned):
            if span.message is not None:
                self._places.setdefault(span.message, []).append(place)

    # -- the assistants' turns

    @cached_property
    def turns(self) -> list[Turn]:
        found: list[Turn] = []
        cursor = 0
        for message in self._assistants:
            turn = self._spoken(message, cursor) or self._silent(message, cursor)
            if turn is not None:
                found.append(turn)
                cursor = turn.closed
        return found

    def _place_of(self, message: int, cursor: int) -> int | None:
        """Which of `owned` is the first from `cursor` on that the message wrote."""
        places = self._places.get(message, [])
        index = bisect_left(places, bisect_left(self._starts, cursor))
        return places[index] if index < len(places) else None

    def _spoken(self, message: int, cursor: int) -> Turn | None:
        """The turn of a message of which something is written."""
        place = self._place_of(message, cursor)
        if place is None:
            return None
        first = self._owned[place].start
        _, stop = self._run(message, place)
        gap = max(cursor, self._owned[place - 1].end if place else 0)
        header = self._header(gap, first)
        if header is not None:
            opened = header.start() + self._opening
            return self._closed(message, opened, self._past_prompt(header, first), first, stop)
        start, whole = self._departed(message, gap, first)
        if not whole:
            start = min(start, first)
        return self._closed(message, start, start, first, stop)

    def _silent(self, message: int, cursor: int) -> Turn | None:
        """The turn of a message of which nothing is written: a header and an end, where they stand."""
        start, stop = self._room(message, cursor)
        for begin, end in self._gaps(start, min(stop, self._prompted)):
            for header in self._headers.finditer(self._text, begin, end):
                turn = self._unsaid(message, header, stop)
                if turn.end > turn.start or stop == len(self._text):
                    return turn
        shared, _ = self._departed(message, start, stop)
        if shared <= stop:
            turn = self._closed(message, shared, shared, shared, stop)
            if self._text[turn.marker : turn.end] in self._ends and not self._text[shared : turn.marker].strip():
                return turn
        if message == self._last and stop == len(self._text) and not self._text.endswith(self._marks.prompt):
            last = self._header(self._prompted, stop)
            return self._unsaid(message, last, stop) if last else None
        return None

    def _unsaid(self, message: int, header: re.Match[str], stop: int) -> Turn:
        start = self._past_prompt(header, stop)
        return self._closed(message, header.start() + self._opening, start, start, stop)

    def _prompt(self, message: int) -> str:
        try:
            return self._before(message)
        except UnsupportedInput:
            return ""

    def _departed(self, message: int, gap: int, stop: int) -> tuple[int, bool]:
        """Where a turn without a header begins: up to where the text behind the last text before is that of the prompt
        that the message answers; and whether that is all of the prompt.

        What a prompt ends in is asked once for all places where the template writes the same.
        """
        place = bisect_left(self._starts, gap) - 1
        behind = self._owned[place].end if place >= 0 else 0
        key = message - 1 in self._assistants, gap - behind, self._text[behind:stop]
        if key not in self._tails:
            self._tails[key] = self._tail(self._prompt(message), place)
        tail = self._tails[key]
        if tail is None:
            return stop, False
        shared, whole = self._shared(tail, behind)
        return max(shared, gap), whole

    def _tail(self, prompt: str, place: int) -> str | None:
        """What stands in a prompt behind one of `owned`, wherever the template has moved that; None where that is not
        there."""
        if not prompt or place < 0:
            return prompt or None
        said, end = self._said_at(place), self._owned[place].end
        if prompt[:end] == self._text[:end]:
            return prompt[end:]
        _, found, behind = prompt.rpartition(said)
        return behind if found else None

    def _shared(self, prompt: str, start: int) -> tuple[int, bool]:
        """Up to where the text from `start` on is that of a prompt, but for a marker of which only a part is; and
        whether it is all of the prompt."""
        end = start + shared(prompt, self._text[start : start + len(prompt)])
        if end == start + len(prompt):
            return end, bool(prompt)
        begun = _BEGUN.search(self._text, max(end - _LONGEST, start), end)
        return (begun.start() if begun else end), False

    def _header(self, start: int, stop: int) -> re.Match[str] | None:
        """The last header between two places."""
        return max(self._headers.finditer(self._text, start, stop), key=re.Match.start, default=None)

    def _past_prompt(self, header: re.Match[str], first: int) -> int:
        """Where the model goes on: behind the header, and what the prompt writes behind that."""
        text, prompt = self._text, self._marks.prompt
        start = header.end()
        if prompt.startswith(header[0]) and text.startswith(prompt, header.start()):
            start = header.start() + len(prompt)
        if text[start:first].strip() and text.startswith(self._last_prompt, header.start()):
            start = max(start, header.start() + len(self._last_prompt))
        return start

    @cached_property
    def _last_prompt(self) -> str:
        """The prompt from the header on that the last assistant's message answers: a template may close reasoning by
        what the conversation says."""
        prompt = self._prompt(self._last)
        place = bisect_left(self._starts, len(prompt))
        header = self._header(self._owned[place - 1].end if place else 0, len(prompt))
        if header is None or self._borders.search(prompt, header.end()) or not self._text.startswith(prompt):
            return ""
        return prompt[header.start() :]

    def _run(self, message: int, place: int) -> Range:
        """From the text of a message on: where its last text ends before another's begins, and where that begins."""
        end = self._owned[place].end
        for index in range(place + 1, len(self._owned)):
            span = self._owned[index]
            if span.message == message:
                end = span.end
            elif span.message is not None:
                return end, span.start
        return end, len(self._text)

    def _room(self, message: int, cursor: int) -> Range:
        """From where to where a message of which nothing is written may stand."""
        start = cursor
        for earlier in range(message - 1, -1, -1):
            place = self._place_of(earlier, cursor)
            if place is not None:
                start, _ = self._run(earlier, place)
                break
        for index in range(bisect_left(self._starts, start), len(self._owned)):
            owner = self._owned[index].message
            if owner is not None and owner > message:
                return start, self._owned[index].start
        return start, len(self._text)

    @cached_property
    def _prompted(self) -> int:
        """Where the generation prompt that ends the text begins; the text's end where there is none."""
        said = self._owned[-1].end if self._owned else 0
        place = len(self._text) - len(self._marks.prompt)
        if place >= said and self._text.endswith(self._marks.prompt):
            return place
        header = self._header(said, len(self._text))
        if header is None or any(self._text.find(end, header.end()) >= 0 for end in self._ends):
            return len(self._text)
        return header.start()

    def _closed(self, message: int, opened: int, start: int, first: int, stop: int) -> Turn:
        """The turn that begins at `start` and whose end is looked for from `first` up to `stop`."""
        text = self._text
        match = next(
            (match for match in self._written(self._borders, first, stop) if self._ends_turn(match, message, stop)),
            None,
        )
        if match is None:
            limit = self._prompted if opened < self._prompted else len(text)
            place = end = self._said(first, min(stop, limit), whole=stop == len(text))
            return Turn(message, opened, start, place, end, end)
        place, end = match.span()
        if match[0] not in self._ends:
            if self._ends:
                place = end = self._said(first, place, whole=True)
                return Turn(message, opened, start, place, end, match.start())
            return Turn(message, opened, start, place, end, place)
        spaces = next((whole.partition(match[0])[2] for whole in self._marks.ends if match[0] in whole), "")
        return Turn(message, opened, start, place, end, end + len(spaces) if text.startswith(spaces, end) else end)

    def _ends_turn(self, match: re.Match[str], message: int, stop: int) -> bool:
        """Whether what was found ends the message's turn: the generation prompt does not, and neither does what the
        same message goes on behind. A text that stands behind it once more (the name of a call, before its result) is
        only quoted there."""
        if match.start() > self._prompted or (match.start() == self._prompted and match[0] not in self._ends):
            return False
        place = self._place_of(message, match.end())
        if place is None or self._starts[place] >= stop:
            return True
        places = self._places[message]
        index = bisect_left(places, place)
        said = {self._said_at(place) for place in places[:index]}
        return all(self._said_at(place) in said for place in places[index:] if self._starts[place] < stop)

    def _said_at(self, place: int) -> str:
        start, end, _ = self._owned[place]
        return self._text[start:end]

    def _said(self, start: int, stop: int, *, whole: bool) -> int:
        """Where what is said between two places ends: the last text of the input, with `whole` what the template
        wrote behind it too, up to the white space."""
        index = bisect_left(self._starts, stop)
        last = max(start, self._owned[index - 1].end if index else 0)
        return last + len(self._text[last:stop].rstrip()) if whole else last

    def _written(self, pattern: re.Pattern[str], start: int, stop: int) -> Iterator[re.Match[str]]:
        """The matches that the template wrote."""
        for begin, end in self._gaps(start, stop):
            yield from pattern.finditer(self._text, begin, end)

    def _gaps(self, start: int, stop: int) -> Iterator[Range]:
        """The ranges from `start` to `stop` that the template wrote."""
        position = start
        for index in range(max(bisect_left(self._starts, start) - 1, 0), len(self._owned)):
            begin, end, _ = self._owned[index]
            if begin >= stop:
                break
            if position < begin:
                yield position, begin
            position = max(position, end)
        if position < stop:
            yield position, stop

    # -- all messages

    @cached_property
    def messages(self) -> list[Owned]:
        """Ranges over the whole text: the message in whose turn each stands, None for none."""
        blocks = sorted([*self._blocks(), *(Owned(t.opened, t.closed, t.message) for t in self.turns)])
        found: list[Owned] = []
        position, left = 0, None
        for start, end, message in [*blocks, Owned(len(self._text), len(self._text), None)]:
            if position < start and message != left:
                border = self._border(position, start, left, message)
                found += [Owned(position, border, left), Owned(border, start, message)]
            elif position < start:
                found.append(Owned(position, start, left))
            found.append(Owned(start, end, message))
            position, left = end, message
        return _merged(found)

    def _blocks(self) -> Iterator[Owned]:
        """What messages wrote outside of the assistants' turns. What an assistant wrote there (the name of a call,
        before its result) stands in another's turn."""
        turns = iter(self.turns)
        turn = next(turns, None)
        own = {turn.message for turn in self.turns}
        for span in self._owned:
            while turn is not None and turn.closed <= span.start:
                turn = next(turns, None)
            if (turn is None or span.end <= turn.opened) and span.message not in own:
                yield span

    def _border(self, start: int, stop: int, left: int | None, right: int | None) -> int:
        """Where, in what the template wrote between two messages, the second one's turn is opened."""
        match = self._openers.search(self._text, start, stop)
        if match is not None:
            return match.start()
        assistants = self._assistants
        return stop if right is None or right in assistants or left is None else start


def _any(texts: Iterable[str]) -> re.Pattern[str]:
    """A pattern for any of the texts, the longest first."""
    wanted = sorted(dict.fromkeys(filter(None, texts)), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, wanted)) or r"(?!)")


def _loosely(header: str) -> re.Pattern[str]:
    """A pattern for a header, or for as much of the white space at its end as is there."""
    core = header.rstrip()
    if not core:
        return re.compile(re.escape(header) or r"(?!)")
    spaces = header[len(core) :]
    return re.compile(re.escape(core) + "".join(f"(?:{re.escape(space)}" for space in spaces) + ")?" * len(spaces))


def shared(first: Sequence[Any], second: Sequence[Any]) -> int:
    """How many characters, or ids, two sequences have in common at their start."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _merged(spans: Iterable[Owned]) -> list[Owned]:
    merged: list[Owned] = []
    for span in spans:
        if span.start == span.end:
            continue
        if merged and merged[-1].message == span.message:
            merged[-1] = Owned(merged[-1].start, span.end, span.message)
        else:
            merged.append(span)
    return merged
