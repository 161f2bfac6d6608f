"""What a token of a tokenizer.json stands for in a text, in bytes.

In: the words of a vocabulary and how its definition spells bytes, spaces and the parts of words. Out: bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

_BYTE_TOKENS = {f"<0x{byte:02X}>": bytes([byte]) for byte in range(256)}


def _byte_alphabet() -> dict[str, int]:
    """The letters by which byte-level vocabularies write bytes: those that print stand for themselves."""
    printing = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printing)]
    return {chr(byte): byte for byte in printing} | {chr(256 + place): byte for place, byte in enumerate(others)}


BYTE_ALPHABET = _byte_alphabet()


class Pieces:
    """How a vocabulary spells bytes.

    `prefixes_space` says that it may put a space before a text, `only_first` that it does so at the beginning only.
    """

    def __init__(self, definition: Mapping[str, Any]) -> None:
        before = [step for key in ("normalizer", "pre_tokenizer") for step in _steps(definition.get(key))]
        behind = list(_steps(definition.get("decoder")))
        kinds = {step.get("type") for step in before + behind}
        model = definition["model"]
        self.byte_level = "ByteLevel" in kinds
        self.normalizes = bool(definition.get("normalizer"))
        self.prefixes_space = any(map(_prefixes_space, before))
        self.only_first = any(step.get("prepend_scheme") == "first" for step in before)
        self._byte_tokens = _BYTE_TOKENS if model.get("byte_fallback") or "ByteFallback" in kinds else {}
        spaces = {_space(step): " " for step in before + behind}
        self._replaced = {written: text for written, text in (spaces | dict(map(_replaced, behind))).items() if written}
        self._prefix = _text(model.get("continuing_subword_prefix"))
        self._suffix = _text(model.get("end_of_word_suffix"))

    def missing(self, words: Collection[str]) -> frozenset[int]:
        """The bytes that a byte-level vocabulary has no token for."""
        if not self.byte_level:
            return frozenset()
        return frozenset(byte for letter, byte in BYTE_ALPHABET.items() if letter not in words)

    def is_space(self, text: str) -> bool:
        """Whether a text may be what a token for a space was made of: what is written for a space stands for one."""
        return text.isspace() or self._replaced.get(text) == " "

    def bytes_of(self, word: str) -> bytes:
        if self.byte_level:
            try:
                return bytes(map(BYTE_ALPHABET.__getitem__, word))
            except KeyError:
                return word.encode()
        if word in self._byte_tokens:
            return self._byte_tokens[word]
        for written, text in self._replaced.items():
            word = word.replace(written, text)
        return word.removeprefix(self._prefix).removesuffix(self._suffix).encode()


def _steps(part: object) -> Iterator[dict[str, Any]]:
    """The steps of a normalizer, a pre-tokenizer or a decoder, those of its sequences one by one."""
    if not isinstance(part, dict):
        return
    yield part
    for key in ("normalizers", "pretokenizers", "decoders"):
        for step in part.get(key) or ():
            yield from _steps(step)


def _prefixes_space(step: Mapping[str, Any]) -> bool:
    kind = step.get("type")
    if kind == "Metaspace":
        return bool(step.get("prepend_scheme", "always") != "never" and step.get("add_prefix_space", True))
    return kind == "Prepend" or (kind == "ByteLevel" and bool(step.get("add_prefix_space")))


def _space(step: Mapping[str, Any]) -> str:
    """What a step writes for a space."""
    if step.get("type") == "Metaspace":
        return _text(step.get("replacement")) or "▁"
    return _text(step.get("content")) if _replaced(step)[0] == " " else ""


def _replaced(step: Mapping[str, Any]) -> tuple[str, str]:
    pattern = step.get("pattern")
    if step.get("type") != "Replace" or not isinstance(pattern, dict):
        return "", ""
    return _text(pattern.get("String")), _text(step.get("content"))


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
