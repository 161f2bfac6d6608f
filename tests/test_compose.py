"""Composing: messages as completions, by hand for each format, and against what the built-in templates write."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, replace
from decimal import Decimal
from importlib.resources import files
from typing import Any

import pytest
from conversations import TOOLS, WEATHER, S, call, conversation
from hypothesis import assume, given
from hypothesis import strategies as st
from turn_formats import (
    BARE_JSON,
    DSML,
    FIVE,
    FORMATS,
    GEMMA,
    GLM_COMPACT,
    HARMONY,
    HERMES,
    INTELLECT_3,
    IQUEST_CODER,
    KIMI,
    MISTRAL_ARGS,
    MISTRAL_LIST,
    PYTHONIC,
    STEP3_VL,
    STEP_AUDIO_R1,
    TELECHAT3,
)

from chatcodec.errors import UnsupportedInput
from chatcodec.laws import compose_open
from chatcodec.template import Template
from chatcodec.turn import payloads
from chatcodec.turn.compose import compose
from chatcodec.turn.format import (
    BareArguments,
    Call,
    CallId,
    Calls,
    Index,
    JsonArguments,
    KeywordArguments,
    Literal,
    Name,
    Payload,
    Section,
    TaggedArguments,
    TurnFormat,
)
from chatcodec.turn.payloads import values
from chatcodec.turn.said import read_message

Message = dict[str, Any]

PARIS = call("get_weather", {"city": "Paris", "days": 2})
NOW = call("now", {})


def said(content: Any = "C", *calls: Message, reasoning: Any = None) -> Message:
    message: Message = {"role": "assistant", "content": content}
    if reasoning is not None:
        message["reasoning_content"] = reasoning
    return {**message, "tool_calls": list(calls)} if calls else message


# -- the completions of messages


@dataclass(frozen=True)
class Case:
    format: TurnFormat
    message: Message
    text: str
    end: str = ""
    """What is added with `end=True`."""


CASES = {
    "step3-vl": Case(STEP3_VL, said(reasoning="R"), "R\n</think>\nC", "<|im_end|>"),
    "step3-vl without reasoning": Case(STEP3_VL, said(), "\n</think>\nC", "<|im_end|>"),
    "step3-vl calls": Case(
        STEP3_VL,
        said("C", PARIS, NOW, reasoning="R"),
        "R\n</think>\nC\n<tool_calls>\n"
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}\n</tool_call>\n'
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>\n</tool_calls>',
        "<|im_end|>",
    ),
    "step3-vl calls alone": Case(
        STEP3_VL,
        said("", NOW),
        '\n</think>\n\n<tool_calls>\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>\n</tool_calls>',
        "<|im_end|>",
    ),
    "iquest-coder": Case(
        IQUEST_CODER,
        said("C", PARIS, NOW),
        "C\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n2\n</parameter>\n"
        "</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
        "<|im_end|>",
    ),
    "iquest-coder calls alone": Case(
        IQUEST_CODER, said(None, NOW), "<tool_call>\n<function=now>\n</function>\n</tool_call>", "<|im_end|>"
    ),
    "step-audio-r1": Case(
        STEP_AUDIO_R1,
        said("C", NOW, NOW, reasoning="R"),
        "R\n</think>\nC<|CALL_START|>function\nnow\n{}<|CALL_END|><|CALL_START|>function\nnow\n{}<|CALL_END|>",
        "<|EOT|>",
    ),
    "intellect-3": Case(
        INTELLECT_3,
        said("C", PARIS, NOW, reasoning="R"),
        "\n<think>R</think>\nC\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>\n<tool_call>now\n</tool_call>",
    ),
    "intellect-3 without reasoning": Case(INTELLECT_3, said(), "\n<think></think>\nC"),
    "telechat3": Case(
        TELECHAT3,
        said("C", NOW),
        '\n</think>\nC<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
        "<_end>",
    ),
    "hermes": Case(HERMES, said(reasoning="R"), "<think>\nR\n</think>\n\nC", "<|im_end|>"),
    "hermes without reasoning": Case(HERMES, said(reasoning=""), "<think>\n\n</think>\n\nC", "<|im_end|>"),
    "hermes nothing but reasoning": Case(HERMES, said(None, reasoning="R"), "<think>\nR\n</think>\n\n", "<|im_end|>"),
    "mistral-list": Case(
        MISTRAL_LIST,
        said("", {**PARIS, "id": "aB3xYz019"}),
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}, "id": "aB3xYz019"}]',
        "</s>",
    ),
    "mistral-list without an id": Case(
        MISTRAL_LIST,
        said("", {**NOW, "id": None}),
        '[TOOL_CALLS] [{"name": "now", "arguments": {}, "id": "call00000"}]',
        "</s>",
    ),
    "mistral-args": Case(
        MISTRAL_ARGS,
        said("", NOW, NOW, reasoning="R"),
        "[THINK]R[/THINK][TOOL_CALLS]now[ARGS]{}[TOOL_CALLS]now[ARGS]{}",
        "</s>",
    ),
    "kimi": Case(
        KIMI,
        said("C", {**NOW, "id": "functions.now:7"}, {**NOW, "id": "call_1"}, {**NOW, "id": "functions.now:x"}),
        "C<|tool_calls_section_begin|>"
        "<|tool_call_begin|>functions.now:7<|tool_call_argument_begin|>{}<|tool_call_end|>"
        "<|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
        "<|tool_call_begin|>functions.now:2<|tool_call_argument_begin|>{}<|tool_call_end|>"
        "<|tool_calls_section_end|>",
        "<|im_end|>",
    ),
    "dsml": Case(
        DSML,
        said("C", call("f", {"s": "1", "n": 1, "o": {"a": None}})),
        'C\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n'
        '<｜DSML｜parameter name="s" string="true">1</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="n" string="false">1</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="o" string="false">{"a": null}</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
        "<｜end▁of▁sentence｜>",
    ),
    "pythonic": Case(
        PYTHONIC,
        said("", call("f", {"s": 'it\'s "x"', "b": True, "l": [None, "a"]}), NOW),
        "<|tool_call_start|>[f(s='it\\'s \"x\"', b=True, l=[None, 'a']), now()]<|tool_call_end|>",
        "<|im_end|>",
    ),
    "bare-json": Case(BARE_JSON, said(None, NOW), '{"name": "now", "parameters": {}}', "<|eot_id|>"),
    "gemma": Case(
        GEMMA,
        said("C", call("f", {"s": "a", "n": 1.5, "o": {"k": ["b", None, False]}}), reasoning="R"),
        "<|channel>thought\nR\n<channel|>"
        '<|tool_call>call:f{s:<|"|>a<|"|>,n:1.5,o:{k:[<|"|>b<|"|>,null,false]}}<tool_call|>C',
        "<turn|>",
    ),
    "glm-compact": Case(GLM_COMPACT, said("C", NOW, reasoning="R"), "R</think>C<tool_call>now</tool_call>"),
    "harmony": Case(
        HARMONY,
        said(reasoning="R"),
        "<|channel|>analysis<|message|>R<|end|><|start|>assistant<|channel|>final<|message|>C",
        "<|return|>",
    ),
    "harmony without reasoning": Case(HARMONY, said(), "<|channel|>final<|message|>C", "<|return|>"),
    "harmony nothing but reasoning": Case(
        HARMONY,
        said(None, reasoning="R"),
        "<|channel|>analysis<|message|>R<|end|><|start|>assistant<|channel|>final<|message|>",
        "<|return|>",
    ),
    "harmony call": Case(
        HARMONY,
        said("C", PARIS, reasoning="R"),
        "<|channel|>analysis<|message|>R<|end|><|start|>assistant<|channel|>commentary<|message|>C<|end|>"
        "<|start|>assistant to=functions.get_weather<|channel|>commentary json<|message|>"
        '{"city": "Paris", "days": 2}',
        "<|call|>",
    ),
    "harmony call alone": Case(
        HARMONY, said(None, NOW), " to=functions.now<|channel|>commentary json<|message|>{}", "<|call|>"
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_completion(name: str) -> None:
    case = CASES[name]
    assert compose(case.message, case.format) == case.text
    assert compose(case.message, case.format, end=True) == case.text + case.end


def test_every_format_has_a_case() -> None:
    rest = {"deepseek-fenced", "bare-pythonic"}
    assert {name.split()[0] for name in CASES} | rest == set(FORMATS)


def test_calls_with_an_index() -> None:
    pieces = (Literal("<call "), Index(1), Literal(" "), Name(), Literal(" "), CallId(), Literal(">"))
    format = replace(MISTRAL_ARGS, calls=Calls(Call(pieces)))
    assert compose(said("", {**NOW, "id": "x"}, {**NOW, "id": "y"}), format) == "<call 1 now x><call 2 now y>"


def test_content_between_marks() -> None:
    format = replace(HERMES, content=Section("<answer>", "</answer>"))
    assert compose(said(reasoning="R"), format) == "<think>\nR\n</think>\n\n<answer>C</answer>"
    assert compose(said("", NOW), format).endswith(
        "</think>\n\n" + compose(said("", NOW), replace(format, reasoning=None))
    )
    assert compose(said(), format, prompt=HERMES.header + "<think>\n\n</think>\n\n<answer>") == "C</answer>"


def test_lead_after_calls() -> None:
    assert GEMMA.calls is not None
    format = replace(GEMMA, calls=replace(GEMMA.calls, lead="\n", lead_alone="-"))
    assert compose(said("C", NOW), format) == "<|tool_call>call:now{}<tool_call|>\nC"
    assert compose(said("", NOW), format) == "<|tool_call>call:now{}<tool_call|>-"


# -- where the prompt stands

TOOL_RESPONSE = "<|turn>model\n<|tool_call>call:now{}<tool_call|><|tool_response>response:now{}<tool_response|>"
THINKING = HERMES.header + "<think>\n"
FINAL = "<|end|><|start|>assistant<|channel|>final<|message|>C"
ANALYSIS = HARMONY.prompt + "<|channel|>analysis<|message|>"
TURN_OF_HERMES = THINKING + "R\n</think>\n\nHi<|im_end|>\n"
TURN_OF_STEP3 = STEP3_VL.prompt + "R\n</think>\nHi<|im_end|>\n<|im_start|>user\n"
WHOLE = "<think>\nR\n</think>\nC"
BEGUN = {
    "open": (HERMES, THINKING, said(reasoning="R"), "R\n</think>\n\nC"),
    "open, no reasoning": (HERMES, THINKING, said(), "\n</think>\n\nC"),
    "open without its white space": (HERMES, THINKING[:-1], said(reasoning="R"), "\nR\n</think>\n\nC"),
    "open, and begun": (HERMES, THINKING + "So", said(reasoning="R"), "R\n</think>\n\nC"),
    "closed": (HERMES, HERMES.header + "<think>\n\n</think>\n\n", said(), "C"),
    "closed without its white space": (HERMES, HERMES.header + "<think>\n\n</think>", said(), "\n\nC"),
    "closed otherwise": (HERMES, HERMES.header + "<think></think>\n", said(), "\nC"),
    "closed, and begun": (HERMES, HERMES.header + "<think>\nR\n</think>\n\nSure", said(), "C"),
    "closed in one word": (DSML, DSML.prompt, said(), "C"),
    "open in one word": (DSML, DSML.header + "<think>", said(reasoning="R"), "R</think>C"),
    "open in one word, no reasoning": (DSML, DSML.header + "<think>", said(), "</think>C"),
    "not begun, closed by a word": (DSML, DSML.header, said(), "</think>C"),
    "in the middle of the opening": (INTELLECT_3, "<|assistant|>\n", said(reasoning="R"), "<think>R</think>\nC"),
    "closed, a line end to come": (INTELLECT_3, "<|assistant|>\n<think></think>", said(), "\nC"),
    "an earlier turn": (HERMES, TURN_OF_HERMES + HERMES.header, said(), "<think>\n\n</think>\n\nC"),
    "another's turn": (STEP3_VL, TURN_OF_STEP3, said(reasoning="R"), WHOLE),
    "in the turn, after a result": (GEMMA, TOOL_RESPONSE, said(reasoning="R"), "<|channel>thought\nR\n<channel|>C"),
    "no turn at all": (STEP3_VL, "Hello", said(reasoning="R"), WHOLE),
    "another's closed": (IQUEST_CODER, THINKING, said(), "C"),
    "harmony, analysis": (HARMONY, ANALYSIS, said(reasoning="R"), "R" + FINAL),
    "harmony, analysis begun": (HARMONY, ANALYSIS + "So", said(), FINAL),
    "harmony, final": (HARMONY, HARMONY.prompt + "<|channel|>final<|message|>", said(), "C"),
    "harmony, a channel": (HARMONY, HARMONY.prompt + "<|channel|>", said(), "final<|message|>C"),
}


@pytest.mark.parametrize("name", BEGUN)
def test_after_a_prompt(name: str) -> None:
    format, prompt, message, text = BEGUN[name]
    assert compose(message, format, prompt="<s>" + prompt) == text


def test_reasoning_without_an_opening() -> None:
    format = replace(DSML, prompt=DSML.header, reasoning=Section("", "</think>"))
    assert compose(said(reasoning="R"), format) == "R</think>C"
    assert compose(said(), format) == "</think>C"
    assert compose(said(), format, prompt=DSML.prompt) == "C"


# -- shapes of messages


@pytest.mark.parametrize(
    "message",
    [
        {"content": "C", "reasoning": "R", "tool_calls": [PARIS]},
        {"content": "C", "thinking": "R", "reasoning_content": None, "tool_calls": (PARIS,)},
        {"content": [{"type": "text", "text": "C"}], "reasoning_content": ["R"], "tool_calls": [PARIS]},
        {"refusal": "C", "content": None, "reasoning": "R", "tool_calls": [PARIS]},
        {"content": "C", "reasoning": "R", "function_call": PARIS["function"], "tool_calls": None},
        {"content": "C", "reasoning": "R", "tool_calls": [PARIS["function"]]},
        {"content": "C", "reasoning": "R", "tool_calls": [call("get_weather", '{"city":"Paris","days":2}')]},
    ],
)
def test_shapes_of_one_message(message: Message) -> None:
    assert compose(message, STEP3_VL) == compose(said("C", PARIS, reasoning="R"), STEP3_VL)


@pytest.mark.parametrize("arguments", [None, "", " \n", "{}", {}])
def test_no_arguments(arguments: Any) -> None:
    written = "\n<think></think>\n<tool_call>now\n</tool_call>"
    assert compose(said("", call("now", arguments)), INTELLECT_3) == written
    assert compose(said("", {"function": {"name": "now"}}), INTELLECT_3) == written


def test_the_message_is_left_alone() -> None:
    message = said([{"type": "text", "text": "C"}], call("f", {"a": [1, {"b": "c"}]}), reasoning="R")
    before = json.dumps(message)
    assert compose(message, STEP3_VL) == compose(message, STEP3_VL)
    assert json.dumps(message) == before


# -- what cannot be carried

DEEP: Any = 1
for _ in range(200):
    DEEP = [DEEP]

REFUSED = {
    "a user's": (STEP3_VL, {"role": "user", "content": "C"}, "role"),
    "reasoning where there is none": (IQUEST_CODER, said(reasoning="R"), "reasoning_content"),
    "thinking where there is none": (IQUEST_CODER, {"content": "C", "thinking": "R"}, "thinking"),
    "reasoning where it is closed": (DSML, said(reasoning="R"), "reasoning_content"),
    "reasoning that is no text": (STEP3_VL, said(reasoning=3), "reasoning_content"),
    "reasoning that would be stripped": (INTELLECT_3, said(reasoning="R\n"), "reasoning_content"),
    "content that would be stripped": (INTELLECT_3, said(" C"), "content"),
    "content at the end": (BARE_JSON, said("C\n"), "content"),
    "an image": (STEP3_VL, said([{"type": "image_url"}]), "content[0]"),
    "a part without a text": (STEP3_VL, said([{"type": "text"}]), "content[0]"),
    "a part that is none": (STEP3_VL, said([3]), "content[0]"),
    "content that is an object": (STEP3_VL, said({"a": 1}), "content"),
    "calls where there are none": (replace(STEP3_VL, calls=None), said("", NOW), "tool_calls"),
    "calls on no channel": (replace(HARMONY, calls=None), said("", NOW), "tool_calls"),
    "a second call": (BARE_JSON, said("", NOW, NOW), "tool_calls[1]"),
    "a second call in harmony": (HARMONY, said("", NOW, NOW), "tool_calls[1]"),
    "calls that are no list": (STEP3_VL, {"tool_calls": NOW}, "tool_calls"),
    "a call that is none": (STEP3_VL, {"tool_calls": ["now"]}, "tool_calls[0]"),
    "a custom call": (STEP3_VL, {"tool_calls": [{"type": "custom", "custom": {}}]}, "tool_calls[0].function"),
    "no name": (STEP3_VL, said("", NOW, call("", {})), "tool_calls[1].function.name"),
    "no name in a bare call": (STEP3_VL, {"tool_calls": [{"name": None}]}, "tool_calls[0].name"),
    "a name with white space": (INTELLECT_3, said("", call("a b", {})), "tool_calls[0].function.name"),
    "a name with what follows it": (PYTHONIC, said("", call("a(b", {})), "tool_calls[0].function.name"),
    "a name with the first argument": (
        GLM_COMPACT,
        said("", call("a<arg_key>b", {"a": 1})),
        "tool_calls[0].function.name",
    ),
    "a name in an id": (KIMI, said("", call("a b", {})), "tool_calls[0].function.name"),
    "an id that is none": (MISTRAL_LIST, said("", {**NOW, "id": 3}), "tool_calls[0].id"),
    "no JSON": (STEP3_VL, said("", call("f", "{")), "tool_calls[0].function.arguments"),
    "NaN": (STEP3_VL, said("", call("f", '{"a": NaN}')), "tool_calls[0].function.arguments"),
    "too deep to read": (STEP3_VL, said("", call("f", "[" * 100_000)), "tool_calls[0].function.arguments"),
    "a number out of bounds": (
        STEP3_VL,
        said("", call("f", '{"a": 1e99999999999999999999}')),
        "tool_calls[0].function.arguments",
    ),
    "no object": (STEP3_VL, said("", call("f", "[1]")), "tool_calls[0].function.arguments"),
    "keys that are no strings": (STEP3_VL, said("", call("f", {1: 2})), "tool_calls[0].function.arguments"),
    "inner keys that are no strings": (
        STEP3_VL,
        said("", call("f", {"a": {1: 2}})),
        "tool_calls[0].function.arguments.a",
    ),
    "infinity": (STEP3_VL, said("", call("f", {"a": [float("inf")]})), "tool_calls[0].function.arguments.a[0]"),
    "infinity in a decimal": (
        STEP3_VL,
        said("", call("f", {"a": Decimal("inf")})),
        "tool_calls[0].function.arguments.a",
    ),
    "what is not JSON": (
        STEP3_VL,
        said("", call("f", {"a": {"b c": {1}}})),
        "tool_calls[0].function.arguments.a['b c']",
    ),
    "too deep": (STEP3_VL, said("", call("f", {"a": DEEP})), "tool_calls[0].function.arguments.a" + "[0]" * 100),
    "a key with the delimiter": (
        INTELLECT_3,
        said("", call("f", {"a</arg_key>\n<arg_value>": 1})),
        "tool_calls[0].function.arguments['a</arg_key>\\n<arg_value>']",
    ),
    "a string with the mark": (GEMMA, said("", call("f", {"a": ['<|"|>']})), "tool_calls[0].function.arguments.a[0]"),
    "a bare key with a colon": (GEMMA, said("", call("f", {"a:b": 1})), "tool_calls[0].function.arguments['a:b']"),
    "no keyword": (PYTHONIC, said("", call("f", {"a b": 1})), "tool_calls[0].function.arguments['a b']"),
    "the name in a legacy call": (STEP3_VL, {"function_call": {"arguments": "{}"}}, "function_call.name"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    format, message, path = REFUSED[name]
    with pytest.raises(UnsupportedInput) as caught:
        compose(message, format)
    assert caught.value.path == path
    assert caught.value.reason


def test_harmony_goes_on_from_its_prompt() -> None:
    final = HARMONY.prompt + "<|channel|>final<|message|>"
    with pytest.raises(UnsupportedInput, match=r"^reasoning_content: the prompt has closed reasoning"):
        compose(said(reasoning="R"), HARMONY, prompt=final)
    with pytest.raises(UnsupportedInput, match=r"^prompt: "):
        compose(said("C", NOW), HARMONY, prompt=final)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(max_size=1),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.integers(), inner, max_size=3),
    max_leaves=6,
)
keys = st.sampled_from(["role", "content", "reasoning", "thinking", "refusal", "tool_calls", "function_call"])
calls = st.fixed_dictionaries({}, optional={
    "id": json_values, "name": json_values,
    "function": json_values | st.fixed_dictionaries({"name": json_values, "arguments": json_values}),
})  # fmt: skip
anything = st.dictionaries(keys, json_values | st.just("assistant") | st.lists(calls, max_size=2))


@given(anything, st.sampled_from(list(FORMATS)), st.none() | st.text())
def test_any_message_is_composed_or_refused(message: Message, name: str, prompt: str | None) -> None:
    with contextlib.suppress(UnsupportedInput):
        assert isinstance(compose(message, FORMATS[name], prompt=prompt), str)


# -- how arguments are written

VALUES = {
    "s": "é\"'\n",
    "i": 12345678901234567890123,
    "d": Decimal("1.10"),
    "f": 1e-9,
    "z": None,
    "b": [True, {"k": "v"}],
}
WRITTEN: list[tuple[Payload, dict[str, Any], str]] = [
    (
        JsonArguments(),
        VALUES,
        '{"s": "é\\"\'\\n", "i": 12345678901234567890123, "d": 1.10, "f": 1e-09, "z": null, "b": [true, {"k": "v"}]}',
    ),
    (JsonArguments(",", ":", ascii=True), {"é": "é🙂", "n": []}, '{"\\u00e9":"\\u00e9\\ud83d\\ude42","n":[]}'),
    (JsonArguments(encoded=True), {"a": "é\n"}, '"{\\"a\\": \\"é\\\\n\\"}"'),
    (
        JsonArguments(",", indent=2),
        {"a": [1, {"b": {}}], "c": ()},
        '{\n  "a": [\n    1,\n    {\n      "b": {}\n    }\n  ],\n  "c": []\n}',
    ),
    (
        TaggedArguments("<", ">", "</>", others="python"),
        VALUES,
        "<s>é\"'\n</><i>12345678901234567890123</><d>1.10</><f>1e-09</><z>None</><b>[True, {'k': 'v'}]</>",
    ),
    (TaggedArguments("<", ">", "</>", "\n", "json", "ascii"), {"a": "é", "b": ["é"]}, '<a>"é"</>\n<b>["\\u00e9"]</>'),
    (TaggedArguments("<", ">", "</", named_close=">"), {"a": "", "b": 1}, "<a></a><b>1</b>"),
    (TaggedArguments('<p n="', '">', "</p>", escaped_names=True), {'a"<b': 1}, '<p n="a&#34;&lt;b">1</p>'),
    (
        TaggedArguments("<", " t>", "</>", kinds=(("integer", " i>"), ("number", " n>"), ("null", " z>"))),
        {"a": 1, "b": Decimal("1.0"), "c": Decimal(7), "d": None, "e": True, "f": "x", "g": 1.5},
        "<a i>1</><b n>1.0</><c i>7</><d z>null</><e t>true</><f t>x</><g n>1.5</>",
    ),
    (KeywordArguments(), {"a": 'x"', "b": None, "c": [True]}, 'a="x\\"", b=null, c=[true]'),
    (KeywordArguments(",", ":=", "bare", "python"), {"a": "x\\n'", "b": {"c": None}}, "a:=\"x\\n'\",b:={'c': None}"),
    (BareArguments("'", ", ", ": "), {"a b": 'x"', "c": {"d": [1]}, "e": {}}, "a b: 'x\"', c: {d: [1]}, e: {}"),
]  # fmt: skip


@pytest.mark.parametrize(("payload", "arguments", "text"), WRITTEN)
def test_arguments(payload: Payload, arguments: dict[str, Any], text: str) -> None:
    assert payloads.write(payload, arguments) == text


@pytest.mark.parametrize("payload", {type(payload): payload for payload, _, _ in WRITTEN}.values())
def test_no_arguments_at_all(payload: Payload) -> None:
    assert payloads.write(payload, {}) in ("{}", "")


def test_a_quote_in_bare_quotes() -> None:
    with pytest.raises(UnsupportedInput, match=r"^arguments\.a: "):
        payloads.write(KeywordArguments(strings="bare"), {"a": '"'})


@pytest.mark.parametrize(
    "number", ["0", "-0", "1e5", "1E+05", "0.10", "-1.5e-300", "12345678901234567890.123456789", "9" * 10_000, "1e400"]
)
def test_numbers_are_written_as_they_were(number: str) -> None:
    text = compose(said("", call("f", f'{{"a":[{number}]}}')), MISTRAL_ARGS)
    assert text == f'[TOOL_CALLS]f[ARGS]{{"a": [{number}]}}'


def test_floats_are_read_as_json_has_them() -> None:
    given = {"a": 1.5, "b": [1e30, {"c": (2.0,)}]}
    written = '{"a": 1.5, "b": [1e+30, {"c": [2.0]}]}'
    assert compose(said("", call("f", given)), MISTRAL_ARGS) == f"[TOOL_CALLS]f[ARGS]{written}"
    assert read_message(said("", call("f", given))) == read_message(said("", call("f", written)))


def test_integers_of_any_size() -> None:
    assert (
        payloads.write(JsonArguments(), {"a": 10**5000, "b": -(10**5000)})
        == f'{{"a": 1{"0" * 5000}, "b": -1{"0" * 5000}}}'
    )


def test_numbers_keep_their_json_type() -> None:
    read = values.loads('{"a": 1, "b": 1.0, "c": 1e0, "d": -0, "e": ' + "9" * 5000 + "}")
    assert [values.json_type(value) for value in read.values()] == ["integer", "number", "number", "integer", "integer"]


# -- against the built-in templates


FRAGMENTS = ["a", "B c", " ", "\n", "é", "你好", "🙂", "{", '"', "\\", "'", "&<>", "</", "</parameter", "<|"]
texts = st.lists(st.sampled_from(FRAGMENTS), max_size=5).map("".join)
written_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
written_calls = st.builds(call, st.sampled_from(["get_weather", "now", "查询"]), st.dictionaries(texts, written_values))
messages = st.builds(
    lambda content, calls: said(content, *calls, reasoning=""), texts, st.lists(written_calls, max_size=3)
).filter(lambda message: message["content"] or "tool_calls" in message)
"""Not silent ones: behind their reasoning intellect-3 leaves out the line end."""


@pytest.mark.parametrize("name", FIVE)
@given(message=messages)
def test_what_the_template_writes(name: str, message: Message) -> None:
    """A turn without reasoning, as it stands in history: there no template of the five has any."""
    format = FIVE[name]
    try:
        turn = compose(message, format, prompt=format.header)
    except UnsupportedInput:
        assume(False)
    template = Template((files("chatcodec.builtin") / f"{name}.jinja").read_text(encoding="utf-8"))
    after = [] if name == "intellect-3" else [WEATHER]
    before = template.render(**conversation(S, WEATHER, tools=TOOLS, prompt=False))
    text = template.render(**conversation(S, WEATHER, message, *after, tools=TOOLS, prompt=False))
    assert text.startswith(f"{before}{format.header}{turn}{''.join(format.ends[:1])}")


@pytest.mark.parametrize("name", ["step3-vl", "intellect-3"])
@given(message=messages, reasoning=texts.filter(bool))
def test_what_the_template_writes_after_its_prompt(name: str, message: Message, reasoning: str) -> None:
    format = FIVE[name]
    message = {**message, "reasoning_content": reasoning}
    template = Template((files("chatcodec.builtin") / f"{name}.jinja").read_text(encoding="utf-8"))
    prompt = template.render(**conversation(S, WEATHER, tools=TOOLS))
    try:
        completion = compose(message, format, prompt=prompt)
    except UnsupportedInput:
        assume(False)
    text = template.render(**conversation(S, WEATHER, message, tools=TOOLS, prompt=False))
    assert text == prompt + completion + "".join(format.ends[:1])


beginnings = st.text("ab \n", max_size=5).map("a".__add__)


@pytest.mark.parametrize("name", FORMATS)
@given(reasoning=st.just("") | beginnings, content=st.just("") | beginnings, more=beginnings)
def test_a_message_that_goes_on_is_the_beginning_of_the_whole(
    name: str, reasoning: str, content: str, more: str
) -> None:
    format = FORMATS[name]
    reasoning = reasoning.rstrip() if content else reasoning
    message = {"role": "assistant", "reasoning_content": reasoning, "content": content}
    if not (format.reasoning or format.channels):
        del message["reasoning_content"]
    assume(content or (reasoning and "reasoning_content" in message))
    more = more.strip()
    whole = {**message, "content": content + more} if content else {**message, "reasoning_content": reasoning + more}
    begun = compose_open(format, message, prompt=format.header)
    assert compose(whole, format, prompt=format.header).startswith(begun)
    assert begun.endswith(content or reasoning)


@pytest.mark.parametrize(
    ("message", "path"),
    [
        ({"role": "assistant", "content": ""}, "content"),
        ({"role": "assistant", "content": "a", "tool_calls": [PARIS]}, "tool_calls"),
        ({"role": "user", "content": "a"}, "role"),
    ],
)
def test_what_cannot_go_on(message: Message, path: str) -> None:
    with pytest.raises(UnsupportedInput) as raised:
        compose_open(STEP3_VL, message)
    assert raised.value.path == path
