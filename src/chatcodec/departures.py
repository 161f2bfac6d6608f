"""Where a session's ids differ from those of the whole conversation, encoded anew.

The two are compared turn by turn, and within a turn from control token to control token, so that it costs what the
conversation is long. What holds: with each departure put in its place, the session's ids are the render's.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from itertools import pairwise
from typing import NamedTuple

from .prompt import Prompt


class Departure(NamedTuple):
    """A session's ids `start` to `end`, and the ids that the template has there."""

    start: int
    end: int
    template: list[int]


def departures(
    ours: list[int], turns: Sequence[tuple[int, int]], fresh: Prompt, end: int, controls: frozenset[int]
) -> list[Departure]:
    """Of a session's ids, in which the completion of each of `turns`, a message's place, begins at the second number,
    from those of the render up to its character `end`."""
    starts = [token.start for token in fresh.tokens]
    theirs = fresh.ids[: bisect_left(starts, end)]
    written = {turn.message: bisect_left(starts, turn.start) for turn in fresh.tokenized.turns}
    borders = [(start, written[message]) for message, start in turns if message in written]
    found: list[Departure] = []
    for (begin, first), (stop, last) in pairwise([(0, 0), *borders, (len(ours), len(theirs))]):
        found += _within(ours[begin:stop], theirs[first:last], begin, controls)
    return list(_merged(found))


def _within(ours: list[int], theirs: list[int], place: int, controls: frozenset[int]) -> Iterator[Departure]:
    """`place` is where `ours` stands in all ids."""
    if ours == theirs:
        return
    mine, others = _stretches(ours, controls), _stretches(theirs, controls)
    places = [place]
    for stretch in mine:
        places.append(places[-1] + len(stretch))
    for kind, start, end, begin, stop in SequenceMatcher(None, mine, others, autojunk=False).get_opcodes():
        if kind != "equal":
            yield Departure(places[start], places[end], [token for stretch in others[begin:stop] for token in stretch])


def _stretches(ids: list[int], controls: frozenset[int]) -> list[tuple[int, ...]]:
    """The ids, cut before each control token."""
    found: list[list[int]] = []
    for token in ids:
        if token in controls or not found:
            found.append([])
        found[-1].append(token)
    return [tuple(stretch) for stretch in found]


def _merged(found: Iterable[Departure]) -> Iterator[Departure]:
    """Departures that touch are one."""
    last: Departure | None = None
    for departure in found:
        if last is not None and last.end == departure.start:
            last = Departure(last.start, departure.end, last.template + departure.template)
            continue
        if last is not None:
            yield last
        last = departure
    if last is not None:
        yield last
