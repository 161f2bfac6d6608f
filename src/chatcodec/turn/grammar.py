"""A `TurnFormat` made ready for reading: its literals cut into markers, and what to look for where.

A model departs from the template's white space far more often than from its markers. So a literal is read as a row of
markers with any white space between them; which white space around a text is the template's, and so no part of the
text, is kept beside them (`Edge`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from .format import WHITESPACE, Arguments, Call, CallId, Calls, Literal, Name, Piece, Section, TurnFormat

SENTINELS = range(0xDC00, 0xE000)
"""Characters that stand for control tokens in output that comes as ids. No decoded text holds them."""

_BORDER = re.compile(r"(?<=[>\]])(?=[<\[])|(?<=[\udc00-\udfff])|(?=[\udc00-\udfff])")
_SHORTEST_MARKER = 3


@lru_cache(maxsize=4096)
def tokens(literal: str) -> tuple[str, ...]:
    """The markers of a literal: split at white space, and where one bracket closes and another opens."""
    return tuple(part for word in literal.split() for part in _BORDER.split(word) if part)


def is_strong(marker: str) -> bool:
    """Whether a marker tells by itself that something of the format begins: `<tool_call>`, but not `[` or `{`."""
    return len(marker) >= _SHORTEST_MARKER or is_certain(marker)


def is_certain(marker: str) -> bool:
    """Whether it is a control token, which no text can hold."""
    return bool(marker) and ord(marker[0]) in SENTINELS


@dataclass(frozen=True, slots=True)
class Edge:
    """A literal beside a text: its markers, and the white space of it that stands before and after them."""

    tokens: tuple[str, ...]
    lead: str = ""
    trail: str = ""

    @staticmethod
    @lru_cache(maxsize=4096)
    def of(literal: str) -> Edge:
        inner = literal.strip(WHITESPACE)
        if not inner:
            return Edge((), literal, "")
        start = literal.index(inner)
        return Edge(tokens(inner), literal[:start], literal[start + len(inner) :])


@dataclass(frozen=True, slots=True)
class Start:
    """A way in which a call may begin: `tokens`, and what of the template's writing is missing then."""

    tokens: tuple[str, ...]
    note: str = ""
    is_cut: bool = False
    """The output ends inside of it."""


class CallGrammar:
    """How one call is read: `opening`, then `steps` (or, where `is_object`, a JSON object), then `closing`."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.is_object = bool(call.name_path)
        pieces = list(call.pieces)
        first = pieces[0].text if isinstance(pieces[0], Literal) else ""
        last = pieces[-1].text if isinstance(pieces[-1], Literal) else ""
        if self.is_object:
            first = first[: first.index("{")]
            last = last[last.rindex("}") + 1 :]
            steps: list[Piece] = []
        else:
            steps = [
                piece
                for place, piece in enumerate(pieces)
                if not isinstance(piece, Literal) or self._inner(place, pieces)
            ]
        self.opening = Edge.of(first)
        self.closing = Edge.of(last)
        self.steps = tuple(steps)
        self.payload = next(piece.payload for piece in pieces if isinstance(piece, Arguments))
        self.late_opening = self._late()
        kinds = [type(piece) for piece in pieces]
        self.awaits_id = CallId in kinds and Name in kinds and kinds.index(CallId) > kinds.index(Name)
        """The id stands behind the name, so that a call that is named is not yet known in full."""
        self.id_is_late = self.awaits_id and kinds.index(CallId) > kinds.index(Arguments)

    @staticmethod
    def _inner(place: int, pieces: list[Piece]) -> bool:
        return 0 < place < len(pieces) - 1

    def _late(self) -> tuple[str, ...]:
        """The opening's last marker, where it announces a name (`<function=`), for models that leave out the first."""
        if len(self.opening.tokens) > 1 and not self.is_object:
            last = self.opening.tokens[-1]
            if is_strong(last) and last[-1] not in ">])" and last[0] in "<[":
                return (last,)
        return ()


class Grammar:
    """Everything that the decoder looks for. `control` are the tokens that come as ids, and their sentinels."""

    def __init__(self, turn: TurnFormat) -> None:
        self.format = turn
        self.reasoning_open, self.reasoning_close = _edges(turn.reasoning)
        self.content_open, self.content_close = _edges(turn.content)
        self.ends = tuple(Edge.of(end) for end in turn.ends)
        self.next_turns = tuple(tokens(text) for text in turn.next_turns)
        calls = turn.calls if turn.channels is None else None
        self.calls = calls
        self.call = CallGrammar(calls.call) if calls else None
        self.lead = Edge.of(calls.lead) if calls else Edge(())
        self.lead_alone = Edge.of(calls.lead_alone) if calls else Edge(())
        self.section_open = Edge.of(calls.open) if calls else Edge(())
        self.section_close = Edge.of(calls.close) if calls else Edge(())
        self.separator = tokens(calls.separator) if calls else ()
        self.starts = self._starts(calls)
        self.inner_starts = self._inner_starts()
        self.inner_is_bare = self.call is not None and not self.inner_starts
        """Calls of one wrapper follow each other with nothing that tells where one begins."""
        firsts = {edge.tokens[0] for edge in self.ends if edge.tokens}
        self.ends_open_calls = any(start.tokens[0] in firsts for start in self.starts if start.tokens)
        """What ends a turn may as well open a call's."""
        self.is_unmarked = bool(self.starts) and not is_strong(self.first_of(self.starts[0]))
        leads = [edge.lead for edge in (*self.ends, self.content_close, self.reasoning_open)]
        leads += [self.lead.lead, self.lead_alone.lead]
        nothing = turn.no_reasoning or ""
        self.before_content = "" if nothing.strip() else nothing
        self.content_space = "" if self.content_open.tokens else self.content_open.lead
        self.before_content += self.content_space
        """White space with which a turn begins that has no reasoning."""
        self.hold = max(map(len, leads), default=0)

    def _starts(self, calls: Calls | None) -> tuple[Start, ...]:
        if calls is None or self.call is None:
            return ()
        opening, wrapper = self.call.opening.tokens, self.section_open.tokens
        starts = [Start(wrapper + opening)]
        if self.lead.tokens:
            starts.insert(0, Start(self.lead.tokens + wrapper + opening))
        if wrapper and opening:
            starts.append(Start(opening, "the wrapper around the calls is missing"))
        if self.call.late_opening:
            starts.append(Start(self.call.late_opening, "the call's first marker is missing"))
        return tuple(starts)

    def _inner_starts(self) -> tuple[Start, ...]:
        """How a call begins behind another one in the same wrapper."""
        if self.call is None:
            return ()
        opening = self.call.opening.tokens
        starts = [Start(self.separator + opening)] if self.separator else []
        if opening:
            starts.append(Start(opening, "the separator is missing" if self.separator else ""))
        elif self.call.is_object:
            starts.append(Start((), "the separator is missing" if self.separator else ""))
        if self.call.late_opening:
            starts.append(Start(self.call.late_opening, "the call's first marker is missing"))
        return tuple(starts)

    def first_of(self, start: Start) -> str:
        """The marker at which a call may begin; where the format has none, the JSON object's brace."""
        return start.tokens[0] if start.tokens else "{"


def _edges(section: Section | None) -> tuple[Edge, Edge]:
    return (Edge.of(section.open), Edge.of(section.close)) if section else (Edge(()), Edge(()))


class Markers:
    """Finds the first of several markers in a text that is still coming in."""

    def __init__(self, markers: frozenset[str]) -> None:
        ordered = sorted(markers, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, ordered))) if ordered else None
        self._beginnings = frozenset(marker[:length] for marker in markers for length in range(1, len(marker)))
        self._firsts = (
            re.compile("[" + re.escape("".join(sorted({marker[0] for marker in markers}))) + "]") if ordered else None
        )
        self._longest = max(map(len, ordered), default=0)

    def find(self, text: str, start: int, ended: bool) -> tuple[int, bool]:
        """Up to where the text holds no marker, and whether one stands there; where none does, up to where one may
        have begun."""
        if self._pattern is None or self._firsts is None:
            return len(text), False
        if self._firsts.search(text, start) is None:
            return len(text), False
        match = self._pattern.search(text, start)
        if match:
            return match.start(), True
        if not ended and self._beginnings:
            tail = max(start, len(text) - self._longest + 1)
            for first in self._firsts.finditer(text, tail):
                if text[first.start() :] in self._beginnings:
                    return first.start(), False
        return len(text), False


@lru_cache(maxsize=1024)
def markers(*names: str) -> Markers:
    return Markers(frozenset(name for name in names if name))


@lru_cache(maxsize=256)
def grammar(turn: TurnFormat) -> Grammar:
    return Grammar(turn)
