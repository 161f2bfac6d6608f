"""Sources: what is found where, what wins, and that only `SourceError` comes out of a damaged file."""

from __future__ import annotations

import json
import os
import struct
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chatcodec import sources
from chatcodec.errors import SourceError
from chatcodec.gguf_metadata import Array, read_metadata
from chatcodec.sources import Source, builtin_names, find

TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"
TOOL_USE = "{{ tools }}"
FILES = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

# A folder, written from a table: text as it is, anything else as JSON.


def write(folder: Path, files: dict[str, Any]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = content if isinstance(content, (str, bytes)) else json.dumps(content)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def fails(source: Any, *said: str, **options: Any) -> str:
    with pytest.raises(SourceError) as caught:
        find(source, **options)
    message = str(caught.value)
    for part in said:
        assert part in message
    return message


def only_source_errors(source: Any) -> Source | None:
    try:
        return find(source)
    except SourceError:
        return None


NAMED = [{"name": "default", "template": TEMPLATE}, {"name": "tool_use", "template": TOOL_USE}]

FOLDERS: dict[str, tuple[dict[str, Any], str, dict[str, str]]] = {
    "jinja": ({"chat_template.jinja": TEMPLATE}, "chat_template.jinja", {"default": TEMPLATE}),
    "jinja with named ones": (
        {"chat_template.jinja": TEMPLATE, "additional_chat_templates/tool_use.jinja": TOOL_USE},
        "chat_template.jinja",
        {"default": TEMPLATE, "tool_use": TOOL_USE},
    ),
    "named ones alone": (
        {"chat_templates/default.jinja": TEMPLATE, "chat_templates/tool_use.jinja": TOOL_USE},
        "chat_templates/default.jinja",
        {"default": TEMPLATE, "tool_use": TOOL_USE},
    ),
    "named default wins, as in transformers": (
        {"chat_template.jinja": "lost", "additional_chat_templates/default.jinja": TEMPLATE},
        "additional_chat_templates/default.jinja",
        {"default": TEMPLATE},
    ),
    "config": (
        {"tokenizer_config.json": {"chat_template": TEMPLATE}},
        "tokenizer_config.json, chat_template",
        {"default": TEMPLATE},
    ),
    "config with a list": (
        {"tokenizer_config.json": {"chat_template": NAMED}},
        "tokenizer_config.json, chat_template[name=default]",
        {"default": TEMPLATE, "tool_use": TOOL_USE},
    ),
    "jinja wins over the config": (
        {"chat_template.jinja": TEMPLATE, "tokenizer_config.json": {"chat_template": NAMED}},
        "chat_template.jinja",
        {"default": TEMPLATE},
    ),
    "config wins over a processor": (
        {
            "tokenizer_config.json": {"chat_template": TEMPLATE},
            "chat_template.json": {"chat_template": "lost"},
        },
        "tokenizer_config.json, chat_template",
        {"default": TEMPLATE},
    ),
    "processor_config": (
        {"processor_config.json": {"chat_template": TEMPLATE}, "tokenizer_config.json": {}},
        "processor_config.json, chat_template",
        {"default": TEMPLATE},
    ),
    "chat_template.json": (
        {"chat_template.json": {"chat_template": TEMPLATE}, "processor_config.json": {"chat_template": None}},
        "chat_template.json, chat_template",
        {"default": TEMPLATE},
    ),
    "chat_template.json with an object": (
        {"chat_template.json": {"chat_template": {"default": TEMPLATE, "tool_use": TOOL_USE}}},
        "chat_template.json, chat_template[name=default]",
        {"default": TEMPLATE, "tool_use": TOOL_USE},
    ),
}


@pytest.mark.parametrize("case", FOLDERS)
def test_folder(tmp_path: Path, case: str) -> None:
    files, found, templates = FOLDERS[case]
    source = find(write(tmp_path / "model-7b", files))
    assert source.template == TEMPLATE
    assert source.found == f"{tmp_path / 'model-7b'}{os.sep}{found}"
    assert source.templates == templates
    assert (source.name, source.template_name) == ("model-7b", "default")


def test_templates_by_name(tmp_path: Path) -> None:
    write(tmp_path, {"tokenizer_config.json": {"chat_template": NAMED}})
    assert find(tmp_path, template_name="tool_use").template == TOOL_USE
    assert find(tmp_path, template_name="tool_use").found.endswith("chat_template[name=tool_use]")
    fails(tmp_path, "rag", "default, tool_use", template_name="rag")
    fails(tmp_path, "default, tool_use", template_name="")


def test_no_default_among_templates(tmp_path: Path) -> None:
    write(tmp_path, {"chat_templates/tool_use.jinja": TOOL_USE})
    assert find(tmp_path).template_name == "tool_use"
    write(tmp_path, {"chat_templates/rag.jinja": TEMPLATE})
    fails(tmp_path, "rag, tool_use", "template_name")
    assert find(tmp_path, template_name="rag").template == TEMPLATE


def test_line_ends_of_a_file_are_read_as_transformers_reads_them(tmp_path: Path) -> None:
    write(tmp_path, {"chat_template.jinja": b"a\r\nb\rc\n"})
    assert find(tmp_path).template == "a\nb\nc\n"
    write(tmp_path / "json", {"tokenizer_config.json": {"chat_template": "a\r\nb"}})
    assert find(tmp_path / "json").template == "a\r\nb"


# Special tokens

PLAIN = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": None}
OBJECTS = {
    "bos_token": {"__type": "AddedToken", "content": "<s>", "lstrip": False},
    "eos_token": {"content": "</s>"},
    "pad_token": None,
}
BOTH = {"bos_token": "<s>", "eos_token": "</s>"}

TOKENS: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "plain": ({"tokenizer_config.json": PLAIN}, BOTH),
    "objects": ({"tokenizer_config.json": OBJECTS}, BOTH),
    "map alone": ({"special_tokens_map.json": OBJECTS}, BOTH),
    "map wins over an old config": (
        {"tokenizer_config.json": {"bos_token": "<x>"}, "special_tokens_map.json": OBJECTS},
        BOTH,
    ),
    "map is not asked beside added_tokens_decoder": (
        {
            "tokenizer_config.json": {**PLAIN, "added_tokens_decoder": {}},
            "special_tokens_map.json": {"bos_token": "<x>"},
        },
        BOTH,
    ),
    "named ones of the model": (
        {
            "tokenizer_config.json": {
                **PLAIN,
                "image_token": "<img>",
                "add_bos_token": True,
                "extra_special_tokens": {"audio_token": "<audio>"},
                "additional_special_tokens": ["<nameless>"],
            }
        },
        {**BOTH, "image_token": "<img>", "audio_token": "<audio>"},
    ),
    "extra tokens as a list have no names": (
        {"tokenizer_config.json": {**PLAIN, "extra_special_tokens": ["<a>", "<b>"]}},
        BOTH,
    ),
}


@pytest.mark.parametrize("case", TOKENS)
def test_special_tokens(tmp_path: Path, case: str) -> None:
    files, tokens = TOKENS[case]
    write(tmp_path, {"chat_template.jinja": TEMPLATE, **files})
    assert find(tmp_path).special_tokens == tokens
    assert find(tmp_path / "chat_template.jinja").special_tokens == tokens


# Stops

DECODER = {"1": {"content": "<s>"}, "2": {"content": "</s>"}, "7": {"content": "<|eot|>", "special": True}}
TOKENIZER = {"version": "1.0", "added_tokens": [{"id": int(i), **token} for i, token in DECODER.items()]}

STOPS: dict[str, tuple[dict[str, Any], tuple[str, ...], tuple[int, ...]]] = {
    "none": ({}, (), ()),
    "eos_token without ids": ({"tokenizer_config.json": PLAIN}, ("</s>",), ()),
    "eos_token": (
        {"tokenizer_config.json": {**PLAIN, "added_tokens_decoder": DECODER}},
        ("</s>",),
        (2,),
    ),
    "one id": (
        {
            "tokenizer_config.json": {**PLAIN, "added_tokens_decoder": DECODER},
            "generation_config.json": {"eos_token_id": 7},
        },
        ("<|eot|>",),
        (7,),
    ),
    "several ids, in order, once": (
        {
            "tokenizer_config.json": {**PLAIN, "added_tokens_decoder": DECODER},
            "generation_config.json": {"eos_token_id": [7, 2, 7]},
        },
        ("<|eot|>", "</s>"),
        (7, 2),
    ),
    "ids told by tokenizer.json": (
        {
            "tokenizer_config.json": PLAIN,
            "tokenizer.json": TOKENIZER,
            "generation_config.json": {"eos_token_id": [2, 7]},
        },
        ("</s>", "<|eot|>"),
        (2, 7),
    ),
    "eos_token told by tokenizer.json": (
        {"tokenizer_config.json": PLAIN, "tokenizer.json": TOKENIZER},
        ("</s>",),
        (2,),
    ),
    "unknown ids stay ids": (
        {"tokenizer_config.json": PLAIN, "generation_config.json": {"eos_token_id": [99, 100]}},
        ("</s>",),
        (99, 100),
    ),
    "generation_config without stops": (
        {"tokenizer_config.json": PLAIN, "generation_config.json": {"eos_token_id": None}},
        ("</s>",),
        (),
    ),
}


@pytest.mark.parametrize("case", STOPS)
def test_stops(tmp_path: Path, case: str) -> None:
    files, stops, ids = STOPS[case]
    source = find(write(tmp_path, {"chat_template.jinja": TEMPLATE, **files}))
    assert (source.stops, source.stop_ids) == (stops, ids)


def test_tokenizer_json_is_read_no_further_than_its_added_tokens(tmp_path: Path) -> None:
    broken_behind = json.dumps(TOKENIZER)[:-1] + ', "model": {{{'
    write(tmp_path, {"chat_template.jinja": TEMPLATE, "tokenizer_config.json": PLAIN})
    write(tmp_path, {"tokenizer.json": broken_behind})
    assert find(tmp_path).stop_ids == (2,)


# Single files


@pytest.mark.parametrize("name", ["my.jinja", "my.jinja2", "my.j2", "my.txt", "MY.JINJA"])
def test_template_file(tmp_path: Path, name: str) -> None:
    write(tmp_path, {name: TEMPLATE, "tokenizer_config.json": "not looked at"})
    source = find(str(tmp_path / name))
    path = tmp_path / name
    assert source == Source(name, TEMPLATE, str(path), "default", {"default": TEMPLATE}, {}, (), (), path)


def test_config_file_brings_what_is_beside_it(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "tokenizer_config.json": {"chat_template": NAMED, "bos_token": "<s>"},
            "chat_template.jinja": "not asked for",
            "special_tokens_map.json": {"eos_token": "</s>"},
            "tokenizer.json": TOKENIZER,
            "generation_config.json": {"eos_token_id": [7]},
        },
    )
    source = find(tmp_path / "tokenizer_config.json", template_name="tool_use")
    assert source.template == TOOL_USE
    assert source.special_tokens == BOTH
    assert (source.stops, source.stop_ids) == (("<|eot|>",), (7,))


def test_processor_file_takes_the_tokens_of_its_folder(tmp_path: Path) -> None:
    write(tmp_path, {"chat_template.json": {"chat_template": TEMPLATE}, "tokenizer_config.json": PLAIN})
    source = find(tmp_path / "chat_template.json")
    assert (source.template, source.special_tokens) == (TEMPLATE, BOTH)


def test_bytes_and_relative_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"chat_template.jinja": TEMPLATE})
    monkeypatch.chdir(tmp_path)
    assert find(".").name == tmp_path.name
    assert find(os.fsencode(tmp_path)).template == TEMPLATE  # type: ignore[arg-type]


# Built-in formats


@pytest.fixture
def builtin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    package = tmp_path / "package"
    monkeypatch.setattr(sources.resources, "files", lambda name: package)
    package.mkdir()
    return package


def test_builtin(builtin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    formats = {"telechat3": {"special_tokens": {"eos_token": "<_end>"}, "stops": ["<_end>"], "stop_ids": [2]}}
    write(builtin, {"builtin/telechat3.jinja": TEMPLATE, "builtin/step3-vl.jinja": TOOL_USE})
    assert builtin_names() == ("step3-vl", "telechat3")
    assert find("telechat3").special_tokens == {}
    write(builtin, {"builtin/formats.json": formats})
    source = find("telechat3")
    assert (source.name, source.template, source.template_name) == ("telechat3", TEMPLATE, "default")
    assert (source.special_tokens, source.stops, source.stop_ids) == (
        {"eos_token": "<_end>"},
        ("<_end>",),
        (2,),
    )
    assert find("step3-vl").stops == ()
    fails(Path("telechat3"), "no such file")

    write(tmp_path / "telechat3", {"chat_template.jinja": "the folder's"})
    monkeypatch.chdir(tmp_path)
    assert find("telechat3").template == "the folder's"


def test_without_any_builtin(builtin: Path) -> None:
    assert builtin_names() == ()
    fails("telechat3", "no such file or folder", "no built-in format")


def test_the_package_has_its_own_formats() -> None:
    for name in builtin_names():
        assert find(name).template.strip()


# What is wrong is told


def test_not_found(builtin: Path, tmp_path: Path) -> None:
    write(builtin, {"builtin/telechat3.jinja": TEMPLATE})
    fails("nothing-here", "nothing-here", "telechat3", ".jinja", "tokenizer_config.json", ".gguf")
    fails("org/model", "download")
    fails("{% for m in messages %}{{ m }}{% endfor %}" * 100, "template's own text")
    fails(tmp_path / "x" / "y", "no such file")
    fails("", "empty name")
    for source in ("a\0b", "\udc80", "x" * 5000, "/" * 5000, None, 7, "\ud800"):
        fails(source)


def test_folder_without_a_template(tmp_path: Path) -> None:
    files = {"tokenizer_config.json": PLAIN, "model-q4.gguf": "", "weights.bin": "", "config.json": {}}
    message = fails(write(tmp_path, files), "chat_template.jinja", "chat_template.json", "model-q4.gguf")
    assert "weights.bin" not in message
    fails(write(tmp_path / "empty", {"weights.bin": ""}), "nothing")


def test_config_without_a_template_points_to_the_jinja_file(tmp_path: Path) -> None:
    write(tmp_path, {"tokenizer_config.json": PLAIN})
    fails(tmp_path / "tokenizer_config.json", "no key 'chat_template'", "accepted")
    write(tmp_path, {"chat_template.jinja": TEMPLATE})
    fails(tmp_path / "tokenizer_config.json", "give the folder")


GOOD = {"chat_template.jinja": TEMPLATE}
DAMAGED: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "empty template": ({"chat_template.jinja": " \n"}, ("chat_template.jinja", "empty")),
    "latin-1 template": ({"chat_template.jinja": b"a\nb\xe9"}, ("chat_template.jinja, line 2", "UTF-8")),
    "utf-16 template": ({"chat_template.jinja": "ab".encode("utf-16")}, ("UTF-8",)),
    "LFS pointer": (
        {"chat_template.jinja": "version https://git-lfs.github.com/spec/v1\n"},
        ("git lfs pull",),
    ),
    "template is a folder": ({"chat_template.jinja/x": ""}, ("chat_template.jinja", "a folder")),
    "named template is a folder": ({"chat_templates/a.jinja/x": ""}, ("a.jinja", "a folder")),
    "config is a folder": ({**GOOD, "tokenizer_config.json/x": ""}, ("tokenizer_config.json", "a folder")),
    "config cut short": (
        {"tokenizer_config.json": '{"bos_token": "<s>",\n "chat_template'},
        ("tokenizer_config.json, line 2, column 2", "not valid JSON"),
    ),
    "config of another type": ({"tokenizer_config.json": [1]}, ("an object was expected", "a list")),
    "config too deep": ({"tokenizer_config.json": "[" * 200_000}, ("tokenizer_config.json",)),
    "number too long": ({"tokenizer_config.json": "9" * 10_000}, ("tokenizer_config.json",)),
    "template is a number": ({"tokenizer_config.json": {"chat_template": 5}}, ("a number, not text",)),
    "list of other things": ({"tokenizer_config.json": {"chat_template": ["x"]}}, ("'name'",)),
    "named template is null": (
        {"tokenizer_config.json": {"chat_template": [{"name": "rag"}]}},
        ("rag", "null, not text"),
    ),
    "special token is a list": (
        {**GOOD, "tokenizer_config.json": {"bos_token": []}},
        ("bos_token", "a list"),
    ),
    "special token without content": (
        {**GOOD, "special_tokens_map.json": {"eos_token": {"lstrip": True}}},
        ("eos_token", "an object"),
    ),
    "broken special_tokens_map": ({**GOOD, "special_tokens_map.json": "{"}, ("special_tokens_map.json",)),
    "broken generation_config": ({**GOOD, "generation_config.json": "x"}, ("generation_config.json",)),
    "stop id is text": ({**GOOD, "generation_config.json": {"eos_token_id": "2"}}, ("eos_token_id",)),
    "stop id is true": ({**GOOD, "generation_config.json": {"eos_token_id": [True]}}, ("eos_token_id",)),
    "added_tokens_decoder is a list": (
        {**GOOD, "tokenizer_config.json": {"eos_token": "x", "added_tokens_decoder": []}},
        ("added_tokens_decoder", "a list"),
    ),
    "added token without a number": (
        {**GOOD, "tokenizer_config.json": {"eos_token": "x", "added_tokens_decoder": {"²": "x"}}},
        ("added token",),
    ),
    "added_tokens broken": (
        {**GOOD, "tokenizer_config.json": {"eos_token": "x"}, "tokenizer.json": '{"added_tokens": [{]}'},
        ("tokenizer.json, line 1",),
    ),
    "added_tokens of another type": (
        {**GOOD, "tokenizer_config.json": {"eos_token": "x"}, "tokenizer.json": {"added_tokens": [[]]}},
        ("tokenizer.json", "not an object"),
    ),
    "too many templates": ({f"chat_templates/{n}.jinja": "x" for n in range(65)}, ("65 templates",)),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_folder(tmp_path: Path, case: str) -> None:
    files, said = DAMAGED[case]
    fails(write(tmp_path, files), *said)


def test_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "TEMPLATE_LIMIT", 100)
    monkeypatch.setattr(sources, "JSON_LIMIT", 300)
    assert find(write(tmp_path, {"chat_template.jinja": "x" * 100})).template == "x" * 100
    fails(write(tmp_path, {"chat_template.jinja": "x" * 101}), "larger than the 100 bytes")
    fails(write(tmp_path / "a", {"tokenizer_config.json": {"chat_template": "x" * 101}}), "100 characters")
    fails(write(tmp_path / "b", {"tokenizer_config.json": {"chat_template": "x" * 400}}), "300 bytes")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_pipes_devices_and_dead_links(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "chat_template.jinja")
    fails(tmp_path, "a device or a pipe")
    fails(tmp_path / "chat_template.jinja", "a device or a pipe")
    fails("/dev/null", "a device or a pipe")
    write(tmp_path / "dead", {"x": ""})
    (tmp_path / "dead" / "chat_template.jinja").symlink_to("nowhere")
    fails(tmp_path / "dead", "chat_template.jinja", "No such file")
    (tmp_path / "loop").symlink_to("loop")
    fails(tmp_path / "loop", "loop")


def test_other_kinds_of_file(tmp_path: Path) -> None:
    write(tmp_path, {"model.safetensors": b"\0" * 20, "empty": b""})
    fails(tmp_path / "model.safetensors", "accepted are")
    fails(tmp_path / "empty", "accepted are")


def test_no_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Any, *_: Any, **__: Any) -> Any:
        raise PermissionError(13, "Permission denied", os.fspath(path))

    write(tmp_path, {"chat_template.jinja": TEMPLATE, "x.gguf": gguf({})})
    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", refuse)
        fails(tmp_path, "chat_template.jinja", "Permission denied")
    for call in ("stat", "listdir"):
        with monkeypatch.context() as patch:
            patch.setattr(sources.os, call, refuse)
            fails(tmp_path, str(tmp_path), "Permission denied")


# GGUF

U32, FLOAT, BOOL, STRING, ARRAY, U64 = 4, 6, 7, 8, 9, 10
CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def gguf(
    entries: dict[str, tuple[int, Any]] | list[tuple[str, tuple[int, Any]]],
    *,
    order: str = "<",
    version: int = 3,
    count: int | None = None,
) -> bytes:
    """A GGUF file: keys to (type, value), an array's value being (type, values)."""

    def text(value: str | bytes) -> bytes:
        data = value.encode() if isinstance(value, str) else value
        return struct.pack(order + "Q", len(data)) + data

    def body(kind: int, value: Any) -> bytes:
        if kind == STRING:
            return text(value)
        if kind == ARRAY:
            inner, values = value
            head = struct.pack(order + "IQ", inner, len(values))
            return head + b"".join(body(inner, item) for item in values)
        return struct.pack(order + CODES[kind], value)

    pairs = list(entries.items()) if isinstance(entries, dict) else entries
    head = b"GGUF" + struct.pack(order + "IQQ", version, 0, len(pairs) if count is None else count)
    return head + b"".join(
        text(key) + struct.pack(order + "I", kind) + body(kind, value) for key, (kind, value) in pairs
    )


VOCABULARY = ["<unk>", "<s>", "</s>", "a", "ß", "<|eot|>", "<|eom|>"]
FULL: dict[str, tuple[int, Any]] = {
    "general.architecture": (STRING, "llama"),
    "general.tags": (ARRAY, (STRING, ["x", "", "yz"])),
    "llama.rope": (FLOAT, 0.5),
    "llama.wide": (U64, 2**63),
    "tokenizer.ggml.tokens": (ARRAY, (STRING, VOCABULARY)),
    "tokenizer.ggml.scores": (ARRAY, (FLOAT, [0.0] * 7)),
    "tokenizer.ggml.bos_token_id": (U32, 1),
    "tokenizer.ggml.eos_token_id": (U32, 2),
    "tokenizer.ggml.unknown_token_id": (U32, 0),
    "tokenizer.ggml.padding_token_id": (U32, 2**32 - 1),
    "tokenizer.ggml.eot_token_id": (U32, 5),
    "tokenizer.ggml.eom_token_id": (U32, 6),
    "tokenizer.ggml.add_bos_token": (BOOL, True),
    "tokenizer.chat_template.tool_use": (STRING, TOOL_USE),
    "tokenizer.chat_templates": (ARRAY, (STRING, ["tool_use"])),
    "tokenizer.chat_template": (STRING, TEMPLATE),
}


def gguf_file(folder: Path, data: bytes, name: str = "model.gguf") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("name", ["model.gguf", "MODEL.GGUF", "sha256-0123"])
@pytest.mark.parametrize(("order", "version"), [("<", 2), ("<", 3), (">", 3)])
def test_gguf(tmp_path: Path, name: str, order: str, version: int) -> None:
    path = gguf_file(tmp_path, gguf(FULL, order=order, version=version) + b"tensors", name)
    source = find(path)
    assert (source.name, source.template, source.template_name) == (name, TEMPLATE, "default")
    assert source.found == f"{path}, tokenizer.chat_template"
    assert source.templates == {"default": TEMPLATE, "tool_use": TOOL_USE}
    assert source.special_tokens == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    assert source.stops == ("</s>", "<|eot|>", "<|eom|>")
    assert source.stop_ids == (2, 5, 6)
    assert find(path, template_name="tool_use").found == f"{path}, tokenizer.chat_template.tool_use"


def test_gguf_ids_without_their_texts(tmp_path: Path) -> None:
    entries = {key: value for key, value in FULL.items() if key != "tokenizer.ggml.tokens"}
    source = find(gguf_file(tmp_path, gguf(entries)))
    assert (source.special_tokens, source.stops, source.stop_ids) == ({}, (), (2, 5, 6))
    entries = {**FULL, "tokenizer.ggml.eos_token_id": (U32, 700), "tokenizer.ggml.eot_token_id": (5, -1)}
    source = find(gguf_file(tmp_path, gguf(entries)))
    assert (source.stops, source.stop_ids) == (("<|eom|>",), (700, 6))


def test_gguf_values(tmp_path: Path) -> None:
    scalars = {f"k{kind}": (kind, True if kind == BOOL else 1) for kind in CODES}
    path = gguf_file(tmp_path, gguf({**scalars, **FULL}))
    values = read_metadata(path, lambda key: True)
    assert values["k0"] == 1
    assert values["k7"] is True
    assert values["k12"] == 1.0
    assert values["llama.wide"] == 2**63
    assert list(values) == [*scalars, *FULL]
    tokens, scores = values["tokenizer.ggml.tokens"], values["tokenizer.ggml.scores"]
    assert isinstance(tokens, Array)
    assert isinstance(scores, Array)
    assert (len(tokens), len(scores)) == (7, 7)
    assert tokens.pick([5, -1, 4, 5, 0, 7]) == {0: "<unk>", 4: "ß", 5: "<|eot|>"}
    assert tokens.pick([]) == {}
    with pytest.raises(SourceError, match=r"tokenizer\.ggml\.scores.*not an array of strings"):
        scores.pick([0])
    assert read_metadata(path, lambda key: key == "llama.rope") == {"llama.rope": 0.5}


def test_gguf_cut_at_any_byte(tmp_path: Path) -> None:
    data = gguf(FULL)
    for length in range(len(data)):
        message = fails(gguf_file(tmp_path, data[:length]), "model.gguf")
        assert "GGUF" in message
    assert find(gguf_file(tmp_path, data))


HEAD = b"GGUF" + struct.pack("<I", 3)
KEY = struct.pack("<Q", 1) + b"k"
CHAT = "tokenizer.chat_template"
IDS = "tokenizer.ggml.bos_token_id"

BAD_GGUF: dict[str, tuple[bytes, tuple[str, ...]]] = {
    "other magic": (b"ggml" + gguf(FULL)[4:], ("b'ggml'", "b'GGUF'")),
    "LFS pointer": (b"version https://git-lfs.github.com/spec/v1\n", ("git lfs pull",)),
    "version 1": (gguf(FULL, version=1), ("version 1", "convert")),
    "version 4": (gguf(FULL, version=4), ("version 4",)),
    "version 0": (gguf(FULL, version=0), ("version 0",)),
    "big-endian version 4": (gguf(FULL, version=4, order=">"), ("version 4",)),
    "lying count": (gguf(FULL, count=2**63), (str(2**63), "entries")),
    "one too many": (gguf(FULL, count=len(FULL) + 1), ("claims to go on",)),
    "lying key length": (HEAD + struct.pack("<QQQ", 0, 1, 2**63), (str(2**63),)),
    "lying string length": (
        HEAD + struct.pack("<QQ", 0, 1) + KEY + struct.pack("<IQ", STRING, 2**63),
        ("claims to go on", "key 'k'"),
    ),
    "lying number of strings": (
        HEAD + struct.pack("<QQ", 0, 1) + KEY + struct.pack("<IIQ", ARRAY, STRING, 2**63),
        ("claims to go on",),
    ),
    "lying number of numbers": (
        HEAD + struct.pack("<QQ", 0, 1) + KEY + struct.pack("<IIQ", ARRAY, U64, 2**64 - 1),
        ("claims to go on",),
    ),
    "lying string in an array": (
        HEAD + struct.pack("<QQ", 0, 1) + KEY + struct.pack("<IIQQ", ARRAY, STRING, 1, 2**63) + b"x" * 90,
        ("claims to go on",),
    ),
    "array of arrays": (gguf({"k": (ARRAY, (ARRAY, [(U32, [1])]))}), ("array of arrays",)),
    "unknown type": (HEAD + struct.pack("<QQ", 0, 1) + KEY + struct.pack("<IQ", 77, 0), ("type 77",)),
    "unknown type in an array": (
        HEAD + struct.pack("<QQ", 0, 1) + KEY + struct.pack("<IIQ", ARRAY, 13, 0),
        ("type 13",),
    ),
    "key given twice": (gguf([("k", (U32, 1)), ("k", (U32, 2))]), ("'k'", "twice")),
    "key is not UTF-8": (HEAD + struct.pack("<QQ", 0, 1) + KEY[:-1] + b"\xff" + bytes(12), ("UTF-8",)),
    "template is not UTF-8": (gguf({CHAT: (STRING, b"\xff")}), (CHAT, "UTF-8")),
    "template is a number": (gguf({CHAT: (U32, 1)}), (CHAT, "not text")),
    "template is an array": (gguf({CHAT: (ARRAY, (STRING, ["x"]))}), (CHAT, "not text")),
    "template is empty": (gguf({CHAT: (STRING, "")}), (CHAT, "empty")),
    "template is too long": (gguf({CHAT: (STRING, "x" * (2**22 + 1))}), (CHAT, str(2**22))),
    "no template": (gguf({"general.architecture": (STRING, "clip")}), ("no chat template", CHAT)),
    "id is text": (gguf({**FULL, IDS: (STRING, "1")}), (IDS, "not a whole number")),
    "id is a float": (gguf({**FULL, IDS: (FLOAT, 1.0)}), (IDS, "not a whole number")),
    "id is a boolean": (gguf({**FULL, IDS: (BOOL, True)}), (IDS, "not a whole number")),
    "tokens are text": (gguf({**FULL, "tokenizer.ggml.tokens": (STRING, "x")}), ("not an array",)),
    "tokens are numbers": (gguf({**FULL, "tokenizer.ggml.tokens": (ARRAY, (U32, [1]))}), ("of strings",)),
}


@pytest.mark.parametrize("case", BAD_GGUF)
def test_bad_gguf(tmp_path: Path, case: str) -> None:
    data, said = BAD_GGUF[case]
    fails(gguf_file(tmp_path, data), "model.gguf", *said)


def grown(path: Path, size: int) -> Path:
    with open(path, "r+b") as file:
        file.truncate(size)
    return path


def test_gguf_of_gigabytes(tmp_path: Path) -> None:
    assert find(grown(gguf_file(tmp_path, gguf(FULL)), 8 << 30)).template == TEMPLATE


@pytest.mark.parametrize(
    "claim",
    [
        struct.pack("<IQ", STRING, 2**32),
        struct.pack("<IIQ", ARRAY, STRING, 2**29),
        struct.pack("<IIQ", ARRAY, U64, 2**29),
        struct.pack("<IIQQ", ARRAY, STRING, 2, 2**31),
    ],
)
def test_claims_that_a_sparse_file_bears_out(tmp_path: Path, claim: bytes) -> None:
    head = HEAD + struct.pack("<QQ", 0, 1) + KEY
    fails(grown(gguf_file(tmp_path, head + claim), 8 << 30), "past the", "that are read")


def test_zeros_without_end_are_not_read(tmp_path: Path) -> None:
    head = HEAD + struct.pack("<QQ", 0, 2**16)
    fails(grown(gguf_file(tmp_path, head), 8 << 30), "twice")


def test_metadata_larger_than_a_chunk(tmp_path: Path) -> None:
    tokens = [f"token {n} " + "x" * (n % 50) for n in range(50_000)]
    entries = {
        "tokenizer.ggml.tokens": (ARRAY, (STRING, tokens)),
        "long": (STRING, "y" * 3_000_000),
        "tokenizer.ggml.merges": (ARRAY, (STRING, tokens)),
        "tokenizer.ggml.eos_token_id": (U32, 49_999),
        CHAT: (STRING, TEMPLATE),
    }
    source = find(gguf_file(tmp_path, gguf(entries)))
    assert source.stops == (tokens[-1],)


# Nothing but SourceError


@FILES
@given(data=st.binary(max_size=200), name=st.sampled_from(["a.gguf", "a.jinja", "a.json", "a", "a.txt"]))
def test_random_bytes(tmp_path: Path, data: bytes, name: str) -> None:
    only_source_errors(gguf_file(tmp_path, data, name))


def mutations(data: bytes) -> st.SearchStrategy[bytes]:
    """The data with a few bytes changed, cut out, put in or repeated."""
    edit = st.tuples(
        st.integers(0, len(data)),
        st.integers(0, 12),
        st.one_of(st.binary(max_size=9), st.sampled_from([b"\xff" * 8, b"\0" * 8, b"[" * 50, b'"', b"null"])),
    )

    def apply(edits: Iterable[tuple[int, int, bytes]]) -> bytes:
        result = data
        for at, cut, new in edits:
            result = result[:at] + new + result[at + cut :]
        return result

    return st.lists(edit, min_size=1, max_size=4).map(apply)


@FILES
@given(data=st.one_of(mutations(gguf(FULL)), mutations(gguf(FULL, order=">"))))
def test_mutated_gguf(tmp_path: Path, data: bytes) -> None:
    only_source_errors(gguf_file(tmp_path, data))


@FILES
@given(data=mutations(json.dumps({"chat_template": NAMED, **OBJECTS, "added_tokens_decoder": DECODER}).encode()))
def test_mutated_config(tmp_path: Path, data: bytes) -> None:
    write(tmp_path, {"tokenizer_config.json": data, "generation_config.json": {"eos_token_id": [7, 9]}})
    only_source_errors(tmp_path)
    only_source_errors(tmp_path / "tokenizer_config.json")


config_keys = st.sampled_from(
    [f"{name}_token" for name in ("bos", "eos", "image")]
    + ["chat_template", "name", "template", "content", "default", "id", "0", "7", "eos_token_id"]
    + ["extra_special_tokens", "added_tokens_decoder", "added_tokens"]
)
config_files = st.sampled_from(
    [f"{name}.json" for name in ("tokenizer_config", "special_tokens_map", "generation_config")]
    + [f"{name}.json" for name in ("tokenizer", "chat_template", "processor_config")]
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(config_keys, inner, max_size=4),
    max_leaves=12,
)


@FILES
@given(files=st.dictionaries(config_files, st.dictionaries(config_keys, json_values, max_size=6)))
def test_any_json_in_the_files_of_a_folder(tmp_path_factory: Any, files: dict[str, Any]) -> None:
    folder = write(tmp_path_factory.mktemp("model"), {"chat_template.jinja": TEMPLATE, **files})
    only_source_errors(folder)
    for name in files:
        only_source_errors(folder / name)
    (folder / "chat_template.jinja").unlink()
    only_source_errors(folder)


# The oracles


@pytest.fixture(scope="module")
def make_tokenizer() -> Callable[..., Any]:
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")

    def make(**options: Any) -> Any:
        model = tokenizers.models.WordLevel({"<unk>": 0, "<s>": 1, "</s>": 2, "a": 3}, unk_token="<unk>")
        backend = tokenizers.Tokenizer(model)
        backend.add_special_tokens(["<unk>", "<s>", "</s>", "<|eot|>"])
        return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", **options)

    return make


def same_as_transformers(folder: Path) -> Source:
    import transformers

    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    source = find(folder)
    theirs = tokenizer.chat_template
    assert source.templates == ({"default": theirs} if isinstance(theirs, str) else theirs)
    assert source.special_tokens == tokenizer.special_tokens_map
    assert source.template == tokenizer.get_chat_template()
    if tokenizer.eos_token is not None:
        assert source.stops == (tokenizer.eos_token,)
        assert source.stop_ids == (tokenizer.eos_token_id,)
    return source


SAVED: dict[str, dict[str, Any]] = {
    "one template": {"chat_template": TEMPLATE},
    "several": {"chat_template": {"default": TEMPLATE, "tool_use": TOOL_USE}},
    "with tokens": {"chat_template": TEMPLATE, "bos_token": "<s>", "eos_token": "</s>"},
    "with tokens of its own": {
        "chat_template": TEMPLATE,
        "eos_token": "</s>",
        "extra_special_tokens": {"image_token": "<img>", "boi_token": "<s>"},
    },
    "with nameless tokens": {
        "chat_template": TEMPLATE,
        "eos_token": "<|eot|>",
        "extra_special_tokens": ["<x>", "<y>"],
    },
    "line ends": {"chat_template": "a\r\nb\rc\n"},
}


@pytest.mark.parametrize("jinja", [True, False])
@pytest.mark.parametrize("case", SAVED)
def test_saved_by_transformers(tmp_path: Path, make_tokenizer: Callable[..., Any], case: str, jinja: bool) -> None:
    tokenizer = make_tokenizer(**SAVED[case])
    tokenizer.save_pretrained(tmp_path, save_jinja_files=jinja)
    same_as_transformers(tmp_path)


OVERLAID: dict[str, dict[str, Any]] = {
    "jinja over config": {
        "chat_template.jinja": TEMPLATE,
        "tokenizer_config.json": {"chat_template": "lost"},
    },
    "named file over jinja": {
        "chat_template.jinja": "lost",
        "additional_chat_templates/default.jinja": TEMPLATE,
        "additional_chat_templates/rag.jinja": TOOL_USE,
    },
    "named files over the whole config": {
        "additional_chat_templates/default.jinja": TEMPLATE,
        "tokenizer_config.json": {"chat_template": NAMED},
    },
    "map over config": {
        "tokenizer_config.json": {"chat_template": TEMPLATE, "bos_token": "<unk>", "x_token": "<x>"},
        "special_tokens_map.json": {
            "bos_token": "<s>",
            "eos_token": {"content": "</s>"},
            "x_token": "<lost>",
        },
    },
    "map unsets": {
        "tokenizer_config.json": {"chat_template": TEMPLATE, "bos_token": "<s>"},
        "special_tokens_map.json": {"bos_token": None, "y_token": "<y>"},
    },
    "decoder hides the map": {
        "tokenizer_config.json": {
            "chat_template": TEMPLATE,
            "eos_token": {"__type": "AddedToken", "content": "</s>"},
            "image_token": {"__type": "AddedToken", "content": "<img>"},
            "added_tokens_decoder": {"2": {"content": "</s>", "special": True}},
        },
        "special_tokens_map.json": {"bos_token": "<s>"},
    },
    "bom and line ends": {"chat_template.jinja": b"\xef\xbb\xbfa\r\nb\r", "tokenizer_config.json": {}},
}


@pytest.mark.parametrize("case", OVERLAID)
def test_loaded_by_transformers(tmp_path: Path, make_tokenizer: Callable[..., Any], case: str) -> None:
    make_tokenizer().save_pretrained(tmp_path)
    write(tmp_path, OVERLAID[case])
    same_as_transformers(tmp_path)


@pytest.mark.parametrize("endianess", ["LITTLE", "BIG"])
def test_written_by_gguf(tmp_path: Path, endianess: str) -> None:
    gguf_package = pytest.importorskip("gguf")
    path = tmp_path / "model.gguf"
    writer = gguf_package.GGUFWriter(path, "llama", endianess=gguf_package.GGUFEndian[endianess])
    writer.add_tokenizer_model("llama")
    writer.add_token_list(VOCABULARY)
    writer.add_token_scores([0.0] * len(VOCABULARY))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_eot_token_id(5)
    writer.add_add_bos_token(True)
    writer.add_chat_template(NAMED)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    source = find(path)
    assert source.templates == {"default": TEMPLATE, "tool_use": TOOL_USE}
    assert source.special_tokens == BOTH
    assert (source.stops, source.stop_ids) == (("</s>", "<|eot|>"), (2, 5))


def test_nothing_heavy_is_imported() -> None:
    import subprocess

    program = "import sys, chatcodec.sources; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert not {"transformers", "tokenizers", "numpy", "rich", "chatcodec.gguf_metadata"} & set(loaded.split())
