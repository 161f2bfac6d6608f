"""The command `samples` as its users see it: shapes of rows, what is written, bad rows, interruptions, processes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count, groupby, islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import vocabularies
from conversations import TOOLS, WEATHER, assistant, call, result, system, thinking, user
from test_cli import Outcome, Terminal
from test_cli_decode import run

import chatcodec
from chatcodec.cli import main, samples
from chatcodec.cli.dataset import rows, shapes, workers
from chatcodec.errors import SourceError, UnsupportedInput

TEMPLATE = """\
{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}\
{% endif %}{% endfor %}{% if tools %}<|im_start|>system
{{ tools|tojson }}<|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.role == 'assistant' and loop.index0 > ns.last and m.reasoning_content %}<think>
{{ m.reasoning_content }}
</think>
{% endif %}{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments|tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is false %}<think>
</think>
{% endif %}{% endif %}"""
"""Reasoning is shown behind the last user's message only."""
TALK = [user("Hello!"), assistant("Hi."), user("Bye?"), assistant("Bye.")]
CALLS = [WEATHER, assistant("", call("get_weather", {"city": "Paris"})), result("24"), assistant("24 degrees.")]
F = {"name": "f", "arguments": {"a": None}}
NAMES = ["input_ids", "loss_mask", "source_row", "turn"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return vocabularies.folder(
        tmp_path_factory.mktemp("model") / "my-model",
        "neox",
        template=TEMPLATE,
        extra_special=["<|im_start|>", "<|im_end|>"],
        extra_added=["<tool_call>", "</tool_call>"],
    )


@pytest.fixture(scope="module")
def codec(model: Path) -> chatcodec.Codec:
    return chatcodec.load(model)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def lines(*values: Any, name: str = "data.jsonl") -> str:
    text = "".join(value if isinstance(value, str) else json.dumps(value) + "\n" for value in values)
    Path(name).write_text(text, "utf-8")
    return name


def table(*values: dict[str, Any]) -> pa.Table:
    names = dict.fromkeys(name for value in values for name in value)
    return pa.table({name: [value.get(name) for value in values] for name in names})


def parquet(*values: Any, name: str = "data.parquet", **options: Any) -> str:
    pq.write_table(table(*values), name, **options)
    return name


def convert(model: Path, data: str, *options: object, out: str = "out.parquet", code: int = 0) -> Outcome:
    outcome = run("samples", model, data, "-o", out, "--processes", 1, *options)
    assert outcome.code == code, outcome.err
    assert outcome.out == ""
    return outcome


def made(out: str = "out.parquet") -> list[dict[str, Any]]:
    if out.endswith(".parquet"):
        found: list[dict[str, Any]] = pq.read_table(out).to_pylist()
        return found
    return [json.loads(line) for line in Path(out).read_text("utf-8").splitlines()]


def bad(out: str = "out.parquet") -> list[dict[str, Any]]:
    path = Path(f"{out}.bad.jsonl")
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


def texts(codec: chatcodec.Codec, sample: dict[str, Any], mask: str = "loss_mask") -> list[str]:
    """What of a sample is trained, stretch by stretch."""
    pairs = zip(sample["input_ids"], sample[mask], strict=True)
    runs = groupby(pairs, key=lambda pair: pair[1])
    return [
        b"".join(codec.tokenizer.token_bytes(token) for token, _ in run).decode() for trained, run in runs if trained
    ]


# -- what is written


def test_samples_are_those_of_the_library(model: Path, codec: chatcodec.Codec) -> None:
    rewritten = [user("1?"), thinking("Hm.", "1."), user("2?"), thinking("So.", "2.")]
    talks = [{"messages": TALK}, {"messages": CALLS, "tools": TOOLS}, {"messages": rewritten}]
    outcome = convert(model, lines(*talks))
    expected = [
        (sample, number)
        for number, talk in enumerate(talks)
        for sample in codec.training_samples(talk["messages"], talk.get("tools"))
    ]
    assert [(row["input_ids"], row["loss_mask"], row["turn"], row["source_row"]) for row in made()] == [
        (sample.input_ids, sample.loss_mask, sample.turns, number) for sample, number in expected
    ]
    assert [row["source_row"] for row in made()] == [0, 1, 2, 2]
    assert texts(codec, made()[0]) == ["Hi.<|im_end|>", "Bye.<|im_end|>"]
    tokens, trained = sum(len(row["input_ids"]) for row in made()), sum(sum(row["loss_mask"]) for row in made())
    assert re.fullmatch(
        rf"chatcodec: note: out.parquet: 4 samples of 3 rows: {tokens} tokens, of which {trained} are trained \(.*\)\n",
        outcome.err,
    )
    assert not Path("out.parquet.parts").exists()
    assert bad() == []


def test_columns(model: Path) -> None:
    convert(model, lines(TALK))
    found = pq.read_schema("out.parquet")
    assert found.names == NAMES
    assert [str(getattr(kind, "value_type", kind)) for kind in found.types] == ["int32", "bool", "int64", "int32"]
    assert [pa.types.is_list(kind) for kind in found.types] == [True, True, False, True]
    told = json.loads(found.metadata[b"chatcodec"])
    assert told["--turns"] == "all"
    assert "data" not in told


def test_json_lines_as_output(model: Path) -> None:
    data = lines(TALK, CALLS)
    convert(model, data)
    convert(model, data, out="out.jsonl")
    assert made("out.jsonl") == made()


def test_another_name_for_the_mask(model: Path, codec: chatcodec.Codec) -> None:
    for out in ("out.parquet", "out.jsonl"):
        convert(model, lines(TALK), "--mask-column", "assistant_masks", out=out)
        assert list(made(out)[0]) == ["input_ids", "assistant_masks", "source_row", "turn"]
        assert texts(codec, made(out)[0], "assistant_masks") == ["Hi.<|im_end|>", "Bye.<|im_end|>"]


def test_row_groups_have_a_sensible_size(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chatcodec.cli.dataset.parts.GROUP_SAMPLES", 10)
    convert(model, lines(*[TALK] * 25), "--batch", 4)
    metadata = pq.ParquetFile("out.parquet").metadata
    assert [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)] == [8, 8, 9]
    assert [row["source_row"] for row in made()] == list(range(25))


def test_no_rows(model: Path) -> None:
    for out in ("out.parquet", "out.jsonl"):
        convert(model, lines(), out=out)
        assert made(out) == []


# -- which turns


def test_turns(model: Path, codec: chatcodec.Codec) -> None:
    flagged = [user("1?"), assistant("1.", train=True), user("2?"), assistant("2.", train=False), user("3?")]
    weighted = [user("1?"), assistant("1.", weight=0), user("2?"), assistant("2.", weight=1)]
    data = lines(flagged, weighted)
    convert(model, data)
    assert [row["turn"] for row in made()] == [[1], [3]]
    convert(model, data, "--turns", "last", out="last.parquet")
    assert [row["turn"] for row in made("last.parquet")] == [[1], [3]]
    convert(model, data, "--turns", "flagged", out="flagged.parquet")
    assert [texts(codec, row) for row in made("flagged.parquet")] == [["1.<|im_end|>"], ["2.<|im_end|>"]]


def test_completions_that_say_no_are_not_trained(model: Path) -> None:
    completion = [assistant("1.", weight=0), user("2?"), assistant("2."), user("3?"), assistant("3.", train=False)]
    convert(model, lines({"prompt": [user("1?")], "completion": completion}))
    assert [row["turn"] for row in made()] == [[3]]


def test_only_completions_are_trained(model: Path) -> None:
    prompt, completion = TALK[:3], [TALK[3], user("?"), assistant("!", train=True), user("??"), assistant("!!")]
    data = lines({"prompt": prompt, "completion": completion})
    for turns, expected in (("all", [3, 5, 7]), ("last", [7]), ("flagged", [5])):
        convert(model, data, "--turns", turns, "--overwrite")
        assert [row["turn"] for row in made()] == [expected]


def test_a_row_without_a_turn_to_train_is_told(model: Path) -> None:
    talks = [[user("?")], TALK, {"prompt": TALK, "completion": [user("?")]}]
    outcome = convert(model, lines(*talks), code=1)
    assert [(row["row"], row["where"], row["kind"], row["reason"]) for row in bad()] == [
        (0, "data.jsonl:1", "nothing to train", "no assistant's turn"),
        (2, "data.jsonl:3", "nothing to train", "no assistant's turn in the completion"),
    ]
    assert [row["data"] for row in bad()] == [talks[0], talks[2]]
    assert "chatcodec: error: data.jsonl:1: no assistant's turn\n" in outcome.err
    assert "out.parquet.bad.jsonl: 2 rows that are not in it, or not whole: 2 nothing to train\n" in outcome.err
    assert [row["source_row"] for row in made()] == [1]


def test_rows_without_a_flag_are_no_fault(model: Path) -> None:
    outcome = convert(model, lines(TALK), "--turns", "flagged")
    assert "error" not in outcome.err
    assert [row["reason"] for row in bad()] == ["no turn is flagged"]


# -- too long


def test_too_long_samples_are_dropped_and_told(model: Path) -> None:
    long = [*TALK, user("?"), assistant("x" * 500)]
    outcome = convert(model, lines(long, TALK), "--max-length", 100)
    assert "error" not in outcome.err
    assert [row["source_row"] for row in made()] == [1]
    [told] = bad()
    assert (told["row"], told["kind"], told["data"]) == (0, "too long", long)
    assert re.fullmatch(
        r"\d+ tokens; --max-length is 100; not trained: messages\[1\], messages\[3\], messages\[5\]", told["reason"]
    )


def test_too_long_samples_are_cut_behind_a_turn(model: Path) -> None:
    long = [*TALK, user("?"), assistant("x" * 500)]
    convert(model, lines(long), "--max-length", 100, "--overflow", "truncate")
    [sample] = made()
    assert sample["turn"] == [1, 3]
    assert len(sample["input_ids"]) <= 100
    assert sample["loss_mask"][-1]
    assert bad()[0]["reason"].endswith("; not trained: messages[5]")


def test_too_long_samples_can_be_a_fault(model: Path) -> None:
    rewritten = [user("1?"), thinking("Hm.", "1."), user("2?"), thinking("So.", "2" * 300)]
    data = lines(rewritten)
    outcome = convert(model, data, "--max-length", 100, "--overflow", "error", code=1)
    assert re.search(
        r"error: data.jsonl:1: messages\[\d\]: it ends behind token 100, in a sample of \d+ tokens\n", outcome.err
    )
    assert made() == []
    convert(model, data, "--max-length", 100, "--overwrite")
    assert [row["turn"] for row in made()] == [[1]]


# -- shapes of rows


@pytest.mark.parametrize(
    ("row", "messages", "start"),
    [
        (TALK, TALK, 0),
        ({"messages": TALK}, TALK, 0),
        ({"messages": json.dumps(TALK)}, TALK, 0),
        ({"messages": [json.dumps(message) for message in TALK]}, TALK, 0),
        ({"conversations": TALK}, TALK, 0),
        ({"prompt": TALK[:3], "completion": TALK[3:]}, TALK, 3),
        ({"prompt": json.dumps(TALK[:3]), "completion": json.dumps(TALK[3:])}, TALK, 3),
        ({"prompt": TALK[:3], "response": "Bye."}, TALK, 3),
        ({"prompt": "Hello!", "response": "Hi."}, TALK[:2], 1),
        ({"prompt": "[1] Hello!", "response": '[{"a": 1}]'}, [user("[1] Hello!"), assistant('[{"a": 1}]')], 1),
        ({"prompt": [user("?")], "completion": "[1, 2"}, [user("?"), assistant("[1, 2")], 1),
        ({"completion": TALK}, TALK, 0),
        (
            {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b", "weight": 1}]},
            [user("a"), assistant("b", weight=1)],
            0,
        ),
        (
            {"system": "S", "conversations": [{"from": "user", "value": "a"}, {"from": "assistant", "value": "{b"}]},
            [system("S"), user("a"), assistant("{b")],
            0,
        ),
        (
            {
                "conversations": [
                    {"from": "function_call", "value": '{"name": "f", "arguments": {"a": null}}'},
                    {"from": "observation", "value": "1"},
                ]
            },
            [
                {"role": "assistant", "tool_calls": [{"type": "function", "function": F}]},
                {"role": "tool", "content": "1"},
            ],
            0,
        ),
        (
            {"messages": [assistant(None, tool_calls='[{"function": {"name": "f", "arguments": "{}"}}]')]},
            [assistant(None, {"function": {"name": "f", "arguments": "{}"}})],
            0,
        ),
    ],
)
def test_shapes(row: Any, messages: list[Any], start: int) -> None:
    talk = shapes.talk_of(row, "here")
    assert (talk.conversation.messages, talk.start) == (messages, start)


@pytest.mark.parametrize(
    ("row", "path", "reason"),
    [
        (7, "row", "neither an object nor a list"),
        ({"text": "Hello!", "id": 1}, "row", "there is: id, text"),
        ({}, "row", "there is: nothing"),
        ({"messages": None}, "row", "there is: nothing"),
        ({"messages": "Hello!"}, "messages", "a list of messages is needed"),
        ({"messages": "[{"}, "messages", "not valid JSON"),
        ({"messages": ["{"]}, "messages[0]", "not valid JSON"),
        ({"prompt": TALK}, "prompt", "nothing to train"),
        ({"prompt": "The sky is", "completion": " blue."}, "prompt", "text to be continued"),
        ({"prompt": TALK[:1], "completion": 7}, "completion", "a list of messages is needed"),
        ({"prompt": TALK[:1], "chosen": TALK[1:2], "rejected": TALK[1:2]}, "chosen", "preferences"),
        (
            {"conversations": [{"from": "function_call", "value": "f()"}]},
            "conversations[0].value",
            "a function call is",
        ),
        ({"messages": TALK, "tools": "[{"}, "tools", "not valid JSON"),
    ],
)
def test_rows_that_are_no_conversation(row: Any, path: str, reason: str) -> None:
    with pytest.raises(UnsupportedInput) as raised:
        shapes.talk_of(row, "here")
    assert raised.value.path == path
    assert reason in raised.value.reason


@pytest.mark.parametrize("tools", [TOOLS, json.dumps(TOOLS), [json.dumps(tool) for tool in TOOLS]])
def test_tools_of_a_row(model: Path, codec: chatcodec.Codec, tools: Any) -> None:
    convert(model, lines({"messages": CALLS, "tools": tools}))
    assert made()[0]["input_ids"] == codec.training_samples(CALLS, TOOLS)[0].input_ids


def test_tools_of_a_file_count_in_place_of_the_rows_own(model: Path, codec: chatcodec.Codec) -> None:
    Path("tools.json").write_text(json.dumps(TOOLS))
    other = [{"type": "function", "function": {"name": "other"}}]
    convert(model, lines({"messages": CALLS, "tools": other}, CALLS), "--tools", "tools.json")
    expected = codec.training_samples(CALLS, TOOLS)[0].input_ids
    assert [row["input_ids"] for row in made()] == [expected, expected]


def test_template_variables(model: Path, codec: chatcodec.Codec) -> None:
    rows = [
        {"messages": TALK[:2], "enable_thinking": False, "id": 1, "add_generation_prompt": False},
        {"messages": TALK[:2], "chat_template_kwargs": {"enable_thinking": False}},
        {"messages": TALK[:2], "chat_template_kwargs": '{"enable_thinking": false}', "source": "x"},
        {"messages": TALK[:2]},
    ]
    outcome = convert(model, lines(*rows))
    quiet, plain = (codec.training_samples(TALK[:2], **kw)[0].input_ids for kw in ({"enable_thinking": False}, {}))
    assert quiet != plain
    assert [row["input_ids"] for row in made()] == [quiet, quiet, quiet, plain]
    assert outcome.err.count("ignored") == 1
    assert "reads no variables of these names: 'id', 'source'\n" in outcome.err
    convert(model, "data.jsonl", "--set", "enable_thinking=false", "--overwrite")
    assert [row["input_ids"] for row in made()] == [quiet] * 4


# -- columns


def test_columns_of_rows_give_what_json_lines_give(model: Path) -> None:
    talks = [{"messages": CALLS, "tools": TOOLS}, {"messages": TALK}, {"messages": TALK, "enable_thinking": False}]
    convert(model, lines(*talks))
    expected = made()
    for data in (parquet(*talks), *arrow_files(*talks)):
        convert(model, data, "--overwrite")
        assert made() == expected, data


def arrow_files(*values: Any) -> Iterator[str]:
    columns = table(*values)
    for name, new in (("file.arrow", pa.ipc.new_file), ("stream.arrow", pa.ipc.new_stream)):
        with new(name, columns.schema) as writer:
            writer.write_table(columns, max_chunksize=2)
        yield name


def test_keys_that_columns_fill_up_are_taken_out(model: Path) -> None:
    talks = [
        [user("?"), assistant("", call("weather", {"city": "Paris", "days": 2}))],
        [user("?"), assistant("", call("search", {"query": "x", "exact": True}))],
        [user("?"), assistant("Hi.")],
    ]
    rows = [{"messages": talk} for talk in talks]
    assert "'city': None" in str(table(*rows).to_pylist())
    convert(model, lines(*rows))
    expected = made()
    convert(model, parquet(*rows), "--overwrite")
    assert made() == expected
    convert(model, "data.parquet", "--nulls", "keep", "--overwrite")
    assert made() != expected


def test_null_on_purpose_stays_in_json(model: Path, codec: chatcodec.Codec) -> None:
    talk = [user("?"), assistant("", call("f", {"unit": None}))]
    data = lines(talk)
    convert(model, data)
    assert '"arguments": {"unit": null}' in texts(codec, made()[0])[0]
    convert(model, data, "--nulls", "drop", "--overwrite")
    assert '"arguments": {}' in texts(codec, made()[0])[0]


def test_batches_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    talks = [{"messages": [user("x" * 100)]} for _ in range(10)]
    monkeypatch.setattr(rows, "BYTES", 400)
    spread = {data: list(rows.batches(data, 4)) for data in (lines(*talks), parquet(*talks, row_group_size=7))}
    for data, found in spread.items():
        assert sum(batch.size for batch in found) == 10
        assert [batch.first for batch in found] == [sum(b.size for b in found[:n]) for n in range(len(found))]
        assert all(batch.size <= 4 for batch in found)
        assert found[-1].share == 1.0
        read = [row for batch in found for row in rows.rows_of(batch, data, keep_nulls=False)]
        assert [(row.number, row.value) for row in read] == list(enumerate(talks))
    assert {batch.size for batch in spread["data.jsonl"]} == {3, 1}


def test_a_json_list_of_rows(model: Path) -> None:
    expected = made_of(model, lines(TALK, CALLS))
    for text in (json.dumps([{"messages": TALK}, {"messages": CALLS}], indent=1), json.dumps([TALK, CALLS])):
        Path("data.json").write_text(text)
        assert made_of(model, "data.json") == expected
    Path("data.json").write_text("".join(json.dumps(talk) + "\n" for talk in (TALK, CALLS)))
    assert made_of(model, "data.json") == expected
    Path("data.json").write_text(json.dumps(TALK))
    assert made_of(model, "data.json") == expected[:1]


def made_of(model: Path, data: str) -> list[dict[str, Any]]:
    convert(model, data, "--overwrite")
    return made()


def test_standard_input(model: Path) -> None:
    expected = made_of(model, lines(TALK, CALLS))
    outcome = run("samples", model, "-", "-o", "out.parquet", "--overwrite", stdin=Path("data.jsonl").read_bytes())
    assert outcome.code == 0
    assert made() == expected


# -- bad rows


def test_bad_rows_stop_nothing_and_are_kept(model: Path) -> None:
    values = [
        TALK,
        "{\n",
        "\n",
        {"text": "x"},
        {"messages": [{"content": "?"}]},
        {"messages": []},
        {"messages": TALK, "chat_template_kwargs": 7},
        {"messages": TALK, "chat_template_kwargs": {"nonsense": 1}},
        CALLS,
    ]
    outcome = convert(model, lines(*values), code=1)
    assert [row["source_row"] for row in made()] == [0, 7]
    told = bad()
    assert [
        (row["row"], row["where"].partition(":")[2].partition(":")[0], row["kind"], row["path"]) for row in told
    ] == [
        (1, "2", "not readable", None),
        (2, "4", "no conversation", "row"),
        (3, "5", "refused", "messages[0].role"),
        (4, "6", "refused", "messages"),
        (5, "7", "no conversation", None),
        (6, "8", "refused", "nonsense"),
    ]
    assert told[0]["data"] == "{"
    assert told[0]["reason"].startswith("data.jsonl:2:2: not valid JSON: ")
    assert told[1]["data"] == {"text": "x"}
    reports = outcome.err.splitlines()
    assert [report.startswith("chatcodec: error: data.jsonl:") for report in reports[:5]] == [True] * 5
    assert reports[5] == "chatcodec: error: more such rows are told in out.parquet.bad.jsonl only"
    assert "6 rows that are not in it, or not whole: 3 refused, 2 no conversation, 1 not readable" in reports[-1]
    convert(model, "data.jsonl", "--allow-bad", "--overwrite")
    convert(model, lines(TALK), "--overwrite")
    assert bad() == []


def test_bad_rows_of_columns_hold_what_json_has_no_word_for(model: Path) -> None:
    when = pa.array([1_700_000_000], pa.timestamp("s"))
    pq.write_table(pa.table({"text": ["x\x1b\ud800".encode("utf-8", "surrogatepass")], "when": when}), "data.parquet")
    convert(model, "data.parquet", code=1)
    [told] = bad()
    assert told["where"] == "data.parquet: row 0"
    assert told["data"]["when"].startswith("2023-11-14")


def test_what_fails_unforeseen_is_a_bad_row(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(chatcodec.Codec, "training_samples", fail)
    convert(model, lines(TALK), code=1)
    assert [(row["kind"], row["reason"]) for row in bad()] == [("failed", "ZeroDivisionError: oh")]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["missing.jsonl"], "missing.jsonl: cannot be read: No such file or directory"),
        (["broken.parquet"], "broken.parquet: cannot be read: "),
        (["broken.arrow"], "broken.arrow: cannot be read: "),
        (["broken.json"], "broken.json:1:2: not valid JSON: "),
        (["data.jsonl", "--set", "nonsense=1"], "--set nonsense: the template never reads this variable"),
        (["data.jsonl", "--tokenizer", "missing.json"], "missing.json: no such file or folder"),
        (["data.jsonl", "-o", "missing/out.parquet"], "missing/out.parquet.parts: cannot be written: "),
    ],
)
def test_what_cannot_begin(model: Path, arguments: list[str], complaint: str) -> None:
    lines(TALK)
    for name in ("broken.parquet", "broken.arrow", "broken.json"):
        Path(name).write_text("{oops")
    outcome = run("samples", model, "-o", "out.parquet", "--processes", 1, *arguments)
    assert outcome.code == 1
    assert outcome.err.startswith(f"chatcodec: error: {complaint}")
    assert outcome.err.count("\n") == 1
    assert not Path("out.parquet.parts").exists()


def test_a_template_alone_needs_a_tokenizer(model: Path, tmp_path: Path) -> None:
    data = lines(TALK)
    template = tmp_path / "alone" / "chat_template.jinja"
    template.parent.mkdir()
    template.write_text(TEMPLATE)
    outcome = run("samples", template, data, "-o", "out.parquet")
    assert outcome.code == 1
    assert "(on the command line: --tokenizer PATH)" in outcome.err
    expected = made_of(model, data)
    assert run("samples", template, data, "-o", "out.parquet", "--tokenizer", model, "--overwrite").code == 0
    assert made() == expected


def test_a_format_that_is_not_known_is_told_at_once(model: Path, tmp_path: Path) -> None:
    template = tmp_path / "odd.jinja"
    template.write_text("{{ messages|length }}")
    outcome = run("samples", template, lines(TALK), "-o", "out.parquet", "--tokenizer", model)
    assert outcome.code == 1
    assert "how a turn is written could not be read off the template" in outcome.err


def test_a_format_by_hand(model: Path, tmp_path: Path) -> None:
    Path("turn.json").write_text(run("format", model, "--json").out)
    template = tmp_path / "odd.jinja"
    template.write_text("{% if messages|length > 3 %}{{ raise_exception('no') }}{% endif %}" + TEMPLATE)
    options = ["-o", "out.parquet", "--tokenizer", model, "--processes", 2, "--batch", 1]
    outcome = run("samples", template, lines(TALK[:2], TALK[:2]), *options, "--format", "turn.json")
    assert outcome.code == 0, outcome.err
    assert [row["turn"] for row in made()] == [[1], [1]]


def test_without_arrow(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    convert(model, lines(TALK), out="out.jsonl")
    outcome = run("samples", model, "data.jsonl", "-o", "out.parquet", "--processes", 1)
    assert (outcome.code, "pip install 'chatcodec[samples]'" in outcome.err) == (1, True)
    with pytest.raises(SourceError):
        list(rows.batches("data.parquet"))


@pytest.mark.parametrize(
    "options",
    [
        ["data.jsonl"],
        ["data.jsonl", "-o", "out.csv"],
        ["data.jsonl", "-o", "data.jsonl"],
        ["data.jsonl", "-o", "out.parquet", "--overflow", "drop"],
        ["data.jsonl", "-o", "out.parquet", "--max-length", "0"],
        ["data.jsonl", "-o", "out.parquet", "--max-length", "many"],
        ["data.jsonl", "-o", "out.parquet", "--resume", "--overwrite"],
        ["-", "-o", "out.parquet", "--resume"],
        ["data.jsonl", "-o", "out.parquet", "--turns", "first"],
    ],
)
def test_usage_errors(model: Path, options: list[str]) -> None:
    lines(TALK)
    outcome = run("samples", model, *options)
    assert (outcome.code, outcome.out) == (2, "")
    assert "usage: chatcodec samples" in outcome.err


# -- several runs


def test_what_is_there_is_not_overwritten_unasked(model: Path) -> None:
    data = lines(TALK)
    convert(model, data)
    for options in ([], ["--resume"]):
        outcome = convert(model, data, *options, code=1)
        assert outcome.err == "chatcodec: error: out.parquet: is there already; --overwrite writes it anew\n"
    convert(model, data, "--overwrite")


def test_a_folder_of_someone_else_is_left_alone(model: Path) -> None:
    Path("out.parquet.parts").mkdir()
    Path("out.parquet.parts/precious").touch()
    outcome = convert(model, lines(TALK), "--overwrite", code=1)
    assert "out.parquet.parts: in the way, and no folder of parts" in outcome.err
    assert Path("out.parquet.parts/precious").exists()


def interrupted_after(parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run stops, as if it were killed, behind so many parts."""
    kept = iter(range(parts))
    keep = samples.Parts.keep

    def stop(self: Any, *given: Any) -> None:
        if next(kept, None) is None:
            raise KeyboardInterrupt
        keep(self, *given)

    monkeypatch.setattr(samples.Parts, "keep", stop)


@pytest.mark.parametrize("out", ["out.parquet", "out.jsonl"])
def test_a_run_goes_on_where_it_stopped(model: Path, out: str) -> None:
    data = lines(*[[user(f"{n}?"), assistant(f"{n}.")] if n % 5 else {"text": n} for n in range(30)])
    convert(model, data, "--batch", 4, out=f"whole.{out}", code=1)
    with pytest.MonkeyPatch.context() as patch:
        interrupted_after(3, patch)
        outcome = convert(model, data, "--batch", 4, out=out, code=130)
    assert f"12 rows are done, and kept in {out}.parts; --resume goes on from there" in outcome.err
    assert not Path(out).exists()
    outcome = convert(model, data, "--batch", 4, out=out, code=1)
    assert "a run that was interrupted; --resume goes on with it" in outcome.err
    with pytest.MonkeyPatch.context() as patch:
        interrupted_after(2, patch)
        convert(model, data, "--batch", 4, "--resume", out=out, code=130)
    with pytest.MonkeyPatch.context() as patch:
        done = []
        keep = samples.Parts.keep
        patch.setattr(samples.Parts, "keep", lambda *given: (done.append(given[1].first), keep(*given)))
        outcome = convert(model, data, "--batch", 4, "--resume", out=out, code=1)
    assert done == [20, 24, 28]
    assert f"{out}: 24 samples of 30 rows" in outcome.err
    for ending in ("", ".bad.jsonl"):
        assert Path(out + ending).read_bytes() == Path(f"whole.{out}{ending}").read_bytes()
    assert not Path(f"{out}.parts").exists()


def test_resume_begins_where_nothing_was_done(model: Path) -> None:
    convert(model, lines(TALK), "--resume")
    assert len(made()) == 1


def test_a_part_that_is_not_whole_does_not_count(model: Path) -> None:
    data = lines(*[TALK] * 12)
    convert(model, data, "--batch", 4, out="whole.parquet")
    with pytest.MonkeyPatch.context() as patch:
        interrupted_after(2, patch)
        convert(model, data, "--batch", 4, code=130)
    Path("out.parquet.parts/000000000004.json").unlink()
    Path("out.parquet.parts/000000000004.part").write_bytes(b"half")
    Path("out.parquet.parts/000000000008.json.new").write_bytes(b"{")
    convert(model, data, "--batch", 4, "--resume")
    assert Path("out.parquet").read_bytes() == Path("whole.parquet").read_bytes()


def test_a_run_that_ended_while_its_parts_were_removed(model: Path) -> None:
    data = lines(*[TALK] * 12)
    with pytest.MonkeyPatch.context() as patch:
        interrupted_after(2, patch)
        convert(model, data, "--batch", 4, code=130)
    Path("out.parquet.parts/run.json").unlink()
    convert(model, data, "--batch", 4, "--resume")
    assert [row["source_row"] for row in made()] == list(range(12))


def test_a_run_that_ended_while_its_parts_were_joined(model: Path) -> None:
    data = lines(*[TALK] * 12)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(samples.Parts, "join", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
        convert(model, data, "--batch", 4, code=130)
    convert(model, data, "--batch", 4, "--resume")
    assert len(made()) == 12


@pytest.mark.parametrize(
    ("change", "options", "name"),
    [
        (lambda: lines(*[TALK] * 11), [], "data's size"),
        (lambda: os.utime("data.jsonl", (1, 1)), [], "data's time"),
        (lambda: None, ["--max-length", 100], "--max-length"),
        (lambda: None, ["--turns", "last"], "--turns"),
        (lambda: None, ["--set", "enable_thinking=false"], "--set"),
        (lambda: None, ["--tools", "tools.json"], "--tools"),
        (lambda: None, ["--mask-column", "mask"], "--mask-column"),
    ],
)
def test_parts_of_something_else_are_not_taken_over(
    model: Path, change: Callable[[], object], options: list[object], name: str
) -> None:
    Path("tools.json").write_text(json.dumps(TOOLS))
    data = lines(*[TALK] * 12)
    with pytest.MonkeyPatch.context() as patch:
        interrupted_after(2, patch)
        convert(model, data, "--batch", 4, code=130)
    change()
    outcome = convert(model, data, "--batch", 4, "--resume", *options, code=1)
    assert f"this is not what the parts were made of: {name} (then " in outcome.err
    assert Path("out.parquet.parts").exists()
    convert(model, data, "--batch", 4, "--overwrite", *options)


def test_another_template_or_tokenizer_is_noticed(model: Path, tmp_path: Path) -> None:
    folder = vocabularies.folder(
        tmp_path / "m", "neox", template=TEMPLATE, extra_special=["<|im_start|>", "<|im_end|>"]
    )
    data = lines(*[TALK] * 12)
    for name, changed in (
        ("template", lambda: (folder / "chat_template.jinja").write_text(TEMPLATE + " ")),
        ("tokenizer", lambda: vocabularies.folder(folder, "digits", extra_special=["<|im_start|>", "<|im_end|>"])),
    ):
        with pytest.MonkeyPatch.context() as patch:
            interrupted_after(2, patch)
            convert(folder, data, "--batch", 4, "--overwrite", code=130)
        changed()
        outcome = convert(folder, data, "--batch", 4, "--resume", code=1)
        assert f"made of: {name} (then " in outcome.err


@pytest.mark.skipif(sys.platform == "win32", reason="needs flock")
def test_two_runs_do_not_work_on_one_file(model: Path) -> None:
    import fcntl

    data = lines(*[TALK] * 12)
    with pytest.MonkeyPatch.context() as patch:
        interrupted_after(2, patch)
        convert(model, data, "--batch", 4, code=130)
    with open("out.parquet.parts/lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for option in ("--resume", "--overwrite"):
            outcome = convert(model, data, "--batch", 4, option, code=1)
            assert outcome.err == "chatcodec: error: out.parquet.parts: another run is working on it\n"
    convert(model, data, "--batch", 4, "--resume")


# -- several processes


def started(model: Path, data: str, *options: object, out: str = "out.parquet") -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "chatcodec", "samples", model, data, "-o", out, "--batch", 4, *options]
    return subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )


def wait_for(condition: Callable[[], Any]) -> Any:
    for _ in range(6000):
        if found := condition():
            return found
        time.sleep(0.01)
    raise AssertionError("that never came")


def parts_done(number: int, out: str = "out.parquet") -> Callable[[], bool]:
    return lambda: len(list(Path(f"{out}.parts").glob("0*.json"))) >= number


def children(pid: int) -> list[int]:
    """The worker processes of a run."""
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in listed if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


needs_proc = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")


def many(number: int = 1500) -> str:
    return lines(*([user(f"{n}?"), assistant(f"{n}. " * 20)] if n % 50 else {"text": n} for n in range(number)))


def test_processes_give_what_one_gives(model: Path) -> None:
    data = many(60)
    convert(model, data, "--batch", 4, code=1)
    with started(model, data, "--processes", 3, out="three.parquet") as process:
        _, err = process.communicate(timeout=120)
    assert (process.returncode, b"Traceback" in err) == (1, False)
    for ending in ("", ".bad.jsonl"):
        assert Path(f"three.parquet{ending}").read_bytes() == Path(f"out.parquet{ending}").read_bytes()


@needs_proc
def test_killed_and_resumed(model: Path) -> None:
    data = many()
    with started(model, data, "--processes", 2) as process:
        wait_for(parts_done(5))
        workers_ = children(process.pid)
        assert len(workers_) == 2
        process.send_signal(signal.SIGKILL)
        process.wait(60)
    wait_for(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers_))
    assert not Path("out.parquet").exists()
    done = len(list(Path("out.parquet.parts").glob("0*.json")))
    assert 5 <= done < 375
    convert(model, data, "--batch", 4, "--resume", code=1)
    convert(model, data, "--batch", 4, out="whole.parquet", code=1)
    for ending in ("", ".bad.jsonl"):
        assert Path(f"out.parquet{ending}").read_bytes() == Path(f"whole.parquet{ending}").read_bytes()


@needs_proc
def test_interrupted_from_the_keyboard(model: Path) -> None:
    with started(model, many(), "--processes", 2) as process:
        wait_for(parts_done(3))
        workers_ = children(process.pid)
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert re.search(rb"note: [\d,]+ rows are done, and kept in out.parquet.parts; --resume goes on from there\n$", err)
    assert b"Traceback" not in err
    wait_for(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers_))


@needs_proc
def test_a_worker_that_dies_is_an_error(model: Path) -> None:
    with started(model, many(), "--processes", 2) as process:
        wait_for(parts_done(3))
        first, second = children(process.pid)
        os.kill(first, signal.SIGKILL)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert b"a worker process was killed by signal 9 in the middle of its work; the machine may be out of memory" in err
    assert b"--resume goes on from there" in err
    assert b"Traceback" not in err
    wait_for(lambda: not Path(f"/proc/{second}").exists())


def test_progress_is_told(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = lines(*[TALK] * 20, {"text": "x"})
    seconds = count()
    monkeypatch.setattr("time.monotonic", lambda: next(seconds))
    monkeypatch.setattr(sys, "stderr", told := Terminal())
    assert main(["samples", str(model), data, "-o", "out.parquet", "--batch", "4", "--processes", "1"]) == 1
    assert re.search(r"\r8 rows, \d+/s, 8 samples, [\d,]+ tokens, \d+%, [\d.]+ s left\x1b\[K", told.getvalue())
    assert "\r\x1b[Kchatcodec: error: data.jsonl:21: row: no conversation" in told.getvalue()


# -- work in order


def doubling() -> Callable[[int], int]:
    return _doubled


def _doubled(number: int) -> int:
    if number == 13:
        raise ValueError("thirteen")
    if number == 14:
        os._exit(3)
    time.sleep(0.01 * (number % 3))
    return 2 * number


def refusing() -> Callable[[int], int]:
    raise SourceError("no such thing")


@pytest.mark.parametrize("processes", [1, 3])
def test_results_come_in_order(processes: int) -> None:
    assert list(workers.in_order(range(12), doubling, processes)) == [2 * n for n in range(12)]
    assert list(workers.in_order([], doubling, processes)) == []


def test_tasks_are_taken_as_they_are_wanted() -> None:
    taken: list[int] = []

    def tasks() -> Iterator[int]:
        for number in count(20):
            taken.append(number)
            yield number

    results = workers.in_order(tasks(), doubling, 2)
    assert list(islice(results, 3)) == [40, 42, 44]
    assert len(taken) <= 3 + 2 + workers.AHEAD * 2
    results.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("make", "tasks", "error", "told"),
    [
        (doubling, [1, 2, 13], workers.WorkerDied, "a worker process failed: ValueError: thirteen"),
        (doubling, [1, 2, 14], workers.WorkerDied, "a worker process ended with code 3 in the middle of its work"),
        (refusing, [1, 2, 3], SourceError, "no such thing"),
        (partial(int, "x"), [1, 2], workers.WorkerDied, "ValueError: invalid literal"),
    ],
)
def test_what_goes_wrong_in_a_worker_is_raised(make: Any, tasks: list[int], error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        list(workers.in_order(tasks, make, 2))
