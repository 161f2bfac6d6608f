"""Conversations to test with: plain data in OpenAI's shape, by name.

`CONVERSATIONS` are plain: every content is a string, arguments are objects, every result names its call,
roles are the four common ones. Every template that takes tools should render them. `SHAPES` are as valid,
in shapes that templates tend to stumble on: null content, content parts, JSON strings, other roles, no ids.

Nothing here is written for one format. Change nothing in place: the messages share their parts.
"""

from __future__ import annotations

import json
from typing import Any, TypedDict

Message = dict[str, Any]
Tool = dict[str, Any]


class Conversation(TypedDict):
    """What a template is rendered with."""

    messages: list[Message]
    tools: list[Tool] | None
    add_generation_prompt: bool


def conversation(*messages: Message, tools: list[Tool] | None = None, prompt: bool = True) -> Conversation:
    return {"messages": list(messages), "tools": tools, "add_generation_prompt": prompt}


# Messages. A key that is not given is absent from the message.


def system(content: Any) -> Message:
    return {"role": "system", "content": content}


def user(content: Any) -> Message:
    return {"role": "user", "content": content}


def assistant(content: Any, *calls: Message, **keys: Any) -> Message:
    message = {"role": "assistant", "content": content, **keys}
    return {**message, "tool_calls": list(calls)} if calls else message


def thinking(reasoning: Any, content: Any, *calls: Message) -> Message:
    return assistant(content, *calls, reasoning_content=reasoning)


def call(name: str, arguments: Any, call_id: str = "call_1") -> Message:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(content: Any, call_id: str = "call_1", **keys: Any) -> Message:
    return {"role": "tool", "tool_call_id": call_id, "content": content, **keys}


# Tools.


def tool(name: str, description: str, properties: dict[str, Any], required: list[str]) -> Tool:
    parameters = {"type": "object", "properties": properties, "required": required}
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


GET_WEATHER = tool(
    "get_weather",
    "Get the weather for a city.",
    {"city": {"type": "string", "description": "City name"}, "days": {"type": "integer"}},
    ["city"],
)
BOOK = tool(
    "book",
    "Book a trip & pay <now>.",
    {
        "traveller": {
            "type": "object",
            "description": "Who travels",
            "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
            "required": ["name"],
        },
        "stops": {"type": "array", "items": {"type": "string"}, "description": "Where to, “in order”"},
        "class": {"enum": ["first", "second"], "default": "second"},
        "insured": {"type": "boolean"},
    },
    ["traveller", "stops"],
)
NOW = {
    "type": "function",
    "function": {"name": "now", "description": "The time.", "parameters": {"type": "object"}},
}
BARE_NOW = {"name": "now", "description": "The time.", "parameters": {"type": "object", "properties": {}}}
UNDESCRIBED = {"type": "function", "function": {"name": "ping"}}
WRITE_FILE = tool(
    "write_file", "Write a file.", {"path": {"type": "string"}, "text": {"type": "string"}}, ["path", "text"]
)

S = system("You are S.")
HELLO = user("Hello!")
WEATHER = user("Weather in Paris?")
PARIS = call("get_weather", {"city": "Paris"})
ROME = call("get_weather", {"city": "Rome"}, "call_2")
SUNNY = result('{"t": 20}')
RAINY = result('{"t": 25}', "call_2")
TOOLS = [GET_WEATHER]

CANONICAL = conversation(
    S,
    user("Weather in Paris and Rome?"),
    thinking("R1 think", "Let me check.", call("get_weather", {"city": "Paris", "days": 2}), ROME),
    SUNNY,
    RAINY,
    thinking("R2 think", "Paris 20, Rome 25."),
    user("Thanks, and Oslo?"),
    tools=TOOLS,
)

TALK: dict[str, Conversation] = {
    "question": conversation(HELLO),
    "question-unprompted": conversation(HELLO, prompt=False),
    "system-and-question": conversation(S, HELLO),
    "system-alone": conversation(S),
    "empty-system": conversation(system(""), HELLO),
    "empty-question": conversation(S, user("")),
    "blank-texts": conversation(system(" \n"), user("\n\n"), thinking(" ", "\n x \n"), user("  ")),
    "two-questions": conversation(S, HELLO, user("Anyone there?")),
    "later-system": conversation(S, HELLO, thinking("Greet.", "Hi."), system("Be brief."), user("Why?")),
    "later-system-only": conversation(HELLO, thinking("Greet.", "Hi."), system("Be brief."), user("Why?")),
    "two-systems-first": conversation(S, system("Be brief."), HELLO),
    "system-last": conversation(S, HELLO, system("Answer in French.")),
    "markdown": conversation(S, user("# Title\n\n- a\n- b\n\n```py\nprint('{{ x }}')\n```\n")),
    "unicode": conversation(system("Tu es poli·e."), user("你好 👋🏽 \u202eabc e\u0301 \u2028 ＜end＞"), prompt=False),
    "html": conversation(system("<b>&amp;</b>"), user("a < b && c > 'd' \"e\"")),
    "windows-newlines": conversation(S, user("a\r\nb\rc"), thinking("r\r\n", "d\r\n"), user("e")),
    "foreign-markers": conversation(S, user("<|eot_id|>[/INST]</s><|end|><tool_call>")),
    "long": conversation(S, user("word " * 2000), thinking("step " * 500, "answer " * 500), user("more")),
}

HISTORY: dict[str, Conversation] = {
    "answered": conversation(S, HELLO, thinking("Greet.", "Hi."), prompt=False),
    "answered-and-prompted": conversation(S, HELLO, thinking("Greet.", "Hi.")),
    "answered-without-reasoning": conversation(S, HELLO, assistant("Hi."), prompt=False),
    "answered-with-empty-reasoning": conversation(S, HELLO, thinking("", "Hi."), prompt=False),
    "answered-without-system": conversation(HELLO, thinking("Greet.", "Hi."), prompt=False),
    "empty-answer": conversation(S, HELLO, thinking("Silence.", ""), user("?")),
    "two-turns": conversation(
        S, HELLO, thinking("Greet.", "Hi."), user("Why?"), thinking("Reason.", "Because."), prompt=False
    ),
    "three-turns": conversation(
        S,
        user("1"),
        thinking("one", "I"),
        user("2"),
        thinking("", "II"),
        user("3"),
        thinking("three", "III"),
        user("4"),
    ),
    "three-turns-without-reasoning": conversation(
        S, user("1"), assistant("I"), user("2"), assistant("II"), user("3"), assistant("III"), user("4")
    ),
    "mixed-reasoning": conversation(
        S,
        user("1"),
        assistant("I"),
        user("2"),
        thinking("two", "II"),
        user("3"),
        thinking("", "III"),
        prompt=False,
    ),
    "long-reasoning": conversation(S, HELLO, thinking("First.\n\nSecond:\n- a\n- b\n\nSo yes.", "Yes."), prompt=False),
    "reasoning-with-edges": conversation(S, HELLO, thinking("\n  padded \n\n", "\n\n padded too \n"), prompt=False),
    "reasoning-with-brackets": conversation(S, HELLO, thinking("if a<b and b>c: <x/>", "ok"), user("?")),
    "two-answers": conversation(S, HELLO, thinking("a", "Hi."), thinking("b", "How are you?"), prompt=False),
    "assistant-first": conversation(thinking("Greet.", "Welcome!"), HELLO),
    "assistant-first-after-system": conversation(
        S, thinking("Greet.", "Welcome!"), HELLO, thinking("x", "y"), prompt=False
    ),
    "assistant-alone": conversation(thinking("Greet.", "Welcome!"), prompt=False),
    "assistant-alone-without-reasoning": conversation(S, assistant("Welcome!"), prompt=False),
    "mentions-think": conversation(
        S, user("What does <think> do?"), thinking("Tags.", "A <think> tag opens."), user("And </think>?")
    ),
    "no-calls": conversation(S, HELLO, {**thinking("Greet.", "Hi."), "tool_calls": []}, user("?")),
}

CALLS: dict[str, Conversation] = {
    "canonical": CANONICAL,
    "canonical-unprompted": {**CANONICAL, "add_generation_prompt": False},
    "tools-unused": conversation(S, HELLO, tools=TOOLS),
    "tools-unused-in-history": conversation(S, HELLO, thinking("Greet.", "Hi."), user("Why?"), tools=TOOLS),
    "no-tools": conversation(S, HELLO, tools=[]),
    "tools-without-system": conversation(HELLO, tools=TOOLS),
    "tools-with-empty-system": conversation(system(""), HELLO, tools=TOOLS),
    "tools-with-later-system": conversation(S, HELLO, system("Be brief."), tools=TOOLS),
    "several-tools": conversation(S, HELLO, tools=[GET_WEATHER, BOOK, NOW, WRITE_FILE]),
    "bare-tool": conversation(S, HELLO, tools=[BARE_NOW]),
    "undescribed-tool": conversation(S, HELLO, tools=[UNDESCRIBED]),
    "chinese-tool": conversation(
        S,
        HELLO,
        tools=[tool("查询天气", "查询城市的天气", {"城市": {"type": "string", "description": "名称"}}, ["城市"])],
    ),
    "call-pending": conversation(S, WEATHER, thinking("Look.", "One moment.", PARIS), tools=TOOLS, prompt=False),
    "call-without-content": conversation(S, WEATHER, thinking("Look.", "", PARIS), tools=TOOLS, prompt=False),
    "call-without-reasoning": conversation(S, WEATHER, assistant("One moment.", PARIS), SUNNY, tools=TOOLS),
    "call-with-empty-reasoning": conversation(S, WEATHER, thinking("", "One moment.", PARIS), SUNNY, tools=TOOLS),
    "call-with-nothing-else": conversation(S, WEATHER, assistant("", PARIS), SUNNY, tools=TOOLS),
    "call-without-tools": conversation(S, WEATHER, thinking("Look.", "One moment.", PARIS), SUNNY),
    "call-without-system": conversation(WEATHER, thinking("Look.", "", PARIS), SUNNY),
    "content-ends-in-newline": conversation(
        S, WEATHER, thinking("Look.", "One moment:\n\n", PARIS), SUNNY, tools=TOOLS
    ),
    "tool-loop": conversation(
        S,
        WEATHER,
        thinking("Look it up.", "", PARIS),
        SUNNY,
        thinking("Compare with Rome.", "And Rome?", ROME),
        RAINY,
        tools=TOOLS,
    ),
    "tool-loop-answered": conversation(
        S,
        WEATHER,
        thinking("Look.", "", PARIS),
        SUNNY,
        thinking("Tell.", "20 degrees."),
        tools=TOOLS,
        prompt=False,
    ),
    "tool-loop-in-history": conversation(
        S,
        WEATHER,
        thinking("Look.", "", PARIS),
        SUNNY,
        thinking("Tell.", "20."),
        user("Rome?"),
        thinking("Look.", "", ROME),
        RAINY,
        tools=TOOLS,
    ),
    "question-inside-tool-loop": conversation(
        S, WEATHER, thinking("Look.", "", PARIS), SUNNY, user("Faster!"), tools=TOOLS
    ),
    "parallel-calls": conversation(S, WEATHER, thinking("Both.", "", PARIS, ROME), SUNNY, RAINY, tools=TOOLS),
    "parallel-calls-answered-backwards": conversation(
        S, WEATHER, thinking("Both.", "", PARIS, ROME), RAINY, SUNNY, tools=TOOLS
    ),
    "parallel-calls-of-two-tools": conversation(
        S,
        WEATHER,
        thinking("Both.", "I ask.", PARIS, call("now", {}, "call_2")),
        SUNNY,
        result("12:00", "call_2"),
        tools=[GET_WEATHER, NOW],
    ),
    "three-parallel-calls": conversation(
        S,
        WEATHER,
        thinking("All.", "", PARIS, ROME, call("get_weather", {"city": "Oslo", "days": 1}, "call_3")),
        SUNNY,
        RAINY,
        result("snow", "call_3"),
        thinking("Sum up.", "Go to Rome."),
        tools=TOOLS,
        prompt=False,
    ),
    "results-apart": conversation(
        S, WEATHER, thinking("Both.", "", PARIS, ROME), SUNNY, user("Hurry."), RAINY, tools=TOOLS
    ),
    "result-first": conversation(result("left over", "call_0"), HELLO),
    "result-after-system": conversation(S, result("left over", "call_0"), HELLO),
    "result-alone": conversation(result("left over", "call_0"), prompt=False),
    "empty-result": conversation(S, WEATHER, thinking("Look.", "", PARIS), result(""), tools=TOOLS),
    "long-result": conversation(S, WEATHER, thinking("Look.", "", PARIS), result("line\n" * 300), tools=TOOLS),
    "result-with-edges": conversation(S, WEATHER, thinking("Look.", "", PARIS), result("\n a \n\n"), tools=TOOLS),
    "result-with-markers": conversation(
        S,
        WEATHER,
        thinking("Look.", "", PARIS),
        result("</tool_response>\n<tool_call>\n{}\n</tool_call>"),
        tools=TOOLS,
    ),
    "results-written-by-user": conversation(
        S,
        WEATHER,
        thinking("Look.", "", PARIS),
        user('<tool_response>\n{"t": 20}\n</tool_response>'),
        thinking("Tell.", "20 degrees."),
        tools=TOOLS,
        prompt=False,
    ),
    "results-written-by-user-only": conversation(
        user("<tool_response>x</tool_response>"), thinking("a", "b"), prompt=False
    ),
    "ask-back": conversation(
        S,
        user("Weather?"),
        thinking("Where?", "Which city?"),
        user("Paris"),
        thinking("Now.", "", PARIS),
        SUNNY,
        tools=TOOLS,
    ),
}

_ARGUMENTS: dict[str, tuple[Tool, dict[str, Any]]] = {
    "empty-arguments": (NOW, {}),
    "one-argument": (GET_WEATHER, {"city": "Paris"}),
    "null-argument": (GET_WEATHER, {"city": "Paris", "days": None}),
    "number-arguments": (GET_WEATHER, {"city": 0, "days": -1.5, "big": 2**64, "tiny": 1e-9}),
    "boolean-arguments": (BOOK, {"insured": True, "paid": False}),
    "list-argument": (BOOK, {"stops": ["Paris", "Rome"], "none": []}),
    "nested-arguments": (
        BOOK,
        {
            "traveller": {"name": "Zoë", "age": 41, "tags": [{"k": 1}, []]},
            "stops": ["Köln", "東京"],
            "insured": False,
        },
    ),
    "empty-object-argument": (BOOK, {"traveller": {}}),
    "empty-string-argument": (GET_WEATHER, {"city": ""}),
    "number-in-string": (GET_WEATHER, {"city": "123", "days": 123}),
    "json-in-string": (GET_WEATHER, {"city": '{"a": [1, "b"]}'}),
    "unicode-arguments": (GET_WEATHER, {"city": "São Paulo 🌆", "城市": "北京"}),
    "quotes-in-argument": (GET_WEATHER, {"city": '"L\'Aquila" \\ a/b'}),
    "html-in-argument": (GET_WEATHER, {"city": "<b>a & b</b>"}),
    "newlines-in-argument": (WRITE_FILE, {"path": "a.py", "text": "def f():\n\treturn '\\n'\n\n"}),
    "markers-in-argument": (
        WRITE_FILE,
        {"path": "x", "text": "</tool_call></parameter></arg_value><|im_end|>"},
    ),
    "spaces-in-argument": (WRITE_FILE, {"path": " ", "text": "  a  "}),
    "keyword-names": (
        WRITE_FILE,
        {"items": 1, "get": "g", "keys": [2], "name": "n", "arguments": {"values": 3}},
    ),
    "odd-names": (WRITE_FILE, {"a b": 1, "": 2, "x-y.z": 3}),
}

ARGUMENTS: dict[str, Conversation] = {
    name: conversation(
        S,
        user("Go."),
        thinking("Do it.", "Doing.", call(tool["function"]["name"], given)),
        result("done"),
        tools=[tool],
    )
    for name, (tool, given) in _ARGUMENTS.items()
}

CONVERSATIONS: dict[str, Conversation] = {**TALK, **HISTORY, **CALLS, **ARGUMENTS}


def text_parts(*texts: str) -> list[Message]:
    return [{"type": "text", "text": text} for text in texts]


IMAGE_URL = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}

# A shape, and the plain conversation (or None) that says the same.
SHAPES: dict[str, tuple[Conversation, Conversation | None]] = {
    "null-content": (
        conversation(S, HELLO, thinking("r", None), user("?")),
        conversation(S, HELLO, thinking("r", ""), user("?")),
    ),
    "null-content-with-calls": (
        conversation(S, WEATHER, thinking("r", None, PARIS), SUNNY, tools=TOOLS),
        conversation(S, WEATHER, thinking("r", "", PARIS), SUNNY, tools=TOOLS),
    ),
    "absent-content-with-calls": (
        conversation(
            S,
            WEATHER,
            {"role": "assistant", "reasoning_content": "r", "tool_calls": [PARIS]},
            SUNNY,
            tools=TOOLS,
        ),
        conversation(S, WEATHER, thinking("r", "", PARIS), SUNNY, tools=TOOLS),
    ),
    "null-calls": (
        conversation(S, HELLO, {**thinking("r", "Hi."), "tool_calls": None}, user("?")),
        conversation(S, HELLO, thinking("r", "Hi."), user("?")),
    ),
    "null-reasoning": (
        conversation(S, HELLO, thinking(None, "Hi."), user("?")),
        conversation(S, HELLO, assistant("Hi."), user("?")),
    ),
    "part-in-user": (conversation(S, user(text_parts("Hello!"))), conversation(S, HELLO)),
    "parts-everywhere": (
        conversation(
            system(text_parts("You are ", "S.")),
            user(text_parts("Weather ", "in Paris?")),
            thinking("r", text_parts("One ", "moment."), PARIS),
            result(text_parts('{"t":', " 20}")),
            tools=TOOLS,
        ),
        conversation(S, WEATHER, thinking("r", "One moment.", PARIS), SUNNY, tools=TOOLS),
    ),
    "no-parts": (conversation(S, user([])), conversation(S, user(""))),
    "developer": (
        conversation({"role": "developer", "content": "You are S."}, HELLO),
        conversation(S, HELLO),
    ),
    "later-developer": (
        conversation(S, HELLO, {"role": "developer", "content": "Be brief."}),
        conversation(S, HELLO, system("Be brief.")),
    ),
    "arguments-as-string": (
        conversation(
            S,
            WEATHER,
            thinking("r", "", call("get_weather", json.dumps({"city": "Paris"}))),
            SUNNY,
            tools=TOOLS,
        ),
        conversation(S, WEATHER, thinking("r", "", PARIS), SUNNY, tools=TOOLS),
    ),
    "empty-arguments-as-string": (
        conversation(S, WEATHER, thinking("r", "", call("now", "")), SUNNY, tools=[NOW]),
        conversation(S, WEATHER, thinking("r", "", call("now", {})), SUNNY, tools=[NOW]),
    ),
    "absent-arguments": (
        conversation(S, WEATHER, thinking("r", "", {"id": "call_1", "function": {"name": "now"}}), SUNNY, tools=[NOW]),
        conversation(S, WEATHER, thinking("r", "", call("now", {})), SUNNY, tools=[NOW]),
    ),
    "call-without-wrapper": (
        conversation(S, WEATHER, thinking("r", "", {"id": "call_1", **PARIS["function"]}), SUNNY, tools=TOOLS),
        conversation(S, WEATHER, thinking("r", "", PARIS), SUNNY, tools=TOOLS),
    ),
    "results-without-ids": (
        conversation(
            S,
            WEATHER,
            thinking("r", "", {"function": PARIS["function"]}, {"function": ROME["function"]}),
            {"role": "tool", "content": '{"t": 20}'},
            {"role": "tool", "content": '{"t": 25}'},
            tools=TOOLS,
        ),
        conversation(S, WEATHER, thinking("r", "", PARIS, ROME), SUNNY, RAINY, tools=TOOLS),
    ),
    "function-role": (
        conversation(
            S,
            WEATHER,
            thinking("r", "", PARIS),
            {"role": "function", "name": "get_weather", "content": '{"t": 20}'},
            tools=TOOLS,
        ),
        conversation(S, WEATHER, thinking("r", "", PARIS), SUNNY, tools=TOOLS),
    ),
    "null-result": (
        conversation(S, WEATHER, thinking("r", "", PARIS), result(None), tools=TOOLS),
        conversation(S, WEATHER, thinking("r", "", PARIS), result(""), tools=TOOLS),
    ),
    "object-result": (
        conversation(S, WEATHER, thinking("r", "", PARIS), result({"t": 20}), tools=TOOLS),
        conversation(S, WEATHER, thinking("r", "", PARIS), SUNNY, tools=TOOLS),
    ),
    "list-result": (
        conversation(S, WEATHER, thinking("r", "", PARIS), result(["a", {"b": None}]), tools=TOOLS),
        conversation(S, WEATHER, thinking("r", "", PARIS), result('["a", {"b": null}]'), tools=TOOLS),
    ),
    "named-user": (
        conversation(S, {"role": "user", "name": "Ann", "content": "Hello!"}),
        conversation(S, HELLO),
    ),
    "image": (conversation(S, user([*text_parts("What is this?"), IMAGE_URL])), None),
}
