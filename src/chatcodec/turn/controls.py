"""Control tokens in output that comes as ids: each is one character that no text holds, so that only the token itself
is a marker, and its spelling in a text is text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .document import from_document, to_document
from .format import TurnFormat
from .grammar import SENTINELS


class Controls:
    """A format as it is read in ids: `characters` are what stands for a control token's id in it."""

    def __init__(self, turn: TurnFormat, tokens: Mapping[str, int]) -> None:
        written = _literals(to_document(turn))
        used = sorted((text for text in tokens if any(text in literal for literal in written)), key=len, reverse=True)
        pairs = list(zip(used, map(chr, SENTINELS), strict=False))
        self._hide = pairs
        self._show = {ord(character): text for text, character in pairs}
        self.characters = {tokens[text]: character for text, character in pairs}
        self.format = from_document(_replaced(to_document(turn), self.hidden))

    def hidden(self, text: str) -> str:
        """A template's text, its control tokens as characters."""
        for token, character in self._hide:
            text = text.replace(token, character)
        return text

    def shown(self, text: str) -> str:
        """The text as it reads."""
        return text if text.isascii() else text.translate(self._show)


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
