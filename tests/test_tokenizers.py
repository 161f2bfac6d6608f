"""Tokenizers of Hugging Face's format: the ids are those of the library, save that no text spells a control token."""

from __future__ import annotations

import json
import re
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library
from vocabularies import CHAT, tokenizer_json, vocabularies

from chatcodec import SourceError
from chatcodec.tokens.tokenizer import Control, Tokenizer
from chatcodec.tokens.vocabularies.added import is_control
from chatcodec.tokens.vocabularies.finding import as_tokenizer
from chatcodec.tokens.vocabularies.hugging_face import HuggingFaceTokenizer

ADDED = ("<think>", "</think>")
BYTE_LEVEL = ("deepseek", "qwen", "qwen3.6", "neox", "digits")

WHITE_SPACE = "".join(filter(str.isspace, map(chr, range(0x3001)))).translate(dict.fromkeys(range(0x1C, 0x20)))
"""Unicode's, which is that of Rust."""

WORDS = re.findall(
    r"\S+",
    r"""hello Hello world,don't I'LL 12345 3.14 <think <|im <s </ ▁ ▁▁ _ \n {} [INST é ﬁ ½ ² ｜ 你好 世界 日本語 ｶﾞ
    한국어 नमस्ते ไทย العربية עברית 🤦🏽‍♂️ 👨‍👩‍👧 🇩🇪 ✈️
    https://example.org/a?b=c&d=%20 foo_bar <td> </td> <div> Ǆ ß İ ı σς ☃""",
)
ODD = ["e\u0301", "a\u0323\u0307", "\u1100\u1161\u11a8", "\u212b", "\u200d", "\ufeff", "\u00a0", "\u3000", "\u2028"]
ODD += ["\x00", "\x1f", "\x7f", "\u202e"]
SPACES = ["", " ", "  ", "    ", "\n", "\n\n", "\r\n", "\t", " \n ", "\t\t", "\n\n\n\n", " \u00a0"]
PIECES = st.sampled_from([*WORDS, *ODD]) | st.sampled_from(SPACES) | st.text(max_size=5)
TEXTS = st.lists(PIECES, max_size=8).map("".join)


@cache
def loaded(name: str) -> tuple[HuggingFaceTokenizer, Library]:
    text = tokenizer_json(name, extra_special=CHAT, extra_added=ADDED)
    return HuggingFaceTokenizer.from_json(text), Library.from_str(text)


def library_ids(library: Library, text: str) -> list[int]:
    return list(library.encode(text, add_special_tokens=False).ids)


def joined(tokenizer: Tokenizer, parts: list[str]) -> list[int]:
    """The ids of texts and control tokens, one after the other."""
    ids: list[int] = []
    controls: list[Control | None] = [tokenizer.controls.get(part) for part in parts]
    for place, (part, control) in enumerate(zip(parts, controls, strict=True)):
        if control:
            ids.append(control.id)
            continue
        before = controls[place - 1] if place else None
        behind = controls[place + 1] if place + 1 < len(parts) else None
        text = part.lstrip(WHITE_SPACE) if before and before.strip_right else part
        text = text.rstrip(WHITE_SPACE) if behind and behind.strip_left else text
        ids += tokenizer.encode(text, first=place == 0)
    return ids


@pytest.mark.parametrize("name", vocabularies())
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_ids_are_those_of_the_library(name: str, data: st.DataObject) -> None:
    tokenizer, library = loaded(name)
    spelled = [text for text in tokenizer.controls if not tokenizer.controls[text].whole_word][-12:]
    pattern = re.compile("|".join(map(re.escape, tokenizer.controls)))
    texts = TEXTS.filter(lambda text: text and not pattern.search(text))
    parts = data.draw(st.lists(st.sampled_from(spelled), max_size=2), "controls")
    for _ in range(data.draw(st.integers(1, 3), "turns")):
        parts += [data.draw(texts, "text"), data.draw(st.sampled_from(spelled), "control")]
    whole = "".join(parts)
    if [match[0] for match in pattern.finditer(whole)] == [part for part in parts if part in tokenizer.controls]:
        assert joined(tokenizer, parts) == library_ids(library, whole)


@pytest.mark.parametrize("name", vocabularies())
@settings(max_examples=60, deadline=None)
@given(text=TEXTS, first=st.booleans())
def test_places_are_of_the_text(name: str, text: str, first: bool) -> None:
    tokenizer, _ = loaded(name)
    ids, places = tokenizer.encode_with_places(text, first=first)
    assert ids == tokenizer.encode(text, first=first)
    assert len(ids) == len(places)
    assert all(0 <= start <= end <= len(text) for start, end in places)
    assert all(one[0] <= other[0] and one[1] <= other[1] for one, other in pairwise(places))
    if name in BYTE_LEVEL:
        reached = 0
        for start, end in places:
            assert start <= reached
            reached = max(reached, end)
        assert reached == len(text)


@pytest.mark.parametrize("name", BYTE_LEVEL)
@settings(max_examples=60, deadline=None)
@given(text=TEXTS)
def test_bytes_are_those_of_the_text(name: str, text: str) -> None:
    tokenizer, library = loaded(name)
    spelled = b"".join(map(tokenizer.token_bytes, tokenizer.encode(text)))
    normalized = library.normalizer.normalize_str(text) if library.normalizer else text
    assert spelled.replace(b" ", b"") == normalized.encode().replace(b" ", b"")
    assert name == "digits" or spelled == normalized.encode()


@pytest.mark.parametrize("name", vocabularies())
def test_no_text_spells_a_control_token(name: str) -> None:
    tokenizer, _ = loaded(name)
    forbidden = {token.id for token in tokenizer.controls.values()} - {tokenizer.unknown}
    for text in list(tokenizer.controls)[-200:]:
        for spelled in (text, f"a {text}{text} b", text[1:] + text):
            assert forbidden.isdisjoint(tokenizer.encode(spelled)), spelled
            assert forbidden.isdisjoint(tokenizer.encode(spelled, first=True)), spelled


@pytest.mark.parametrize("name", vocabularies())
def test_controls_are_those_of_the_library(name: str) -> None:
    tokenizer, library = loaded(name)
    assert controls_of(tokenizer) == library_controls(library)
    assert all(tokenizer.token_bytes(token.id) == text.encode() for text, token in tokenizer.controls.items())
    assert tokenizer.control_tokens() == {text: token.id for text, token in tokenizer.controls.items()}
    assert tokenizer.token_bytes(10**9) == b""
    assert re.fullmatch(r"tokenizers \d+\.\d+\.\d+", tokenizer.engine)


def controls_of(tokenizer: Tokenizer) -> set[Control]:
    return set(tokenizer.controls.values())


def library_controls(library: Library) -> set[Control]:
    return {
        Control(number, token.content, token.special, token.lstrip, token.rstrip, token.single_word)
        for number, token in library.get_added_tokens_decoder().items()
        if is_control(token.content, special=token.special)
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>", True),
        ("[INST]", True),
        ("｜DSML｜", True),
        ("<0x0A>", True),
        ("</dsml:", True),
        ("<tables>", True),
        ("<td", True),
        ("  ", False),
        ("\n\n", False),
        ("▁▁▁", False),
        ("word", False),
        ("ÿ", False),
        ("5", False),
        ("→", False),
        ("<td>", False),
        ("</h3>", False),
        ("<strong>", False),
    ],
)
def test_which_added_tokens_are_controls(text: str, expected: bool) -> None:
    assert is_control(text, special=False) is expected
    assert is_control(text, special=True)


def test_mere_text_among_the_added_tokens_is_text() -> None:
    tokenizer, library = loaded("neox")
    for text in ("a    b", "☃", "<td>x"):
        ids = tokenizer.encode(text)
        assert ids == library_ids(library, text)
        assert max(ids) >= 900
    (spaces,) = tokenizer.encode("    ")
    assert tokenizer.token_bytes(spaces) == b"    "


def test_a_control_token_that_the_model_has_as_a_word() -> None:
    """Unigram takes the word with the best score: one that is a control token must not be there to be taken."""
    definition = json.loads(tokenizer_json("unigram"))
    definition["model"]["vocab"] = [[piece, min(score, 0)] for piece, score in definition["model"]["vocab"]]
    tokenizer = HuggingFaceTokenizer(definition)
    assert tokenizer.controls["<s>"].id == 0
    assert 0 not in tokenizer.encode("<s>")
    whole = json.loads(tokenizer_json("digits"))
    number = len(whole["model"]["vocab"])
    whole["model"]["vocab"]["Ġ<s>"] = number
    whole["added_tokens"].append({**whole["added_tokens"][0], "id": number, "content": "Ġ<s>"})
    assert HuggingFaceTokenizer(whole).controls["Ġ<s>"].id == number


def test_a_control_token_that_spells_other_text_stays_a_word() -> None:
    definition = json.loads(tokenizer_json("neox"))
    words = definition["model"]["vocab"]
    merged = next(word for word in words if len(word) == 2)
    for word in ("!", merged):
        definition["added_tokens"].append({**definition["added_tokens"][0], "id": words[word], "content": word})
    tokenizer = HuggingFaceTokenizer(definition)
    assert tokenizer.controls["!"].id == words["!"]
    assert tokenizer.controls[merged].id == words[merged]
    assert tokenizer.encode("!") == [words["!"]]


@pytest.mark.parametrize("first", [False, True])
def test_a_space_that_the_vocabulary_puts_before_a_text(first: bool) -> None:
    tokenizer, _ = loaded("llama")
    ids, places = tokenizer.encode_with_places("~x", first=first)
    assert b"".join(map(tokenizer.token_bytes, ids)) == (b" ~x" if first else b"~x")
    assert places == ([(0, 0)] if first else []) + [(0, 1), (1, 2)]


def test_a_character_of_several_tokens_is_in_the_place_of_each() -> None:
    for name in ("deepseek", "llama"):
        tokenizer, _ = loaded(name)
        ids, places = tokenizer.encode_with_places("\U00013000x")
        assert places == [(0, 1)] * (len(ids) - 1) + [(1, 2)]


def test_a_mark_has_the_place_of_the_letter_that_it_is_joined_with() -> None:
    tokenizer, _ = loaded("qwen")
    assert tokenizer.encode_with_places("e\u0301!")[1] == [(0, 2), (2, 3)]
    assert tokenizer.encode_with_places("\u1100\u1161\u11a8!")[1][-1] == (3, 4)


def test_a_letter_that_stands_for_a_space_has_a_place() -> None:
    for name in ("llama", "llama-legacy"):
        tokenizer, _ = loaded(name)
        assert tokenizer.encode_with_places("~▁▁~")[1][-3:] == [(1, 2), (2, 3), (3, 4)]


def test_a_byte_without_a_token_has_no_place() -> None:
    definition = json.loads(tokenizer_json("neox"))
    model, lost = definition["model"], "\u0104"  # the byte 0x04
    model["vocab"] = {word: number for word, number in model["vocab"].items() if word != lost}
    definition["normalizer"] = None
    tokenizer = HuggingFaceTokenizer(definition)
    assert tokenizer.encode_with_places("#\x04*é\x04~") == (
        tokenizer.encode("#*é~"),
        [(0, 1), (2, 3), *[(3, 4)] * (len(tokenizer.encode("é"))), (5, 6)],
    )


def test_of_a_tag_the_counterpart_tells() -> None:
    definition = json.loads(tokenizer_json("llama"))
    definition["added_tokens"][-1]["special"] = False
    tokenizer = HuggingFaceTokenizer(definition)
    assert definition["added_tokens"][-1]["content"] == "</s>"
    assert tokenizer.controls["</s>"] == Control(2, "</s>", special=False)


@pytest.mark.parametrize("name", vocabularies())
@pytest.mark.parametrize("first", [False, True])
def test_half_a_surrogate_pair_is_no_text(name: str, first: bool) -> None:
    tokenizer, _ = loaded(name)
    for encode in (tokenizer.encode, tokenizer.encode_with_places):
        with pytest.raises(UnicodeEncodeError) as caught:
            encode("ab\ud800c", first=first)
        assert caught.value.start == 2


def test_nothing_is_added_or_cut() -> None:
    definition = json.loads(tokenizer_json("neox"))
    library = Library.from_str(json.dumps(definition))
    library.enable_truncation(2)
    library.enable_padding(length=9)
    library.post_processor = None
    tokenizer = HuggingFaceTokenizer.from_tokenizer(library)
    assert len(tokenizer.encode("main(args)")) == len(HuggingFaceTokenizer(definition).encode("main(args)")) > 2


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        "{}",
        '{"model": null}',
        '{"model": {}}',
        '{"model": {"vocab": 5}}',
        '{"model": {"vocab": [[]]}}',
        '{"model": {"vocab": {}}, "added_tokens": 5}',
        '{"model": {"vocab": {}}, "added_tokens": [5]}',
        '{"model": {"type": "BPE", "vocab": {"a": 0, "<s>": 1}, "merges": [5]}, "added_tokens": [{"content": "<s>"}]}',
        '{"model": {"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": 7}, "added_tokens": []}',
        '{"model": {"type": "BPE", "vocab": {"a": "b"}, "merges": []}, "added_tokens": []}',
        "[" * 100_000,
    ],
)
def test_a_damaged_file_is_an_error_that_names_it(text: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(text)
    with pytest.raises(SourceError, match=re.escape(str(path)) + "|no tokenizer there"):
        as_tokenizer(path)
