"""Texts to ids: control tokens by their place, the texts between them by the tokenizer, each text once.

What holds: no id of a control token comes from a text between them, whatever it spells and whatever the tokenizer
makes of it; the same text gives the same ids, with the cache and without.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

from .controls import ControlTokens, Piece
from .tokenizer import Tokenizer

CACHE_BYTES = 64 << 20
_ID_BYTES = 40
"""What an id takes in a list: a reference and, mostly, a number of its own."""


class UnencodableText(ValueError):
    """A text that has no ids: `place` is the character that is at fault."""

    def __init__(self, place: int, reason: str) -> None:
        super().__init__(reason)
        self.place = place
        self.reason = reason


class Encoder:
    """A tokenizer with its control tokens; `cache` bounds the bytes that are kept of texts and their ids, 0 for none.

    It may be used by several threads at once.
    """

    def __init__(self, tokenizer: Tokenizer, *, cache: int = CACHE_BYTES) -> None:
        self.tokenizer = tokenizer
        self.controls = ControlTokens(tokenizer.controls)
        self._limit = cache
        self._known: OrderedDict[tuple[str, bool], list[int]] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def ids(self, text: str, pieces: Sequence[Piece], *, start: int = 0, continued: bool = False) -> list[int]:
        """The ids of a text that is cut, from a place on; `continued`: it does not stand at a prompt's beginning.

        Raises `UnencodableText`.
        """
        ids: list[int] = []
        for begin, end, control, outer_end in pieces:
            if outer_end <= start:
                continue
            if control is None:
                begin = max(begin, start)
                ids += self.plain(text[begin:end], first=begin == 0 and not continued, place=begin)
            elif begin >= start:
                ids.append(control.id)
        return ids

    def plain(self, text: str, *, first: bool = False, place: int = 0) -> list[int]:
        """The ids of a text without control tokens; not to be changed. `place` is where it stands, for errors."""
        key = (text, first)
        known = self._known.get(key)
        if known is not None:
            with self._lock:
                if key in self._known:
                    self._known.move_to_end(key)
            return known
        ids = self._encoded(text, first, place)
        if self._limit:
            self._keep(key, ids)
        return ids

    def _encoded(self, text: str, first: bool, place: int) -> list[int]:
        try:
            ids = self.tokenizer.encode(text, first=first)
        except UnicodeEncodeError as error:
            reason = f"half a surrogate pair, U+{ord(text[error.start]):04X}, is no text"
            raise UnencodableText(place + error.start, reason) from None
        if self.controls.ids.isdisjoint(ids):
            return ids
        return [token for token, _, _ in self._without_controls(text, first)]

    def _keep(self, key: tuple[str, bool], ids: list[int]) -> None:
        size = _size(key[0], ids)
        if size > self._limit // 4:
            return
        with self._lock:
            if key in self._known:
                return
            self._known[key] = ids
            self._size += size
            while self._size > self._limit:
                (text, _), dropped = self._known.popitem(last=False)
                self._size -= _size(text, dropped)

    def placed(self, text: str, *, first: bool = False) -> list[tuple[int, int, int]]:
        """The ids that `plain` gives, each with the characters from and to of which it holds at least a part."""
        ids, places = self.tokenizer.encode_with_places(text, first=first)
        if not self.controls.ids.isdisjoint(ids):
            return self._without_controls(text, first)
        return [(token, start, end) for token, (start, end) in zip(ids, places, strict=True)]

    def _without_controls(self, text: str, first: bool) -> list[tuple[int, int, int]]:
        """The same, where the tokenizer takes a spelling for the token: such a text is cut inside the spelling."""
        done: list[tuple[int, int, int]] = []
        pending = [(0, len(text))]
        while pending:
            begin, stop = pending.pop()
            ids, places = self.tokenizer.encode_with_places(text[begin:stop], first=first and begin == 0)
            fault = next((n for n, token in enumerate(ids) if self._is_forged(token, text, begin, places[n])), None)
            if fault is None:
                done += [(token, begin + start, begin + end) for token, (start, end) in zip(ids, places, strict=True)]
                continue
            start, end = places[fault]
            middle = begin + start + max((end - start) // 2, 1)
            pending += [(middle, stop), (begin, middle)]
        return done

    def _is_forged(self, token: int, text: str, begin: int, place: tuple[int, int]) -> bool:
        if token not in self.controls.ids:
            return False
        start, end = place
        if token == self.tokenizer.unknown:
            known = self.controls.controls.get(text[begin + start : begin + end])
            return known is not None and known.id == token
        return end - start > 1


def _size(text: str, ids: list[int]) -> int:
    return 200 + len(text) * (1 if text.isascii() else 4) + _ID_BYTES * len(ids)
