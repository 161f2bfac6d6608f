"""The command line as its users see it: what it prints where, its exit codes, that no message harms a terminal."""

from __future__ import annotations

import io
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from conversations import HELLO, TOOLS, WEATHER, S, call, conversation, result, system, thinking, user
from hypothesis import given
from hypothesis import strategies as st

import chatcodec
from chatcodec import demo, view
from chatcodec.cli import COMMANDS, main
from chatcodec.sources import builtin_names
from chatcodec.turn.explain import WIDTH, explain

COLOUR_VARIABLES = ("NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "COLUMNS")
STYLING = re.compile(r"\x1b\[[0-9;]*m")
GUTTER = " │ "
ESCAPES = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\x08\x00\x7f\u202e"
CALLS = thinking("Both.", "I look.", call("get_weather", {"city": "Paris", "days": 2}), call("now", {}, "call_2"))
TALK = conversation(S, WEATHER, CALLS, result("24", "call_1"), result("11", "call_2"), tools=TOOLS)


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Outcome]


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in COLOUR_VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the command line in this process."""

    def run(*argv: object, stdin: bytes = b"") -> Outcome:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        code = main([str(argument) for argument in argv])
        return Outcome(code, *capsys.readouterr())

    return run


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., Path]:
    """Writes a file of the test's: bytes and text as they are, anything else as JSON."""

    def save(value: Any, name: str = "conversation.json") -> Path:
        path = tmp_path / name
        text = value if isinstance(value, str | bytes) else json.dumps(value)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return save


def template(save: Callable[..., Path], text: str) -> Path:
    return save(text, "chat_template.jinja")


CONTENTS = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"


# -- encode


@pytest.mark.parametrize("name", builtin_names())
def test_encode_writes_the_prompt_to_the_byte(run: Run, save: Callable[..., Path], name: str) -> None:
    expected = chatcodec.load(name).encode(TALK["messages"], TALK["tools"]).text
    assert run("encode", name, save(TALK)) == (0, expected, "")


def test_a_bare_list_is_a_conversation(run: Run, save: Callable[..., Path]) -> None:
    assert run("encode", template(save, CONTENTS), save([HELLO])).out == "<user>Hello!"


def test_standard_input(run: Run, save: Callable[..., Path]) -> None:
    outcome = run("encode", template(save, CONTENTS), "-", stdin=b"\xef\xbb\xbf" + json.dumps([HELLO]).encode())
    assert outcome == (0, "<user>Hello!", "")


def test_line_ends_are_kept(run: Run, save: Callable[..., Path]) -> None:
    assert run("encode", template(save, CONTENTS), save([user("a\r\nb\rc\n")])).out == "<user>a\r\nb\rc\n"


def test_spans_tell_who_wrote_what(run: Run, save: Callable[..., Path]) -> None:
    out = run("encode", template(save, CONTENTS), save([user("a\tb\n")]), "--format", "spans").out
    rows = [line.split("\t") for line in out.splitlines()]
    assert rows == [
        ["0", "1", "template", '"<"'],
        ["1", "5", "messages[0].role", '"user"'],
        ["5", "6", "template", '">"'],
        ["6", "10", "messages[0].content", r'"a\tb\n"'],
    ]


def test_json_tells_text_spans_and_what_was_dropped(run: Run, save: Callable[..., Path]) -> None:
    messages = [HELLO, thinking("Hm.", "Hi."), user("?")]
    out = run("encode", template(save, CONTENTS), save(messages), "--format", "json").out
    document = json.loads(out)
    assert out.count("\n") == 1
    assert document["text"] == "<user>Hello!<assistant>Hi.<user>?"
    assert document["spans"][-1] == [32, 33, "messages[2].content"]
    assert document["dropped"] == ["messages[1].reasoning_content"]


def test_strict_refuses_what_would_be_dropped(run: Run, save: Callable[..., Path]) -> None:
    path = save([HELLO, {**thinking("Hm.", "Hi."), "refusal": "No."}, user("?")])
    outcome = run("encode", template(save, CONTENTS), path, "--strict")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.startswith(f"chatcodec: error: {path}: messages[1].refusal: ")


def test_generation_prompt(run: Run, save: Callable[..., Path]) -> None:
    source = template(save, "{{ messages[0].content }}{% if add_generation_prompt %}>{% endif %}")
    plain, closed = save([HELLO]), save({"messages": [HELLO], "add_generation_prompt": False}, "closed.json")
    assert run("encode", source, plain).out == "Hello!>"
    assert run("encode", source, plain, "--no-generation-prompt").out == "Hello!"
    assert run("encode", source, closed).out == "Hello!"
    assert run("encode", source, closed, "--generation-prompt").out == "Hello!>"


def test_template_variables_from_the_file_and_the_command_line(run: Run, save: Callable[..., Path]) -> None:
    source = template(save, "{{ messages[0].content }}{{ a }}{{ b }}{{ c }}")
    path = save({"messages": [user("")], "a": 1, "b": 1, "c": 1, "chat_template_kwargs": {"b": 2, "c": 2}})
    assert run("encode", source, path, "--set", "c=3").out == "123"
    assert run("encode", source, path, "--set", "c=x=y", "--set", 'b="4"', "--set", "a=null").out == "None4x=y"


def test_what_a_data_set_tells_beside_is_noted_once(run: Run, save: Callable[..., Path]) -> None:
    line = json.dumps({"messages": [HELLO], "id": 7, "strict": True}) + "\n"
    outcome = run("encode", template(save, CONTENTS), save(line * 3, "talks.jsonl"))
    assert (outcome.code, outcome.out) == (0, '"<user>Hello!"\n' * 3)
    assert outcome.err.count("\n") == 1
    assert "'id' is ignored" in outcome.err


def test_a_variable_that_the_template_never_reads_is_refused(run: Run, save: Callable[..., Path]) -> None:
    source = template(save, CONTENTS + "{{ enable_thinking }}")
    outcome = run("encode", source, save([HELLO]), "--set", "enable_thinkng=false")
    assert (outcome.code, outcome.out) == (1, "")
    assert "enable_thinkng" in outcome.err
    assert "those it reads: enable_thinking" in outcome.err


def test_tools_of_their_own_file(run: Run, save: Callable[..., Path]) -> None:
    source = template(save, CONTENTS + "{{ tools[0].function.name }}")
    other = {"messages": [HELLO], "tools": [{"type": "function", "function": {"name": "other"}}]}
    for tools in (TOOLS, {"tools": TOOLS}):
        outcome = run("encode", source, save(other), "--tools", save(tools, "tools.json"))
        assert outcome.out == "<user>Hello!get_weather"


def test_a_named_template(run: Run, save: Callable[..., Path], tmp_path: Path) -> None:
    named = [{"name": "default", "template": CONTENTS}, {"name": "loud", "template": "{{ messages[0].content|upper }}"}]
    save({"chat_template": named}, "tokenizer_config.json")
    assert run("encode", tmp_path, save([HELLO]), "--template", "loud").out == "HELLO!"
    assert run("encode", tmp_path, save([HELLO]), "--template", "none").code == 1


# -- many conversations


def lines_of(*values: Any) -> bytes:
    return b"".join(value if isinstance(value, bytes) else json.dumps(value).encode() + b"\n" for value in values)


def test_json_lines_give_one_line_each(run: Run, save: Callable[..., Path]) -> None:
    source = template(save, CONTENTS)
    path = save(lines_of([user("a\nb")], b"\n", {"messages": [user("c")]}), "talks.jsonl")
    assert run("encode", source, path).out == '"<user>a\\nb"\n"<user>c"\n'
    spans = [json.loads(line) for line in run("encode", source, path, "--format", "spans").out.splitlines()]
    assert ["".join(text for *_, text in line) for line in spans] == ["<user>a\nb", "<user>c"]
    documents = [json.loads(line) for line in run("encode", source, path, "--format", "json").out.splitlines()]
    assert [document["text"] for document in documents] == ["<user>a\nb", "<user>c"]


def test_json_lines_are_told_by_their_content(run: Run, save: Callable[..., Path]) -> None:
    source = template(save, CONTENTS)
    two = lines_of([user("a")], [user("b")])
    assert run("encode", source, "-", stdin=two).out == '"<user>a"\n"<user>b"\n'
    assert run("encode", source, "-", stdin=two.splitlines()[0]).out == "<user>a"
    assert run("encode", source, "-", "--lines", stdin=two.splitlines()[0]).out == '"<user>a"\n'
    assert run("encode", source, save(json.dumps([user("a")], indent=1))).out == "<user>a"


def test_a_bad_line_is_reported_and_the_rest_goes_on(run: Run, save: Callable[..., Path]) -> None:
    bad = [b'[{"role": }]\n', b"\xff\n", [], {"messages": "x"}, {"prompt": "x"}, 7, b"[" * 100_000 + b"\n"]
    path = save(lines_of([HELLO], *bad, [user("Bye.")]), "talks.jsonl")
    outcome = run("encode", template(save, CONTENTS), path)
    assert outcome.code == 1
    assert outcome.out.splitlines() == ['"<user>Hello!"', *["null"] * len(bad), '"<user>Bye."']
    reports = outcome.err.splitlines()
    assert [report.partition(f"error: {path}:")[2].partition(":")[0] for report in reports] == list("2345678")
    assert reports[0].startswith(f"chatcodec: error: {path}:2:11: not valid JSON")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_told_and_wiped_away(run: Run, save: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(lines_of(*[[HELLO]] * 1234, b"{\n"), "talks.jsonl")
    seconds = itertools.count()
    monkeypatch.setattr("chatcodec.cli.outputs.time.monotonic", lambda: next(seconds))
    monkeypatch.setattr(sys, "stderr", told := Terminal())
    outcome = run("encode", template(save, CONTENTS), path)
    assert (outcome.code, outcome.out.count("\n")) == (1, 1235)
    assert "\r1,234 prompts\r\x1b[Kchatcodec: error: " in told.getvalue()
    assert told.getvalue().endswith("\r\x1b[K")


# -- what goes wrong


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ('[\n {"role": "user",\n  oops}\n]', ":3:3: not valid JSON: "),
        ("", ":1:1: not valid JSON: nothing but space"),
        ('[{"role": "user",\n"content": "é"}]'.encode("latin-1"), ":2: not UTF-8 "),
        ("[]".encode("utf-16"), ":1: not UTF-8 "),
        ("[" * 100_000, ": JSON that cannot be read: "),
        ("7", ": neither a list nor an object; wanted is "),
        ('{"message": []}', ": an object without 'messages'; wanted is "),
        ('{"messages": [], "chat_template_kwargs": 1}', ": chat_template_kwargs is no object"),
        ('{"messages": [], "chat_template_kwargs": {"tools": []}}', ": 'tools' is no template variable"),
        ("[]", ": messages: "),
        ('[{"role": "user", "content": [{"type": "image_url"}]}]', ": messages[0]"),
    ],
)
@pytest.mark.parametrize("command", ["encode", "show"])
def test_wrong_input(run: Run, save: Callable[..., Path], command: str, content: str | bytes, complaint: str) -> None:
    path = save(content)
    outcome = run(command, "intellect-3", path)
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.startswith(f"chatcodec: error: {path}{complaint}")
    assert outcome.err.count("\n") == 1


def test_missing_files_and_sources(run: Run, save: Callable[..., Path], tmp_path: Path) -> None:
    missing = tmp_path / "missing.json"
    assert (
        run("encode", "step3-vl", missing).err
        == f"chatcodec: error: {missing}: cannot be read: No such file or directory\n"
    )
    assert run("encode", "step3-vl", tmp_path).code == 1
    outcome = run("encode", "step4", save([HELLO]))
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.startswith("chatcodec: error: step4: no such file or folder, and no built-in format")
    assert run("info", template(save, "{% if %}")).code == 1


def test_tools_that_are_no_list(run: Run, save: Callable[..., Path]) -> None:
    outcome = run("encode", "step3-vl", save([HELLO]), "--tools", save({"a": 1}, "tools.json"))
    assert outcome.code == 1
    assert "tools.json: wanted is a list of tools" in outcome.err


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["frobnicate"],
        ["encode"],
        ["encode", "step3-vl"],
        ["encode", "step3-vl", "-", "--format", "xml"],
        ["encode", "step3-vl", "-", "--set", "novalue"],
        ["encode", "step3-vl", "-", "--set", "=1"],
        ["encode", "step3-vl", "-", "--set", "messages=[]"],
        ["decode", "step3-vl"],
        ["decode", "step3-vl", "-", "--stream", "--lines"],
        ["decode", "step3-vl", "outputs.jsonl", "--stream"],
        ["decode", "step3-vl", "-", "--stream", "--full"],
        ["decode", "step3-vl", "-", "--prompt", "x", "--messages", "y"],
        ["decode", "step3-vl", "-", "--messages", "-"],
        ["decode", "step3-vl", "-", "--finish-reason", "eos"],
        ["format"],
        ["show", "step3-vl", "-", "--color", "sometimes"],
    ],
)
def test_usage_errors(run: Run, argv: list[str]) -> None:
    outcome = run(*argv)
    assert (outcome.code, outcome.out) == (2, "")
    assert "usage: chatcodec" in outcome.err


def test_errors_hold_no_control_characters(run: Run, save: Callable[..., Path]) -> None:
    refusing = template(save, "{{ raise_exception(messages[0].content) }}")
    for outcome in (
        run("encode", refusing, save([user("no\n" + ESCAPES)])),
        run("encode", "step3-vl", f"{ESCAPES.replace(chr(0), '')}.json"),
        run("encode", f"{ESCAPES}", save([HELLO])),
    ):
        assert outcome.code == 1
        assert harmless(outcome.err.removesuffix("\n"))


def test_lone_surrogates_do_no_harm(run: Run, save: Callable[..., Path]) -> None:
    source, path = template(save, CONTENTS), save([user("a\ud800b")])
    outcome = run("encode", source, path)
    assert outcome.out == r"<user>a\ud800b"
    assert "lone surrogates" in outcome.err
    for form in ("spans", "json"):
        outcome = run("encode", source, path, "--format", form)
        assert (outcome.code, outcome.err) == (0, "")
        assert r"a\ud800b" in outcome.out
    assert json.loads(outcome.out)["text"] == "<user>a\ud800b"
    assert "a⟨U+D800⟩b" in run("show", source, path).out


def test_interrupted(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("chatcodec.cli.encode.documents", lambda *_, **__: map(interrupt, [1]))
    assert run("encode", "step3-vl", "-") == (130, "", "")


# -- show


def gutters(out: str) -> Iterator[tuple[str, str]]:
    """The pieces of the plain view: a label and the text it reads as."""
    label, rows = "", list[str]()
    for line in [*out.splitlines(), f"end{GUTTER}"]:
        if GUTTER not in line:
            continue
        name, _, row = line.partition(GUTTER)
        if name.strip():
            if rows:
                yield label, view.reading(rows)
            label, rows = name.strip(), []
        rows.append(row)


def harmless(text: str) -> bool:
    return all(char.isprintable() for char in text)


def test_plain_view_names_the_writers(run: Run, save: Callable[..., Path]) -> None:
    outcome = run("show", "step3-vl", save(TALK))
    assert outcome.code == 0
    pieces = list(gutters(outcome.out))
    assert ("system", "You are S.") in pieces
    assert ("user", WEATHER["content"]) in pieces
    assert ("assistant", "Both.") in pieces
    assert ("assistant", '{"city": "Paris", "days": 2}') in pieces
    assert ("tool result", "24") in pieces
    assert ("tool definition", json.dumps(TOOLS[0])) in pieces


@pytest.mark.parametrize("name", builtin_names())
@pytest.mark.parametrize("width", [0, 1, 50, 100])
def test_plain_view_joined_is_the_prompt(run: Run, save: Callable[..., Path], name: str, width: int) -> None:
    messages = [
        system(" \t" + ESCAPES),
        WEATHER,
        CALLS,
        result("⏎⇥␣⟨U+41⟩ │ \n\n", "call_1"),
        result("長い" * 90, "call_2"),
    ]
    path = save({"messages": messages, "tools": TOOLS})
    outcome = run("show", name, path, "--width", width)
    expected = chatcodec.load(name).encode(messages, TOOLS).text
    assert "".join(text for _, text in gutters(outcome.out)) == expected
    assert all(harmless(line) for line in outcome.out.split("\n"))
    if width >= 50:
        assert max(map(view.columns, outcome.out.partition("\n\n")[0].split("\n"))) <= width


def test_coloured_view_shows_the_whole_prompt(run: Run, save: Callable[..., Path]) -> None:
    messages = [system("[bold]x[/bold] :smile: " + ESCAPES), user("  長い text " * 40 + "\t\n"), CALLS]
    expected = chatcodec.load("step3-vl").encode(messages, TOOLS).text
    outcome = run("show", "step3-vl", save({"messages": messages, "tools": TOOLS}), "--color=always", "--width=60")
    assert "\x1b[32m" in outcome.out
    plain = STYLING.sub("", outcome.out)
    assert all(harmless(line) for line in plain.split("\n"))
    legend, shown = plain.split("\n\n", 1)
    assert legend.startswith("■ template   ■ system   ■ user   ■ assistant")
    assert view.reading(shown.split("\n")) == expected
    assert max(map(view.columns, plain.split("\n"))) <= 60


def test_show_tells_what_was_dropped(run: Run, save: Callable[..., Path]) -> None:
    path = save([HELLO, thinking("Hm.", "Hi."), user("?")])
    for colour in ("never", "always"):
        out = STYLING.sub("", run("show", "telechat3", path, "--color", colour).out)
        assert out.endswith("\nDropped by the template:\n  messages[1].reasoning_content\n")


def test_show_of_json_lines(run: Run, save: Callable[..., Path]) -> None:
    path = save(lines_of([user("one")], b"{\n", [user("three")]), "talks.jsonl")
    outcome = run("show", template(save, CONTENTS), path)
    assert outcome.code == 1
    assert outcome.out.index(f"── {path}:1\n") < outcome.out.index("one") < outcome.out.index(f"── {path}:3\n")
    assert f"error: {path}:2:" in outcome.err


@pytest.mark.parametrize(
    ("message", "label"),
    [
        ({"role": "developer"}, "system"),
        ({"role": "function", "name": "f"}, "tool result"),
        ({"role": "critic"}, "other"),
    ],
)
def test_other_roles(run: Run, save: Callable[..., Path], message: dict[str, str], label: str) -> None:
    out = run("show", template(save, CONTENTS), save([HELLO, {**message, "content": "zq"}])).out
    assert [name for name, text in gutters(out) if "zq" in text] == [label]


@pytest.mark.parametrize(
    ("environment", "arguments", "coloured"),
    [
        ({}, [], False),
        ({}, ["--color=always"], True),
        ({"FORCE_COLOR": "1"}, [], True),
        ({"FORCE_COLOR": "0"}, [], False),
        ({"CLICOLOR_FORCE": "1"}, [], True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, [], False),
        ({"FORCE_COLOR": "1", "NO_COLOR": ""}, [], True),
        ({"FORCE_COLOR": "1"}, ["--color=never"], False),
        ({"NO_COLOR": "1", "TERM": "dumb"}, ["--color=always"], True),
    ],
)
def test_when_to_colour(
    run: Run,
    save: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    arguments: list[str],
    coloured: bool,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    out = run("show", "step3-vl", save([HELLO]), *arguments).out
    assert ("\x1b[" in out, GUTTER in out) == (coloured, not coloured)


def test_without_rich(run: Run, save: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)
    path = save([HELLO])
    plain = run("show", "step3-vl", path)
    assert plain.err == ""
    assert run("show", "step3-vl", path, "--color=always") == (0, plain.out, f"chatcodec: note: {view.INSTALL_HINT}\n")


# -- the view's own laws


@given(st.text() | st.text(" \n\t⏎␣⟨U+41⟩a", max_size=40), st.none() | st.integers(1, 12))
def test_marks_can_be_read_back(text: str, width: int | None) -> None:
    rows = view.rows_of(text)
    lines = ["".join(part.text for part in line) for row in rows for line in view.broken([view.Styled(row)], width)]
    assert view.reading(lines) == text
    assert all(harmless(line.replace("\u3000", "")) for line in lines)
    if width is not None:
        assert all(view.columns(line) <= max(width, 2) for line in lines)


@given(st.lists(st.tuples(st.sampled_from(view.Writer), st.sampled_from(['{"', '": "', '"]}', "a", "[", "\n", " x "]))))
def test_folding_keeps_the_text_and_who_wrote_it(pieces: list[tuple[view.Writer, str]]) -> None:
    given = [view.Piece(*piece) for piece in pieces]
    folded = view.folded(given)
    assert "".join(piece.text for piece in folded) == "".join(piece.text for piece in given)
    assert all(one.writer is not other.writer for one, other in itertools.pairwise(folded))
    before, after = ([piece.writer for piece in some for char in piece.text] for some in (given, folded))
    assert all(old is new or old is view.Writer.TEMPLATE for old, new in zip(before, after, strict=True))


# -- info and demo


def test_info_for_people(run: Run) -> None:
    out = run("info", "intellect-3").out
    assert re.search(r"^stops +<\|endoftext\|>, <\|user\|>, <\|observation\|>$", out, re.MULTILINE)
    assert re.search(r"^stop ids +151329, 151336, 151338$", out, re.MULTILINE)
    for label, _ in chatcodec.load("intellect-3").capabilities.lines():
        assert f"\n{label} " in out


def test_info_as_json(run: Run, save: Callable[..., Path], tmp_path: Path) -> None:
    named = [{"name": "default", "template": CONTENTS + "{{ mood }}"}, {"name": "rag", "template": CONTENTS}]
    save({"chat_template": named, "eos_token": "</s>"}, "tokenizer_config.json")
    facts = json.loads(run("info", tmp_path, "--json").out)
    assert facts["template_name"] == "default"
    assert facts["templates"] == ["default", "rag"]
    assert facts["special_tokens"] == {"eos_token": "</s>"}
    assert facts["stops"] == ["</s>"]
    assert facts["variables"] == ["mood"]
    assert facts["capabilities"]["system"] is True
    assert json.loads(run("info", tmp_path, "--template", "rag", "--json").out)["variables"] == []


def test_info_holds_no_control_characters(run: Run, save: Callable[..., Path], tmp_path: Path) -> None:
    save({"chat_template": CONTENTS, "eos_token": ESCAPES, "x_token": ESCAPES}, "tokenizer_config.json")
    assert all(harmless(line) for line in run("info", tmp_path).out.split("\n"))


def test_demo_walks_through_all_built_in_formats(run: Run) -> None:
    outcome = run("demo")
    assert (outcome.code, outcome.err) == (0, "")
    parts = re.split(r"^══ (.*)\n", outcome.out, flags=re.MULTILINE)
    assert parts[1::2] == list(builtin_names())
    for name, part in zip(parts[1::2], parts[2::2], strict=True):
        prompt = chatcodec.load(name).encode(demo.MESSAGES, demo.TOOLS)
        shown, heading, rest = part.partition("\nOf this conversation it drops:")
        assert "".join(text for _, text in gutters(shown)) == prompt.text
        assert heading
        assert ("assistant: reasoning_content" in rest) == any("reasoning" in path for path in prompt.dropped)


def streamed(part: str) -> dict[str, str]:
    """What the demo's stream says, by row."""
    _, _, rest = part.partition("characters at a time:\n")
    rows = (row for row in rest.partition("\n\n")[0].split("\n") if row)
    return {row[:WIDTH].strip(): row[WIDTH:] for row in rows}


@pytest.mark.parametrize("name", builtin_names())
def test_demo_decodes_a_stream_and_encodes_it_again(run: Run, name: str) -> None:
    out = run("demo", name).out
    turn = chatcodec.load(name).format
    assert explain(turn).partition("\n\n")[0] in out
    rows = streamed(out)
    assert all("│" in row for label, row in rows.items() if label != "end")
    joined = {label: row.replace("│", "") for label, row in rows.items()}
    assert joined == {
        **({"reasoning": "I need the weather of both cities."} if turn.reasoning else {}),
        "content": "Let me look.",
        "call 0": 'get_weather {"city": "Lisbon", "unit": "celsius"}',
        "call 1": 'get_weather {"city": "Oslo", "unit": "celsius"}',
        "end": "tool_calls",
    }
    assert ("  reasoning_content: the format has no reasoning\n" in out) == (turn.reasoning is None)
    assert out.endswith("\nThat message, encoded again: the same prompt as with the original\n")


IDS = """\
{% for m in messages %}{% if m.role == 'tool' %}<tool>{{ m.tool_call_id }}={{ m.content }}</end>{% else %}\
<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls %}<call>{"name": "{{ c.function.name }}", "arguments": \
{{ c.function.arguments|tojson }}}</call>{% endfor %}</end>{% endif %}{% endfor %}\
{% if add_generation_prompt %}<assistant>{% endif %}"""


def test_demo_tells_what_encoding_again_changes(run: Run, save: Callable[..., Path]) -> None:
    out = run("demo", template(save, IDS)).out
    last = out.splitlines()[-1]
    assert re.fullmatch(r"That message, encoded again: .* save for the calls' ids: call_\w+0, call_\w+1", last)
    codec, message = chatcodec.load("telechat3"), demo.MESSAGES[demo.ASKED]
    told = demo.compared(codec, message, {**message, "content": "Let me cook."})
    assert re.fullmatch(r"differs from character \d+ on, 'c' in place of 'l'", told)
    assert demo.compared(codec, message, {**message, "content": [{"type": "image"}]}).startswith("it cannot be, ")


def test_demo_of_what_is_not_derived(run: Run, save: Callable[..., Path]) -> None:
    outcome = run("demo", template(save, "{{ messages|length }}"))
    assert (outcome.code, outcome.err) == (0, "")
    assert "\nHow a turn is written cannot be read off the template: " in outcome.out


def test_demo_in_colours(run: Run) -> None:
    coloured = run("demo", "step3-vl", "--color=always", "--width=60").out
    assert "\x1b[33mget_weather" in coloured
    plain = STYLING.sub("", coloured)
    assert max(map(view.columns, plain.split("\n"))) <= 60
    assert all(harmless(line) for line in plain.split("\n"))


def test_demo_of_one_format_tells_what_it_cannot_carry(run: Run, save: Callable[..., Path]) -> None:
    out = run("demo", template(save, CONTENTS)).out
    losses = out.partition("Of this conversation it drops:\n")[2]
    assert "  assistant: reasoning_content, 2 times\n" in losses
    assert "  assistant: tool_calls\n" in losses
    assert "  tool definitions\n" in losses
    assert "  tool calls\n" in losses
    assert run("demo", "nonsense").code == 1


# -- help


def test_help_tells_all_commands(run: Run) -> None:
    outcome = run("--help")
    assert (outcome.code, outcome.err) == (0, "")
    for command in COMMANDS:
        assert f"{command.name} " in outcome.out
        assert command.summary in outcome.out


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_help_of_each_command_has_an_example(run: Run, command: Any) -> None:
    outcome = run(command.name, "--help")
    assert outcome.code == 0
    assert re.search(rf"^examples:\n  .*chatcodec {command.name}", outcome.out, re.MULTILINE)
    assert max(map(len, command.description.split("\n"))) <= 100


def test_version(run: Run) -> None:
    assert run("--version") == (0, f"chatcodec {chatcodec.__version__}\n", "")


# -- as a process of its own


def process(*argv: object, **options: Any) -> subprocess.CompletedProcess[bytes]:
    environment = {name: value for name, value in os.environ.items() if name not in COLOUR_VARIABLES}
    environment |= options.pop("environment", {})
    command = [sys.executable, "-m", "chatcodec", *map(str, argv)]
    return subprocess.run(command, env=environment, capture_output=True, check=False, timeout=60, **options)


def test_utf8_whatever_the_locale(save: Callable[..., Path]) -> None:
    c = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
    for command, expected in (("encode", "<user>Zoë 東京"), ("show", "│ Zoë 東京\n")):
        done = process(command, template(save, CONTENTS), save([user("Zoë 東京")]), environment=c)
        assert (done.returncode, done.stderr) == (0, b"")
        assert expected in done.stdout.decode()
    assert process("show", "--help", environment=c).returncode == 0


def test_exit_codes(save: Callable[..., Path]) -> None:
    codes = [
        process(*argv).returncode for argv in (["info", "step3-vl"], ["info", "nonsense"], ["encode", "a"], ["--help"])
    ]
    assert codes == [0, 1, 2, 0]


@pytest.mark.parametrize("command", ["encode", "show"])
@pytest.mark.parametrize("colour", ["0", "1"])
def test_nobody_reads_on(save: Callable[..., Path], command: str, colour: str) -> None:
    path = save(lines_of(*[[user("x" * 1000)]] * 1000), "talks.jsonl")
    argv = [sys.executable, "-m", "chatcodec", command, "step3-vl", str(path)]
    environment = {**os.environ, "FORCE_COLOR": colour}
    with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 141


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk(save: Callable[..., Path]) -> None:
    argv = [sys.executable, "-m", "chatcodec", "encode", "step3-vl", str(save([HELLO]))]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(argv, stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 1
    assert re.fullmatch(rb"chatcodec: error: .*No space left on device\n", done.stderr)


def test_start_loads_nothing_heavy() -> None:
    code = "import sys, chatcodec.cli; chatcodec.cli.main(['--help']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"rich", "pygments", "transformers", "tokenizers", "numpy", "asyncio"} & set(done.stdout.split())


# -- on a terminal


def on_terminal(*argv: object, **environment: str) -> str:
    """What the command writes to a terminal of 60 columns, on either of its outputs."""
    import pty

    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "chatcodec", *map(str, argv)],
        env={**os.environ, "TERM": "xterm", "COLUMNS": "60", **environment},
        stdin=subprocess.DEVNULL,
        stdout=slave,
        stderr=slave,
    )
    os.close(slave)
    written = b""
    try:
        while piece := os.read(master, 65536):
            written += piece
    except OSError:  # how Linux says that the other side is closed
        pass
    os.close(master)
    assert process.wait(60) == 0
    return written.decode().replace("\r\n", "\n")


terminal = pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")


@terminal
def test_show_on_a_terminal_is_coloured_and_harmless(save: Callable[..., Path]) -> None:
    written = on_terminal("show", "step3-vl", save([user(ESCAPES + " word" * 40)]))
    assert "\x1b[32m" in written
    lines = STYLING.sub("", written).split("\n")
    assert all(harmless(line) for line in lines)
    assert max(map(view.columns, lines)) <= 60


@terminal
def test_no_color_on_a_terminal(save: Callable[..., Path]) -> None:
    written = on_terminal("show", "step3-vl", save([user("word " * 40)]), NO_COLOR="1")
    assert harmless(written.replace("\n", ""))
    assert GUTTER in written
    assert max(map(view.columns, written.split("\n"))) <= 60


@terminal
def test_encode_on_a_terminal_is_harmless(save: Callable[..., Path]) -> None:
    path = save([user("a\n\tb" + ESCAPES)])
    for form in ("text", "spans", "json"):
        written = on_terminal("encode", template(save, CONTENTS), path, "--format", form)
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", written)
        assert written.endswith("\n")
