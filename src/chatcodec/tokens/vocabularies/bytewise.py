"""Vocabularies whose tokens, one after the other, spell the text's bytes and nothing else: tiktoken's and tekken.

In: the functions of the library that has the vocabulary. Out: a `Tokenizer`. What holds: the places follow from the
bytes, and no text spells a control token, as the library is told to look for none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate, pairwise

from ..tokenizer import Control


class BytewiseTokenizer:
    """A `Tokenizer`. Text that is no valid Unicode raises `UnicodeEncodeError`."""

    def __init__(
        self,
        encode: Callable[[str], list[int]],
        bytes_of: Callable[[int], bytes],
        controls: Iterable[Control],
        *,
        engine: str,
        unknown: int | None = None,
    ) -> None:
        """`encode` takes every text for mere text; `bytes_of` gives the bytes of a token that is no control token, or
        raises a `LookupError`."""
        self._encode = encode
        self._bytes_of = bytes_of
        self._controls = {control.text: control for control in controls}
        self._engine = engine
        self._unknown = unknown
        self._bytes = {control.id: control.text.encode() for control in self._controls.values()}

    @property
    def engine(self) -> str:
        return self._engine

    @property
    def controls(self) -> Mapping[str, Control]:
        return self._controls

    @property
    def unknown(self) -> int | None:
        return self._unknown

    def encode(self, text: str, *, first: bool = False) -> list[int]:
        text.encode()  # tiktoken would write something else for half a surrogate pair
        return self._encode(text)

    def encode_with_places(self, text: str, *, first: bool = False) -> tuple[list[int], list[tuple[int, int]]]:
        ids = self.encode(text, first=first)
        edges = list(accumulate((len(self.token_bytes(token)) for token in ids), initial=0))
        if text.isascii():
            return ids, list(pairwise(edges))
        characters = [place for place, letter in enumerate(text) for _ in letter.encode()]
        return ids, [(characters[start], characters[end - 1] + 1) for start, end in pairwise(edges)]

    def token_bytes(self, token: int) -> bytes:
        known = self._bytes.get(token)
        if known is None:
            try:
                known = self._bytes_of(token)
            except LookupError:
                known = b""
            self._bytes[token] = known
        return known

    def control_tokens(self) -> Mapping[str, int]:
        return {text: control.id for text, control in self._controls.items()}
