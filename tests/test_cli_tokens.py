"""Token ids on the command line: `encode --ids`, `decode --ids`, `show --tokens`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import vocabularies
from conversations import HELLO, WEATHER, assistant, call, thinking, user
from test_cli import COLOUR_VARIABLES, ESCAPES, STYLING, harmless, lines_of, on_terminal, terminal
from test_cli_decode import run

import chatcodec
from chatcodec import view

MARKERS = ["<|im_start|>", "<|im_end|>"]
TEMPLATE = """\
{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments|tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
TAGGED = """\
{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}\
<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
TALK = [user("Hello, the quick fox!"), assistant("The lazy  dog.\n"), user("東京 🎉<|im_end|>" + ESCAPES)]
Save = Callable[..., Path]


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in COLOUR_VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_of(tmp_path_factory.mktemp("model"), TEMPLATE)


def model_of(path: Path, template: str) -> Path:
    added = ["<tool_call>", "</tool_call>"]
    return vocabularies.folder(path, "neox", template=template, extra_special=MARKERS, extra_added=added)


@pytest.fixture(scope="module")
def codec(model: Path) -> chatcodec.Codec:
    return chatcodec.load(model)


@pytest.fixture
def save(tmp_path: Path) -> Save:
    def save(value: Any, name: str = "talk.json") -> Path:
        path = tmp_path / name
        path.write_bytes(value if isinstance(value, bytes) else json.dumps(value).encode())
        return path

    return save


# -- encode


def test_ids_are_the_librarys(model: Path, codec: chatcodec.Codec, save: Save) -> None:
    expected = codec.encode(TALK).ids
    for options in (["--ids"], ["--format", "ids"]):
        outcome = run("encode", model, save(TALK), *options)
        assert (outcome.code, outcome.err) == (0, "")
        assert outcome.out == json.dumps(expected) + "\n"
    plain = run("encode", model, save(TALK), "--ids", "--no-generation-prompt").out
    assert json.loads(plain) == codec.encode(TALK, add_generation_prompt=False).ids


def test_ids_of_json_lines(model: Path, codec: chatcodec.Codec, save: Save) -> None:
    path = save(lines_of([HELLO], b"{\n", [user("a\ud800b")], TALK), "talks.jsonl")
    outcome = run("encode", model, path, "--ids")
    assert outcome.code == 1
    found = [json.loads(line) for line in outcome.out.splitlines()]
    assert found == [codec.encode([HELLO]).ids, None, None, codec.encode(TALK).ids]
    reports = outcome.err.splitlines()
    assert reports[0].startswith(f"chatcodec: error: {path}:2:")
    assert reports[1].startswith(f"chatcodec: error: {path}:3: messages[0].content: ")


def test_json_with_ids(model: Path, codec: chatcodec.Codec, save: Save) -> None:
    prompt = codec.encode(TALK)
    document = json.loads(run("encode", model, save(TALK), "--format", "json", "--ids").out)
    assert document["text"] == prompt.text
    assert (document["ids"], document["sampled"]) == (prompt.ids, prompt.sampled)
    assert "ids" not in json.loads(run("encode", model, save(TALK), "--format", "json").out)


def test_json_with_ids_where_the_format_is_not_known(tmp_path: Path, save: Save) -> None:
    odd = model_of(tmp_path / "odd", "{{ messages|length }}")
    document = json.loads(run("encode", odd, save(TALK), "--format", "json", "--ids").out)
    assert (len(document["ids"]), document["sampled"]) == (1, None)


def test_what_content_spells(model: Path, codec: chatcodec.Codec, save: Save) -> None:
    path = save([user("a<|im_end|>")])
    ids = {how: run("encode", model, path, "--ids", "--special-in-content", how) for how in ("text", "allow", "error")}
    end = codec.tokenizer.control_tokens()["<|im_end|>"]
    assert [json.loads(ids[how].out).count(end) for how in ("text", "allow")] == [1, 2]
    assert ids["error"].code == 1
    assert f"{path}: messages[0].content: " in ids["error"].err


def test_a_tokenizer_of_its_own(model: Path, codec: chatcodec.Codec, save: Save, tmp_path: Path) -> None:
    alone = tmp_path / "alone.jinja"
    alone.write_text(TEMPLATE)
    path = save(TALK)
    for command in ("encode", "show"):
        outcome = run(command, alone, path, "--ids")
        assert (outcome.code, outcome.out) == (1, "")
        assert outcome.err.endswith("(on the command line: --tokenizer PATH)\n")
        assert run(command, alone, path).code == 0
    for tokenizer in (model, model / "tokenizer.json"):
        outcome = run("encode", alone, path, "--ids", "--tokenizer", tokenizer)
        assert json.loads(outcome.out) == codec.encode(TALK).ids
    lines = run("encode", alone, save(lines_of(TALK, TALK), "talks.jsonl"), "--ids")
    assert (lines.out, lines.err.count("\n")) == ("", 1)


@pytest.mark.parametrize(
    "argv",
    [
        ["encode", "-", "--ids", "--format", "text"],
        ["encode", "-", "--ids", "--format", "spans"],
        ["encode", "-", "--special-in-content", "maybe"],
        ["decode", "-", "--ids", "--stream"],
    ],
)
def test_usage_errors(model: Path, argv: list[str]) -> None:
    outcome = run(argv[0], model, *argv[1:])
    assert (outcome.code, outcome.out) == (2, "")
    assert "usage: chatcodec" in outcome.err


# -- decode


def test_ids_are_decoded(model: Path, codec: chatcodec.Codec, save: Save) -> None:
    answer = assistant("東京.", call("get_weather", {"city": "<|im_end|>"}))
    ids = codec.compose_ids(answer)
    outcome = run("decode", model, save(ids), "--ids")
    assert (outcome.code, outcome.err) == (0, "")
    assert json.loads(outcome.out) == codec.decode(ids)
    [made] = json.loads(outcome.out)["tool_calls"]
    assert json.loads(made["function"]["arguments"]) == {"city": "<|im_end|>"}


def test_ids_of_json_lines_are_decoded(model: Path, codec: chatcodec.Codec, save: Save) -> None:
    ids = codec.compose_ids(assistant("Hi."))
    prompt = codec.encode([WEATHER])
    given = [ids, {"output": ids, "prompt": prompt.ids}, {"output": ids, "prompt": prompt.text}, {"output": []}]
    bad: list[Any] = ["Hi.", {"output": "Hi."}, [1, -1], [True], {"output": ids, "prompt": ["x"]}, {"prompt": [1]}]
    path = save(lines_of(*given, *bad), "outs.jsonl")
    outcome = run("decode", model, path, "--ids")
    assert outcome.code == 1
    found = [json.loads(line) for line in outcome.out.splitlines()]
    assert [(message or {}).get("content") or "" for message in found] == ["Hi."] * 3 + [""] * (1 + len(bad))
    assert [message is None for message in found] == [False] * 4 + [True] * len(bad)
    reports = [line.partition(f"error: {path}:")[2].partition(":")[0] for line in outcome.err.splitlines()]
    assert reports == [str(number) for number in range(5, 5 + len(bad))]


@pytest.mark.parametrize("content", [b"7", b'["a"]', b"[1.5]", b'{"output": [1]}', b"Hi."])
def test_files_that_hold_no_ids(model: Path, save: Save, content: bytes) -> None:
    path = save(content, "ids.json")
    outcome = run("decode", model, path, "--ids")
    assert (outcome.code, outcome.out) == (1, "")
    assert re.match(rf"chatcodec: error: {path}:(1:1:)? (this is no list of token ids|not valid JSON)", outcome.err)


# -- show


def rows_of(out: str) -> list[tuple[list[str], list[str]]]:
    """The table: what the gutter says, and the tokens; of a line that goes on from the one before, no gutter."""
    table = out.partition("\n\n")[0]
    return [(gutter.split(), row.split(" ")) for gutter, row in (line.split(" │ ") for line in table.splitlines())]


@pytest.mark.parametrize("width", [0, 50, 80])
def test_tokens_are_shown(model: Path, codec: chatcodec.Codec, save: Save, width: int) -> None:
    prompt = codec.encode(TALK)
    outcome = run("show", model, save(TALK), "--tokens", "--width", width)
    assert (outcome.code, outcome.err) == (0, "")
    rows = rows_of(outcome.out)
    assert sum(len(tokens) for _, tokens in rows) == len(prompt.ids)
    assert (["0", "template", "[0]"], ["<|im_start|>"]) in rows
    assert any(gutter[1:] == ["assistant", "[1]", "●"] and "␣the" not in tokens for gutter, tokens in rows if gutter)
    sampled = [tokens for gutter, tokens in rows if gutter and gutter[-1] == "●"]
    assert sampled[-1] == ["<|im_end|>"]
    assert f"{len(prompt.ids)} tokens, of which the model writes {sum(prompt.sampled)} (●)" in outcome.out
    assert all(harmless(line) for line in outcome.out.split("\n"))
    if width:
        assert max(map(view.columns, outcome.out.split("\n"))) <= width


def test_parts_of_characters_are_shown_as_bytes(model: Path, codec: chatcodec.Codec, save: Save) -> None:
    out = run("show", model, save(TALK), "--tokens").out
    tokens = [token for _, row in rows_of(out) for token in row]
    parts = [token for token in tokens if re.fullmatch(r"⟨([0-9A-F]{2}:?)+⟩", token)]
    assert bytes.fromhex("".join(part[1:-1].replace(":", "") for part in parts)).decode() == "東京\x9b\u202e"
    assert "⟨U+001B⟩" in out


def test_ids_are_shown_a_line_each(model: Path, codec: chatcodec.Codec, save: Save) -> None:
    prompt = codec.encode(TALK)
    rows = rows_of(run("show", model, save(TALK), "--ids").out)
    assert [(int(gutter[0]), int(gutter[1])) for gutter, _ in rows] == list(enumerate(prompt.ids))
    assert [gutter[-1] == "●" for gutter, _ in rows] == prompt.sampled
    assert all(len(tokens) == 1 for _, tokens in rows)


def test_colours_tell_the_same(model: Path, save: Save) -> None:
    plain = run("show", model, save(TALK), "--tokens", "--width", 60).out
    coloured = run("show", model, save(TALK), "--tokens", "--width", 60, "--color", "always").out
    assert STYLING.sub("", coloured) == plain
    assert "\x1b[4;36m" in coloured  # underlined and of the assistant
    assert "\x1b[2;4m<|im_end|>" in coloured


def test_where_the_generation_tag_differs(tmp_path: Path, save: Save) -> None:
    out = run("show", model_of(tmp_path / "tagged", TAGGED), save([HELLO, assistant("Hi.")]), "--tokens").out
    assert "\nWhere the template's generation tag says otherwise:\n" in out
    assert re.search(r"^ +\d+–\d+ +not in the tag: <\|im_end\|>$", out, re.MULTILINE)


def test_what_was_dropped_is_told(model: Path, save: Save) -> None:
    out = run("show", model, save([HELLO, thinking("Hm.", "Hi.")]), "--tokens").out
    assert out.endswith("\nDropped by the template:\n  messages[1].reasoning_content\n")


def test_tokens_of_json_lines(model: Path, save: Save) -> None:
    path = save(lines_of([HELLO], b"{\n", [user("a\ud800b")], [HELLO]), "talks.jsonl")
    outcome = run("show", model, path, "--tokens")
    assert outcome.code == 1
    assert outcome.out.count("tokens, of which") == 2
    assert f"── {path}:1\n" in outcome.out
    assert f"error: {path}:3: messages[0].content: " in outcome.err


def test_a_token_longer_than_the_line_is_broken(tmp_path: Path, save: Save) -> None:
    long = "<|" + "x" * 70 + "|>"
    model = vocabularies.folder(tmp_path / "m", "neox", template=TEMPLATE, extra_special=[*MARKERS, long])
    out = run("show", model, save([user(f"a{long}b")]), "--tokens", "--special-in-content=allow", "--width=60").out
    assert max(map(view.columns, out.split("\n"))) <= 60
    table = out.partition("\n\n")[0]
    assert long in "".join(line.partition(" │ ")[2] for line in table.splitlines())


@terminal
def test_tokens_on_a_terminal_are_harmless(model: Path, save: Save) -> None:
    written = on_terminal("show", model, save(TALK), "--tokens")
    lines = STYLING.sub("", written).split("\n")
    assert all(harmless(line) for line in lines)
    assert max(map(view.columns, lines)) <= 60
