"""Where the control tokens of a text are.

In: a text, and the ranges of it that the input wrote. Out: the text cut into control tokens and the texts between
them. What holds: a control token is found only where the template wrote all of it, and there as Hugging Face's
`tokenizers` finds it: leftmost, longest, with the white space that its flags take.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from .innocence import innocent
from .tokenizer import Control

Range = tuple[int, int]

_SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"  # Unicode's White_Space
_SPACES_BEFORE = re.compile(f"[{_SPACE}]*\\Z")
_SPACES_BEHIND = re.compile(f"[{_SPACE}]*")
_CIRCLED = "\u24b6-\u24e9\U0001f130-\U0001f149\U0001f150-\U0001f169\U0001f170-\U0001f189"
_WORD = re.compile(f"[{_CIRCLED}\u200c\u200d]")  # what of Unicode's \\w is no letter, mark, digit or connector


class Piece(NamedTuple):
    """A control token or a text between two: characters `start` to `end`.

    The white space behind a control token that it takes with it is up to `outer_end`.
    """

    start: int
    end: int
    control: Control | None
    outer_end: int


class ControlTokens:
    """The control tokens of a vocabulary, made ready to be looked for."""

    def __init__(self, controls: Mapping[str, Control]) -> None:
        self.controls = dict(controls)
        self.ids = frozenset(control.id for control in controls.values())
        self._pattern = _any_of(filter(None, controls))
        self._plain = all(not (c.strip_left or c.strip_right or c.whole_word) for c in controls.values())

    def cut(self, text: str, owned: Sequence[Range] = ()) -> list[Piece]:
        """The pieces of a text, of which the input wrote the ranges `owned` (in order, not overlapping)."""
        pieces: list[Piece] = []
        position = 0
        for match in self._matches(text, owned):
            control = self.controls[match[0]]
            start, end = match.span()
            before, behind = (start, end) if self._plain else _taken(control, text, start, end, position)
            if before < 0 or start < position:
                continue
            if position < before:
                pieces.append(Piece(position, before, None, before))
            pieces.append(Piece(start, end, control, behind))
            position = behind
        if position < len(text):
            pieces.append(Piece(position, len(text), None, len(text)))
        return pieces

    def _matches(self, text: str, owned: Sequence[Range]) -> Iterator[re.Match[str]]:
        position = 0
        for start, end in owned:
            if position < start:
                yield from self._pattern.finditer(text, position, start)
            position = end
        yield from self._pattern.finditer(text, position)

    def spelled(self, text: str, owned: Sequence[Range]) -> int | None:
        """The place of the first control token's spelling that the input wrote, all of it or a part; None if none."""
        own = {piece.start for piece in self.cut(text, owned) if piece.control}
        for piece in self.cut(text):
            if piece.control and piece.start not in own:
                return next(max(start, piece.start) for start, end in owned if start < piece.end and piece.start < end)
        return None

    def innocent(self, pieces: Iterable[Piece], given: Mapping[str, Any], template: str) -> bool:
        """Whether these control tokens are the template's own, whatever it was given (`messages`, `tools` and its
        variables). Then nobody need know who wrote what. `template` is its source."""
        found = frozenset(piece.control.text for piece in pieces if piece.control)
        return not found or innocent(given, template, found)


def _taken(control: Control, text: str, start: int, end: int, position: int) -> Range:
    """From where to where the token takes the text; (-1, -1) where it is none."""
    if control.whole_word and (_is_word(text[start - 1 : start]) or _is_word(text[end : end + 1])):
        return -1, -1
    before, behind = start, end
    if control.strip_left:
        found = _SPACES_BEFORE.search(text, max(position, 0), start)
        before = found.start() if found else start
    if control.strip_right:
        found = _SPACES_BEHIND.match(text, end)
        behind = found.end() if found else end
    return before, behind


def _is_word(character: str) -> bool:
    kind = unicodedata.category(character) if character else ""
    return kind[:1] in ("L", "M") or kind in ("Nd", "Nl", "Pc") or _WORD.match(character) is not None


def _any_of(texts: Iterable[str]) -> re.Pattern[str]:
    """A pattern for the longest of the texts. It branches by character: some vocabularies have thousands."""
    texts = sorted(texts, key=len, reverse=True)
    tree: dict[str, Any] = {}
    for text in texts:
        node = tree
        for character in text:
            node = node.setdefault(character, {})
        node[""] = {}
    try:
        return re.compile(_branches(tree) or r"(?!)")
    except RecursionError:
        return re.compile("|".join(map(re.escape, texts)))


def _branches(node: Mapping[str, Any]) -> str:
    branches = []
    for character, following in node.items():
        if not character:
            continue
        branch = re.escape(character)
        while len(following) == 1 and "" not in following:
            ((character, following),) = following.items()
            branch += re.escape(character)
        branches.append(branch + _branches(following))
    pattern = branches[0] if len(branches) == 1 else "|".join(branches)
    if len(branches) > 1 or (branches and "" in node):
        pattern = f"(?:{pattern})"
    return pattern + "?" if branches and "" in node else pattern
