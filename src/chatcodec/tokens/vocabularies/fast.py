"""The same ids, sooner: kitoken encodes where it is known to agree with the library `tokenizers`.

In: a tokenizer by `tokenizers`, the reference. Out: one that takes everything but the ids from it. What holds: the ids
are those of the reference. kitoken is asked only about kinds of vocabulary of which all parts were compared, only if it
agrees on a probe, and never about letters that its tables may know otherwise; what is left goes to the reference. To
read a vocabulary once more takes a second or two: that is done after much text, or when `engine` is asked for.
"""

from __future__ import annotations

import json
import re
import threading
import unicodedata
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from importlib.util import find_spec
from itertools import product
from typing import TYPE_CHECKING, Any

from ..tokenizer import Control, Tokenizer
from .added import BYTE_TOKENS, is_control
from .hugging_face import HuggingFaceTokenizer, is_panic
from .merging import merges_by_rank

if TYPE_CHECKING:
    import kitoken

WORTHWHILE = 1 << 21
"""After so many characters kitoken is loaded."""

LONGEST_SPACE = 200_000
"""Characters of white space in a row that kitoken is asked about: at 3 M its regular expressions end the process."""
_LONG_SPACE = re.compile(rf"\s{{{LONGEST_SPACE}}}")

_BYTE_LEVEL_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""What `tokenizers` cuts by where a `ByteLevel` step uses its own pattern; kitoken has a shorter one."""


class _Unknown(Exception):
    """A vocabulary of which kitoken is not known to agree."""


def faster(reference: HuggingFaceTokenizer) -> Tokenizer:
    """The reference, with kitoken before it if that is installed."""
    return FasterTokenizer(reference) if find_spec("kitoken") else reference


class FasterTokenizer:
    """A `Tokenizer` that may be used by several threads at once; `engine` says what became of kitoken."""

    def __init__(self, reference: HuggingFaceTokenizer, *, worthwhile: int = WORTHWHILE) -> None:
        self.reference = reference
        self._worthwhile = worthwhile
        self._seen = 0
        self._lock = threading.Lock()
        self._loaded = False
        self._fast: kitoken.Kitoken | None = None
        self._first_differs = False
        self._known: set[str] | None = None

    @property
    def engine(self) -> str:
        self._load_once()
        if self._fast is None:
            return self.reference.engine
        return f"kitoken {version('kitoken')}, agreeing with {self.reference.engine}"

    @property
    def controls(self) -> Mapping[str, Control]:
        return self.reference.controls

    @property
    def unknown(self) -> int | None:
        return self.reference.unknown

    def encode(self, text: str, *, first: bool = False) -> list[int]:
        if not self._loaded:
            self._seen += len(text)
            if self._seen > self._worthwhile:
                self._load_once()
        if self._fast is None or (first and self._first_differs) or not self._is_known(text) or _is_risky(text):
            return self.reference.encode(text, first=first)
        try:
            return self._fast.encode(text, True)
        except ValueError:
            return self.reference.encode(text, first=first)

    def encode_with_places(self, text: str, *, first: bool = False) -> tuple[list[int], list[tuple[int, int]]]:
        return self.reference.encode_with_places(text, first=first)

    def token_bytes(self, token: int) -> bytes:
        return self.reference.token_bytes(token)

    def control_tokens(self) -> Mapping[str, int]:
        return self.reference.control_tokens()

    def _load_once(self) -> None:
        with self._lock:
            if not self._loaded:
                self._load()
                self._loaded = True

    def _load(self) -> None:
        import kitoken

        try:
            translated = _Translation(self.reference)
            fast = kitoken.Kitoken.from_tokenizers(json.dumps(translated.definition, ensure_ascii=False).encode())
            texts = probe(self.reference.controls)
            if any(fast.encode(text, True) != self.reference.encode(text) for text in texts):
                return
        except BaseException as error:
            if not isinstance(error, (_Unknown, ValueError)) and not is_panic(error):
                raise
            return
        self._first_differs = translated.first_differs
        self._known = set() if translated.has_tables else None
        self._fast = fast

    def _is_known(self, text: str) -> bool:
        """Whether kitoken's tables are sure to have all letters of a text as those of the reference do."""
        if self._known is None or text.isascii() or self._known.issuperset(text):
            return True
        letters = set(text)
        if not all(map(_is_settled, letters)):
            return False
        self._known |= letters
        return True


def _is_settled(letter: str) -> bool:
    """Whether a letter is one that no table of Unicode's can have in another way: one of an early version, or one that
    neither joins others nor is a digit."""
    if unicodedata.ucd_3_2_0.category(letter) not in ("Cn", "Cs"):
        return True
    return unicodedata.category(letter)[0] in "LSZ" and not unicodedata.decomposition(letter)


def _is_risky(text: str) -> bool:
    return len(text) >= LONGEST_SPACE and _LONG_SPACE.search(text) is not None


class _Translation:
    """A definition in the words that kitoken reads as `tokenizers` does. Raises `_Unknown`."""

    def __init__(self, reference: HuggingFaceTokenizer) -> None:
        definition = reference.definition()
        self.first_differs = False
        self.has_tables = False
        normalizers = [step for given in _steps(definition["normalizer"]) for step in self._normalizer(given)]
        steps = [step for given in _steps(definition["pre_tokenizer"]) for step in self._pre_tokenizer(given)]
        self.definition = {
            **definition,
            "added_tokens": _added(definition),
            "normalizer": {"type": "Sequence", "normalizers": normalizers} if normalizers else None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps} if steps else None,
        }
        _check_model(definition["model"], reference)

    def _normalizer(self, step: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        if step["type"] == "NFC":
            self.has_tables = True
        elif step["type"] != "Prepend" and not (step["type"] == "Replace" and "String" in step["pattern"]):
            raise _Unknown
        yield step

    def _pre_tokenizer(self, step: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        kind = step["type"]
        if kind == "Split":
            yield step
        elif kind == "Digits" and step["individual_digits"]:
            self.has_tables = True
            yield step
        elif kind == "Metaspace":
            self.first_differs = step["prepend_scheme"] == "first"
            yield {**step, "prepend_scheme": "never"} if self.first_differs else step
        elif kind == "ByteLevel" and not step["add_prefix_space"]:
            if step["use_regex"]:
                pattern = {"Regex": _BYTE_LEVEL_PATTERN}
                yield {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
            yield {**step, "use_regex": False}
        else:
            raise _Unknown


def _check_model(model: Mapping[str, Any], reference: HuggingFaceTokenizer) -> None:
    if model["type"] != "BPE" or model["dropout"] or model["continuing_subword_prefix"] or model["end_of_word_suffix"]:
        raise _Unknown
    exempt = BYTE_TOKENS if model["byte_fallback"] else frozenset[str]()
    if not merges_by_rank(
        model["vocab"],
        model["merges"],
        whole=model["ignore_merges"],
        encode=reference.merged,
        exempt=lambda word: word in exempt or reference.is_hidden(word),
    ):
        raise _Unknown


def _added(definition: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The added tokens, the longest first: in this order kitoken looks for them. One that a text may write and that is
    a word of the model's too, it takes for that word alone."""
    entries: list[Mapping[str, Any]] = definition["added_tokens"]
    words = definition["model"]["vocab"]
    for entry in entries:
        if entry["lstrip"] or entry["rstrip"] or entry["single_word"]:
            raise _Unknown
        if entry["content"] in words and not is_control(entry["content"], special=entry["special"]):
            raise _Unknown
    return sorted(entries, key=lambda entry: -len(entry["content"]))


def _steps(part: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    if part is None:
        return
    if part["type"] != "Sequence":
        yield part
    for step in (*part.get("normalizers", ()), *part.get("pretokenizers", ())):
        yield from _steps(step)


_PROBED_WORDS = re.findall(
    r"\S+",
    r"""Hello world I'LL don't 12345 3.14 x=[{'a':1}]; // fooBar_baz été Straße ﬁn½² Привет مرحبا עברית नमस्ते ไทย ſ'ſK
    你好世界 日本語カナ 한국어 🤦🏽‍♂️ 🇩🇪✈️ ▁▁ https://example.org/a?b=c&d=%20 {"k":"v\n"} <think""",
)
_PROBED_WORDS += ["e\u0301", "\u200d\u202e\ufeff", "\x00\x1f\x7f"]
_PROBED_SPACES = ["", " ", "  ", "     ", "\n", "\n\n", " \n", "\n  \n", "\r\n", "\t", "\t\t ", "\x0b\x85"]
_PROBED_SPACES += ["\u00a0", "\u3000 "]
_PROBED_CONTROLS = 100


def probe(controls: Mapping[str, Control]) -> Iterator[str]:
    """Some hundred short texts: words of many scripts between white space of all kinds, and spellings of controls."""
    following = _PROBED_WORDS[7:] + _PROBED_WORDS[:7]
    for (word, other), space in product(zip(_PROBED_WORDS, following, strict=True), _PROBED_SPACES):
        yield f"{word}{space}{other}{space}"
    yield from (letter * 70 for letter in "a -=\n\t1é的")
    for text in list(controls)[-_PROBED_CONTROLS:]:
        yield f"a {text}{text[1:]} {text[:-1]}"
