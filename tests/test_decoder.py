"""The decoder, by what it guarantees: a table of outputs by hand, and what holds in every format.

Each case of the table is read whole, character by character, and with the end of the turn and another turn behind it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from messages_strategy import literals, may_reason
from turn_formats import FIVE, FORMATS, JSON

from chatcodec.errors import UnsupportedInput
from chatcodec.events import (
    ArgumentsDelta,
    ContentDelta,
    Event,
    ReasoningDelta,
    ToolCall,
    ToolCallEnd,
    ToolCallStart,
    TurnEnd,
)
from chatcodec.turn import payloads
from chatcodec.turn.calls import Limits
from chatcodec.turn.compose import compose
from chatcodec.turn.decoder import Decoder
from chatcodec.turn.format import Call as CallFormat
from chatcodec.turn.format import (
    CallId,
    Calls,
    JsonArguments,
    KeywordArguments,
    Literal,
    Name,
    TaggedArguments,
    TurnFormat,
)
from chatcodec.turn.grammar import tokens

Message = dict[str, Any]

# -- tools


def tool(name: str, **properties: Any) -> Message:
    schemas = {key: {"type": kind} if isinstance(kind, str) else kind for key, kind in properties.items()}
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": schemas}}}


TOOLS = [
    tool(
        "get_weather",
        city="string",
        note={"$ref": "#/$defs/text"},
        days="integer",
        ratio="number",
        exact={"type": ["boolean", "null"]},
        nothing="null",
        tags="array",
        place="object",
        either={"anyOf": [{"type": "integer"}, {"type": "null"}]},
        code={"enum": ["1", "2"]},
        all={"allOf": [{"type": "string"}]},
    ),
    tool("now"),
]
TOOLS[0]["function"]["parameters"]["$defs"] = {"text": {"type": "string"}}

# -- what is expected


@dataclass(frozen=True)
class Call:
    """An attempt at a call, as far as a case says what is expected of it."""

    name: str = "now"
    arguments: Any = field(default_factory=dict)
    status: str = "ok"
    noted: bool = False
    """It departs from the template's writing."""


@dataclass(frozen=True)
class Case:
    format: str
    output: str
    content: str = ""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    prompt: str | None = None
    told: Any = None
    reason: str | None = None
    tools: Any = field(default_factory=lambda: TOOLS)


def weather(city: str = "Paris", **more: Any) -> Call:
    return Call("get_weather", {"city": city, **more.pop("arguments", {})}, **more)


def decoded(
    form: TurnFormat, *pieces: str, tools: Any = TOOLS, prompt: str | None = None, told: Any = None
) -> tuple[Decoder, list[Event]]:
    decoder = Decoder(form, prompt=prompt, tools=tools)
    events = [event for piece in pieces for event in decoder.feed(piece)]
    return decoder, events + decoder.close(told)


def in_message(decoder: Decoder) -> list[tuple[str, Any]]:
    calls = [call["function"] for call in decoder.message.get("tool_calls", ())]
    return [(call["name"], json.loads(call["arguments"])) for call in calls]


def check(case: Case, *pieces: str) -> None:
    decoder, events = decoded(FORMATS[case.format], *pieces, tools=case.tools, prompt=case.prompt, told=case.told)
    message = decoder.message
    assert (message["content"] or "", message.get("reasoning_content", "")) == (case.content, case.reasoning)
    assert [(call.name, call.status) for call in decoder.calls] == [(call.name, call.status) for call in case.calls]
    assert in_message(decoder) == [(call.name, call.arguments) for call in case.calls if call.status == "ok"]
    assert [bool(call.notes) for call in decoder.calls] == [
        call.noted or call.status == "malformed" for call in case.calls
    ]
    if case.reason:
        assert decoder.finish_reason == case.reason
    check_events(decoder, events, "".join(pieces))


def check_events(decoder: Decoder, events: list[Event], output: str) -> None:
    """The events say what the message says, each call in its order, and raw texts are what the output says there."""
    message = decoder.message
    assert joined(events, ContentDelta) == (message["content"] or "")
    assert joined(events, ReasoningDelta) == message.get("reasoning_content", "")
    assert [event.call for event in events if isinstance(event, ToolCallEnd)] == decoder.calls
    assert [event for event in events if isinstance(event, TurnEnd)] == events[-1:]
    for call in decoder.calls:
        check_call(call, [event for event in events if getattr(event, "index", None) == call.index])
    assert [call.raw for call in decoder.calls] == [output[slice(*call.span)] for call in decoder.calls]
    assert [place for call in decoder.calls for place in call.span] == sorted(
        place for call in decoder.calls for place in call.span
    )


def check_call(call: ToolCall, events: list[Event]) -> None:
    starts = [event for event in events if isinstance(event, ToolCallStart)]
    pieces = "".join(event.json for event in events if isinstance(event, ArgumentsDelta))
    if starts or call.status == "ok":
        assert events[0] is starts[0]
        assert starts == [ToolCallStart(call.index, call.id, call.name)]
        assert pieces == call.arguments
    else:
        assert not pieces
    assert events[-1] == ToolCallEnd(call.index, call)
    assert isinstance(call.arguments, str)
    assert call.id
    if call.status in ("ok", "unknown_tool"):
        assert call.name
        assert isinstance(json.loads(call.arguments), dict)


def joined(events: list[Event], kind: type[ContentDelta] | type[ReasoningDelta]) -> str:
    return "".join(event.text for event in events if isinstance(event, kind))


# -- the table

STEP3_CALLS = '<tool_calls>\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>\n</tool_calls>'
JSON_NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
JSON_WEATHER = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
XML_NOW = "<tool_call>\n<function=now>\n</function>\n</tool_call>"
AUDIO_NOW = "<|CALL_START|>function\nnow\n{}<|CALL_END|>"
GLM_NOW = "<tool_call>now\n</tool_call>"
KIMI_NOW = "<|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
DSML_NOW = '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="now">\n\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>'
CLOSED = {name: FORMATS[name].prompt + "\n</think>\n" for name in ("step3-vl", "step-audio-r1", "telechat3")}


def json_call(text: str) -> str:
    return f"<tool_call>\n{text}\n</tool_call>"


def xml_call(arguments: str, name: str = "get_weather") -> str:
    return f"<tool_call>\n<function={name}>\n{arguments}\n</function>\n</tool_call>"


def glm_call(arguments: str, name: str = "get_weather") -> str:
    return f"<tool_call>{name}\n{arguments}\n</tool_call>"


EXACT = {
    "content": Case("hermes", "C", "C", reason="stop"),
    "nothing": Case("hermes", "", reason="stop"),
    "white space alone": Case("iquest-coder", " \n", " \n"),
    "white space around content": Case("iquest-coder", "\n  C \n\n", "\n  C \n\n"),
    "reasoning that the prompt opened": Case("step3-vl", "R\n</think>\nC", "C", "R"),
    "reasoning that the turn opens": Case("intellect-3", "\n<think>R</think>\nC", "C", "R"),
    "no reasoning": Case("step3-vl", "\n</think>\nC", "C"),
    "white space in reasoning": Case("step3-vl", "\n R \n\n</think>\n\nC", "\nC", "\n R \n"),
    "reasoning alone": Case("telechat3", "R\n</think>\n", "", "R", reason="stop"),
    "reasoning, content and calls": Case(
        "step3-vl", f"R\n</think>\nC\n{STEP3_CALLS}", "C", "R", (Call(),), reason="tool_calls"
    ),
    "content and a call": Case("iquest-coder", f"C\n{XML_NOW}", "C", calls=(Call(),), reason="tool_calls"),
    "content's own newline stays": Case("iquest-coder", f"C\n\n{XML_NOW}", "C\n", calls=(Call(),)),
    "two calls": Case(
        "telechat3", f"{JSON_NOW}\n{JSON_WEATHER}", calls=(Call(), weather()), prompt=CLOSED["telechat3"]
    ),
    "calls without a separator": Case(
        "step-audio-r1", f"C{AUDIO_NOW}{AUDIO_NOW}", "C", calls=(Call(), Call()), prompt=CLOSED["step-audio-r1"]
    ),
    "a call without arguments": Case("intellect-3", f"C\n{GLM_NOW}", "C", calls=(Call(),)),
    "a call in a wrapper": Case(
        "kimi", f"<|tool_calls_section_begin|>{KIMI_NOW}<|tool_calls_section_end|>", calls=(Call(),)
    ),
    "a list of calls": Case(
        "mistral-list", '[TOOL_CALLS] [{"name": "now", "arguments": {}, "id": "a"}]', calls=(Call(),)
    ),
    "a call in Python": Case(
        "pythonic",
        "<|tool_call_start|>[get_weather(city='it\\'s \"x\"', days=2, tags=[None, 'a']), now()]<|tool_call_end|>",
        calls=(weather('it\'s "x"', arguments={"days": 2, "tags": [None, "a"]}), Call()),
    ),
    "a call that nothing marks": Case(
        "bare-json", '{"name": "get_weather", "parameters": {"city": "Paris"}}', calls=(weather(),)
    ),
    "content behind calls": Case(
        "gemma", '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>}<tool_call|>C', "C", calls=(weather(),)
    ),
    "channels": Case(
        "harmony",
        "<|channel|>analysis<|message|>R<|end|><|start|>assistant to=functions.get_weather"
        '<|channel|>commentary json<|message|>{"city": "Paris"}<|call|>',
        reasoning="R",
        calls=(weather(),),
    ),
    "a channel's recipient behind it": Case(
        "harmony", "<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}<|call|>", calls=(Call(),)
    ),
    "content in a channel": Case("harmony", "<|channel|>final<|message|>C<|return|>", "C", reason="stop"),
}
"""Output as the templates write it."""

MARKERS = {
    "a string in JSON that closes the call": Case(
        "hermes",
        json_call('{"name": "get_weather", "arguments": {"city": "}}\\n</tool_call><tool_call> <|im_end|>"}}'),
        calls=(weather("}}\n</tool_call><tool_call> <|im_end|>"),),
    ),
    "a value that holds its own close": Case(
        "iquest-coder",
        xml_call("<parameter=city>\na</parameter>b\n</parameter>\nc\n</parameter>"),
        calls=(weather("a</parameter>b\n</parameter>\nc"),),
    ),
    "a value that holds the call's close": Case(
        "iquest-coder",
        xml_call("<parameter=city>\n</function> and </tool_call>\n</parameter>"),
        calls=(weather("</function> and </tool_call>"),),
    ),
    "a value that holds an opening": Case(
        "intellect-3",
        glm_call("<arg_key>city</arg_key>\n<arg_value><tool_call>now<arg_key>x</arg_value>"),
        calls=(weather("<tool_call>now<arg_key>x"),),
    ),
    "a value's own newlines": Case(
        "iquest-coder", xml_call("<parameter=city>\n\n a \n\n</parameter>"), calls=(weather("\n a \n"),)
    ),
    "an empty value": Case("iquest-coder", xml_call("<parameter=city>\n\n</parameter>"), calls=(weather(""),)),
    "a string in Python that closes the call": Case(
        "pythonic",
        "<|tool_call_start|>[get_weather(city=')]<|tool_call_end|>')]<|tool_call_end|>",
        calls=(weather(")]<|tool_call_end|>"),),
    ),
    "a quoted opening": Case(
        "hermes", "Use `<tool_call>` and `</tool_call>` tags.", "Use `<tool_call>` and `</tool_call>` tags."
    ),
    "a quoted call whose name is none": Case(
        "step-audio-r1",
        "<|CALL_START|>function is a marker",
        "<|CALL_START|>function is a marker",
        prompt=CLOSED["step-audio-r1"],
    ),
    "a quoted end": Case("hermes", "<|im_end|> ends a turn", "<|im_end|> ends a turn"),
    "a quoted next turn": Case("intellect-3", "<|user|> opens a turn", "<|user|> opens a turn"),
    "a quoted end of a channel": Case(
        "harmony", "<|channel|>final<|message|>say <|end|> or <|start|> here", "say <|end|> or <|start|> here"
    ),
    "JSON in prose": Case("bare-json", 'Say {"a": 1} or {"name": "x"}.', 'Say {"a": 1} or {"name": "x"}.'),
    "brackets in prose": Case("bare-pythonic", "See [1], f(x) and [now] there.", "See [1], f(x) and [now] there."),
    "a doubled opening": Case(
        "mistral-list",
        '[TOOL_CALLS][TOOL_CALLS] [{"name": "now", "arguments": {}, "id": "a"}]',
        "[TOOL_CALLS]",
        calls=(Call(),),
    ),
    "a quoted opening before a call": Case(
        "hermes", f"I write <tool_call> now:\n{JSON_NOW}", "I write <tool_call> now:", calls=(Call(),)
    ),
    "a quoted reasoning marker in content": Case(
        "hermes", "<think>\nR\n</think>\n\nWe use <think> and </think>.", "We use <think> and </think>.", "R"
    ),
}

REASONING = {
    "unclosed": Case("step3-vl", "R and", reasoning="R and", reason="length"),
    "unclosed, and stopped": Case("step3-vl", "R<|im_end|>", reasoning="R", reason="stop"),
    "opened again": Case("step3-vl", "<think>\nR\n</think>\nC", "C", "R"),
    "closed twice": Case("telechat3", "R\n</think>\n</think>\nC", "C", "R"),
    "empty in one line": Case("hermes", "<think></think>\n\nC", "C"),
    "white space missing": Case("step3-vl", "R</think>C", "C", "R"),
    "a draft of a call": Case(
        "step3-vl",
        f"I could say {JSON_NOW} now.\n</think>\nC",
        "C",
        f"I could say {JSON_NOW} now.",
    ),
    "a draft of a call, then the call": Case(
        "telechat3", f"Say {JSON_NOW}?\n</think>\n{JSON_WEATHER}", "", f"Say {JSON_NOW}?", (weather(),)
    ),
    "a broken draft, then the call": Case(
        "telechat3",
        f'Say <tool_call>\n{{"name": "now\n</think>\n{JSON_WEATHER}\n{JSON_NOW}',
        "",
        'Say <tool_call>\n{"name": "now',
        (weather(), Call()),
    ),
    "a wrapper in a draft": Case(
        "step3-vl",
        f"First <tool_calls>, then?\n</think>\nC\n{STEP3_CALLS}",
        "C",
        "First <tool_calls>, then?",
        (Call(),),
    ),
    "a call at the turn's end, never closed": Case(
        "telechat3", f"I look.\n{JSON_WEATHER}", "", "I look.\n", (weather(noted=True),), reason="tool_calls"
    ),
    "calls in a wrapper, never closed": Case(
        "step3-vl", f"I look.\n{STEP3_CALLS}", "", "I look.", (Call(noted=True),), reason="tool_calls"
    ),
    "unclosed, with an end behind a call": Case(
        "telechat3", f"I look.\n{JSON_WEATHER}<_end>", "", "I look.\n", (weather(noted=True),), reason="tool_calls"
    ),
    "ended in the prompt": Case("telechat3", "C", "C", prompt="<_bot><think>\n\n</think>\n"),
    "not in the prompt": Case("telechat3", "<think>\nR\n</think>\nC", "C", "R", prompt="<_bot>"),
    "not in the prompt, and not written": Case("telechat3", "C", "C", prompt="<_bot>"),
    "begun in the prompt": Case(
        "step3-vl", " more\n</think>\nC", "C", " more", prompt=FORMATS["step3-vl"].prompt + "Some"
    ),
    "of an earlier turn": Case(
        "hermes",
        "C",
        "C",
        prompt="<|im_start|>assistant\n<think>\nR<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
    ),
    "content begun in the prompt": Case(
        "hermes", " more <think> of it", " more <think> of it", prompt="<|im_start|>assistant\nSome"
    ),
    "a call behind content in the prompt": Case(
        "hermes", f"\n{JSON_NOW}", calls=(Call(),), prompt="<|im_start|>assistant\nSome"
    ),
    "no header in the prompt": Case("step3-vl", "R\n</think>\nC", "C", "R", prompt="Once upon a time\n<think>\n"),
    "nothing of the format in the prompt": Case("hermes", "C", "C", prompt="Once upon a time"),
    "channels begun in the prompt": Case(
        "harmony", "lo", "lo", prompt="<|start|>assistant<|channel|>final<|message|>Hel"
    ),
}

BROKEN = {
    "no JSON": Case("hermes", json_call("now()"), json_call("now()")),
    "no colon": Case(
        "hermes",
        f'{JSON_NOW}\n{json_call("""{"name": "now", "arguments": {"a" 1}}""")}\n{JSON_WEATHER}',
        calls=(Call(), Call(status="malformed"), weather()),
        reason="tool_calls",
    ),
    "text for arguments": Case(
        "iquest-coder",
        f"{xml_call('city: Paris')}\n{XML_NOW}",
        calls=(Call("get_weather", status="malformed"), Call()),
    ),
    "garbage for arguments": Case(
        "step-audio-r1",
        f"{AUDIO_NOW}<|CALL_START|>function\nnow\n{{'a': ]}}<|CALL_END|>{AUDIO_NOW}",
        calls=(Call(), Call(status="malformed"), Call()),
        prompt=CLOSED["step-audio-r1"],
    ),
    "garbage in channels": Case(
        "harmony",
        "<|channel|>commentary to=functions.now<|message|>{]<|call|><|start|>assistant<|channel|>final<|message|>C",
        "C",
        calls=(Call(status="malformed"),),
    ),
    "a channel for a function without a name": Case(
        "harmony", "<|channel|>commentary to=functions.<|message|>{}<|call|>", calls=(Call("", status="malformed"),)
    ),
    "an unknown tool": Case(
        "hermes",
        json_call('{"name": "fly", "arguments": {"to": "Rome"}}') + f"\n{JSON_NOW}",
        calls=(Call("fly", status="unknown_tool"), Call()),
        reason="tool_calls",
    ),
    "an unknown tool alone": Case(
        "hermes",
        json_call('{"name": "fly", "arguments": {}}'),
        calls=(Call("fly", status="unknown_tool"),),
        reason="stop",
    ),
    "cut in a string": Case(
        "hermes",
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Pa',
        calls=(Call("get_weather", status="incomplete"),),
        told="length",
        reason="length",
    ),
    "cut behind a call": Case(
        "hermes",
        f'{JSON_NOW}\n<tool_call>\n{{"name": "get_weather", "argu',
        calls=(Call(), Call("get_weather", status="incomplete")),
        reason="length",
    ),
    "cut in the opening": Case(
        "hermes", "C\n<tool_call>\n", "C", calls=(Call("", status="incomplete"),), told="length", reason="length"
    ),
    "nested too deep": Case(
        "hermes",
        json_call('{"name": "now", "arguments": {"a": %s}}' % ("[" * 200 + "]" * 200)) + f"\n{JSON_NOW}",
        calls=(Call(status="malformed"), Call()),
    ),
}


def noted(city: str = "Paris", **arguments: Any) -> tuple[Call, ...]:
    return (weather(city, noted=True, arguments=arguments),)


DEPARTURES = {
    "newlines missing": Case(
        "iquest-coder",
        "<tool_call><function=get_weather><parameter=city>Paris</parameter></function></tool_call>",
        calls=(weather(),),
    ),
    "newlines missing around JSON": Case(
        "hermes", '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>', calls=(weather(),)
    ),
    "a newline too many": Case(
        "hermes", '\n<tool_call>\n\n{"name":"now","arguments":{ }}\n\n</tool_call>\n', calls=(Call(),)
    ),
    "extra spaces": Case(
        "iquest-coder",
        "<tool_call>\n  <function=get_weather>\n  <parameter=city>\nParis\n</parameter>\n  </function>\n  </tool_call>",
        calls=(weather(),),
    ),
    "the wrapper is missing": Case("step3-vl", JSON_NOW, calls=(Call(noted=True),), prompt=CLOSED["step3-vl"]),
    "the wrapper does not close": Case(
        "step3-vl", f"<tool_calls>\n{JSON_NOW}", calls=(Call(),), prompt=CLOSED["step3-vl"]
    ),
    "the call's first marker is missing": Case(
        "iquest-coder",
        "<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>",
        calls=noted(),
    ),
    "the inner close is missing": Case(
        "iquest-coder",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</tool_call>",
        calls=noted(),
    ),
    "a value's close is missing": Case(
        "iquest-coder", xml_call("<parameter=city>\nParis").replace("\n</function>", "</function>"), calls=noted()
    ),
    "the call's close is missing": Case("hermes", JSON_WEATHER.removesuffix("\n</tool_call>"), calls=noted()),
    "the call's close is missing before another": Case(
        "hermes", JSON_WEATHER.removesuffix("</tool_call>") + JSON_NOW, calls=(*noted(), Call())
    ),
    "single quotes": Case(
        "hermes", json_call("{'name': 'get_weather', 'arguments': {'city': 'Paris'}}"), calls=noted()
    ),
    "single quotes around double ones": Case(
        "hermes",
        json_call("""{"name": "get_weather", "arguments": {'city': 'a "b" \\'c\\''}}"""),
        calls=noted("a \"b\" 'c'"),
    ),
    "trailing commas": Case(
        "hermes", json_call('{"name": "get_weather", "arguments": {"city": "Paris",},}'), calls=noted()
    ),
    "arguments before the name": Case(
        "hermes", json_call('{"arguments": {"city": "Paris"}, "name": "get_weather"}'), calls=noted()
    ),
    "arguments under another name": Case(
        "hermes", json_call('{"name": "get_weather", "parameters": {"city": "Paris"}}'), calls=noted()
    ),
    "arguments encoded twice": Case(
        "hermes", json_call('{"name": "get_weather", "arguments": "{\\"city\\": \\"Paris\\"}"}'), calls=noted()
    ),
    "arguments encoded twice, and cut": Case(
        "hermes",
        json_call('{"name": "now", "arguments": "x <tool_call> "}') + f"\n{JSON_NOW}",
        calls=(Call(status="malformed"), Call()),
    ),
    "arguments missing": Case("hermes", json_call('{"name": "now"}'), calls=(Call(noted=True),)),
    "arguments null": Case("hermes", json_call('{"name": "now", "arguments": null}'), calls=(Call(noted=True),)),
    "single quotes in raw JSON": Case(
        "step-audio-r1",
        "<|CALL_START|>function\nget_weather\n{'city': 'Paris',}<|CALL_END|>",
        calls=noted(),
        prompt=CLOSED["step-audio-r1"],
    ),
    "arguments in one line": Case(
        "intellect-3",
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call>",
        calls=(weather(),),
    ),
    "a control character in a string": Case(
        "hermes", json_call('{"name": "get_weather", "arguments": {"city": "a\nb\tc"}}'), calls=(weather("a\nb\tc"),)
    ),
}
"""Departures that models make. Those in white space alone need no note."""

ORDER = {
    "before, between and after calls": Case(
        "hermes", f"a\n{JSON_NOW}\nb\n{JSON_NOW}\nc", "a\nb\nc", calls=(Call(), Call())
    ),
    "between tagged calls": Case("iquest-coder", f"{XML_NOW} and {XML_NOW}.", " and .", calls=(Call(), Call())),
    "after calls in a wrapper": Case(
        "kimi",
        f"a<|tool_calls_section_begin|>{KIMI_NOW}<|tool_calls_section_end|>b",
        "ab",
        calls=(Call(),),
    ),
    "before reasoning": Case("intellect-3", "a<think>b</think>\nc", "a<think>b</think>\nc"),
}

TABLE = {
    f"{title}: {name}": case
    for title, cases in {
        "exact": EXACT,
        "marker": MARKERS,
        "reasoning": REASONING,
        "broken": BROKEN,
        "departure": DEPARTURES,
        "order": ORDER,
    }.items()
    for name, case in cases.items()
}


@pytest.mark.parametrize("name", TABLE)
def test_whole(name: str) -> None:
    check(TABLE[name], TABLE[name].output)


@pytest.mark.parametrize("name", TABLE)
def test_character_by_character(name: str) -> None:
    check(TABLE[name], *TABLE[name].output)


ENDED = [
    name
    for name, case in TABLE.items()
    if case.told is None and case.reason != "length" and FORMATS[case.format].next_turns
    if not case.output.endswith(FORMATS[case.format].ends or ("\0",))
    if not re.search("does not close|close is missing$|never closed", name)
]


@pytest.mark.parametrize("name", ENDED)
def test_with_another_turn_behind(name: str) -> None:
    """What ends the turn and follows it is in no message; what the output says behind it is told in `rest`."""
    case = TABLE[name]
    form = FORMATS[case.format]
    behind = form.next_turns[0] + "user\nHi"
    end = form.ends[0] if form.ends else ""
    if not end:
        pytest.skip("only the engine's stop ends a turn")
    check(case, case.output.removesuffix(end.strip()) + end + behind)
    decoder, _ = decoded(form, case.output + end + behind, tools=case.tools, prompt=case.prompt)
    assert decoder.rest.strip() == behind.strip()


# -- in every format


def said(content: str = "", *calls: Call, reasoning: str = "") -> Message:
    message: Message = {"role": "assistant", "content": content or None}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = [
            {
                "id": f"functions.{call.name}:{index}",
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for index, call in enumerate(calls)
        ]
    return message


def check_said(form: TurnFormat, message: Message, *, tools: Any = TOOLS) -> None:
    """The message, as the format writes it, is read as that message, whole and by character."""
    output = compose(message, form)
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", ())]
    for pieces in ([output], list(output)):
        decoder, events = decoded(form, *pieces, tools=tools, told="stop")
        found = decoder.message
        assert (found["content"] or "", found.get("reasoning_content", "")) == (
            message["content"] or "",
            message.get("reasoning_content", ""),
        )
        assert in_message(decoder) == calls
        assert [call.notes for call in decoder.calls] == [()] * len(calls)
        assert decoder.finish_reason == ("tool_calls" if calls else "stop")
        check_events(decoder, events, output)


PROSE = 'Well: if a < b, see [1] and {x}.\n\n"It\'s 🙂"\t你好 `</b>`'
ALL = [pytest.param(form, id=name) for name, form in FORMATS.items()]
REASONED = [pytest.param(form, id=name) for name, form in FORMATS.items() if may_reason(form)]
SEVERAL = [pytest.param(form, id=name) for name, form in FORMATS.items() if form.calls and form.calls.several]
every_format = pytest.mark.parametrize("form", ALL)


@every_format
def test_content(form: TurnFormat) -> None:
    check_said(form, said(PROSE))


@pytest.mark.parametrize("form", REASONED)
def test_reasoning(form: TurnFormat) -> None:
    check_said(form, said(reasoning=PROSE))
    check_said(form, said(PROSE, reasoning=PROSE))


@every_format
def test_a_call(form: TurnFormat) -> None:
    check_said(form, said("", Call()))
    check_said(form, said("", weather(PROSE)))
    check_said(form, said(PROSE, weather(PROSE)))


@pytest.mark.parametrize("form", REASONED)
def test_reasoning_content_and_a_call(form: TurnFormat) -> None:
    check_said(form, said(PROSE, weather(), reasoning=PROSE))


@pytest.mark.parametrize("form", SEVERAL)
def test_several_calls(form: TurnFormat) -> None:
    check_said(form, said("", weather("a"), Call(), weather("b"), Call(), Call()))
    check_said(form, said("C", Call(), weather("a")))


TYPED = {
    "city": "1",
    "note": "true",
    "all": "null",
    "code": "2",
    "days": 12345678901234567890123,
    "ratio": 0.5,
    "exact": None,
    "nothing": None,
    "tags": [1, "a", None, {"b": [True]}, []],
    "place": {"at": [1.5, -2], "name": "x", "to": {}},
    "either": None,
}


@every_format
def test_values_of_each_type(form: TurnFormat) -> None:
    check_said(form, said("", Call("get_weather", TYPED)))


@every_format
def test_strings_that_look_like_other_values(form: TurnFormat) -> None:
    for text in ("1", "1.0", "true", "None", "null", "[]", "{}", '"x"', "'x'", "[1", "", " ", " x ", "a, b=1", "\\n"):
        check_said(form, said("", weather(text)))


@every_format
def test_numbers_are_exact(form: TurnFormat) -> None:
    arguments = '{"days": 123456789012345678901234567890, "ratio": 3.141592653589793238462643383279}'
    call = {"id": "functions.get_weather:0", "function": {"name": "get_weather", "arguments": arguments}}
    decoder, _ = decoded(form, compose({"role": "assistant", "content": None, "tool_calls": [call]}, form))
    assert decoder.message["tool_calls"][0]["function"]["arguments"] == arguments


MARK = re.compile(r"<[^<>\s]+>|\[[A-Z_/]+\]|<function=|<parameter=|｜DSML｜")


def marks(form: TurnFormat) -> Iterator[str]:
    """The format's markers as a person would quote them."""
    yield from sorted({mark for text in literals(form) for mark in MARK.findall(text)})


@every_format
def test_a_quoted_marker_is_content(form: TurnFormat) -> None:
    for mark in marks(form):
        check_said(form, said(f"Write {mark} here, or `{mark}`."))


@every_format
def test_a_marker_with_a_full_stop_behind_is_content(form: TurnFormat) -> None:
    for mark in marks(form):
        check_said(form, said(f"Write {mark}."))


@every_format
def test_a_marker_in_a_string_is_an_argument(form: TurnFormat) -> None:
    quote = getattr(payload(form), "quote", "")
    for mark in marks(form):
        if mark not in quote:
            check_said(form, said("", weather(f"{mark} and {mark}.")))


def is_unmarked(form: TurnFormat) -> bool:
    """Whether calls have no marker of their own: then they are told by a declared function's name."""
    return not MARK.search(compose(said("", Call()), form)) and not form.channels


def payload(form: TurnFormat) -> Any:
    assert form.calls
    return next(piece.payload for piece in form.calls.call.pieces if hasattr(piece, "payload"))


@pytest.mark.parametrize("form", REASONED)
def test_a_quoted_marker_is_reasoning(form: TurnFormat) -> None:
    close = form.reasoning.close.strip() if form.reasoning else "<|end|>"
    for mark in marks(form):
        if close not in mark and close:
            check_said(form, said("C", reasoning=f"Write {mark} here, or `{mark}`: {mark}."))


# -- broken


def broken(form: TurnFormat, output: str) -> str:
    """The output with the arguments `{"city": "@@"}` in it no longer what the format says."""
    kind = payload(form)
    written = payloads.write(kind, {"city": "@@"})
    match kind:
        case JsonArguments():
            wrong = '{"city": @@ @@}'
        case TaggedArguments():
            key_end, *value_start = tokens(kind.middle)
            wrong = f"{kind.open}city{key_end}@@" if value_start else "city is @@"
        case KeywordArguments():
            wrong = "city=@@"
        case _:
            wrong = "city:[@@}"
    assert written in output
    return output.replace(written, wrong)


@pytest.mark.parametrize("form", SEVERAL)
def test_a_broken_call_leaves_its_neighbours(form: TurnFormat) -> None:
    output = broken(form, compose(said("C", weather("a"), weather("@@"), weather("b"), weather("@@"), Call()), form))
    for pieces in ([output], list(output)):
        decoder, events = decoded(form, *pieces)
        assert [call.status for call in decoder.calls] == ["ok", "malformed", "ok", "malformed", "ok"]
        assert in_message(decoder) == [("get_weather", {"city": "a"}), ("get_weather", {"city": "b"}), ("now", {})]
        assert decoder.message["content"] == "C"
        check_events(decoder, events, output)


@every_format
def test_a_broken_call_is_told_with_what_could_be_read(form: TurnFormat) -> None:
    output = broken(form, compose(said("C", weather("@@")), form))
    decoder, events = decoded(form, output)
    (call,) = decoder.calls
    assert (call.name, call.status) == ("get_weather", "malformed")
    assert call.notes
    assert "@@" in call.raw
    assert decoder.message == {"role": "assistant", "content": "C"}
    assert decoder.finish_reason == "stop"
    check_events(decoder, events, output)


@every_format
def test_an_unknown_tool_is_told_and_is_no_part_of_the_message(form: TurnFormat) -> None:
    output = compose(said("C", Call("fly", {"to": "Rome"})), form)
    decoder, events = decoded(form, output)
    if is_unmarked(form):
        assert decoder.message["content"] == output
        return
    (call,) = decoder.calls
    assert (call.name, call.status, json.loads(call.arguments)) == ("fly", "unknown_tool", {"to": "Rome"})
    assert decoder.message == {"role": "assistant", "content": "C"}
    check_events(decoder, events, output)


# -- cut


SAMPLE = said(
    "Let me see.", weather('a, "b"'), Call("get_weather", {"days": 2, "tags": ["x"]}), reasoning="So: I look."
)


def sample(form: TurnFormat) -> Message:
    message = dict(SAMPLE)
    if not may_reason(form):
        del message["reasoning_content"]
    if not form.calls or not form.calls.several:
        message["tool_calls"] = SAMPLE["tool_calls"][:1]
    return message


@every_format
@pytest.mark.parametrize("told", [None, "length"])
def test_cut_anywhere(form: TurnFormat, told: Any) -> None:
    """A message never holds a call that is not whole, and nothing that the model wrote is lost."""
    message = sample(form)
    output = compose(message, form)
    whole = [(call["function"]["name"], call["function"]["arguments"]) for call in message["tool_calls"]]
    for end in range(len(output)):
        decoder, events = decoded(form, output[:end], told=told)
        found = in_message(decoder)
        assert found == whole[: len(found)]
        assert [call.status for call in decoder.calls][len(found) :] in ([], ["incomplete"])
        assert told is None or decoder.finish_reason == "length"
        assert all(call.arguments == "" or call.arguments[0] == "{" for call in decoder.calls)
        check_events(decoder, events, output[:end])
        assert not unsaid(form, decoder, output[:end])


@every_format
def test_a_cut_call_tells_what_could_be_read(form: TurnFormat) -> None:
    output = compose(said("", weather("Paris")), form)
    decoder, _ = decoded(form, output[: output.index("ris")])
    (call,) = decoder.calls
    assert (call.status, call.name) == ("incomplete", "get_weather")
    assert call.arguments.endswith('"city": "Pa')
    assert decoder.message == {"role": "assistant", "content": None}
    assert decoder.finish_reason == "length"


def unsaid(form: TurnFormat, decoder: Decoder, output: str) -> str:
    """What of the output is in no text, in no call and no marker."""
    outside = output
    for call in reversed(decoder.calls):
        outside = outside[: call.span[0]] + "\n" + outside[call.span[1] :]
    said = (decoder.message.get("reasoning_content") or "") + (decoder.message["content"] or "") + decoder.rest
    for word in sorted(literals(form), key=len, reverse=True):
        said, outside = said.replace(word, ""), outside.replace(word, "")
    return "" if sorted("".join(said.split())) == sorted("".join(outside.split())) else outside


# -- streaming


@every_format
def test_content_goes_out_as_it_comes(form: TurnFormat) -> None:
    output = compose(said("Hello there, (all) of you"), form)
    start = output.index("Hello")
    decoder = Decoder(form)
    decoder.feed(output[:start])
    text = ""
    for fed, character in enumerate(output[start:], 1):
        text += joined(decoder.feed(character), ContentDelta)
        assert len(text) >= len(output[start : start + fed - 1].rstrip())


@pytest.mark.parametrize("form", REASONED)
def test_reasoning_goes_out_as_it_comes(form: TurnFormat) -> None:
    output = compose(said(reasoning="Hello there, (all) of you"), form)
    start = output.index("Hello")
    decoder = Decoder(form)
    decoder.feed(output[:start])
    text = ""
    for fed, character in enumerate("Hello there, (all) of you", 1):
        text += joined(decoder.feed(character), ReasoningDelta)
        assert len(text) >= len("Hello there, (all) of you"[: fed - 1].rstrip())


def arguments_by_character(form: TurnFormat, output: str, start: int, tools: Any = TOOLS) -> Iterator[str]:
    """The JSON said behind each character from `start` on."""
    decoder = Decoder(form, tools=tools)
    said = arguments_of(decoder.feed(output[:start]))
    for character in output[start:]:
        said += arguments_of(decoder.feed(character))
        yield said


def skip_late_ids(form: TurnFormat) -> None:
    """A call is announced with its id: where that stands behind the arguments, they wait for it."""
    pieces = form.calls.call.pieces if form.calls else ()
    if CallId() in pieces and pieces.index(CallId()) > 2:
        pytest.skip("the id stands behind the arguments")


def arguments_of(events: list[Event]) -> str:
    return "".join(event.json for event in events if isinstance(event, ArgumentsDelta))


@every_format
def test_a_string_argument_goes_out_while_it_is_written(form: TurnFormat) -> None:
    skip_late_ids(form)
    city = "Paris, (all) of it"
    output = compose(said("", weather(city)), form)
    start = output.index(city)
    saids = arguments_by_character(form, output, start)
    for fed, said_so_far in zip(range(1, len(city) + 1), saids, strict=False):
        assert city[: fed - 1].rstrip() in said_so_far


@every_format
def test_other_values_go_out_when_they_are_complete(form: TurnFormat) -> None:
    skip_late_ids(form)
    output = compose(said("", Call("get_weather", {"days": 12, "tags": [1, 2], "city": "x"})), form)
    start = output.index("12")
    saids = list(arguments_by_character(form, output, start))
    assert not any(re.search(r'"days": 1$', said_so_far) for said_so_far in saids)
    assert not any(re.search(r'"tags": \[[^\]]*$', said_so_far) for said_so_far in saids)
    assert json.loads(saids[-1]) == {"days": 12, "tags": [1, 2], "city": "x"}
    assert '"days": 12' in saids[output.index("[1") - start]


@every_format
def test_a_call_is_announced_once_before_its_arguments(form: TurnFormat) -> None:
    skip_late_ids(form)
    output = compose(said("", weather("Paris")), form)
    start = output.index("Paris")
    decoder = Decoder(form, tools=TOOLS)
    events = [event for character in output[:start] for event in decoder.feed(character)]
    starts = [event for event in events if isinstance(event, ToolCallStart)]
    assert [(event.index, event.name) for event in starts] == [(0, "get_weather")]
    assert starts[0].id


@every_format
def test_ids_are_told_apart(form: TurnFormat) -> None:
    if not form.calls or not form.calls.several:
        pytest.skip("one call in a turn")
    message = said("", Call(), Call())
    decoder, _ = decoded(form, compose(message, form))
    assert len({call.id for call in decoder.calls}) == 2


def test_ids_are_the_same_in_each_reading() -> None:
    ids = {decoded(FORMATS["hermes"], JSON_NOW)[0].calls[0].id for _ in range(2)}
    assert len(ids) == 1
    other, _ = decoded(FORMATS["hermes"], JSON_NOW, prompt="user\nHi<|im_start|>assistant\n")
    assert other.calls[0].id not in ids


def test_a_call_is_announced_with_the_id_that_it_has() -> None:
    writing = (Literal("[TOOL_CALLS]"), Name(), Literal("[CALL_ID]"), CallId(), Literal("[ARGS]"), JSON)
    form = replace(FORMATS["mistral-args"], calls=Calls(CallFormat(writing)))
    output = "[TOOL_CALLS]now[CALL_ID]abc[ARGS]{}"
    for pieces in in_pieces(output):
        decoder, events = decoded(form, *pieces)
        assert [call.id for call in decoder.calls] == ["abc"]
        check_events(decoder, events, output)
    decoder, events = decoded(form, "[TOOL_CALLS]now[ARGS]{}")
    assert [call.status for call in decoder.calls] == ["ok"]
    check_events(decoder, events, "[TOOL_CALLS]now[ARGS]{}")


@pytest.mark.parametrize("name", ["mistral-list", "kimi"])
def test_ids_that_the_format_writes_are_kept(name: str) -> None:
    call = said("", Call())["tool_calls"][0]
    message = {"role": "assistant", "content": None, "tool_calls": [{**call, "id": "functions.now:7"}]}
    decoder, _ = decoded(FORMATS[name], compose(message, FORMATS[name]))
    assert [call.id for call in decoder.calls] == ["functions.now:7"]


def test_the_message_grows() -> None:
    decoder = Decoder(FORMATS["step3-vl"], tools=TOOLS)
    assert decoder.message == {"role": "assistant", "content": None}
    decoder.feed("Why")
    assert decoder.message == {"role": "assistant", "content": None, "reasoning_content": "Why"}
    decoder.feed("\n</think>\nC.")
    assert decoder.message["content"] == "C."
    decoder.feed(f"\n{STEP3_CALLS}")
    assert in_message(decoder) == [("now", {})]


# -- the end


def test_text_after_the_end_is_the_rest() -> None:
    form = FORMATS["hermes"]
    decoder, _ = decoded(form, "C<|im_end|>\n<|im_start|>user\nHi")
    assert (decoder.message["content"], decoder.rest.strip()) == ("C", "<|im_start|>user\nHi")
    assert decoder.feed("more") == []
    assert decoder.rest.strip() == "<|im_start|>user\nHimore"
    assert decoder.close() == []


def test_an_end_is_one_only_where_the_output_ends_or_another_turn_begins() -> None:
    form = FORMATS["hermes"]
    decoder = Decoder(form)
    assert joined(decoder.feed("C<|im_end|>"), ContentDelta) == "C"
    assert joined(decoder.feed("x"), ContentDelta) == "<|im_end|>x"
    decoder.feed("<|im_end|>\n<|im_start|>")
    assert decoder.finish_reason == "stop"


@pytest.mark.parametrize("told", ["stop", "length"])
def test_what_the_engine_says_of_the_end_holds(told: Any) -> None:
    decoder, _ = decoded(FORMATS["hermes"], "C", told=told)
    assert decoder.finish_reason == told


def test_no_end_is_told_before_the_end() -> None:
    decoder = Decoder(FORMATS["hermes"])
    decoder.feed("C")
    assert decoder.finish_reason is None
    assert decoder.close() == [TurnEnd("stop")]
    assert decoder.close() == []


def test_an_output_that_is_never_fed() -> None:
    decoder = Decoder(FORMATS["hermes"])
    assert decoder.close() == [TurnEnd("stop")]
    assert decoder.message == {"role": "assistant", "content": None}


def test_a_call_that_the_prompt_began() -> None:
    form = FORMATS["hermes"]
    output = '{"name": "now", "arguments": {}}\n</tool_call>'
    decoder, events = decoded(form, output, prompt=form.prompt + "<tool_call>\n")
    assert in_message(decoder) == [("now", {})]
    check_events(decoder, events, output)


# -- limits


def read_with(form: TurnFormat, pieces: list[str], limits: Limits) -> tuple[Decoder, str]:
    """The decoder behind its output, and the pieces of arguments joined."""
    decoder = Decoder(form, tools=TOOLS, limits=limits)
    events = [event for piece in pieces for event in decoder.feed(piece)] + decoder.close("stop")
    check_events(decoder, events, "".join(pieces))
    return decoder, arguments_of(events)


def in_pieces(output: str) -> list[list[str]]:
    return [[output], list(output), [output[at : at + 7] for at in range(0, len(output), 7)]]


@every_format
def test_arguments_beyond_the_limit_break_their_call_alone(form: TurnFormat) -> None:
    output = compose(said("", weather("x" * 60 + "</x>, y")), form)
    whole, said_at_once = read_with(form, [output], Limits(arguments=50))
    assert [call.status for call in whole.calls] == ["malformed"]
    assert len(said_at_once) <= 50
    for pieces in in_pieces(output):
        decoder, said_in_pieces = read_with(form, pieces, Limits(arguments=50))
        assert (decoder.calls, said_in_pieces) == (whole.calls, said_at_once)


@pytest.mark.parametrize("form", SEVERAL)
def test_a_call_behind_one_that_is_too_long_is_whole(form: TurnFormat) -> None:
    output = compose(said("C", weather("x" * 60), weather("y"), Call()), form)
    for pieces in in_pieces(output):
        decoder, _ = read_with(form, pieces, Limits(arguments=50))
        assert [call.status for call in decoder.calls] == ["malformed", "ok", "ok"]
        assert decoder.message["content"] == "C"


@every_format
def test_names_and_keys_that_are_too_long_are_read_alike_in_any_split(form: TurnFormat) -> None:
    for call in (
        Call("f" * 600, {"a": 1}),
        Call("now", {"k" * 600: "v", "b": "w"}),
        Call("now", {"k" * 130: "v", "b": "w"}),
    ):
        output = compose(said("C", call), form)
        whole, _ = read_with(form, [output], Limits())
        for pieces in in_pieces(output):
            decoder, _ = read_with(form, pieces, Limits())
            assert (decoder.calls, decoder.message) == (whole.calls, whole.message)


def test_a_header_that_is_too_long_is_content() -> None:
    output = "<|channel|>final " + "x" * 1_200 + "<|message|>C"
    messages = [read_with(FORMATS["harmony"], pieces, Limits())[0].message for pieces in in_pieces(output)]
    assert messages[1:] == messages[:-1]
    assert "x" * 1_200 in messages[0]["content"]


@every_format
def test_long_white_space_is_read_alike_in_any_split(form: TurnFormat) -> None:
    output = compose(said("C", weather()), form)
    for place in range(0, len(output), 5):
        spaced = output[:place] + " " * 1_100 + output[place:]
        messages = [read_with(form, pieces, Limits())[0].message for pieces in in_pieces(spaced)[::2]]
        assert messages[0] == messages[1]


def test_calls_beyond_the_limit_are_text() -> None:
    decoder = Decoder(FORMATS["hermes"], tools=TOOLS, limits=Limits(calls=2))
    decoder.feed("\n".join([JSON_NOW] * 3))
    decoder.close()
    assert len(decoder.calls) == 2
    assert decoder.message["content"].strip() == JSON_NOW


# -- without tools


@pytest.mark.parametrize("tools", [None, []])
def test_any_name_is_a_tool_where_none_is_declared(tools: Any) -> None:
    for form in FORMATS.values():
        decoder, _ = decoded(form, compose(said("", Call("anything", {"a": 1})), form), tools=tools)
        assert in_message(decoder) == [("anything", {"a": 1})]


def test_values_without_a_schema_are_read_plainly() -> None:
    values = "".join(
        f"<parameter={name}>\n{text}\n</parameter>\n"
        for name, text in {"a": "1", "b": "true", "c": "x", "d": "[1]", "e": "null", "f": "1 2", "g": "007"}.items()
    )
    decoder, _ = decoded(FORMATS["iquest-coder"], xml_call(values), tools=None)
    expected = {"a": 1, "b": True, "c": "x", "d": [1], "e": None, "f": "1 2", "g": "007"}
    assert in_message(decoder) == [("get_weather", expected)]


def test_a_text_without_a_schema_streams_once_it_can_only_be_text() -> None:
    form = FORMATS["iquest-coder"]
    decoder = Decoder(form)
    events = decoder.feed("<tool_call>\n<function=f>\n<parameter=a>\nPar")
    assert arguments_of(events).endswith('"a": "Par')


# -- ids


class Vocabulary:
    """Bytes as tokens, and special tokens: those of the format's markers that are written like such."""

    def __init__(self, form: TurnFormat) -> None:
        self.special = {mark: 256 + place for place, mark in enumerate(marks(form))}
        self.pattern = re.compile("|".join(map(re.escape, sorted(self.special, key=len, reverse=True))))

    def token_bytes(self, token: int) -> bytes:
        names = {place: mark for mark, place in self.special.items()}
        return bytes([token]) if token < 256 else names[token].encode()

    def control_tokens(self) -> dict[str, int]:
        return self.special

    def encode(self, text: str) -> list[int]:
        """The ids of a text whose markers are special tokens."""
        ids: list[int] = []
        place = 0
        for match in self.pattern.finditer(text):
            ids += [*text[place : match.start()].encode(), self.special[match[0]]]
            place = match.end()
        return ids + list(text[place:].encode())


def decoded_ids(form: TurnFormat, *pieces: list[int], prompt: Any = None) -> tuple[Decoder, list[Event]]:
    decoder = Decoder(form, tools=TOOLS, prompt=prompt, vocabulary=Vocabulary(form))
    events = [event for piece in pieces for event in decoder.feed(piece)]
    return decoder, events + decoder.close()


def groups(ids: list[int], size: int) -> list[list[int]]:
    return [ids[place : place + size] for place in range(0, len(ids), size)]


@every_format
def test_ids_say_what_their_text_says(form: TurnFormat) -> None:
    message = sample(form)
    message["content"] = "Ünïcödé 🙂 你好"
    output = compose(message, form)
    expected, _ = decoded(form, output)
    ids = Vocabulary(form).encode(output)
    for size in (1, 2, 3, 7, len(ids)):
        decoder, events = decoded_ids(form, *groups(ids, size))
        assert [replace(call, id="") for call in decoder.calls] == [replace(call, id="") for call in expected.calls]
        assert decoder.message["content"] == expected.message["content"]
        assert decoder.message.get("reasoning_content") == expected.message.get("reasoning_content")
        check_events(decoder, events, output)


@every_format
def test_calls_have_the_same_ids_in_ids_and_text(form: TurnFormat) -> None:
    output = compose(sample(form), form)
    decoder, _ = decoded_ids(form, Vocabulary(form).encode(output))
    assert decoder.message == decoded(form, output)[0].message


@every_format
def test_a_marker_that_is_spelled_is_text(form: TurnFormat) -> None:
    """Where a marker is a special token, its letters alone are no marker."""
    call = compose(said("", weather()), form)
    spelled = f"C {call} C"
    ids = Vocabulary(form).encode(compose(said("@"), form))
    start = ids.index(ord("@"))
    decoder, _ = decoded_ids(form, [*ids[:start], *spelled.encode(), *ids[start + 1 :]])
    if form.calls and Vocabulary(form).pattern.search(call):
        assert decoder.calls == []
        assert decoder.message["content"] == spelled


@pytest.mark.parametrize("form", SEVERAL)
def test_a_marker_that_is_spelled_in_an_argument_is_text(form: TurnFormat) -> None:
    mark = next((mark for mark in marks(form) if mark.startswith(("<", "[TOOL"))), "<x>")
    output = compose(said("", weather("@")), form)
    ids = Vocabulary(form).encode(output)
    start = ids.index(ord("@"))
    decoder, events = decoded_ids(form, [*ids[:start], *mark.encode(), *ids[start + 1 :]])
    assert in_message(decoder) == [("get_weather", {"city": mark})]
    check_events(decoder, events, output.replace("@", mark))


@every_format
def test_a_special_token_ends_the_turn_whatever_follows(form: TurnFormat) -> None:
    end = form.ends[0].strip() if form.ends else form.next_turns[0]
    vocabulary = Vocabulary(form)
    if end not in vocabulary.special:
        pytest.skip("the end is no special token here")
    ids = vocabulary.encode(compose(said("C"), form) + end + "more")
    decoder, _ = decoded_ids(form, *groups(ids, 1))
    assert decoder.message["content"] == "C"
    assert decoder.finish_reason == "stop"
    assert decoder.rest.endswith("more")


def test_a_character_that_is_cut_is_told_as_such() -> None:
    decoder, _ = decoded_ids(FORMATS["hermes"], list("a🙂".encode())[:-1])
    assert decoder.message["content"] == "a\ufffd"


def test_a_prompt_of_ids() -> None:
    form = FORMATS["step3-vl"]
    vocabulary = Vocabulary(form)
    prompt = vocabulary.encode("<|im_start|>user\nHi<|im_end|>\n" + form.prompt)
    decoder, _ = decoded_ids(form, vocabulary.encode("R\n</think>\nC"), prompt=prompt)
    assert decoder.message == {"role": "assistant", "content": "C", "reasoning_content": "R"}


def test_text_and_ids_do_not_mix() -> None:
    decoder = Decoder(FORMATS["hermes"], vocabulary=Vocabulary(FORMATS["hermes"]))
    decoder.feed("a")
    with pytest.raises(UnsupportedInput, match="cannot be mixed"):
        decoder.feed([97])
    decoder = Decoder(FORMATS["hermes"], vocabulary=Vocabulary(FORMATS["hermes"]))
    decoder.feed([97])
    with pytest.raises(UnsupportedInput, match="cannot be mixed"):
        decoder.feed("a")


def test_ids_need_a_vocabulary() -> None:
    with pytest.raises(UnsupportedInput, match="vocabulary"):
        Decoder(FORMATS["hermes"]).feed([97])
    with pytest.raises(UnsupportedInput, match="vocabulary"):
        Decoder(FORMATS["hermes"], prompt=[97])


def test_every_format_of_the_five_is_in_the_table() -> None:
    assert {case.format for case in TABLE.values()} >= set(FIVE)


def test_formats_write_arguments_in_every_way() -> None:
    kinds = {type(payload(form)) for form in FORMATS.values()}
    assert {JsonArguments, TaggedArguments} < kinds
