"""The vocabulary in a GGUF file: its metadata, as the tokenizer.json that they were made from.

In: the path of a GGUF file. Out: a `Tokenizer`. Byte-level BPE ("gpt2") and BPE of SentencePiece, with scores ("llama")
or with merges ("gemma4"), are read. What holds: what the file leaves out is as llama.cpp has it, save where that is not
what the model's tokenizer.json says (`gguf_splits`); what is allocated is in proportion to the metadata; every failure
is a `SourceError` that names the file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from ...errors import SourceError
from ...gguf_metadata import Array, Value, read_metadata
from ..tokenizer import Tokenizer
from .gguf_splits import SPLITS
from .hugging_face import HuggingFaceTokenizer

TOKEN_LIMIT = 1 << 20
ADDED_LIMIT = 1 << 18
MERGE_LIMIT = 1 << 21
LENGTH_LIMIT = 64
"""How long tokens may be on average, each counted as often as it has characters."""

_KEYS = "tokenizer.ggml."
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 1, 2, 3, 4, 6
_ADDED = (_UNKNOWN, _CONTROL, _USER_DEFINED)
_ESCAPED = frozenset(("gemma4", "granite-embed-multi-311m", "sarvam-moe"))
"""Ways to cut ("pre") that do not cut: there a space is written ▁, as in SentencePiece, and a byte <0x0A>."""
_WAY_OUT = "give the model's tokenizer.json instead (tokenizer=...)"

Definition = dict[str, Any]
Merges = list[str] | list[list[str]]


def gguf_tokenizer(path: str | os.PathLike[str]) -> Tokenizer:
    """The tokenizer of the GGUF file at `path`. Raises `SourceError`, and nothing else."""
    return HuggingFaceTokenizer(gguf_definition(path), name=os.fspath(path))


def gguf_definition(path: str | os.PathLike[str]) -> Definition:
    """The same as the content of a tokenizer.json."""
    metadata = read_metadata(path, lambda key: key.startswith(_KEYS))
    return _Vocabulary(os.fspath(path), metadata).definition()


class _Vocabulary:
    """The metadata of a vocabulary, checked as they are read."""

    def __init__(self, path: str, metadata: Mapping[str, Value]) -> None:
        self.path = path
        self.metadata = metadata
        self.kind = self.text("model")
        if self.kind not in _KINDS:
            self.fail(
                f"a vocabulary of the kind {self.kind[:40]!r}, and the kinds {', '.join(_KINDS)} can be read"
                if self.kind
                else f"it has no {_KEYS}model"
            )
        self.tokens = [text or f"[EMPTY_{number}]" for number, text in enumerate(self.texts("tokens", TOKEN_LIMIT))]
        self.ids = {text: number for number, text in enumerate(self.tokens)}
        if len(self.ids) < len(self.tokens):
            self.fail("a token is there twice")
        self.types = self.numbers("token_type")

    def fail(self, problem: str) -> NoReturn:
        raise SourceError(f"{self.path}: no tokenizer that can be read: {problem}; {_WAY_OUT}")

    def definition(self) -> Definition:
        added = [number for number, kind in enumerate(self.types) if kind in _ADDED]
        if len(added) > ADDED_LIMIT:
            self.fail(f"it has {len(added)} added tokens, more than the {ADDED_LIMIT} that are read")
        parts: Definition = {"version": "1.0", "truncation": None, "padding": None}
        parts["added_tokens"] = [_added(number, self.tokens[number], self.types[number]) for number in added]
        return parts | {"post_processor": None} | _KINDS[self.kind](self)

    def text(self, name: str) -> str:
        value = self.metadata.get(_KEYS + name, "")
        if not isinstance(value, str):
            self.fail(f"{_KEYS}{name} is not text")
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = self.metadata.get(_KEYS + name, default)
        if not isinstance(value, bool):
            self.fail(f"{_KEYS}{name} is neither true nor false")
        return value

    def texts(self, name: str, limit: int) -> list[str]:
        return self._array(name).texts(limit)

    def numbers(self, name: str) -> Sequence[int | float]:
        """An array with one number for each token."""
        numbers = self._array(name).numbers(TOKEN_LIMIT)
        if len(numbers) != len(self.tokens):
            self.fail(f"{_KEYS}{name} has {len(numbers)} values for {len(self.tokens)} tokens")
        return numbers

    def unknown(self, default: int) -> int | None:
        number = self.metadata.get(_KEYS + "unknown_token_id", default)
        return number if type(number) is int and 0 <= number < len(self.tokens) else None

    def merges(self) -> Merges:
        return _merges(self.texts("merges", MERGE_LIMIT))

    def merges_of_scores(self) -> Merges:
        """For each token all the pairs of tokens that it can be merged from: the best token first, of equal ones the
        first, as some converters know no scores and vocabularies are in this order, nearly.

        Only words of the model's own are merged: no text may write other tokens piece by piece.
        """
        scores = self.numbers("scores")
        words = {text: number for number, text in enumerate(self.tokens) if self.types[number] == _NORMAL}
        if sum(len(word) ** 2 for word in words) > LENGTH_LIMIT * sum(map(len, words)):
            self.fail("its tokens are too long to find out what they are merged from")
        pairs: list[str] = []
        for word in sorted(words, key=lambda word: -scores[words[word]]):
            cuts = ((word[:cut], word[cut:]) for cut in range(len(word) - 1, 0, -1)) if " " not in word else ()
            pairs += [f"{left} {right}" for left, right in cuts if left in words and right in words]
            if len(pairs) > MERGE_LIMIT:
                self.fail(f"its tokens can be merged in more than {MERGE_LIMIT} ways")
        return _merges(pairs)

    def _array(self, name: str) -> Array:
        value = self.metadata.get(_KEYS + name)
        if not isinstance(value, Array):
            self.fail(f"{_KEYS}{name} is not an array" if value is not None else f"it has no {_KEYS}{name}")
        return value


def _byte_level(vocabulary: _Vocabulary) -> Definition:
    name = vocabulary.text("pre")
    if name in _ESCAPED:
        return _with_merges(vocabulary)
    if name not in SPLITS:
        known = ", ".join(sorted({*SPLITS, *_ESCAPED}))
        vocabulary.fail(
            f"it cuts text into words in a way named {name[:40]!r}, and known are {known}"
            if name
            else f"it does not say how to cut text into words ({_KEYS}pre), as files of before May 2024"
        )
    split = SPLITS[name]
    cuts = [{"type": "Split", "pattern": {"Regex": pattern}, **_ISOLATED} for pattern in split.patterns]
    return {
        "normalizer": {"type": "NFC"} if split.composed else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*cuts, {**_BYTE_LEVEL, "use_regex": False}]},
        "decoder": {**_BYTE_LEVEL, "use_regex": True},
        "model": _bpe(vocabulary, vocabulary.merges()) | {"ignore_merges": split.whole},
    }


def _with_scores(vocabulary: _Vocabulary) -> Definition:
    return _sentencepiece(vocabulary, vocabulary.merges_of_scores(), prefix=vocabulary.flag("add_space_prefix", True))


def _with_merges(vocabulary: _Vocabulary) -> Definition:
    return _sentencepiece(vocabulary, vocabulary.merges(), prefix=False)


def _sentencepiece(vocabulary: _Vocabulary, merges: Merges, *, prefix: bool) -> Definition:
    unknown = vocabulary.unknown(0)
    before = [{"type": "Prepend", "prepend": "▁"}] * prefix
    behind = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] * prefix
    spelling = {
        "unk_token": None if unknown is None else vocabulary.tokens[unknown],
        "fuse_unk": True,
        "byte_fallback": _BYTE in vocabulary.types,
    }
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*before, _replace(" ", "▁")]},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": [*_DECODERS, *behind]},
        "model": _bpe(vocabulary, merges) | spelling,
    }


def _bpe(vocabulary: _Vocabulary, merges: Merges) -> Definition:
    return {"type": "BPE", "vocab": vocabulary.ids, "merges": merges}


def _added(number: int, text: str, kind: int | float) -> Definition:
    return {"id": number, "content": text, "special": kind != _USER_DEFINED, **_AS_WRITTEN}


def _merges(pairs: list[str]) -> Merges:
    # tokenizers takes a pair for a comment where it begins so, unless the pairs are given in two.
    return [pair.split(" ") for pair in pairs] if any(pair.startswith("#version") for pair in pairs) else pairs


def _replace(text: str, by: str) -> Definition:
    return {"type": "Replace", "pattern": {"String": text}, "content": by}


_AS_WRITTEN = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
_ISOLATED = {"behavior": "Isolated", "invert": False}
_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
_DECODERS = (_replace("▁", " "), {"type": "ByteFallback"}, {"type": "Fuse"})
_KINDS: Mapping[str, Callable[[_Vocabulary], Definition]] = {
    "gpt2": _byte_level,
    "llama": _with_scores,
    "gemma4": _with_merges,
}
