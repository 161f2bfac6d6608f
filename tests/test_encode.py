"""`Codec.encode`: every conversation that OpenAI's API takes is put into the shape that the template takes, or refused.

Most tests are tables. The templates are the five built-in ones, the five originals, and small ones that show one trait.
"""

from __future__ import annotations

import contextlib
import copy
import json
import math
import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
from conversations import (
    BARE_NOW,
    GET_WEATHER,
    HELLO,
    IMAGE_URL,
    NOW,
    PARIS,
    ROME,
    SHAPES,
    TOOLS,
    WEATHER,
    Message,
    S,
    assistant,
    call,
    result,
    system,
    text_parts,
    thinking,
    user,
)
from test_builtin import FORMATS, ORIGINALS, needs_originals

import chatcodec
from chatcodec import Codec, Prompt, UnsupportedInput

ALL = [*FORMATS, *(pytest.param(f"original {name}", marks=needs_originals) for name in FORMATS)]


def chat(content: str = "{{ m.content }}", call: str = "", *, before: str = "") -> str:
    """A template that writes each message after its role, and its calls."""
    calls = f"{{% for c in m.tool_calls or [] %}}{call}{{% endfor %}}" if call else ""
    return f"{{% for m in messages %}}{before}[{{{{ m.role }}}}]{content}{calls}{{% endfor %}}"


def known_roles(*roles: str) -> str:
    return f"{{% if m.role not in {roles!r} %}}{{{{ raise_exception('no role ' + m.role) }}}}{{% endif %}}"


NINE_ID = "{% if ID is undefined or ID|length != 9 %}{{ raise_exception('nine characters') }}{% endif %}<{{ ID }}>"
TRAITS = {
    "plain": chat(),
    "some roles": "{% for m in messages %}{% if m.role in ['system', 'user', 'assistant', 'tool'] %}"
    "[{{ m.role }}]{{ m.content }}{% endif %}{% endfor %}",
    "roles refused": chat(before=known_roles("system", "user", "assistant", "tool"), call="{{ c.function.name }}"),
    "developer": chat(before=known_roles("system", "developer", "user", "assistant")),
    "no system": chat(before=known_roles("user", "assistant")),
    "first system": "{% if messages[0].role == 'system' %}[system]{{ messages[0].content }}{% endif %}"
    "{% for m in messages if m.role != 'system' %}[{{ m.role }}]{{ m.content }}{% endfor %}",
    "needs content": chat("{{ m.content + '' }}", "{{ c.function.name }}"),
    "parts only": chat("{% for part in m.content %}{{ part['text'] }}{% endfor %}"),
    "parts and images": chat(
        "{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}"
        "{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}"
    ),
    "objects": chat(
        call="{{ c.function.name }}({% for k, v in c.function.arguments.items() %}{{ k }}={{ v|tojson }};{% endfor %})"
    ),
    "one argument": chat(call="{{ c.function.name }}({{ c.function.arguments.city }})"),
    "strings": chat(call="{{ c.function.name + '(' + c.function.arguments + ')' }}"),
    "double": chat(call="{{ c.function.name }}({{ c.function.arguments|tojson }})"),
    "repr": chat(call="{{ c.function.name }}({{ c.function.arguments }})"),
    "either": chat(
        call="{{ c.function.name }}({{ c.function.arguments if c.function.arguments is string"
        " else c.function.arguments|tojson }})"
    ),
    "typed calls": chat(call="{% if c.type + '' == 'function' %}{{ c.function.name }}{% endif %}"),
    "bare calls": chat(call="{{ c.name + '' }}({{ c.arguments|tojson }})"),
    "names only": chat(call="{{ c.function.name }};"),
    "first call": chat("{{ m.content }}{{ m.tool_calls[0].function.name if m.tool_calls }}"),
    "whole calls": chat("{{ m.content }}{% if m.tool_calls %}{{ m.tool_calls|tojson }}{% endif %}"),
    "ids": chat("{{ m.content }}<{{ m.tool_call_id }}>", "<{{ c.id }}>"),
    "needs ids": chat(
        "{% if m.role == 'tool' %}{{ m.tool_call_id + ':' }}{% endif %}{{ m.content }}",
        "{{ c.id }};",
        before=known_roles("user", "assistant", "tool"),
    ),
    "nine": chat(
        "{% if m.role == 'tool' %}" + NINE_ID.replace("ID", "m.tool_call_id") + "{% endif %}{{ m.content }}",
        NINE_ID.replace("ID", "c.id") + "{{ c.function.name }}",
        before=known_roles("user", "assistant", "tool"),
    ),
    "looks up names": "{% for m in messages %}[{{ m.role }}]{% if m.role == 'tool' %}"
    "{% set found = namespace(name='?') %}{% for n in messages %}"
    "{% for c in n.tool_calls or [] if c.id == m.tool_call_id %}{% set found.name = c.function.name %}{% endfor %}"
    "{% endfor %}{{ found.name }}:{% endif %}"
    "{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }};{% endfor %}{% endfor %}",
    "needs names": chat(
        "{% if m.role == 'tool' %}{{ m.name + ':' }}{% endif %}{{ m.content }}", "{{ c.function.name }};"
    ),
    "results as JSON": chat("{{ m.content if m.content is string else m.content|tojson }}", "{{ c.function.name }};"),
    "results quoted": chat("{{ m.content|tojson if m.role == 'tool' else m.content }}", "{{ c.function.name }};"),
    "tools": "{% for t in tools or [] %}{{ t.function.name }}: {{ t.function.description }};{% endfor %}" + chat(),
    "typed tools": "{% for t in tools or [] if t.type == 'function' %}{{ t.function.name }};{% endfor %}" + chat(),
    "bare tools": "{% for t in tools or [] %}{% if t.type == 'function' %}{% set t = t.function %}{% endif %}"
    "{{ t['name'] + ': ' + t['description'] }};{% endfor %}" + chat(),
    "tool list": "{% if tools is not none %}{{ tools|length }} tools{% endif %}" + chat(),
    "last reasoning": chat(
        "{% if loop.last and m.reasoning_content %}<{{ m.reasoning_content }}>{% endif %}{{ m.content }}"
    ),
    "thinking": chat("{% if m.thinking %}<{{ m.thinking }}>{% endif %}{{ m.content }}"),
    "variables": "{{ mode }}{{ documents[0].text if documents }}{{ place.city }}{% set own = 1 %}{{ own }}"
    "{% for x in [1] %}{{ x }}{% endfor %}{{ bos_token }}" + chat(),
}


@cache
def codec(name: str) -> Codec:
    if name in TRAITS:
        return Codec(TRAITS[name], name=name)
    if name in FORMATS:
        return chatcodec.load(name)
    return Codec((ORIGINALS / f"{name.removeprefix('original ')}.jinja").read_text(encoding="utf-8"), name=name)


def said(prompt: Prompt) -> list[tuple[str, str]]:
    """What the input wrote, and where it stands there."""
    return [(prompt.text[start:end], path) for start, end, path in prompt.spans if path and not path.endswith(".role")]


def refusal(name: str, messages: Any, tools: Any = None, **variables: Any) -> UnsupportedInput:
    with pytest.raises(UnsupportedInput) as caught:
        codec(name).encode(messages, tools, **variables)
    return caught.value


def without(message: Message, *names: str) -> Message:
    return {name: value for name, value in message.items() if name not in names}


ASKED = call("f", {"city": "Paris"})
"""The call of most tests, with an id that a template may find too long."""
ROUND = [HELLO, assistant("Look.", ASKED), result("Sunny.")]


# -- what a conversation becomes


@pytest.mark.parametrize("shape", [name for name, (_, plain) in SHAPES.items() if plain])
@pytest.mark.parametrize("name", ALL)
def test_every_shape_gives_the_prompt_of_the_plain_conversation(name: str, shape: str) -> None:
    shaped, plain = SHAPES[shape]
    assert plain is not None
    assert codec(name).encode(**shaped).text == codec(name).encode(**plain).text


def calls(arguments: Any, identity: str = "call_1", name: str = "f") -> Message:
    return assistant("", call(name, arguments, identity))


def legacy(arguments: Any, content: Any = None) -> Message:
    return {"role": "assistant", "content": content, "function_call": {"name": "f", "arguments": arguments}}


def function(content: str) -> Message:
    return {"role": "function", "name": "f", "content": content}


NO_ID = without(ASKED, "id")
ANSWER = {"role": "tool", "content": "a"}
DEVELOPER = {**S, "role": "developer"}
TEXTS: dict[str, tuple[str, list[Message], str]] = {
    # arguments: as object or JSON string, each template gets what it wants
    "objects get objects": ("objects", [calls({"city": "P"})], '[assistant]f(city="P";)'),
    "objects from strings": ("objects", [calls('{"city": "P"}')], '[assistant]f(city="P";)'),
    "strings get strings": ("strings", [calls('{"a":1}')], '[assistant]f({"a":1})'),
    "strings from objects": (
        "strings",
        [calls({"a": [None, True, 1.5, "é"]})],
        '[assistant]f({"a": [null, true, 1.5, "é"]})',
    ),
    "no JSON in JSON": ("double", [calls('{"city": "P"}')], '[assistant]f({"city": "P"})'),
    "no Python": ("repr", [calls({"a": None})], '[assistant]f({"a": null})'),
    "a string as it is": ("either", [calls('{"a":1}')], '[assistant]f({"a":1})'),
    "an object as it is": ("either", [calls({"a": 1})], '[assistant]f({"a": 1})'),
    "exact numbers": ("objects", [calls('{"n": 18446744073709551617}')], "[assistant]f(n=18446744073709551617;)"),
    "empty arguments": ("objects", [calls("")], "[assistant]f()"),
    "empty arguments, strings": ("strings", [calls("")], "[assistant]f({})"),
    "no arguments": ("strings", [assistant("", {"id": "1", "function": {"name": "f"}})], "[assistant]f({})"),
    "calls as they were": (
        "whole calls",
        [assistant("", {"function": ASKED["function"]})],
        f"[assistant]{json.dumps([{'function': ASKED['function']}])}",
    ),
    "calls without type": ("typed calls", [assistant("", without(ASKED, "type"))], "[assistant]f"),
    "bare calls as they were": (
        "bare calls",
        [assistant("", {"name": "f", "arguments": {"a": 1}})],
        '[assistant]f({"a": 1})',
    ),
    "tool_calls None": ("whole calls", [{**assistant("A"), "tool_calls": None}], "[assistant]A"),
    "tool_calls empty": ("whole calls", [{**assistant("A"), "tool_calls": []}], "[assistant]A"),
    # content: None, absent, parts, media, refusal
    "content None": ("needs content", [assistant(None)], "[assistant]"),
    "content absent": ("needs content", [{"role": "assistant", "tool_calls": [ASKED]}], "[assistant]f"),
    "result None": ("needs content", [result(None)], "[tool]"),
    "parts joined": ("plain", [user(text_parts("a", " b"))], "[user]a b"),
    "parts kept": ("parts and images", [user([*text_parts("a"), {"type": "image"}])], "[user]a<image>"),
    "image_url read as image": ("parts and images", [user([IMAGE_URL, *text_parts("a")])], "[user]<image>a"),
    "strings into parts": ("parts only", [S, HELLO], "[system]You are S.[user]Hello!"),
    "input_text": ("plain", [user([{"type": "input_text", "text": "a"}])], "[user]a"),
    "output_text": ("parts only", [assistant([{"type": "output_text", "text": "a"}])], "[assistant]a"),
    "no parts": ("plain", [user([])], "[user]"),
    "refusal": ("plain", [{**assistant(None), "refusal": "No."}], "[assistant]No."),
    "refusal part": ("plain", [assistant([{"type": "refusal", "refusal": "No."}])], "[assistant]No."),
    "refusal into parts": ("parts only", [{"role": "assistant", "refusal": "No."}], "[assistant]No."),
    # roles
    "developer read": ("developer", [DEVELOPER, HELLO], "[developer]You are S.[user]Hello!"),
    "developer as system": ("roles refused", [DEVELOPER, HELLO], "[system]You are S.[user]Hello!"),
    "developer not dropped": ("some roles", [DEVELOPER, HELLO], "[system]You are S.[user]Hello!"),
    "late developer": ("some roles", [HELLO, DEVELOPER], "[user]Hello![system]You are S."),
    "function as tool": ("roles refused", [legacy("{}"), function("a")], "[assistant]f[tool]a"),
    "function not dropped": ("some roles", [HELLO, function("a")], "[user]Hello![tool]a"),
    # results
    "result in parts": ("plain", [result(text_parts("a", "b"))], "[tool]ab"),
    "result an object": ("plain", [result({"t": [1, None, "é"]})], '[tool]{"t": [1, null, "é"]}'),
    "result an object, as JSON": ("results as JSON", [calls({}), result({"t": 1})], '[assistant]f;[tool]{"t": 1}'),
    "result a list, as JSON": ("results as JSON", [calls({}), result(["a"])], '[assistant]f;[tool]["a"]'),
    "result a list, quoted": ("results quoted", [calls({}), result(["a"])], '[assistant]f;[tool]["a"]'),
    "result of no parts": ("parts and images", [calls({}), result([])], "[assistant][tool]"),
    # ids: missing, repeated, too long
    "ids as they were": ("ids", [calls({}), result("a")], "[assistant]<><call_1>[tool]a<call_1>"),
    "missing ids as they were": ("ids", [assistant("", NO_ID), {**ANSWER, "name": "f"}], "[assistant]<><>[tool]a<>"),
    "an id for a result without": ("needs ids", [calls({}), ANSWER], "[assistant]call_1;[tool]call_1:a"),
    "an id for a function": ("needs ids", [calls({}), function("a")], "[assistant]call_1;[tool]call_1:a"),
    "nine as they were": (
        "nine",
        [calls({}, "abcdefgh1"), result("a", "abcdefgh1")],
        "[assistant]<abcdefgh1>f[tool]<abcdefgh1>a",
    ),
    "nine for long ids": (
        "nine",
        [assistant("", ASKED, call("g", {}, "call_2")), result("b", "call_2"), result("a")],
        "[assistant]<abcdef000>f<abcdef001>g[tool]<abcdef001>b[tool]<abcdef000>a",
    ),
    "nine for missing ids": ("nine", [assistant("", NO_ID), ANSWER], "[assistant]<abcdef000>f[tool]<abcdef000>a"),
    "nine for a result without": (
        "nine",
        [calls({}, "abcdefgh1"), ANSWER],
        "[assistant]<abcdefgh1>f[tool]<abcdefgh1>a",
    ),
    "nine for a function": (
        "nine",
        [calls({}, "abcdefgh1"), function("a")],
        "[assistant]<abcdefgh1>f[tool]<abcdefgh1>a",
    ),
    "nine, results late": (
        "nine",
        [calls({}), calls({}, "call_2", name="g"), result("a"), result("b", "call_2")],
        "[assistant]<abcdef000>f[assistant]<abcdef001>g[tool]<abcdef000>a[tool]<abcdef001>b",
    ),
    "nine, by name": (
        "nine",
        [assistant("", NO_ID, {"function": {"name": "g"}}), {**ANSWER, "name": "g"}, {**ANSWER, "name": "f"}],
        "[assistant]<abcdef000>f<abcdef001>g[tool]<abcdef001>a[tool]<abcdef000>a",
    ),
    "nine for function_call": ("nine", [legacy("{}"), function("a")], "[assistant]<abcdef000>f[tool]<abcdef000>a"),
    "ids repeated": (
        "looks up names",
        [calls({}), result("a"), calls({}, name="g"), result("b")],
        "[assistant]f;[tool]f:a[assistant]g;[tool]g:b",
    ),
    "ids repeated in a turn": (
        "looks up names",
        [assistant("", ASKED, call("g", {})), result("a"), result("b")],
        "[assistant]f;g;[tool]f:a[tool]g:b",
    ),
    # a result's name
    "names from calls": (
        "needs names",
        [assistant("", ASKED, call("g", {}, "call_2")), result("b", "call_2"), result("a")],
        "[assistant]f;g;[tool]g:b[tool]f:a",
    ),
    "names without ids": (
        "needs names",
        [assistant("", NO_ID, {"function": {"name": "g"}}), ANSWER, {**ANSWER, "content": "b"}],
        "[assistant]f;g;[tool]f:a[tool]g:b",
    ),
    "names as given": ("needs names", [calls({}), result("a", name="other")], "[assistant]f;[tool]other:a"),
    # reasoning
    "reasoning": ("thinking", [{**assistant("A"), "reasoning": "R"}], "[assistant]<R>A"),
    "reasoning_content": ("thinking", [{**assistant("A"), "reasoning_content": "R"}], "[assistant]<R>A"),
    "thinking": ("last reasoning", [{**assistant("A"), "thinking": "R"}], "[assistant]<R>A"),
    "the first name counts": ("last reasoning", [{**thinking("R", "A"), "reasoning": "Q"}], "[assistant]<R>A"),
    "reasoning None": ("last reasoning", [{**thinking(None, "A"), "reasoning": "Q"}], "[assistant]<Q>A"),
}


@pytest.mark.parametrize("case", TEXTS)
def test_a_conversation_is_put_into_the_shape_that_the_template_takes(case: str) -> None:
    name, messages, text = TEXTS[case]
    assert codec(name).encode(messages).text == text


def test_a_new_id_is_no_other_call_s() -> None:
    messages = [assistant("", ASKED, call("g", {}, "abcdef000")), result("b", "abcdef000"), result("a")]
    first, second, answer, last = re.findall(r"<(\w+)>", codec("nine").encode(messages).text)
    assert first == last != second == answer


def test_a_function_call_and_its_result_share_an_id() -> None:
    text = codec("needs ids").encode([legacy("{}"), function("a"), legacy("{}"), function("b")]).text
    found = re.fullmatch(r"\[assistant](\w{9,});\[tool](\w+):a\[assistant](\w{9,});\[tool](\w+):b", text)
    assert found is not None
    assert found[1] == found[2] != found[3] == found[4]


UNTYPED = without(GET_WEATHER, "type")
TOOL_TEXTS: dict[str, tuple[str, Any, str]] = {
    "None": ("tools", None, ""),
    "wrapped": ("tools", [NOW], "now: The time.;"),
    "bare": ("tools", [BARE_NOW, GET_WEATHER], "now: The time.;get_weather: Get the weather for a city.;"),
    "bare with type": ("tools", [{"type": "function", **BARE_NOW}], "now: The time.;"),
    "no type": ("typed tools", [UNTYPED], "get_weather;"),
    "bare, typed": ("typed tools", [BARE_NOW], "now;"),
    "bare as given": ("bare tools", [BARE_NOW], "now: The time.;"),
    "wrapped for bare": ("bare tools", [NOW], "now: The time.;"),
    "no type for bare": ("bare tools", [UNTYPED], "get_weather: Get the weather for a city.;"),
    "an empty list stays one": ("tool list", [], "0 tools"),
}


@pytest.mark.parametrize("case", TOOL_TEXTS)
def test_tools_are_put_into_the_shape_that_the_template_takes(case: str) -> None:
    name, tools, text = TOOL_TEXTS[case]
    assert codec(name).encode([HELLO], tools).text == f"{text}[user]Hello!"


@pytest.mark.parametrize("name", ALL)
def test_tools_may_be_bare_or_without_type(name: str) -> None:
    for tool in (NOW, NOW["function"], without(NOW, "type")):
        assert "The time." in codec(name).encode([S, HELLO], [tool]).text


@needs_originals
@pytest.mark.parametrize("answer", [function("Sunny."), {"role": "tool", "content": "Sunny."}])
def test_a_result_without_id_is_named_after_its_call(answer: Message) -> None:
    text = (
        codec("original step-audio-r1").encode([WEATHER, assistant("", PARIS), {**answer, "name": "get_weather"}]).text
    )
    assert "<|BOT|>function_output\nget_weather\nSunny.<|EOT|>" in text


# -- paths are those of the caller's input

CALL = "messages[0].tool_calls[0].function"
PATHS: dict[str, tuple[str, list[Message], list[tuple[str, str]]]] = {
    "joined parts": (
        "plain",
        [user(text_parts("a", "b"))],
        [("a", "messages[0].content[0].text"), ("b", "messages[0].content[1].text")],
    ),
    "a string made a part": ("parts only", [HELLO], [("Hello!", "messages[0].content")]),
    "refusal": ("plain", [{"role": "assistant", "refusal": "No."}], [("No.", "messages[0].refusal")]),
    "refusal part": (
        "plain",
        [assistant([{"type": "refusal", "refusal": "No."}])],
        [("No.", "messages[0].content[0].refusal")],
    ),
    "developer": ("some roles", [{**S, "role": "developer"}], [("You are S.", "messages[0].content")]),
    "reasoning": (
        "thinking",
        [{**assistant("A"), "reasoning": "R"}],
        [("R", "messages[0].reasoning"), ("A", "messages[0].content")],
    ),
    "parsed arguments": (
        "one argument",
        [calls('{"city": "Paris"}')],
        [("f", f"{CALL}.name"), ("Paris", f"{CALL}.arguments.city")],
    ),
    "parsed arguments, deep": (
        "objects",
        [calls('{"a": {"b c": ["x", 1]}}')],
        [
            ("f", f"{CALL}.name"),
            ("a", f"{CALL}.arguments.a"),
            ("b c", f"{CALL}.arguments.a['b c']"),
            ("x", f"{CALL}.arguments.a['b c'][0]"),
            ("1", f"{CALL}.arguments.a['b c'][1]"),
        ],
    ),
    "written arguments": (
        "strings",
        [assistant("", ASKED)],
        [("f", f"{CALL}.name"), ("city", f"{CALL}.arguments.city"), ("Paris", f"{CALL}.arguments.city")],
    ),
    "arguments as they were": ("either", [calls('{"a":1}')], [("f", f"{CALL}.name"), ('{"a":1}', f"{CALL}.arguments")]),
    "an empty key": ("objects", [calls({"": "x"})], [("f", f"{CALL}.name"), ("x", f"{CALL}.arguments['']")]),
    "function_call": (
        "one argument",
        [legacy('{"city": "Paris"}')],
        [("f", "messages[0].function_call.name"), ("Paris", "messages[0].function_call.arguments.city")],
    ),
    "an object result": (
        "plain",
        [result({"t": "x"})],
        [("t", "messages[0].content.t"), ("x", "messages[0].content.t")],
    ),
    "a new id is the template's": (
        "nine",
        [assistant("A", ASKED), result("a")],
        [("A", "messages[0].content"), ("f", f"{CALL}.name"), ("a", "messages[1].content")],
    ),
    "a name from the call": (
        "needs names",
        [assistant("", ASKED), result("a")],
        [("f", f"{CALL}.name"), ("f", f"{CALL}.name"), ("a", "messages[1].content")],
    ),
}


@pytest.mark.parametrize("case", PATHS)
def test_spans_name_the_place_in_the_input(case: str) -> None:
    name, messages, expected = PATHS[case]
    prompt = codec(name).encode(messages)
    assert said(prompt) == expected
    assert "".join(prompt.text[start:end] for start, end, _ in prompt.spans) == prompt.text


@pytest.mark.parametrize("name", ALL)
def test_spans_of_the_ten_templates(name: str) -> None:
    messages = [
        {"role": "developer", "content": text_parts("Be ", "kind.")},
        user(text_parts("Weather", "?")),
        {**assistant(None, call("get_weather", '{"city": "Köln"}')), "reasoning": "Hm."},
        result(text_parts("Sun", "ny.")),
    ]
    prompt = codec(name).encode(messages, TOOLS)
    expected = {
        "Be ": "messages[0].content[0].text",
        "?": "messages[1].content[1].text",
        "Köln": "messages[2].tool_calls[0].function.arguments.city",
        "ny.": "messages[3].content[1].text",
    }
    found = dict(reversed(said(prompt)))
    verbatim = {'{"city": "Köln"}': "messages[2].tool_calls[0].function.arguments"}
    if verbatim.items() <= found.items():
        expected = {text: path for text, path in expected.items() if text != "Köln"}
    assert expected.items() <= found.items()
    assert ("Hm." in found) == ("messages[2].reasoning" not in prompt.dropped)
    assert found.get("Hm.", "messages[2].reasoning") == "messages[2].reasoning"


def test_spans_cover_the_text_of_template_and_variables() -> None:
    prompt = codec("variables").encode(
        [HELLO], mode="slow", documents=[{"text": "D", "title": "T"}], place={"city": "C"}
    )
    assert prompt.text == "slowDC11[user]Hello!"
    assert said(prompt) == [
        ("slow", "mode"),
        ("D", "documents[0].text"),
        ("C", "place.city"),
        ("Hello!", "messages[0].content"),
    ]
    assert prompt.dropped == ["documents[0].title"]


def test_what_is_read_later_is_what_was_given() -> None:
    messages = [user("now: "), user("x")]
    prompt = Codec("{% for m in messages %}{{ m.content }}{{ strftime_now('%f') }}{% endfor %}").encode(messages)
    messages[0]["content"] = "changed"
    messages.clear()
    assert "".join(prompt.text[start:end] for start, end, _ in prompt.spans) == prompt.text == str(prompt.trace.text)
    assert said(prompt) == [("now: ", "messages[0].content"), ("x", "messages[1].content")]


# -- what is left out

ARGUMENTS = f"{CALL}.arguments"
SOME = {"city": "Paris", "a b": {"x": "y"}, "type": "t", "n": 5, "none": None}
SOME_LOST = [f"{ARGUMENTS}['a b']", f"{ARGUMENTS}.type", f"{ARGUMENTS}.n"]
DROPPED: dict[str, tuple[str, list[Message], list[str]]] = {
    "nothing": ("objects", [S, HELLO, assistant("", ASKED), result("a")], []),
    "a late system message": ("first system", [HELLO, S, HELLO], ["messages[1].content"]),
    "a late system message in parts": ("first system", [HELLO, system(text_parts("a", "b"))], ["messages[1].content"]),
    "blanks are nothing": ("first system", [HELLO, system(" \n"), system("")], []),
    "earlier reasoning": (
        "last reasoning",
        [thinking("Q", "A"), thinking("R", "A")],
        ["messages[0].reasoning_content"],
    ),
    "reasoning, by its name": ("plain", [{**assistant("A"), "reasoning": "Q"}], ["messages[0].reasoning"]),
    "one reasoning under two names": ("last reasoning", [{**thinking("R", "A"), "reasoning": "R"}], []),
    "calls": ("plain", [assistant("A", ASKED, ROME)], ["messages[0].tool_calls"]),
    "the second call": ("first call", [assistant("", call("f", {}), call("g", {}))], ["messages[0].tool_calls[1]"]),
    "arguments": ("names only", [assistant("", ASKED)], [ARGUMENTS]),
    "arguments as string": ("names only", [calls('{"city": "Paris"}')], [ARGUMENTS]),
    "some arguments": ("one argument", [calls(SOME)], SOME_LOST),
    "some arguments of a string": ("one argument", [calls(json.dumps(SOME))], SOME_LOST),
    "no arguments": ("objects", [calls({}), calls("{}"), calls("")], []),
    "an argument like arguments": ("objects", [calls({"arguments": "{x"})], []),
    "an argument like arguments, lost": (
        "one argument",
        [calls({"city": "P", "arguments": "{x"})],
        [f"{ARGUMENTS}.arguments"],
    ),
    "an argument like a part": ("objects", [calls({"a": {"type": "city", "city": "Paris"}})], []),
    "an argument like a part, lost": (
        "one argument",
        [calls({"city": "P", "a": {"type": "b", "b": "x"}})],
        [f"{ARGUMENTS}.a"],
    ),
    "function_call": ("plain", [legacy("{}", "A")], ["messages[0].function_call"]),
    "a video": (
        "parts and images",
        [user([*text_parts("a"), {"type": "video", "video": "v"}])],
        ["messages[0].content[1]"],
    ),
    "an image that leaves a mark": ("parts and images", [user([*text_parts("a"), IMAGE_URL])], []),
    "refusal beside content": ("plain", [{**assistant("A"), "refusal": "No."}], ["messages[0].refusal"]),
    "a user's name": ("plain", [{**HELLO, "name": "Ann"}], ["messages[0].name"]),
    "a result's name and id": ("plain", [result("a", name="f")], []),
}


@pytest.mark.parametrize("case", DROPPED)
def test_what_the_template_leaves_out_is_dropped(case: str) -> None:
    name, messages, expected = DROPPED[case]
    assert codec(name).encode(messages).dropped == expected


SCHEMA = "tools[0].function.parameters"
ODD_SCHEMA = {"type": "object", "$defs": {"a b": {"type": ["string", "null"]}}, "required": ["r"]}
ODD = {"type": "function", "function": {"name": "odd", "description": "Odd.", "parameters": ODD_SCHEMA}}
TOOLS_DROPPED: dict[str, tuple[str, list[Any], list[str]]] = {
    "all": ("", [NOW, GET_WEATHER], ["tools"]),
    "one": ("{{ tools[0]|tojson }}", [NOW, GET_WEATHER], ["tools[1]"]),
    "none": ("{{ tools|tojson }}", [GET_WEATHER, ODD, BARE_NOW], []),
    "schemas": (
        "{% for t in tools %}{{ t.function.name ~ t.function.description }}{% endfor %}",
        [NOW, ODD],
        [SCHEMA, SCHEMA.replace("0", "1")],
    ),
    "parts of a schema": (
        "{{ tools[0].function.name ~ tools[0].function.description ~ tools[0].function.parameters.type }}",
        [ODD],
        [f"{SCHEMA}['$defs']", f"{SCHEMA}.required"],
    ),
}


@pytest.mark.parametrize("case", TOOLS_DROPPED)
def test_what_the_template_leaves_out_of_the_tools_is_dropped(case: str) -> None:
    template, tools, expected = TOOLS_DROPPED[case]
    assert Codec(template + chat()).encode([HELLO], tools).dropped == expected


@needs_originals
@pytest.mark.parametrize(
    ("name", "messages", "tools", "expected"),
    [
        ("telechat3", [HELLO, assistant("Hi."), S, HELLO], None, ["messages[2].content"]),
        ("step3-vl", [HELLO, thinking("R", "Hi."), HELLO], None, ["messages[1].reasoning_content"]),
        ("intellect-3", [HELLO, thinking("R", "Hi."), HELLO], None, []),
        (
            "iquest-coder",
            [HELLO],
            TOOLS,
            ["tools[0].function.parameters.type", "tools[0].function.parameters.required"],
        ),
        ("step-audio-r1", [HELLO, thinking("R", "Hi.")], TOOLS, ["messages[1].reasoning_content"]),
    ],
)
def test_what_the_originals_leave_out(name: str, messages: list[Message], tools: Any, expected: list[str]) -> None:
    assert codec(f"original {name}").encode(messages, tools).dropped == expected


@pytest.mark.parametrize(
    ("name", "messages", "path"),
    [
        ("first system", [HELLO, S], "messages[1].content"),
        ("parts and images", [user([*text_parts("a"), {"type": "video", "video": "v"}])], "messages[0].content[1]"),
        ("plain", [{**assistant("A"), "refusal": "No."}], "messages[0].refusal"),
        ("plain", [HELLO, assistant("A", ASKED)], "messages[1].tool_calls"),
        ("names only", [assistant("A", ASKED)], ARGUMENTS),
        ("plain", [legacy("{}", "A")], "messages[0].function_call"),
        pytest.param("original telechat3", [HELLO, HELLO, S], "messages[2].content", marks=needs_originals),
        pytest.param(
            "original telechat3",
            [HELLO, assistant("Use </think>, please.")],
            "messages[1].content",
            marks=needs_originals,
        ),
    ],
)
def test_strictly_nothing_said_is_dropped(name: str, messages: list[Message], path: str) -> None:
    codec(name).encode(messages)
    assert refusal(name, messages, strict=True).path == path


def test_strictly_reasoning_names_and_schemas_may_be_dropped() -> None:
    prompt = codec("plain").encode([{**HELLO, "name": "Ann"}, thinking("R", "A")], TOOLS, strict=True)
    assert prompt.dropped == ["messages[0].name", "messages[1].reasoning_content", "tools"]


@pytest.mark.parametrize("name", ALL)
def test_strictly_a_conversation_that_is_all_there_is_the_same(name: str) -> None:
    messages = [
        S,
        WEATHER,
        assistant("Look.", PARIS),
        result("Sunny.", name="get_weather"),
        assistant("Sunny.", call("now", "{}")),
        result("x"),
    ]
    assert codec(name).encode(messages, TOOLS, strict=True).text == codec(name).encode(messages, TOOLS).text


# -- refusals: the path, the reason, the way out

REFUSED: dict[str, tuple[str, Any, str, str]] = {
    "arguments no JSON": ("objects", [calls('{"a": ')], ARGUMENTS, "no valid JSON"),
    "arguments no JSON, strings": ("strings", [calls("{'a': 1}")], ARGUMENTS, "no valid JSON"),
    "arguments no JSON, either": ("either", [calls("a=1")], ARGUMENTS, "no valid JSON"),
    "arguments with NaN": ("either", [calls('{"a": NaN}')], ARGUMENTS, "JSON"),
    "arguments with Infinity": ("objects", [calls('{"a": -Infinity}')], ARGUMENTS, "JSON"),
    "arguments no object": ("objects", [calls("[1]")], ARGUMENTS, "object"),
    "arguments of function_call": ("objects", [legacy("{")], "messages[0].function_call.arguments", "no valid JSON"),
    "a call without name": ("objects", [assistant("", {"function": {"arguments": "{}"}})], f"{CALL}.name", "name"),
    "a call without function": ("objects", [assistant("", {"id": "1"})], "messages[0].tool_calls[0]", "function"),
    "a custom call": (
        "objects",
        [assistant("", {"id": "1", "type": "custom", "custom": {}})],
        "messages[0].tool_calls[0]",
        "'custom'",
    ),
    "calls no list": ("objects", [{**assistant(""), "tool_calls": "f"}], "messages[0].tool_calls", "a list is needed"),
    "an image": ("plain", [user([*text_parts("a"), IMAGE_URL])], "messages[0].content[1]", "'image_url'"),
    "audio": ("plain", [user([{"type": "input_audio", "input_audio": {}}])], "messages[0].content[0]", "'input_audio'"),
    "video": ("plain", [user([{"type": "video_url", "video_url": {}}])], "messages[0].content[0]", "'video_url'"),
    "an image in a result": ("plain", [result([IMAGE_URL])], "messages[0].content[0]", "'image_url'"),
    "a number": ("plain", [user(5)], "messages[0].content", "a string or a list of parts"),
    "a system message": ("no system", [HELLO, S], "messages[1]", "no role system (no system, line 1)"),
    "a developer message": (
        "no system",
        [{**S, "role": "developer"}],
        "messages[0]",
        "no role system (no system, line 1)",
    ),
    "a template that fails": ("needs names", [HELLO, result("a")], "messages[1]", "'name' (needs names, line 1)"),
    "the empty conversation": ("plain", [], "messages", "empty"),
    "no list": ("plain", "Hello!", "messages", "a list of messages is needed, not a string"),
    "one message": ("plain", HELLO, "messages", "a list of messages is needed, not an object"),
    "None": ("plain", None, "messages", "a list of messages is needed, not null"),
    "a string for a message": ("plain", [HELLO, "Hello!"], "messages[1]", "not a string"),
    "no role": ("plain", [{"content": "a"}], "messages[0].role", "needs a role"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_refusal_names_the_path_and_the_reason(case: str) -> None:
    name, messages, path, reason = REFUSED[case]
    error = refusal(name, messages)
    assert error.path == path
    assert reason in error.reason
    assert str(error) == f"{error.path}: {error.reason}"


@pytest.mark.parametrize("name", ALL)
def test_arguments_that_are_no_json_are_refused_by_all(name: str) -> None:
    for text in ("{", "{'city': 1}", '{"city": NaN}', '{"a": 1} x', "Paris"):
        assert refusal(name, [HELLO, calls(text)]).path == "messages[1].tool_calls[0].function.arguments"


@pytest.mark.parametrize(
    ("tools", "path", "reason"),
    [
        ("now", "tools", "a list of tools is needed, not a string"),
        ([NOW, "now"], "tools[1]", "a tool is an object, not a string"),
        (
            [NOW, {"type": "function", "function": {"name": "f", "parameters": {"a": {1}}}}],
            "tools[1].function.parameters.a",
            "not JSON",
        ),
    ],
)
def test_a_refusal_of_tools(tools: Any, path: str, reason: str) -> None:
    error = refusal("tools", [HELLO], tools)
    assert error.path == path
    assert reason in error.reason


@needs_originals
def test_a_template_that_fails_on_the_tools_says_so() -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": ["string"]}}}}}]
    assert refusal("original iquest-coder", [HELLO], tools).path.startswith("tools")


# -- template variables


def test_a_variable_that_the_template_never_reads_is_refused() -> None:
    error = refusal("variables", [HELLO], enable_thinking=False)
    assert error.path == "enable_thinking"
    assert error.reason.endswith("those it reads: documents, mode, place")
    assert codec("variables").variables == ("documents", "mode", "place")
    assert refusal("plain", [HELLO], mode=1).reason.endswith("those it reads: none")
    for name in ("chat_template", "tokenize", "documents", "tool_choice"):
        assert refusal("plain", [HELLO], **{name: False}).path == name


@pytest.mark.parametrize("name", ALL)
def test_the_ten_templates_read_no_nonsense(name: str) -> None:
    assert refusal(name, [HELLO], nonsense=1).path == "nonsense"


def test_variables_pass_through() -> None:
    subject = Codec("{{ n + 1 }}{{ flag is true }}{{ nil is none }}{{ add_generation_prompt }}" + chat())
    assert subject.encode([HELLO], n=1, flag=True, nil=None).text == "2TrueTrueTrue[user]Hello!"
    assert subject.encode([HELLO], None, False, n=1, flag=1, nil=0).text == "2FalseFalseFalse[user]Hello!"


def test_special_tokens_are_the_template_s_own_and_may_be_replaced() -> None:
    subject = Codec("{{ bos_token }}{{ messages[0].content }}", special_tokens={"bos_token": "<s>"})
    assert subject.encode([HELLO]).spans == [(0, 3, None), (3, 9, "messages[0].content")]
    assert subject.encode([HELLO], bos_token="<b>").text == "<b>Hello!"


def test_a_variable_that_is_no_json_is_refused() -> None:
    assert refusal("variables", [HELLO], place={"city": object()}).path == "place.city"


# -- the caller's objects


@dataclass
class Said:
    role: str
    content: Any
    tool_calls: list[Any] | None = None
    tool_call_id: str | None = None


@dataclass
class Called:
    function: dict[str, Any]
    id: str = "call_1"
    type: str = field(default="function")


class Model:
    """Like a pydantic model, as OpenAI's SDK returns them."""

    def __init__(self, **fields: Any) -> None:
        self._fields = fields

    def model_dump(self) -> dict[str, Any]:
        return self._fields


class Frozen(Mapping[str, Any]):
    def __init__(self, fields: dict[str, Any]) -> None:
        self._fields = fields

    def __getitem__(self, name: str) -> Any:
        return self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)


class Role(str):
    def __str__(self) -> str:
        return "Role.USER"


FUNCTION = ASKED["function"]
OBJECTS: dict[str, Any] = {
    "dataclasses": [
        Said("user", "Hello!"),
        Said("assistant", "Look.", [Called(FUNCTION)]),
        Said("tool", "Sunny.", None, "call_1"),
    ],
    "models": [
        Model(**HELLO),
        Model(**assistant("Look.", Model(**ASKED)), refusal=None, annotations=[]),
        Model(**result("Sunny.")),
    ],
    "a model of models": [
        HELLO,
        Model(role="assistant", content="Look.", tool_calls=[Called(Model(**FUNCTION))]),
        ROUND[2],
    ],
    "ordered dicts": [OrderedDict(HELLO), OrderedDict(assistant("Look.", OrderedDict(ASKED))), ROUND[2]],
    "mappings": [Frozen(HELLO), Frozen(assistant("Look.", Frozen({**ASKED, "function": Frozen(FUNCTION)}))), ROUND[2]],
    "tuples": (HELLO, {**assistant("Look."), "tool_calls": (ASKED,)}, ROUND[2]),
    "tuples of parts": ({"role": "user", "content": tuple(text_parts("Hello!"))}, *ROUND[1:]),
    "subclasses of str": [{"role": Role("user"), "content": Role("Hello!")}, *ROUND[1:]],
}


@pytest.mark.parametrize("kind", OBJECTS)
@pytest.mark.parametrize("name", ["objects", "strings", "nine", *ALL])
def test_messages_may_be_objects(name: str, kind: str) -> None:
    assert codec(name).encode(OBJECTS[kind]).text == codec(name).encode(ROUND).text


def test_tools_may_be_objects() -> None:
    expected = codec("tools").encode([HELLO], [NOW]).text
    for tool in (
        Model(**NOW),
        OrderedDict(NOW),
        Called(NOW["function"]),
        {**NOW, "function": Model(**NOW["function"])},
    ):
        assert codec("tools").encode([HELLO], (tool,)).text == expected


@pytest.mark.parametrize("name", ["nine", "strings", "needs names", "parts only", "some roles", *ALL])
def test_the_input_is_never_changed(name: str) -> None:
    for shaped, _ in SHAPES.values():
        before = copy.deepcopy(shaped)
        with contextlib.suppress(UnsupportedInput):
            prompt = codec(name).encode(**shaped)
            assert len(set(prompt.dropped)) == len(prompt.dropped)
        assert shaped == before


# -- hostile input


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"a": value}
    return value


def cyclic() -> dict[str, Any]:
    value: dict[str, Any] = {"a": [1]}
    value["a"].append(value)
    return value


class Changing(dict[str, Any]):
    """Grows while it is read."""

    def items(self) -> Any:
        for name in self:
            self[f"{name}'"] = 1
            yield name, self[name]


class Failing(Mapping[str, Any]):
    def __init__(self, error: Exception) -> None:
        self.error = error

    def __getitem__(self, name: str) -> Any:
        raise self.error

    def __iter__(self) -> Iterator[str]:
        raise self.error

    def __len__(self) -> int:
        raise self.error


class FailingModel:
    def model_dump(self) -> Any:
        raise ValueError("a field is no JSON")


class EndlessModel:
    def model_dump(self) -> Any:
        return self


def calling(arguments: Any) -> list[Any]:
    return [HELLO, assistant("Look.", call("f", arguments, "abcdefgh1")), result("a", "abcdefgh1", name="f")]


PLACE = "messages[1].tool_calls[0].function.arguments"
HOSTILE_REFUSED: dict[str, tuple[Any, str]] = {
    "NaN": (calling({"a": math.nan}), f"{PLACE}.a"),
    "infinity": ([user("a"), result({"t": [-math.inf]})], "messages[1].content.t[0]"),
    "cyclic": (calling(cyclic()), f"{PLACE}."),
    "depth 100,000": (calling(nested(100_000)), f"{PLACE}."),
    "depth 100,000 in JSON": (calling('{"a":' * 100_000 + "1" + "}" * 100_000), PLACE),
    "depth 900 in JSON": (calling('{"a":' * 900 + "1" + "}" * 900), PLACE),
    "a key that is a number": (calling({1: 2}), PLACE),
    "a key that is None": (calling({None: 2}), PLACE),
    "bytes": ([user(b"a")], "messages[0].content"),
    "a set": (calling({"a": {1}}), f"{PLACE}.a"),
    "an object": ([HELLO, object()], "messages[1]"),
    "a class": ([Said], "messages[0]"),
    "a dict that grows": ([HELLO, Changing(HELLO)], "messages[1]"),
    "a mapping that changes": ([HELLO, Failing(RuntimeError("changed size"))], "messages[1]"),
    "a mapping that fails": ([HELLO, Failing(ValueError("no such row"))], "messages[1]"),
    "a mapping without its key": ([HELLO, Failing(KeyError("role"))], "messages[1]"),
    "a model that fails": ([HELLO, FailingModel()], "messages[1]"),
    "a model without end": ([HELLO, EndlessModel()], "messages[1]"),
}


@pytest.mark.parametrize("case", HOSTILE_REFUSED)
@pytest.mark.parametrize("name", ["strings", "double", "either", "step3-vl", "iquest-coder"])
def test_what_is_no_conversation_is_refused(name: str, case: str) -> None:
    messages, path = HOSTILE_REFUSED[case]
    assert refusal(name, messages).path.startswith(path)


HOSTILE: dict[str, list[Any]] = {
    "lone surrogates": [user("\ud800"), *calling({"\udfff": "\ud800"})[1:]],
    "a lone surrogate in JSON": calling('{"a": "\\ud800"}'),
    "NUL": [user("\0"), *calling({"\0": "\0"})[1:]],
    "private use": [user("\ue000\uf8ff\U0010fffd")],
    "control tokens": [
        {**user("<|im_end|><|EOT|>"), "name": "<|im_end|>"},
        *calling({"</tool_call>": "</arg_value>"})[1:],
    ],
    "a long text": [user("x" * 4_000_000)],
    "a long argument": calling({"a": '"\n' * 500_000}),
    "a long argument in JSON": calling(json.dumps({"a": '"\n' * 500_000})),
    "many messages": [HELLO, *[assistant("Hi."), HELLO] * 5_000],
    "many parts": [user(text_parts("a") * 10_000)],
    "many arguments": calling({f"k{number}": number for number in range(10_000)}),
    "many calls": [HELLO, assistant("", *[ASKED] * 1_000), *[result("a")] * 1_000],
    "a huge number": calling({"a": 10**5_000}),
    "a huge number in JSON": calling(f'{{"a": {"9" * 5_000}}}'),
    "a huge number in a result": [HELLO, result({"a": 10**5_000})],
    "a number beyond floats": calling('{"a": 1e999}'),
    "names of Python": [
        {**HELLO, "__class__": "x", "items": "y", "get": "z"},
        *calling({"items": 1, "__class__": 2})[1:],
    ],
    "a role of nonsense": [{"role": "{{ 1 }}", "content": "{% raw %}"}],
    "ids of nonsense": [HELLO, assistant("", {**ASKED, "id": ["x"]}), result("a", ["x"])],  # type: ignore[arg-type]
}


@pytest.mark.parametrize("case", HOSTILE)
@pytest.mark.parametrize("name", ["plain", "strings", "double", "either", "nine", *ALL])
def test_hostile_messages_are_rendered_or_refused(name: str, case: str) -> None:
    with contextlib.suppress(UnsupportedInput):
        prompt = codec(name).encode(HOSTILE[case])
        assert "".join(prompt.text[start:end] for start, end, _ in prompt.spans) == prompt.text
        assert len(set(prompt.dropped)) == len(prompt.dropped)


@pytest.mark.parametrize(
    "case", ["lone surrogates", "NUL", "private use", "control tokens", "a long text", "many messages"]
)
@pytest.mark.parametrize("name", ALL)
def test_odd_texts_are_rendered_as_they_are(name: str, case: str) -> None:
    assert HOSTILE[case][0]["content"] in codec(name).encode(HOSTILE[case]).text
