"""Tokenizers of tiktoken, mistral_common and SentencePiece: the ids are those of the libraries."""

from __future__ import annotations

import base64
import json
import shutil
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_tokenizers import PIECES, TEXTS
from vocabularies import mistral_files, mistral_model, qwen_pattern, qwen_ranks, qwen_tokens

from chatcodec import SourceError
from chatcodec.tokens.tokenizer import Tokenizer
from chatcodec.tokens.vocabularies.finding import as_tokenizer, find_tokenizer
from chatcodec.tokens.vocabularies.sentence_pieces import sentencepiece_tokenizer
from chatcodec.tokens.vocabularies.tiktoken_ranks import PATTERNS, TiktokenTokenizer, ranks_tokenizer

tiktoken = pytest.importorskip("tiktoken")

SPECIAL = {text: 248044 + place for place, text in enumerate(qwen_tokens())}


@cache
def encoding() -> Any:
    lines = qwen_ranks("qwen3.6").read_bytes().splitlines()
    ranks = {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, lines)}
    return tiktoken.Encoding("qwen3.6", pat_str=qwen_pattern("qwen3.6"), mergeable_ranks=ranks, special_tokens=SPECIAL)


@cache
def of_file() -> Tokenizer:
    return ranks_tokenizer(qwen_ranks("qwen3.6"), pattern=qwen_pattern("qwen3.6"), special_tokens=SPECIAL)


def assert_places(tokenizer: Tokenizer, text: str) -> None:
    ids, places = tokenizer.encode_with_places(text)
    assert ids == tokenizer.encode(text)
    assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()
    reached = 0
    for token, (start, end) in zip(ids, places, strict=True):
        assert start in (reached, reached - 1)
        assert tokenizer.token_bytes(token) in text[start:end].encode()
        reached = end
    assert reached == len(text)


@settings(max_examples=150, deadline=None)
@given(text=TEXTS | st.lists(PIECES | st.sampled_from(list(SPECIAL)), max_size=6).map("".join))
def test_ids_are_those_of_tiktoken(text: str) -> None:
    expected = encoding().encode_ordinary(text)
    assert of_file().encode(text) == expected
    assert as_tokenizer(encoding()).encode(text) == expected
    assert_places(of_file(), text)
    if not any(spelled in text for spelled in SPECIAL):
        whole = encoding().encode(f"<|im_start|>{text}<think>", allowed_special="all")
        assert [SPECIAL["<|im_start|>"], *expected, SPECIAL["<think>"]] == whole


def test_control_tokens_of_tiktoken() -> None:
    tokenizer = as_tokenizer(encoding())
    assert isinstance(tokenizer, TiktokenTokenizer)
    for one in (tokenizer, of_file()):
        assert one.control_tokens() == SPECIAL
        assert one.unknown is None
        assert one.token_bytes(SPECIAL["<|im_end|>"]) == b"<|im_end|>"
        assert one.token_bytes(10**9) == b""
        assert one.engine == f"tiktoken {tiktoken.__version__}"
        assert all(control.special and control.text == text for text, control in one.controls.items())


def test_special_tokens_of_the_config_beside_a_file_of_ranks(tmp_path: Path) -> None:
    shutil.copy(qwen_ranks("qwen"), tmp_path / "qwen.tiktoken")
    listed = {"151643": {"content": "<|endoftext|>", "special": True}, "151657": {"content": "<tool_call>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": listed}))
    tokenizer = ranks_tokenizer(tmp_path / "qwen.tiktoken", pattern="qwen2")
    assert tokenizer.control_tokens() == {"<|endoftext|>": 151643, "<tool_call>": 151657}
    assert not tokenizer.controls["<tool_call>"].special
    with pytest.raises(SourceError, match=r"pattern.*llama3"):
        find_tokenizer(tmp_path)
    with pytest.raises(SourceError, match="is a rank too"):
        ranks_tokenizer(tmp_path / "qwen.tiktoken", pattern="qwen2", special_tokens={"<s>": 5})
    with pytest.raises(SourceError, match=r"qwen\.tiktoken"):
        ranks_tokenizer(tmp_path / "qwen.tiktoken", pattern="(")
    (tmp_path / "tokenizer_config.json").write_text('{"added_tokens_decoder": [1]}')
    with pytest.raises(SourceError, match="added_tokens_decoder"):
        ranks_tokenizer(tmp_path / "qwen.tiktoken", pattern="qwen2")


def test_published_patterns() -> None:
    from tiktoken_ext import openai_public
    from transformers.convert_slow_tokenizer import TikTokenConverter
    from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

    assert PATTERNS["qwen2"] == PRETOKENIZE_REGEX == qwen_pattern("qwen")
    assert PATTERNS["llama3"] == TikTokenConverter().pattern
    source = Path(openai_public.__file__).read_text()
    for alternative in ("'(?i:[sdmt]|ll|ve|re)", r"\s++$|\s*[\r\n]"):
        assert alternative in source
        assert alternative in PATTERNS["cl100k_base"]
    for alternative in PATTERNS["o200k_base"].split(r"+(?i:'s|")[:1]:
        assert alternative in source
    for name, pattern in PATTERNS.items():
        ranks = {bytes([byte]): byte for byte in range(256)}
        assert tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={}).encode("a 1\n\n")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "no token for 256 bytes"),
        (b"IQ== 0\nIg== 1\n", "no token for 254 bytes"),
        (b"IQ== 0\nrubbish\n", "line 2"),
        (b"IQ== 0\nIQ 1\n", "line 2"),
        (b"IQ== 0\nIg== 0\n", "there twice"),
    ],
)
def test_a_damaged_file_of_ranks(data: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "x.tiktoken"
    path.write_bytes(data)
    with pytest.raises(SourceError, match=rf"x\.tiktoken.*{reason}"):
        ranks_tokenizer(path, pattern="gpt2")


@cache
def of_mistral(name: str) -> tuple[Tokenizer, Any]:
    mistral = pytest.importorskip("mistral_common.tokens.tokenizers.mistral")
    path = mistral_files()[name]
    return as_tokenizer(path), mistral.MistralTokenizer.from_file(str(path)).instruct_tokenizer.tokenizer


MISTRAL = ("tekken", "v1", "v3", "v7")


@pytest.mark.parametrize("name", MISTRAL)
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_ids_are_those_of_mistral_common(name: str, data: st.DataObject) -> None:
    tokenizer, theirs = of_mistral(name)
    spelled = st.sampled_from(list(islice(tokenizer.controls, 30)))
    text = data.draw(TEXTS | st.lists(PIECES | spelled, max_size=6).map("".join))
    assert tokenizer.encode(text) == theirs.encode(text, False, False)
    if name == "tekken":
        assert_places(tokenizer, text)


@pytest.mark.parametrize("name", MISTRAL)
def test_control_tokens_of_mistral_common(name: str) -> None:
    tokenizer, theirs = of_mistral(name)
    special = {theirs.id_to_piece(number): number for number in theirs.special_ids}
    assert special.items() <= tokenizer.control_tokens().items()
    assert tokenizer.unknown == theirs.unk_id
    assert tokenizer.token_bytes(theirs.eos_id) == b"</s>"


@pytest.mark.parametrize("name", ["tekken", "v3"])
def test_objects_of_mistral_common(name: str) -> None:
    mistral = pytest.importorskip("mistral_common.tokens.tokenizers.mistral")
    whole = mistral.MistralTokenizer.from_file(str(mistral_files()[name]))
    tokenizer, inner = of_mistral(name)
    for thing in (whole, whole.instruct_tokenizer, inner):
        given_tokenizer = as_tokenizer(thing)
        assert given_tokenizer.controls == tokenizer.controls
        assert given_tokenizer.encode("Hello [INST] world") == inner.encode("Hello [INST] world", False, False)
    with pytest.raises(SourceError, match="not a tokenizer that was read from a file"):
        as_tokenizer(mistral.MistralTokenizer.__new__(mistral.MistralTokenizer))


def test_a_model_of_sentencepiece_in_a_folder(tmp_path: Path) -> None:
    shutil.copy(mistral_model(), tmp_path / "tokenizer.model")
    each = find_tokenizer(tmp_path)
    assert each is not None
    assert each.encode("a") == each.encode("a", first=True)
    config = {"legacy": False, "added_tokens_decoder": {"32768": {"content": "<|im_end|>", "special": True}}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    first = find_tokenizer(tmp_path)
    assert first is not None
    assert first.encode("a") != first.encode("a", first=True) == each.encode("a")
    assert first.controls["<|im_end|>"].id == 32768


@pytest.mark.parametrize(
    "data", [b"", b"\n", b"rubbish" * 9, b"\n\x03\n\x01a", b"\x12\x02\x18\x01\n\x03\n\x01a", b"\xff" * 40, b"\n\x80"]
)
def test_a_damaged_model_of_sentencepiece(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(data)
    with pytest.raises(SourceError, match=r"tokenizer\.model"):
        sentencepiece_tokenizer(path)


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{}",
        '{"config": {}, "vocab": []}',
        '{"config": {"default_num_special_tokens": 3, "default_vocab_size": 5, "pattern": "."}, "vocab": 5}',
        '{"config": {"default_num_special_tokens": 3, "default_vocab_size": 5, "pattern": "."}, "vocab": [{}, {}]}',
        '{"config": {"default_num_special_tokens": 3, "default_vocab_size": 4, "pattern": "("}, '
        '"special_tokens": [], "vocab": [{"rank": 0, "token_bytes": "IQ=="}]}',
    ],
)
def test_a_damaged_tekken(text: str, tmp_path: Path) -> None:
    path = tmp_path / "tekken.json"
    path.write_text(text)
    with pytest.raises(SourceError, match=r"tekken\.json"):
        find_tokenizer(tmp_path)
