"""Where a tokenizer is found, and that the ids are those that transformers gives for the same folder."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from test_tokenizers import ADDED, controls_of, library_controls
from vocabularies import CHAT, folder, tokenizer_json, transformers_tokenizer, vocabularies

from chatcodec import SourceError
from chatcodec.tokens.tokenizer import Tokenizer
from chatcodec.tokens.vocabularies.finding import as_tokenizer, find_tokenizer
from chatcodec.tokens.vocabularies.tiktoken_ranks import ranks_tokenizer

TEXT = "It's <b>1234</b>  words,\n\nÿ été 你好 🎉 <think x\tdef f(a):\n        return a\n"


def loaded_by_transformers(path: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(path))


def assert_same(tokenizer: Tokenizer | None, theirs: Any) -> None:
    assert tokenizer is not None
    assert controls_of(tokenizer) == library_controls(theirs.backend_tokenizer)
    assert tokenizer.encode(TEXT, first=True) == theirs.encode(TEXT, add_special_tokens=False)
    for control in list(tokenizer.controls.values())[-8:]:
        if not (control.strip_left or control.strip_right or control.whole_word):
            expected = theirs.encode(f"{control.text}{TEXT}{control.text}", add_special_tokens=False)
            assert [control.id, *tokenizer.encode(TEXT), control.id] == expected


@pytest.mark.parametrize("name", vocabularies())
def test_a_folder_has_the_ids_of_transformers(name: str, tmp_path: Path) -> None:
    folder(tmp_path, name, template="{{ messages }}", extra_special=CHAT, extra_added=ADDED)
    theirs = loaded_by_transformers(tmp_path)
    assert_same(find_tokenizer(tmp_path), theirs)


def listed(text: str, **flags: bool) -> dict[str, Any]:
    plain = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    return {"content": text, **plain, **flags}


def typed(text: str, **flags: bool) -> dict[str, Any]:
    return {"__type": "AddedToken", **listed(text, **flags)}


CONFIGS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "no special tokens": {"added_tokens_decoder": {}},
    "tokens that the file lacks": {
        "added_tokens_decoder": {"902": listed("<c>", special=False), "900": listed("<a>"), "901": listed("<k>")}
    },
    "tokens with other flags": {
        "added_tokens_decoder": {
            "0": listed("<|endoftext|>"),
            "1": listed("<|padding|>", rstrip=True, special=False),
            "2": listed("<think>", lstrip=True, special=True),
        }
    },
    "named tokens": {"bos_token": "<s>", "eos_token": "<|endoftext|>", "pad_token": None, "image_token": "<image>"},
    "named tokens with flags": {
        "bos_token": typed("<s>", lstrip=True),
        "audio_token": typed("<audio>", special=False),
        "eos_token": typed("<|endoftext|>", rstrip=True),
    },
    "named tokens that are listed": {
        "added_tokens_decoder": {"900": listed("<s>", special=False, normalized=True), "901": listed("<e>")},
        "bos_token": "<s>",
        "eos_token": "<e>",
        "unk_token": "<u>",
    },
    "extra tokens": {"extra_special_tokens": ["<x>", "<y>", "<think>"], "eos_token": "<z>"},
    "extra tokens with names": {"extra_special_tokens": {"x_token": "<x>", "other": "<y>"}, "eos_token": "<z>"},
    "additional tokens": {"additional_special_tokens": ["<x>", "<y>"], "added_tokens_decoder": {"900": listed("<y>")}},
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_tokens_of_tokenizer_config(config: dict[str, Any], tmp_path: Path) -> None:
    folder(tmp_path, "neox", config=config)
    assert_same(find_tokenizer(tmp_path), loaded_by_transformers(tmp_path))


OLDER: dict[str, dict[str, Any]] = {
    "map": {"special_tokens_map.json": {"bos_token": "<s>", "eos_token": listed("<e>", rstrip=True)}},
    "map and list": {"special_tokens_map.json": {"additional_special_tokens": ["<x>", "<|endoftext|>"]}},
    "added": {"added_tokens.json": {"<new>": 930, "<newer>": 931, "<think>": 932}},
    "added and map": {
        "added_tokens.json": {"<new>": 931, "<s>": 930},
        "special_tokens_map.json": {"bos_token": "<s>", "sep_token": "<sep>"},
    },
    "a number that is taken": {"added_tokens.json": {"<new>": 0, "<newer>": 930}},
}


@pytest.mark.parametrize("beside", OLDER.values(), ids=OLDER)
@pytest.mark.parametrize("config", [{}, {"eos_token": "<end>"}, None])
def test_tokens_of_older_folders(beside: dict[str, Any], config: dict[str, Any] | None, tmp_path: Path) -> None:
    folder(tmp_path, "neox", config=config)
    if config is None:
        (tmp_path / "tokenizer_config.json").unlink()
    for file, value in beside.items():
        (tmp_path / file).write_text(json.dumps(value))
    assert_same(find_tokenizer(tmp_path), loaded_by_transformers(tmp_path))


@pytest.mark.parametrize("name", ["qwen", "llama", "neox"])
def test_objects_of_libraries(name: str) -> None:
    theirs = transformers_tokenizer(name, extra_special=CHAT)
    theirs.add_tokens(["<later>"], special_tokens=True)
    processor = type("SomeProcessor", (object,), {"__module__": "transformers.models.some", "tokenizer": theirs})()
    for thing in (theirs, theirs.backend_tokenizer, processor):
        tokenizer = as_tokenizer(thing)
        assert_same(tokenizer, theirs)
        assert "<later>" in tokenizer.controls
    assert as_tokenizer(tokenizer) is tokenizer


def test_files_of_a_folder_find_its_tokenizer(tmp_path: Path) -> None:
    folder(tmp_path, "neox", template="{{ messages }}", extra_special=CHAT)
    expected = as_tokenizer(tmp_path).control_tokens()
    for name in ("chat_template.jinja", "tokenizer_config.json", "tokenizer.json"):
        found = find_tokenizer(tmp_path / name)
        assert found is not None
        assert found.control_tokens() == expected
    assert as_tokenizer(str(tmp_path / "tokenizer.json")).control_tokens() == expected
    (tmp_path / "other.jinja").write_text("{{ messages }}")
    assert find_tokenizer(tmp_path / "other.jinja") is None


def test_tokenizer_json_wins(tmp_path: Path) -> None:
    folder(tmp_path, "neox")
    (tmp_path / "tekken.json").write_text("{}")
    (tmp_path / "tokenizer.model").write_bytes(b"rubbish")
    found = find_tokenizer(tmp_path)
    assert found is not None
    assert "<|endoftext|>" in found.controls


def test_where_there_is_none(tmp_path: Path) -> None:
    assert find_tokenizer(tmp_path) is None
    assert find_tokenizer(tmp_path / "chat_template.jinja") is None
    (tmp_path / "some.json").write_text('{"chat_template": "x"}')
    assert find_tokenizer(tmp_path / "some.json") is None
    for path in (tmp_path, tmp_path / "some.json", tmp_path / "nothing", "nothing/at/all"):
        with pytest.raises(SourceError, match=r"accepted are .*tokenizer\.json"):
            as_tokenizer(path)


@pytest.mark.parametrize("thing", [None, 5, object(), {"a": 1}, lambda text: [1]])
def test_what_is_no_tokenizer(thing: object) -> None:
    with pytest.raises(SourceError, match=r"is no tokenizer; accepted are"):
        as_tokenizer(thing)


def test_a_tokenizer_of_transformers_without_a_backend() -> None:
    slow = type("SlowTokenizer", (object,), {"__module__": "transformers.models.some"})()
    with pytest.raises(SourceError, match=r"SlowTokenizer.*accepted are"):
        as_tokenizer(slow)


def test_a_tokenizer_that_cannot_be_written_as_json() -> None:
    from tokenizers import Tokenizer as Library
    from tokenizers import pre_tokenizers

    class Own:
        def pre_tokenize(self, text: Any) -> None: ...

    library = Library.from_str(tokenizer_json("neox"))
    library.pre_tokenizer = pre_tokenizers.PreTokenizer.custom(Own())
    with pytest.raises(SourceError, match=r"cannot be written"):
        as_tokenizer(library)


@pytest.mark.parametrize(
    ("file", "data", "reason"),
    [
        ("tokenizer.json", "version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        ("tokenizer.json", "{", "JSON that cannot be read"),
        ("tokenizer_config.json", "[]", "an object was expected"),
        ("tokenizer_config.json", '{"added_tokens_decoder": 5}', "added tokens is damaged"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"a": {"content": "<s>"}}}', "added tokens is damaged"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"1": {"content": 5}}}', "added tokens is damaged"),
        ("special_tokens_map.json", "\x00", "JSON that cannot be read"),
        ("added_tokens.json", '{"<s>": {}}', "added tokens is damaged"),
    ],
)
def test_damaged_files(file: str, data: str, reason: str, tmp_path: Path) -> None:
    folder(tmp_path, "neox")
    (tmp_path / file).write_text(data)
    with pytest.raises(SourceError, match=re.escape(str(tmp_path)) + ".*" + re.escape(reason)):
        find_tokenizer(tmp_path)


def test_no_more_is_read_than_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder(tmp_path, "neox")
    monkeypatch.setattr("chatcodec.tokens.vocabularies.files.read.__defaults__", (1000,))
    monkeypatch.setattr("chatcodec.tokens.vocabularies.files.json_object.__defaults__", (1000,))
    with pytest.raises(SourceError, match="larger than the 1000 bytes"):
        find_tokenizer(tmp_path)


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_what_is_no_file(kind: str, tmp_path: Path) -> None:
    make = {"folder": os.mkdir, "pipe": os.mkfifo}[kind]
    make(tmp_path / "tokenizer.json")
    with pytest.raises(SourceError, match="not a file"):
        find_tokenizer(tmp_path)


def test_a_library_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder(tmp_path, "neox")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(SourceError, match=r"pip install 'chatcodec\[tokens\]'"):
        find_tokenizer(tmp_path)
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    (tmp_path / "x.tiktoken").write_bytes(b"".join(b"%b %d\n" % (b64encode(bytes([n])), n) for n in range(256)))
    with pytest.raises(SourceError, match=r"pip install 'chatcodec\[tiktoken\]'"):
        ranks_tokenizer(tmp_path / "x.tiktoken", pattern="gpt2")


def test_no_library_is_loaded_before_it_is_needed() -> None:
    libraries = "{'tokenizers', 'kitoken', 'tiktoken', 'sentencepiece', 'numpy', 'transformers'}"
    code = f"import sys, chatcodec.tokens.vocabularies.finding; print(*({libraries} & sys.modules.keys()))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []
