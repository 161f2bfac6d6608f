"""Control tokens in output that comes as ids: each is one character that no text holds, so that only the token itself
is a marker, and its spelling in a text is text."""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from .document import from_document, to_document
from .format import TurnFormat
from .grammar import SENTINELS


class Hidden:
    """A format whose control tokens are characters; one for all turns."""

    def __init__(self, turn: TurnFormat, tokens: Mapping[str, int]) -> None:
        document = to_document(turn)
        written = "\0".join(_literals(document))
        used = sorted((text for text in tokens if text in written), key=len, reverse=True)
        self.pairs = list(zip(used, map(chr, SENTINELS), strict=False))
        self.show = {ord(character): text for text, character in self.pairs}
        self.show_in_json = {place: json.dumps(text)[1:-1] for place, text in self.show.items()}
        characters = "".join(re.escape(character) for _, character in self.pairs)
        self.any = re.compile(f"[{characters}]") if characters else None
        self.characters = {tokens[text]: character for text, character in self.pairs}
        self.format = from_document(_replaced(document, self.hidden))

    def hidden(self, text: str) -> str:
        for token, character in self.pairs:
            text = text.replace(token, character)
        return text


@lru_cache(maxsize=64)
def _hidden(turn: TurnFormat, tokens: tuple[tuple[str, int], ...]) -> Hidden:
    return Hidden(turn, dict(tokens))


class Controls:
    """A format as it is read in ids: `characters` are what stands for a control token's id in it."""

    def __init__(self, turn: TurnFormat, tokens: Mapping[str, int]) -> None:
        self._hidden = _hidden(turn, tuple(tokens.items()))
        self._show, self._show_in_json, self._any = self._hidden.show, self._hidden.show_in_json, self._hidden.any
        self._places: list[int] = []
        self._widths = [0]
        self.characters = self._hidden.characters
        self.format = self._hidden.format

    def hidden(self, text: str) -> str:
        """A template's text, its control tokens as characters."""
        return self._hidden.hidden(text)

    def shown(self, text: str) -> str:
        """The text as it reads."""
        return text if text.isascii() else text.translate(self._show)

    def told(self, text: str) -> str:
        """An error's text, in which output may be quoted as Python does, as it reads."""
        for place, token in self._show.items():
            text = text.replace(f"\\u{place:04x}", token)
        return self.shown(text)

    def shown_in_json(self, text: str) -> str:
        """JSON text as it reads."""
        return text if text.isascii() else text.translate(self._show_in_json)

    def count(self, text: str, offset: int) -> None:
        """Take note of the tokens in a piece of output that begins at `offset`."""
        for match in self._any.finditer(text) if self._any else ():
            self._places.append(offset + match.start())
            self._widths.append(self._widths[-1] + len(self._show[ord(match[0])]) - 1)

    def place(self, offset: int) -> int:
        """Where a place in the output stands in the text as it reads."""
        return offset + self._widths[bisect_left(self._places, offset)]

    def forget(self) -> None:
        self._places.clear()
        self._widths = [0]


def _literals(document: Any) -> set[str]:
    found: set[str] = set()
    pending = [document]
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            found.add(value)
        elif isinstance(value, dict):
            pending.extend(value.values())
        elif isinstance(value, list):
            pending.extend(value)
    return found


def _replaced(document: Any, hide: Any) -> Any:
    if isinstance(document, str):
        return hide(document)
    if isinstance(document, dict):
        return {name: _replaced(value, hide) for name, value in document.items()}
    if isinstance(document, list):
        return [_replaced(value, hide) for value in document]
    return document
