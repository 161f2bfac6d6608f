"""`Tokenizer`: what is needed of a vocabulary, whatever library or file it comes from.

Ids are non-negative integers, places are in characters. A control token is one that only the template's own text, or
the model, may write: every token that was added to the vocabulary beside the text that it was trained on, save those
that are mere text (runs of spaces, words, HTML tags). Its spelling in a text is not that token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Control:
    """A control token. The flags are those of Hugging Face's `AddedToken`."""

    id: int
    text: str
    special: bool = True
    strip_left: bool = False
    """White space before it counts as part of it."""
    strip_right: bool = False
    """White space behind it counts as part of it."""
    whole_word: bool = False
    """Beside a letter, a digit or an underscore it is text."""


class Tokenizer(Protocol):
    """Text to ids and back. Objects are not changed by use, and may be used by several threads at once."""

    @property
    def engine(self) -> str:
        """The library that does the work, and its version: "tokenizers 0.23.3"."""
        ...

    @property
    def controls(self) -> Mapping[str, Control]:
        """The control tokens, by text."""
        ...

    @property
    def unknown(self) -> int | None:
        """The id of what the vocabulary has no token for, if it has one."""
        ...

    def encode(self, text: str, *, first: bool = False) -> list[int]:
        """The ids of a text that stands between two control tokens, itself holding none: their spelling is text.

        `first` says that it stands at the beginning of the prompt, where some vocabularies put a space before it.
        Nothing is added (no `bos`).
        """
        ...

    def encode_with_places(self, text: str, *, first: bool = False) -> tuple[list[int], list[tuple[int, int]]]:
        """The same, and for each token the characters of `text`, from and to, of which it holds at least a part.

        A character of several tokens is in the range of each; a token of none has an empty range.
        """
        ...

    def token_bytes(self, token: int) -> bytes:
        """The bytes that the token stands for in a text, a control token's spelling too; they need be no whole
        characters. b"" for an id that the vocabulary does not have."""
        ...

    def control_tokens(self) -> Mapping[str, int]:
        """The ids of the control tokens, by text."""
        ...
