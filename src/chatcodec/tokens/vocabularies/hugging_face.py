"""Vocabularies of Hugging Face's `tokenizers`: a tokenizer.json, or an object that the library has loaded.

Out: a `Tokenizer` whose ids are those of the library, save that no text spells a control token: that is a second
vocabulary, in which the control tokens have other names. What holds: joined with the ids of the control tokens between
them, the ids of the texts are those of the whole prompt.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...errors import SourceError
from ..tokenizer import Control
from . import added
from .pieces import Pieces

if TYPE_CHECKING:
    import tokenizers


class HuggingFaceTokenizer:
    """A `Tokenizer` by the library `tokenizers`. Text that is no valid Unicode raises `UnicodeEncodeError`."""

    def __init__(self, definition: Mapping[str, Any], *, name: str = "tokenizer.json") -> None:
        """`definition` is the parsed file, `name` its name for errors. Raises `SourceError`."""
        try:
            words = added.words(definition)
            plain = added.without_controls(definition, name=name)
            self._pieces = Pieces(definition)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise SourceError(f"{name}: not the definition of a tokenizer: {error}") from error
        self._tokenizer = _load(plain.definition, name)
        ids = {token.content: number for number, token in self._tokenizer.get_added_tokens_decoder().items()}
        self._guard = plain.guard
        del ids[self._guard]
        spelled = {plain.names[text]: text for text in plain.names}
        self._controls = {
            text: added.control(ids[plain.names[text]] if text in plain.names else words[text], entry)
            for text, entry in plain.controls.items()
        }
        self._texts = {number: text for text, number in words.items()}
        self._added = {number: spelled.get(text, text) for text, number in ids.items()}
        self._added |= {token.id: token.text for token in self._controls.values()}
        self._unknown = _unknown(definition["model"], words)
        self._missing = self._pieces.missing(words)
        self._bytes: dict[int, bytes] = {}

    @classmethod
    def from_json(cls, text: str, *, name: str = "tokenizer.json") -> HuggingFaceTokenizer:
        """From the text of a tokenizer.json."""
        try:
            definition = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise SourceError(f"{name}: JSON that cannot be read: {error}") from error
        if not isinstance(definition, dict):
            raise SourceError(f"{name}: an object was expected")
        return cls(definition, name=name)

    @classmethod
    def from_tokenizer(cls, tokenizer: tokenizers.Tokenizer) -> HuggingFaceTokenizer:
        """From a `tokenizers.Tokenizer`; what is done to it later does not count."""
        try:
            text = tokenizer.to_str()
        except Exception as error:
            raise SourceError(f"the tokenizer cannot be written as a tokenizer.json: {error}") from error
        return cls.from_json(text, name="the tokenizer")

    @property
    def engine(self) -> str:
        import tokenizers

        return f"tokenizers {tokenizers.__version__}"

    @property
    def controls(self) -> Mapping[str, Control]:
        return self._controls

    @property
    def unknown(self) -> int | None:
        return self._unknown

    def encode(self, text: str, *, first: bool = False) -> list[int]:
        if first or not self._pieces.only_first:
            return self._encoding("", text).ids
        return self._encoding(self._guard, text).ids[1:]

    def encode_with_places(self, text: str, *, first: bool = False) -> tuple[list[int], list[tuple[int, int]]]:
        behind = self._guard if self._pieces.only_first and not first else ""
        encoding = self._encoding(behind, text)
        skipped, shift = (1, len(behind)) if behind else (0, 0)
        ids = encoding.ids[skipped:]
        places = [(start - shift, end - shift) for start, end in encoding.offsets[skipped:]]
        if self._missing and not self._missing.isdisjoint(text.encode()):
            places = self._places_by_bytes(text, ids) or places
        if self._pieces.prefixes_space:
            places = self._without_prefixes(text, ids, places)
        if self._pieces.normalizes and not text.isascii():
            _take_marks(text, places)
        return ids, places

    def token_bytes(self, token: int) -> bytes:
        known = self._bytes.get(token)
        if known is None:
            known = self._bytes[token] = self._token_bytes(token)
        return known

    def control_tokens(self) -> Mapping[str, int]:
        return {text: token.id for text, token in self._controls.items()}

    def definition(self) -> dict[str, Any]:
        """The parsed tokenizer.json of the vocabulary in which no control token can match."""
        definition = json.loads(self._tokenizer.to_str())
        assert isinstance(definition, dict)
        return definition

    def merged(self, word: str) -> list[int]:
        """What the model makes of a word, which is not cut or changed before."""
        return [token.id for token in self._tokenizer.model.tokenize(word)]

    def is_hidden(self, word: str) -> bool:
        """Whether a word of `definition` stands in a control token's place: no text holds it."""
        return word.startswith(self._guard[:-1])

    def _encoding(self, behind: str, text: str) -> tokenizers.Encoding:
        try:
            return self._tokenizer.encode(behind + text, add_special_tokens=False)
        except TypeError:
            text.encode()
            raise

    def _token_bytes(self, token: int) -> bytes:
        text = self._added.get(token)
        if text is not None and (text in self._controls or self._pieces.byte_level or token not in self._texts):
            return text.encode()
        text = self._texts.get(token)
        return b"" if text is None else self._pieces.bytes_of(text)

    def _places_by_bytes(self, text: str, ids: list[int]) -> list[tuple[int, int]] | None:
        """Where `tokenizers` drops a byte, its places behind it are wrong; these are those of the bytes."""
        characters = [place for place, letter in enumerate(text) for _ in letter.encode()]
        data = text.encode()
        places, reached = [], 0
        for token in ids:
            spelled = self.token_bytes(token)
            start = data.find(spelled, reached)
            if start < 0 or not spelled:
                return None
            reached = start + len(spelled)
            places.append((characters[start], characters[reached - 1] + 1))
        return places

    def _without_prefixes(self, text: str, ids: list[int], places: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """The places, where a space that no text wrote has none. `tokenizers` gives it the letter behind it."""
        after = [start for start, _ in places[1:]]
        spaces = {token for token in set(ids) if self.token_bytes(token) == b" "}
        return [
            (start, start)
            if token in spaces and (start == following or not self._pieces.is_space(text[start:end]))
            else (start, end)
            for token, (start, end), following in zip(ids, places, [*after, -1], strict=False)
        ]


def _take_marks(text: str, places: list[tuple[int, int]]) -> None:
    """What a normalizer joins into one letter has the place of the first part; the marks behind it belong to it too."""
    reached = 0
    for number, (start, _) in enumerate([*places, (len(text), len(text))]):
        if reached < min(start, len(text)) and _is_mark(text[reached]):
            end = next((place for place in range(reached, start) if not _is_mark(text[place])), start)
            for before in range(number - 1, -1, -1):
                if places[before][1] < reached:
                    break
                places[before] = places[before][0], end
        if number < len(places):
            reached = max(reached, places[number][1])


def _is_mark(letter: str) -> bool:
    return unicodedata.category(letter).startswith("M") or "\u1160" <= letter <= "\u11ff"


def _load(definition: Mapping[str, Any], name: str) -> tokenizers.Tokenizer:
    try:
        import tokenizers
    except ImportError as error:
        raise SourceError(f"{name}: the library tokenizers is needed: pip install 'chatcodec[tokens]'") from error
    try:
        return tokenizers.Tokenizer.from_str(json.dumps(definition, ensure_ascii=False))
    except BaseException as error:
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        raise SourceError(f"{name}: not a tokenizer that the library tokenizers can read: {error}") from error


def is_panic(error: BaseException) -> bool:
    """Whether something raised is a panic of a library that is written in Rust, which is no `Exception`."""
    return type(error).__name__ == "PanicException"


def _unknown(model: Mapping[str, Any], words: Mapping[str, int]) -> int | None:
    number = model.get("unk_id")
    if isinstance(number, int):
        return number
    text = model.get("unk_token")
    return words.get(text) if isinstance(text, str) else None
