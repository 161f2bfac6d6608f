"""Turn formats as JSON documents: they come back as they were, and what is wrong in one is named."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any, get_args

import pytest
from format_strategies import formats
from hypothesis import given
from hypothesis import strategies as st
from turn_formats import DSML, FORMATS, HARMONY, KIMI, MISTRAL_LIST, STEP3_VL

from chatcodec.errors import SourceError
from chatcodec.turn import document
from chatcodec.turn.document import dumps, from_document, loads, to_document
from chatcodec.turn.format import Payload, Piece, TurnFormat


@pytest.mark.parametrize("name", FORMATS)
def test_hand_written_formats_come_back(name: str) -> None:
    assert loads(dumps(FORMATS[name])) == FORMATS[name]


@given(formats)
def test_formats_come_back(format: TurnFormat) -> None:
    text = dumps(format)
    again = loads(text)
    assert again == format
    assert dumps(again) == text
    assert from_document(to_document(format)) == format


def test_every_node_that_stands_where_others_may_has_a_kind() -> None:
    assert set(document.KINDS) == {*get_args(Piece), *get_args(Payload)}


STEP3_TEXT = """\
{
  "version": 1,
  "header": "<|im_start|>assistant\\n",
  "prompt": "<|im_start|>assistant\\n<think>\\n",
  "ends": [
    "<|im_end|>\\n"
  ],
  "reasoning": {
    "open": "<think>\\n",
    "close": "\\n</think>\\n"
  },
  "calls": {
    "call": {
      "pieces": [
        {
          "kind": "literal",
          "text": "<tool_call>\\n{\\"name\\": \\""
        },
        {
          "kind": "name"
        },
        {
          "kind": "literal",
          "text": "\\", \\"arguments\\": "
        },
        {
          "kind": "arguments",
          "payload": {
            "kind": "json"
          }
        },
        {
          "kind": "literal",
          "text": "}\\n</tool_call>"
        }
      ],
      "name_path": [
        "name"
      ],
      "arguments_path": [
        "arguments"
      ]
    },
    "open": "<tool_calls>\\n",
    "separator": "\\n",
    "close": "\\n</tool_calls>",
    "lead": "\\n",
    "lead_alone": "\\n"
  },
  "next_turns": [
    "<|im_start|>"
  ]
}
"""


def test_the_text() -> None:
    assert dumps(STEP3_VL) == STEP3_TEXT


def test_keys_stand_in_the_order_of_the_fields() -> None:
    names = ["version", *(field.name for field in fields(TurnFormat))]
    for format in FORMATS.values():
        assert list(to_document(format)) == [name for name in names if name in to_document(format)]


def test_text_beyond_ascii_is_readable() -> None:
    assert '"header": "<｜Assistant｜>"' in dumps(DSML)


# -- what is wrong with a document


def changed(format: TurnFormat, path: list[str | int], value: Any = None, *, drop: bool = False) -> Any:
    """The format's document with one thing changed."""
    whole = to_document(format)
    inner: Any = whole
    for key in path[:-1]:
        inner = inner[key]
    if drop:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return whole


PIECES: list[str | int] = ["calls", "call", "pieces"]
DSML_PAYLOAD: list[str | int] = [*PIECES, 3, "payload"]
PAYLOAD = "format.calls.call.pieces[3].payload"
WRONG: list[tuple[Any, str]] = [
    ([], "format: an object is expected, not a list"),
    (None, "format: an object is expected, not null"),
    ({}, "format.version: it is missing; 1 is expected"),
    (changed(KIMI, ["version"], 2), "format.version: 1 is expected, not 2"),
    (changed(KIMI, ["version"], True), "format.version: 1 is expected, not true"),
    (changed(KIMI, ["version"], "1"), "format.version: 1 is expected, not '1'"),
    (changed(KIMI, ["header"], drop=True), "format.header: it is missing"),
    (changed(KIMI, ["header"], 3), "format.header: a string is expected, not 3"),
    (changed(KIMI, ["header"], None), "format.header: a string is expected, not null"),
    (changed(KIMI, ["heading"], ""), "format.heading: no such key; those known here are 'header', 'prompt', "),
    (changed(KIMI, ["a b"], ""), "format['a b']: no such key; "),
    (changed(KIMI, ["kind"], "x"), "format.kind: no such key; "),
    (changed(KIMI, ["ends"], "</s>"), "format.ends: a list is expected, not '</s>'"),
    (changed(KIMI, ["ends"], "x" * 100), f"format.ends: a list is expected, not '{'x' * 40}'…"),
    (changed(KIMI, ["ends"], ["</s>", []]), "format.ends[1]: a string is expected, not a list"),
    (changed(KIMI, ["reasoning"], "<think>"), "format.reasoning: an object is expected, not '<think>'"),
    (changed(KIMI, ["reasoning"], {"opens": ""}), "format.reasoning.opens: no such key; those known here are 'open', "),
    (changed(KIMI, ["no_reasoning"], {}), "format.no_reasoning: a string is expected, not an object"),
    (changed(KIMI, ["content"], None), "format.content: an object is expected, not null"),
    (changed(KIMI, ["order"], ["calls", "content"]), "format.order: 'reasoning', 'content', 'calls' are expected"),
    (changed(KIMI, ["calls", "several"], 1), "format.calls.several: true or false is expected, not 1"),
    (changed(KIMI, ["calls", "call"], drop=True), "format.calls.call: it is missing"),
    (changed(KIMI, [*PIECES, 0], "x"), "format.calls.call.pieces[0]: an object is expected, not 'x'"),
    (
        changed(KIMI, [*PIECES, 0], {"text": "x"}),
        "format.calls.call.pieces[0].kind: it is missing; one of 'literal', 'name', 'call_id', 'index', 'arguments' is",
    ),
    (changed(KIMI, [*PIECES, 0, "kind"], "lit"), "format.calls.call.pieces[0].kind: one of 'literal', 'name', "),
    (changed(KIMI, [*PIECES, 0, "kind"], {}), "format.calls.call.pieces[0].kind: one of 'literal', 'name', "),
    (changed(KIMI, [*PIECES, 1, "names"], 0), "format.calls.call.pieces[1].names: true or false is expected, not 0"),
    (changed(KIMI, [*PIECES, 3], {"kind": "arguments"}), "format.calls.call.pieces[3].payload: it is missing"),
    (
        changed(KIMI, [*PIECES, 3, "payload", "kind"], "name"),
        f"{PAYLOAD}.kind: one of 'json', 'tagged', 'keyword', 'bare' is expected, not 'name'",
    ),
    (changed(KIMI, [*PIECES, 3, "payload", "indent"], 2.0), f"{PAYLOAD}.indent: an integer is expected, not 2.0"),
    (changed(KIMI, [*PIECES, 3, "payload", "indent"], True), f"{PAYLOAD}.indent: an integer is expected, not true"),
    (
        changed(DSML, [*DSML_PAYLOAD, "strings"], "yaml"),
        f"{PAYLOAD}.strings: one of 'raw', 'json', 'ascii', 'python' is expected, not 'yaml'",
    ),
    (
        changed(DSML, [*DSML_PAYLOAD, "others"], "raw"),
        f"{PAYLOAD}.others: one of 'json', 'ascii', 'python', 'mixed' is expected, not 'raw'",
    ),
    (changed(DSML, [*DSML_PAYLOAD, "kinds", 1], ["integer"]), f"{PAYLOAD}.kinds[1]: a list of 2 is expected, not of 1"),
    (changed(DSML, [*DSML_PAYLOAD, "kinds", 1, 0], "int"), f"{PAYLOAD}.kinds[1][0]: one of 'string', 'integer', "),
    (changed(MISTRAL_LIST, ["calls", "call", "id_path"], "id"), "format.calls.call.id_path: a list is expected"),
    (changed(HARMONY, ["channels", "message"], drop=True), "format.channels.message: it is missing"),
]


@pytest.mark.parametrize(("given", "message"), WRONG)
def test_a_wrong_document_is_refused(given: Any, message: str) -> None:
    with pytest.raises(SourceError) as caught:
        loads(json.dumps(given))
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, '{"version": 1} x'])
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(SourceError, match=r"^the format is no JSON document: "):
        loads(text)


def test_a_default_may_be_spelled_out() -> None:
    assert from_document(changed(KIMI, ["reasoning"], None)) == KIMI
    assert from_document(changed(KIMI, ["calls", "several"], True)) == KIMI


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(formats, st.data())
def test_any_document_is_read_or_refused(format: TurnFormat, data: st.DataObject) -> None:
    """One place of a good document is replaced by anything."""
    whole = {"document": to_document(format)}
    inner: Any = whole
    while True:
        keys = list(inner) if isinstance(inner, dict) else range(len(inner))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(inner[key], dict | list) or not inner[key] or data.draw(st.booleans()):
            break
        inner = inner[key]
    inner[key] = data.draw(json_values)
    try:
        read = from_document(whole["document"])
    except SourceError as error:
        assert str(error).startswith("format")  # noqa: PT017
    else:
        assert loads(dumps(read)) == read
