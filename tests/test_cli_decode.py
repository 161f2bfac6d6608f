"""The commands `format` and `decode` as their users see them."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from conversations import HELLO, TOOLS, WEATHER, call, thinking, user
from test_cli import COLOUR_VARIABLES, ESCAPES, STYLING, Outcome, Terminal, lines_of, on_terminal, terminal

import chatcodec
from chatcodec.cli import main
from chatcodec.sources import builtin_names
from chatcodec.turn.document import loads
from chatcodec.turn.explain import explain

Save = Callable[..., Path]

ANSWER = thinking("Both.", "I look.", call("get_weather", {"city": "Paris", "days": 2}), call("get_weather", {}, "2"))
WHOLE = 'Hm.\n</think>\nI look.<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
CUT = WHOLE + '\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Ro'
BROKEN = WHOLE.replace('"Paris"', "Paris]")
UNKNOWN = WHOLE.replace("get_weather", "get_whether")
UNDERIVABLE = "{{ messages|length }}"
SWITCHED = """\
{% for m in messages %}<{{ m.role }}>
{{ m.content }}<end>
{% endfor %}{% if add_generation_prompt %}<assistant>
<think>
{% if thinking is false %}</think>
{% endif %}{% endif %}"""


def run(*argv: object, stdin: bytes = b"") -> Outcome:
    """Runs the command line in this process."""
    given, out, err = (io.TextIOWrapper(io.BytesIO(data)) for data in (stdin, b"", b""))
    with patch.object(sys, "stdin", given), patch.object(sys, "stdout", out), patch.object(sys, "stderr", err):
        code = main([str(argument) for argument in argv])
    return Outcome(code, *map(written_to, (out, err)))


def written_to(stream: io.TextIOWrapper) -> str:
    stream.flush()
    stream.seek(0)
    return stream.buffer.read().decode()


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in COLOUR_VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """Writes a file of the test's: bytes and text as they are, anything else as JSON."""

    def save(value: Any, name: str) -> Path:
        path = tmp_path / name
        text = value if isinstance(value, str | bytes) else json.dumps(value)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return save


@pytest.fixture
def tools(save: Save) -> Path:
    return save(TOOLS, "tools.json")


def message_of(outcome: Outcome) -> Any:
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)


def events_of(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


# -- format


@pytest.mark.parametrize("name", builtin_names())
def test_format_explains(name: str) -> None:
    assert run("format", name) == (0, explain(chatcodec.load(name).format), "")


def test_format_in_colours_says_the_same() -> None:
    out = run("format", "telechat3", "--color=always", "--width=0").out
    assert "\x1b[1mheader     \x1b[0m\x1b[36m'<_bot>'" in out
    assert "\x1b[32mNAME" in out
    assert STYLING.sub("", out) == explain(chatcodec.load("telechat3").format)


def test_format_wraps_under_its_column() -> None:
    plain = run("format", "telechat3").out.split()
    rows = run("format", "telechat3", "--width=50").out.split("\n")
    assert max(map(len, rows)) <= 50
    assert all(row[:11].strip() == "" or row[10] == " " for row in rows)
    assert " ".join(rows).split() == plain


def test_format_as_a_document(tmp_path: Path) -> None:
    expected = chatcodec.load("intellect-3").format
    outcome = run("format", "intellect-3", "--json")
    assert (loads(outcome.out), outcome.err) == (expected, "")
    path = tmp_path / "turn.json"
    assert run("format", "intellect-3", "-o", path) == (0, "", "")
    assert path.read_text(encoding="utf-8") == outcome.out


def test_an_edited_format_is_shown_and_used(save: Save) -> None:
    document = json.loads(run("format", "telechat3", "--json").out)
    document["calls"]["call"]["pieces"][0]["text"] = '<call>{"name": "'
    document["calls"]["call"]["pieces"][-1]["text"] = "}</call>"
    path = save(document, "turn.json")
    assert '\'<call>{"name": "\' NAME' in run("format", "telechat3", "--format", path).out
    output = save('</think><call>{"name": "f", "arguments": {"a": 1}}</call>', "out.txt")
    message = message_of(run("decode", "telechat3", output, "--format", path))
    assert [made["function"]["name"] for made in message["tool_calls"]] == ["f"]
    assert message_of(run("decode", "telechat3", output))["content"].startswith("<call>")


def test_a_format_by_hand_helps_where_none_is_derived(save: Save) -> None:
    source, output = save(UNDERIVABLE, "chat_template.jinja"), save("Hm.\n</think>\nHi.", "out.txt")
    path = save(run("format", "telechat3", "--json").out, "turn.json")
    assert message_of(run("decode", source, output, "--format", path))["content"] == "Hi."


def test_template_variables_switch_the_format(save: Save) -> None:
    source = save(SWITCHED, "chat_template.jinja")
    assert r"prompt     '<assistant>\n<think>\n'" in run("format", source).out
    quiet = run("format", source, "--set", "thinking=false").out
    assert r"prompt     '<assistant>\n<think>\n</think>\n'" in quiet
    outcome = run("format", source, "--set", "thinkng=false")
    assert (outcome.code, outcome.out) == (1, "")
    assert "those it reads: thinking" in outcome.err
    assert run("format", source, "--set", "add_generation_prompt=false").code == 1


@pytest.mark.parametrize(
    "command", [["format"], ["decode", "-"], ["decode", "-", "--lines"], ["decode", "-", "--stream"]]
)
def test_where_no_format_is_derived(save: Save, command: list[str]) -> None:
    source = save(UNDERIVABLE, "chat_template.jinja")
    outcome = run(command[0], source, *command[1:], stdin=b'"x"\n"y"\n')
    assert (outcome.code, outcome.out) == (1, "")
    first, *seen, way, out = outcome.err.splitlines()
    assert first.startswith("chatcodec: error: ")
    assert "chat_template.jinja: how a turn is written could not be read off the template: " in first
    assert seen[0] == "  what was seen:"
    assert way.startswith("Encoding works all the same.")
    assert "--format turn.json" in out
    assert run("encode", source, "-", stdin=json.dumps([HELLO]).encode()).out == "1"


def test_a_missing_special_token_is_told(save: Save) -> None:
    source = save(SWITCHED.replace("<end>", "{{ eos_token + '' }}"), "chat_template.jinja")
    outcome = run("format", source)
    assert outcome.code == 1
    assert outcome.err.splitlines()[-1].startswith("A special token is missing: give the model's folder")
    assert r"end        '</s>\n'" in run("format", source, "--set", "eos_token=</s>").out


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", ":1:1: not valid JSON: nothing but space"),
        ("[]", ": no turn format: "),
        ("{}", ": no turn format: format.version: "),
        ('{"version": 1, "header": 7, "prompt": "", "ends": []}', ": no turn format: format.header: "),
    ],
)
@pytest.mark.parametrize("command", [["format"], ["decode", "-"]])
def test_files_that_hold_no_format(save: Save, command: list[str], content: str, complaint: str) -> None:
    path = save(content, "turn.json")
    outcome = run(command[0], "telechat3", *command[1:], "--format", path)
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.startswith(f"chatcodec: error: {path}{complaint}")
    assert outcome.err.count("\n") == 1


def test_a_format_that_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "turn.json"
    expected = f"chatcodec: error: {path}: cannot be written: No such file or directory\n"
    assert run("format", "telechat3", "-o", path) == (1, "", expected)


# -- decode: one completion


@pytest.mark.parametrize("name", builtin_names())
def test_decode_gives_the_message(save: Save, tools: Path, name: str) -> None:
    codec = chatcodec.load(name)
    prompt = codec.encode([WEATHER], TOOLS)
    answer = {key: value for key, value in ANSWER.items() if key != "reasoning_content" or codec.format.reasoning}
    completion = codec.compose(answer, prompt)
    output = save(completion, "out.txt")
    outcome = run("decode", name, output, "--tools", tools, "--prompt", save(prompt.text, "prompt.txt"))
    assert outcome == (0, json.dumps(codec.decode(completion, prompt, TOOLS), indent=2) + "\n", "")
    assert run("decode", name, "-", "--tools", tools, "--prompt", prompt.text, stdin=completion.encode()) == outcome
    talk = save({"messages": [WEATHER], "tools": TOOLS}, "talk.json")
    assert run("decode", name, output, "--messages", talk) == outcome


def test_the_output_is_read_to_the_character(save: Save) -> None:
    output = save(b"\xef\xbb\xbfHm.\n</think>\na\r\n\tb\n", "out.txt")
    assert message_of(run("decode", "telechat3", output))["content"] == "a\r\n\tb\n"


def test_tools_give_arguments_their_types(save: Save, tools: Path) -> None:
    values = {"city": "007", "days": "2"}
    written = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    output = save(f"<tool_call>\n<function=get_weather>\n{written}</function>\n</tool_call>", "out.txt")
    typed = message_of(run("decode", "iquest-coder", output, "--tools", tools))
    assert json.loads(typed["tool_calls"][0]["function"]["arguments"]) == {"city": "007", "days": 2}
    own = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]
    named = message_of(run("decode", "iquest-coder", output, "--tools", save({"tools": own}, "own.json")))
    assert json.loads(named["tool_calls"][0]["function"]["arguments"])["days"] == 2


def test_the_prompt_tells_whether_reasoning_is_open(save: Save) -> None:
    output = save("Hi.", "out.txt")
    assert message_of(run("decode", "telechat3", output))["reasoning_content"] == "Hi."
    for given in ("<_user>Hello!<_bot>", save("<_user>Hello!<_bot>", "prompt.txt")):
        assert message_of(run("decode", "telechat3", output, "--prompt", given))["content"] == "Hi."


def test_template_variables_tell_whether_reasoning_is_open(save: Save) -> None:
    source, output = save(SWITCHED, "chat_template.jinja"), save("Hi.<end>", "out.txt")
    talk = save({"messages": [HELLO], "chat_template_kwargs": {"thinking": False}, "id": 1}, "talk.json")
    plain = save([HELLO], "plain.json")
    for options in ([], ["--messages", plain]):
        assert message_of(run("decode", source, output, *options)).get("reasoning_content") == "Hi."
        quiet = run("decode", source, output, *options, "--set", "thinking=false")
        assert message_of(quiet) == {"role": "assistant", "content": "Hi."}
    outcome = run("decode", source, output, "--messages", talk)
    assert message_of(outcome)["content"] == "Hi."
    assert f"{talk}: 'id' is ignored" in outcome.err
    lines = lines_of(
        {"output": "Hi.", "thinking": False}, {"output": "Hi.", "chat_template_kwargs": {"thinking": False}}
    )
    told = run("decode", source, save(lines, "outs.jsonl"))
    assert [json.loads(line)["content"] for line in told.out.splitlines()] == ["Hi.", "Hi."]


def test_a_mistyped_prompt_file_is_noted(save: Save) -> None:
    outcome = run("decode", "telechat3", save(WHOLE, "out.txt"), "--prompt", "promt.txt")
    assert outcome.code == 0
    assert outcome.err.startswith("chatcodec: note: --prompt 'promt.txt' is no file, so it is the prompt's text; ")


@pytest.mark.parametrize(
    ("output", "status", "told"),
    [
        (CUT, "incomplete", "1 of 2 tool calls are"),
        (BROKEN, "malformed", "1 of 1 tool calls are"),
        (UNKNOWN, "unknown_tool", "1 of 1 tool calls are"),
    ],
)
def test_calls_that_went_wrong_are_told(save: Save, tools: Path, output: str, status: str, told: str) -> None:
    path = save(output, "out.txt")
    outcome = run("decode", "telechat3", path, "--tools", tools)
    message = message_of(outcome)
    assert len(message.get("tool_calls", ())) == (1 if output == CUT else 0)
    assert f"chatcodec: note: {path}: {told} no part of the message:\n" in outcome.err
    assert re.search(rf"^  call \d  {status}  get_w(eath|heth)er$", outcome.err, re.MULTILINE)
    assert re.search(r"^ {10}raw    <tool_call>⏎\{", outcome.err, re.MULTILINE)
    full = message_of(run("decode", "telechat3", path, "--tools", tools, "--full"))
    assert full["message"] == message
    attempt = full["calls"][-1]
    assert (attempt["status"], output[slice(*attempt["span"])]) == (status, attempt["raw"])
    assert all(f"          notes  {note}\n" in outcome.err for note in attempt["notes"])
    assert full["finish_reason"] == {"incomplete": "length"}.get(status, "stop")


def test_long_raw_text_is_clipped_on_the_side_only(save: Save) -> None:
    path = save(CUT + "x" * 5000, "out.txt")
    assert "… (5,061 characters in all; --full writes them)" in run("decode", "telechat3", path).err
    assert "x" * 5000 in run("decode", "telechat3", path, "--full").out


def test_what_stands_behind_the_end_is_told(save: Save) -> None:
    path = save("Hm.\n</think>\nHi.<_end>\n<_user>More?", "out.txt")
    outcome = run("decode", "telechat3", path)
    assert message_of(outcome)["content"] == "Hi."
    assert f"{path}: behind the end of the turn stands '" in outcome.err
    assert "More?" in outcome.err
    assert "More?" in message_of(run("decode", "telechat3", path, "--full"))["rest"]


def test_the_engine_may_say_that_it_cut(save: Save) -> None:
    path = save("Hm.\n</think>\nHi", "out.txt")
    assert message_of(run("decode", "telechat3", path, "--full"))["finish_reason"] == "stop"
    cut = run("decode", "telechat3", path, "--full", "--finish-reason", "length")
    assert message_of(cut)["finish_reason"] == "length"
    assert "the output is cut" in run("decode", "telechat3", save(CUT, "cut.txt")).err
    assert "is cut" not in run("decode", "telechat3", save(CUT, "cut.txt"), "--finish-reason", "length").err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["missing.txt"], "missing.txt: cannot be read: No such file or directory"),
        (["latin.txt"], "latin.txt:2: not UTF-8 "),
        (["latin.txt", "--stream"], "latin.txt: not UTF-8 "),
        (["out.txt", "--tools", "missing.json"], "missing.json: cannot be read: "),
        (["out.txt", "--tools", "out.txt"], "out.txt:1:1: not valid JSON: "),
        (["out.txt", "--tools", "odd.json"], "odd.json: tools[0]"),
        (["out.txt", "--messages", "out.txt"], "out.txt:1:1: not valid JSON: "),
        (["out.txt", "--messages", "odd.json"], "odd.json: messages[0]"),
        (["out.txt", "--messages", "two.jsonl"], "two.jsonl: several conversations; --messages wants one"),
        (["out.txt", "--messages", "none.jsonl"], "none.jsonl: no conversations; --messages wants one"),
        (["out.txt", "--prompt", "."], ".: cannot be read: "),
        (["out.txt", "--set", "nonsense=1"], "--set nonsense: the template never reads this variable"),
    ],
)
def test_wrong_input(save: Save, monkeypatch: pytest.MonkeyPatch, arguments: list[str], complaint: str) -> None:
    monkeypatch.chdir(save("Hi.", "out.txt").parent)
    save("a\né".encode("latin-1"), "latin.txt")
    save([7], "odd.json")
    save(lines_of([HELLO], [HELLO]), "two.jsonl")
    save("", "none.jsonl")
    outcome = run("decode", "telechat3", *arguments)
    assert outcome.code == 1
    assert outcome.err.startswith(f"chatcodec: error: {complaint}")
    assert outcome.err.count("\n") == 1


# -- decode: JSON lines


def test_json_lines_give_one_message_each(save: Save) -> None:
    path = save(lines_of(WHOLE, {"output": "a\n</think>\nb"}, b"\n", "</think>c"), "outs.jsonl")
    outcome = run("decode", "telechat3", path)
    assert (outcome.code, outcome.err) == (0, "")
    codec = chatcodec.load("telechat3")
    expected = [codec.decode(output) for output in (WHOLE, "a\n</think>\nb", "</think>c")]
    assert [json.loads(line) for line in outcome.out.splitlines()] == expected
    assert run("decode", "telechat3", "-", "--lines", stdin=path.read_bytes()) == outcome


def test_a_line_brings_what_belongs_to_it(save: Save, tools: Path) -> None:
    lines = [
        {"output": "Hi.", "prompt": "<_user>Hello!<_bot>"},
        {"output": "Hi.", "messages": [HELLO], "finish_reason": "length"},
        {"output": UNKNOWN, "tools": TOOLS},
    ]
    outcome = run("decode", "telechat3", save(lines_of(*lines), "outs.jsonl"), "--full")
    assert (outcome.code, outcome.err) == (0, "")
    first, second, third = (json.loads(line) for line in outcome.out.splitlines())
    assert first["message"]["content"] == "Hi."
    assert (second["message"]["reasoning_content"], second["finish_reason"]) == ("Hi.", "length")
    assert third["calls"][0]["status"] == "unknown_tool"
    over = run("decode", "telechat3", save(lines_of(*lines[:2]), "outs.jsonl"), "--prompt", "<_bot><think>\n").out
    assert ["reasoning_content" in json.loads(line) for line in over.splitlines()] == [True, True]


def test_a_bad_line_is_reported_and_the_rest_goes_on(save: Save) -> None:
    bad = [
        b"{\n",
        b"\xff\n",
        7,
        {"outputs": "x"},
        {"output": [1, 2]},
        {"output": "x", "prompt": [1]},
        {"output": "x", "finish_reason": "eos"},
        {"output": "x", "messages": []},
        {"output": "x", "tools": 7},
        {"output": "x", "chat_template_kwargs": 7},
        {"output": "x", "chat_template_kwargs": {"nonsense": 1}},
    ]
    path = save(lines_of("</think>a", *bad, "</think>b"), "outs.jsonl")
    outcome = run("decode", "telechat3", path)
    assert outcome.code == 1
    assert [json.loads(line) is None for line in outcome.out.splitlines()] == [False, *[True] * len(bad), False]
    reports = [line.partition(f"error: {path}:")[2].partition(":")[0] for line in outcome.err.splitlines()]
    assert reports == [str(number) for number in range(2, 2 + len(bad))]


def test_a_line_with_broken_calls_is_noted(save: Save) -> None:
    path = save(lines_of(WHOLE, CUT, BROKEN), "outs.jsonl")
    outcome = run("decode", "telechat3", path)
    assert outcome.code == 0
    assert outcome.err.splitlines() == [
        f"chatcodec: note: {path}:2: the output is cut",
        f"chatcodec: note: {path}:2: call 1, of get_weather, is incomplete",
        f"chatcodec: note: {path}:3: call 0, of get_weather, is malformed: 'Paris' is no value",
    ]


def test_progress_is_told(save: Save, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    path = save(lines_of(*["a"] * 50), "outs.jsonl")
    seconds = iter(range(1000))
    monkeypatch.setattr("chatcodec.cli.outputs.time.monotonic", lambda: next(seconds))
    monkeypatch.setattr(sys, "stderr", told := Terminal())
    assert main(["decode", "telechat3", str(path)]) == 0
    assert capsys.readouterr().out.count("\n") == 50
    assert "\r50 completions" in told.getvalue()
    assert told.getvalue().endswith("\r\x1b[K")


# -- decode: streams


def test_the_stream_says_what_the_message_says(save: Save, tools: Path) -> None:
    path = save(WHOLE + "\n<_end>", "out.txt")
    outcome = run("decode", "telechat3", path, "--stream", "--tools", tools)
    assert (outcome.code, outcome.err) == (0, "")
    events = events_of(outcome.out)
    message = message_of(run("decode", "telechat3", path, "--tools", tools))
    texts = {"reasoning_content": "", "content": "", "arguments": ""}
    for event in events:
        match event:
            case {"event": "reasoning_delta", "text": text}:
                texts["reasoning_content"] += text
            case {"event": "content_delta", "text": text}:
                texts["content"] += text
            case {"event": "arguments_delta", "index": 0, "json": text}:
                texts["arguments"] += text
    assert texts["reasoning_content"] == message["reasoning_content"]
    assert texts["content"] == message["content"]
    made = message["tool_calls"][0]
    assert texts["arguments"] == made["function"]["arguments"]
    start = next(event for event in events if event["event"] == "tool_call_start")
    assert start == {"event": "tool_call_start", "index": 0, "id": made["id"], "name": "get_weather"}
    end = next(event for event in events if event["event"] == "tool_call_end")
    assert (end["call"]["status"], end["call"]["raw"]) == ("ok", WHOLE[WHOLE.index("<tool_call>") :])
    assert events[-1] == {"event": "turn_end", "reason": "tool_calls"}
    assert sum(event["event"] == "content_delta" for event in events) > 0


def test_characters_are_not_cut(save: Save) -> None:
    text = "東京🗼é" * 20
    events = events_of(run("decode", "telechat3", save("</think>" + text, "out.txt"), "--stream").out)
    assert "".join(event.get("text", "") for event in events) == text


def test_events_come_as_soon_as_they_are_certain() -> None:
    argv = [sys.executable, "-m", "chatcodec", "decode", "telechat3", "-", "--stream"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        watch = threading.Timer(60, process.kill)
        watch.start()
        for piece, expected in (
            ("Hm.\n</think>\nI look", {"event": "reasoning_delta", "text": "Hm."}),
            ("", {"event": "content_delta"}),
            ('.<tool_call>\n{"name": "f", "arguments": {"a": "b', {"event": "arguments_delta", "json": "b"}),
            ("c", {"event": "arguments_delta", "json": "c"}),
        ):
            process.stdin.write(piece.encode())
            process.stdin.flush()
            while not json.loads(process.stdout.readline()).items() >= expected.items():
                pass
        process.stdin.close()
        assert events_of(process.stdout.read().decode())[-1] == {"event": "turn_end", "reason": "length"}
        assert process.wait(60) == 0
        watch.cancel()


# -- as a process of its own, and on a terminal


@pytest.mark.parametrize("options", [["--lines"], ["--stream"]])
def test_nobody_reads_on(save: Save, options: list[str]) -> None:
    path = save(lines_of(*["</think>" + "x" * 1000] * 2000), "outs.json")
    argv = [sys.executable, "-m", "chatcodec", "decode", "step3-vl", str(path), *options]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 141


@pytest.mark.skipif(not os.path.exists("/dev/fd"), reason="needs /dev/fd")
def test_a_prompt_from_another_command(save: Save) -> None:
    talk, output = save([user("Hello!")], "talk.json"), save("Hi.", "out.txt")
    program = f"{sys.executable} -m chatcodec"
    command = f"{program} decode telechat3 {output} --prompt <({program} encode telechat3 {talk})"
    done = subprocess.run(["bash", "-c", command], capture_output=True, check=True, timeout=60)
    assert json.loads(done.stdout)["reasoning_content"] == "Hi."


@terminal
def test_what_goes_to_a_terminal_is_harmless(save: Save) -> None:
    output = save("</think>" + ESCAPES + CUT + ESCAPES, "out.txt")
    for options in ([], ["--full"], ["--stream"]):
        written = STYLING.sub("", on_terminal("decode", "telechat3", output, *options))
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", written)
    format = json.loads(run("format", "telechat3", "--json").out)
    path = save({**format, "header": ESCAPES}, "turn.json")
    for options in ([], ["--json"]):
        written = STYLING.sub("", on_terminal("format", "telechat3", "--format", path, *options))
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", written)


# -- the documentation


def test_the_readme_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    code = re.search(r"^## Decode\n\n```python\n(.*?)```", readme, re.DOTALL | re.MULTILINE)
    assert code is not None
    names: dict[str, Any] = {}
    exec(code[1], names)
    assert names["decoder"].message["reasoning_content"] == "Paris, then."
    assert [made.status for made in names["decoder"].calls] == ["ok"]
    assert capsys.readouterr().out.startswith("[ReasoningDelta(text='Paris, th')]\n")


def test_the_documentation_shows_the_format() -> None:
    text = (Path(__file__).parents[1] / "docs" / "decoding.md").read_text(encoding="utf-8")
    shown = text.partition("$ chatcodec format telechat3\n")[2].partition("…\n```")[0]
    assert shown
    assert run("format", "telechat3").out.startswith(shown)
