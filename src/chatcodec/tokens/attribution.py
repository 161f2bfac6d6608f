"""Who wrote each token.

A token that stands across a border belongs to the first of the input whose text it holds a part of, and to the message
in whose turn it starts. It counts as sampled only if all of it was: a model cannot have written half a token.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from .controls import Piece, Range
from .encoding import Encoder
from .turns import Owned


class Token(NamedTuple):
    """A token of a prompt.

    `start` and `end` are the characters that it holds at least a part of; white space that a control token takes with
    it is not among them. `path` is the input that wrote it, None where that is the template; `message` is the place of
    the message in whose turn it stands, None for none; `sampled`: the model writes it, None where the turn's format is
    not known.
    """

    id: int
    start: int
    end: int
    path: str | None
    message: int | None
    sampled: bool | None


def placed_tokens(encoder: Encoder, text: str, pieces: Sequence[Piece]) -> list[tuple[int, int, int]]:
    """The id of each token, and the characters from and to that it holds at least a part of."""
    found: list[tuple[int, int, int]] = []
    for start, end, control, _ in pieces:
        if control is not None:
            found.append((control.id, start, end))
        else:
            tokens = encoder.placed(text[start:end], first=start == 0)
            found += [(token, start + begin, start + stop) for token, begin, stop in tokens]
    return found


def covered(tokens: Sequence[tuple[int, int, int]], ranges: Sequence[Range]) -> list[bool]:
    """For each token whether it stands in one of the ranges as a whole. A token of no characters belongs to what
    follows it."""
    starts = [start for start, _ in ranges]
    found = []
    for _, start, end in tokens:
        index = bisect_right(starts, start) - 1
        found.append(index >= 0 and start < ranges[index][1] and end <= ranges[index][1])
    return found


def attributed(
    tokens: Sequence[tuple[int, int, int]],
    spans: Sequence[tuple[int, int, str | None]],
    messages: Sequence[Owned],
    sampled: Sequence[bool | None],
) -> list[Token]:
    """The tokens with their owners; `spans` and `messages` cover the text."""
    written = [span for span in spans if span[2] is not None]
    ends = [end for _, end, _ in written]
    begins = [span.start for span in messages]
    found = []
    for (token, start, end), own in zip(tokens, sampled, strict=True):
        index = bisect_right(ends, start)
        path = written[index][2] if index < len(written) and written[index][0] < end else None
        place = bisect_right(begins, start) - 1
        found.append(Token(token, start, end, path, messages[place].message if place >= 0 else None, own))
    return found
