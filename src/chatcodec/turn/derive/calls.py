"""Reads off how calls are written: one call, what stands between two, and what stands around them all.

What comes before a turn's first call and what stands between two end alike: that opens a call. What stands between two
and what follows the last begin alike: that closes one. The rest is the section's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from ..format import Arguments, Call, CallId, Index, JsonArguments, Literal, Name, Piece
from .arguments import ALL_KINDS, read_arguments, refine
from .markers import common_end, common_start
from .probes import CONTENT, IDS, NAMES, WORDS, Probes, Turn, assistant, call

_PLACE = "\0"
"""Stands in a literal where a call's number does."""
_TOKENS = re.compile(r"[0-9]{1,4}|.", re.DOTALL)
DEEPEST = 4
"""Levels of a call's object at which its fields are looked for."""


@dataclass(frozen=True, slots=True)
class Item:
    """Where one of a call's fields stands in the text of its turn: its name, its id, or all its arguments."""

    start: int
    end: int
    piece: Piece


@dataclass(frozen=True, slots=True)
class Written:
    """The calls of a turn, as they were read off it."""

    call: Call
    separator: str
    before: str
    """What stands before the first call, back to the field before it, or to the turn's start."""
    after: str
    """What stands behind the last call, up to the field after it, or to the turn's end."""
    several: bool
    turn: Turn
    start: int
    """Where the first call starts in the turn's text."""

    @property
    def head(self) -> str:
        """What opens the turn, up to the first call."""
        return self.turn.past_user(self.turn.text[: self.start])

    @property
    def preceded(self) -> bool:
        """Whether reasoning or content stands before the calls."""
        return self.turn.fields[0].start < self.start

    @property
    def followed(self) -> bool:
        """Whether content stands behind them."""
        return any(field.start > self.start for field in self.turn.of("content"))

    def ending(self, after: str) -> Written:
        """The same with only this of what stands behind the last call."""
        return self if self.followed else replace(self, after=after)


def read_calls(probes: Probes, content: str, reasoning: str | None = None, **variables: Any) -> Written | None:
    """The calls of a turn that says this: as two or more of them are written, or else one."""
    for count in (3, 2, 1):
        made = [call(number) for number in range(count)]
        for turn in probes.turns(assistant(content, reasoning, made), **variables):
            written = _read(turn, count)
            if written is not None:
                return written
    return None


def _read(turn: Turn, count: int) -> Written | None:
    items = [_items(turn, number) for number in range(count)]
    if not all(items) or any(first[-1].end > then[0].start for first, then in pairwise(items)):
        return None
    if len({tuple(type(item.piece) for item in found) for found in items}) > 1 or _PLACE in turn.text:
        return None
    before = turn.text[_previous(turn, items[0][0].start) : items[0][0].start]
    after = turn.text[items[-1][-1].end : _following(turn, items[-1][-1].end)]
    if count == 1:
        return _single(turn, items[0], before, after)
    joint = turn.text[items[0][-1].end : items[1][0].start]
    before, joint = _numbered(before, joint)
    opening = common_end(before, joint).lstrip()
    closing = common_start(joint, after).rstrip()
    closing = closing[: max(len(joint) - len(opening), 0)]
    middles = [_between(turn, found) for found in items]
    inner = [_same_number(first, second) for first, second in zip(*middles[:2], strict=True)]
    pieces = _pieces(opening, items[0], inner, closing)
    return Written(
        call=_with_paths(pieces),
        separator=joint[len(closing) : len(joint) - len(opening)],
        before=before[: len(before) - len(opening)],
        after=after[len(closing) :],
        several=True,
        turn=turn,
        start=items[0][0].start - len(opening.replace(_PLACE, "")),
    )


def _single(turn: Turn, items: list[Item], before: str, after: str) -> Written:
    """The only call that a turn may hold. What of the texts around it is its own, its caller finds out (`grown`)."""
    pieces = _pieces("", items, _between(turn, items), "")
    return Written(Call(pieces), "", before, after, several=False, turn=turn, start=items[0].start)


def grown(written: Written, opening: str, closing: str) -> Written:
    """`written` with its call grown by what stands right before and behind it."""
    pieces = _joined([Literal(opening), *written.call.pieces, Literal(closing)])
    return replace(
        written,
        call=_with_paths(pieces),
        before=written.before.removesuffix(opening),
        after=written.after.removeprefix(closing),
        start=written.start - len(opening),
    )


def _items(turn: Turn, number: int) -> list[Item]:
    """The fields of a call, in order; none where its name or arguments are missing."""
    region = read_arguments(turn, number)
    names, ids = turn.of("name", number), turn.of("id", number)
    if region is None or not (names or ids):
        return []
    items = [Item(region.start, region.end, Arguments(region.payload))]
    if names:
        items.append(Item(names[0].start, names[0].end, Name()))
    items += [Item(field.start, field.end, CallId(names=not names)) for field in ids[:1]]
    return sorted(items, key=lambda item: item.start)


def _previous(turn: Turn, start: int) -> int:
    return max((field.end for field in turn.fields if field.end <= start), default=0)


def _following(turn: Turn, end: int) -> int:
    return min((field.start for field in turn.fields if field.start >= end), default=len(turn.text))


def _between(turn: Turn, items: Sequence[Item]) -> list[str]:
    return [turn.text[item.end : after.start] for item, after in pairwise(items)]


def _numbered(first: str, second: str) -> tuple[str, str]:
    """Two literals that lead to the first and the second call, with a place where their ends hold the call's number."""
    ends = [_TOKENS.findall(text) for text in (first, second)]
    for back in range(1, min(map(len, ends)) + 1):
        one, two = ends[0][-back], ends[1][-back]
        if _is_number(one) and _is_number(two) and int(two) == int(one) + 1:
            ends[0][-back] = f"{_PLACE}{one}{_PLACE}"
            ends[1][-back] = f"{_PLACE}{one}{_PLACE}"
        elif one != two:
            break
    return "".join(ends[0]), "".join(ends[1])


def _is_number(token: str) -> bool:
    return token.isascii() and token.isdecimal()


def _same_number(first: str, second: str) -> str:
    """A literal within the first call, with a place for what counts up in that of the second."""
    return _numbered(first, second)[0]


def _pieces(opening: str, items: Sequence[Item], inner: Sequence[str], closing: str) -> tuple[Piece, ...]:
    pieces: list[Piece] = _literals(opening)
    for item, literal in zip(items, [*inner, closing], strict=True):
        pieces += [item.piece, *_literals(literal)]
    return _joined(pieces)


def _literals(text: str) -> list[Piece]:
    parts = text.split(_PLACE)
    return [Index(int(part)) if odd % 2 else Literal(part) for odd, part in enumerate(parts)]


def _joined(pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    """`pieces` without empty literals, and without two in a row."""
    joined: list[Piece] = []
    for piece in pieces:
        last = joined[-1] if joined else None
        if isinstance(piece, Literal) and isinstance(last, Literal):
            piece = Literal(last.text + piece.text)
            joined.pop()
        if piece != Literal(""):
            joined.append(piece)
    return tuple(joined)


# -- one JSON object


def _with_paths(pieces: tuple[Piece, ...]) -> Call:
    """The call, with the places of its fields where it is one JSON object that holds them."""
    sample = {Name: NAMES[0], CallId: IDS[0]}
    text = "".join(_sample(piece) for piece in pieces)
    inside = text.find(sample[Name])
    start = text.find("{")
    if not 0 <= start < inside:
        return Call(pieces)
    try:
        value, _ = json.JSONDecoder().raw_decode(text, start)
    except (ValueError, RecursionError):
        return Call(pieces)
    paths = {found: path for path, found in _leaves(value)}
    arguments = next((path for path, found in _objects(value) if _is_words(found)), ())
    name = paths.get(NAMES[0], ())
    return Call(pieces, name, arguments, paths.get(IDS[0], ())) if name and arguments else Call(pieces)


def _sample(piece: Piece) -> str:
    match piece:
        case Literal(text):
            return text
        case Name():
            return NAMES[0]
        case CallId():
            return IDS[0]
        case Index(first):
            return str(first)
        case Arguments(payload):
            return json.dumps(json.dumps(WORDS) if getattr(payload, "encoded", False) else WORDS)


def _objects(value: Any) -> list[tuple[tuple[str, ...], Any]]:
    """All values below `value` with the keys that lead there."""
    found: list[tuple[tuple[str, ...], Any]] = [((), value)]
    for path, holder in found:
        if isinstance(holder, dict) and len(path) < DEEPEST:
            found += [((*path, key), item) for key, item in holder.items()]
    return found


def _leaves(value: Any) -> list[tuple[tuple[str, ...], str]]:
    return [(path, found) for path, found in _objects(value) if isinstance(found, str)]


def _is_words(value: Any) -> bool:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return False
    return bool(value == WORDS)


# -- values, and a call without arguments


def complete(probes: Probes, written: Written, end: str, **variables: Any) -> Call | None:
    """The call with all that calls with other arguments show of it; `end` is what ends its turn.

    None where its arguments are written in a way that no payload is.
    """
    content = CONTENT if written.turn.has("content") else ""
    turns = probes.turns(assistant(content, calls=[call(0, ALL_KINDS)]), **variables)
    full = _refined(written.call, next((turn for turn in turns if turn.of("argument")), None))
    turns = probes.turns(assistant(content, calls=[call(0, {})]), **variables)
    empty = next((found for turn in turns if (found := _empty(written, turn, end)) is not None), None)
    if full is None or empty is None or empty == _emptied(full.pieces):
        return full
    return replace(full, no_arguments=empty)


def _refined(call: Call, turn: Turn | None) -> Call | None:
    pieces: list[Piece] = []
    for piece in call.pieces:
        if isinstance(piece, Arguments) and turn is not None:
            payload = refine(piece.payload, turn)
            if payload is None:
                return None
            piece = Arguments(payload)
        pieces.append(piece)
    return replace(call, pieces=tuple(pieces))


def _empty(written: Written, turn: Turn, end: str) -> tuple[Piece, ...] | None:
    """The pieces of a call without arguments, which stands alone in its turn as those of `written` stand in theirs."""
    fields = sorted((field for kind in ("name", "id") for field in turn.of(kind, 0)), key=lambda field: field.start)
    if not fields:
        return None
    start = _previous(turn, fields[0].start)
    text = turn.text[: _following(turn, fields[-1].end)]
    stop = text.rfind(written.after + end)
    if not text.startswith(written.before, start) or (not turn.last and not written.after + end):
        return None
    pieces: list[Piece] = []
    position = start + len(written.before)
    for field in fields:
        pieces += [Literal(turn.text[position : field.start]), Name() if field.kind == "name" else _id(written)]
        position = field.end
    pieces.append(Literal(turn.text[position:stop]))
    return _joined(pieces) if position <= stop else None


def _id(written: Written) -> Piece:
    return next((piece for piece in written.call.pieces if isinstance(piece, CallId)), CallId())


def _emptied(pieces: tuple[Piece, ...]) -> tuple[Piece, ...]:
    """What the plain rule makes of a call without arguments."""

    def plain(piece: Piece) -> Piece:
        match piece:
            case Arguments(JsonArguments(encoded=encoded)):
                return Literal('"{}"' if encoded else "{}")
            case Arguments():
                return Literal("")
            case Index(first):
                return Literal(str(first))
        return piece

    return _joined([plain(piece) for piece in pieces])
