"""Conversation shapes in OpenAI's form, as variables of a raw render; every text field holds a string of its own."""

from __future__ import annotations

import json
from typing import Any

Message = dict[str, Any]

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city, described@tools.0",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "City name, described@tools.0.city"},
                "days": {"type": "integer", "description": "How many days"},
            },
            "required": ["city"],
        },
    },
}
SEARCH: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "search_web",
        "description": 'Finds "pages" <described@tools.1> & more',
        "parameters": {
            "type": "object",
            "properties": {
                "query": {"type": "string", "enum": ["a", "b"]},
                "options": {"type": "object", "properties": {"deep": {"type": "boolean", "default": False}}},
                "tags": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["query"],
        },
    },
}
TOOLS = [WEATHER, SEARCH]

SYSTEM: Message = {"role": "system", "content": "You are the system prompt, numbered S0."}
USER: Message = {
    "role": "user",
    "content": "The user's question, numbered U1: what's «new» in Paris? 你好 🙂",
}
REPLY: Message = {
    "role": "assistant",
    "content": 'The assistant\'s answer, numbered A2, with <b>markup</b> & "quotes".',
}
AGAIN: Message = {
    "role": "user",
    "content": "  Another question, numbered U3,\nwith two lines and spaces around.  ",
}


def call(number: int, name: str, arguments: dict[str, Any], *, as_text: bool = False) -> dict[str, Any]:
    value: Any = json.dumps(arguments, ensure_ascii=False) if as_text else arguments
    return {"id": f"callid{number:03d}", "type": "function", "function": {"name": name, "arguments": value}}


def result(number: int, name: str, content: Any) -> Message:
    return {"role": "tool", "tool_call_id": f"callid{number:03d}", "name": name, "content": content}


PARIS = {"city": 'Paris "quoted" \\ C4a\nline', "days": 2}
QUERY = {"query": "query C4b", "options": {"deep": True, "depth": 1.5}, "tags": ["t1 C4c", None]}


def agent(
    *, as_text: bool = False, content: Any = "Let me look, numbered A4.", reasoning: str | None = None
) -> list[Message]:
    turn: Message = {
        "role": "assistant",
        "content": content,
        "tool_calls": [
            call(1, "get_weather", PARIS, as_text=as_text),
            call(2, "search_web", QUERY, as_text=as_text),
        ],
    }
    if reasoning is not None:
        turn["reasoning_content"] = reasoning
    return [
        SYSTEM,
        USER,
        turn,
        result(1, "get_weather", '{"degrees": "T5a"}'),
        result(2, "search_web", "found T5b"),
    ]


def parts(message: Message) -> Message:
    head, tail = message["content"][:20], message["content"][20:]
    return {**message, "content": [{"type": "text", "text": head}, {"type": "text", "text": tail}]}


SHAPES: dict[str, dict[str, Any]] = {
    "plain": {"messages": [USER]},
    "system": {"messages": [SYSTEM, USER]},
    "multi-turn": {"messages": [SYSTEM, USER, REPLY, AGAIN]},
    "ends with assistant": {"messages": [USER, REPLY]},
    "tools offered": {"messages": [SYSTEM, USER], "tools": TOOLS},
    "reasoning": {"messages": [USER, {**REPLY, "reasoning_content": "Thinking hard, numbered R2."}, AGAIN]},
    "inline reasoning": {"messages": [USER, {**REPLY, "content": "<think>\nIn R2.\n</think>\n\nOut A2."}, AGAIN]},
    "one call": {
        "messages": [
            USER,
            {"role": "assistant", "content": "", "tool_calls": [call(1, "get_weather", PARIS)]},
        ],
        "tools": [WEATHER],
    },
    "object arguments": {"messages": agent(), "tools": TOOLS},
    "string arguments": {"messages": agent(as_text=True), "tools": TOOLS},
    "calls and reasoning": {"messages": agent(reasoning="Weighing it, numbered R4."), "tools": TOOLS},
    "None content": {"messages": agent(content=None), "tools": TOOLS},
    "no content": {
        "messages": [*agent()[:2], {k: v for k, v in agent()[2].items() if k != "content"}, *agent()[3:]],
        "tools": TOOLS,
    },
    "agent, then a turn": {"messages": [*agent(reasoning="Weighing it."), {**REPLY, "content": "Done A6."}, AGAIN]},
    "text parts": {"messages": [parts(SYSTEM), parts(USER), parts(REPLY), parts(AGAIN)]},
    "tool parts": {"messages": [*agent()[:4], parts(result(2, "search_web", "a longer result, numbered T5b"))]},
    "thinking on": {"messages": [SYSTEM, USER, REPLY, AGAIN], "enable_thinking": True},
    "thinking off": {"messages": [SYSTEM, USER, REPLY, AGAIN], "enable_thinking": False},
    "late system": {"messages": [USER, REPLY, {"role": "system", "content": "A late system S3."}, AGAIN]},
    "empty": {"messages": []},
}

SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
"""What a tokenizer adds to a render; the templates of the corpus come without theirs."""


def cases() -> list[tuple[str, dict[str, Any]]]:
    """Every shape, with and without the generation prompt: a name and the variables of the render."""
    found = []
    for name, shape in SHAPES.items():
        for prompt in (True, False):
            variables = {
                "tools": None,
                "documents": None,
                "add_generation_prompt": prompt,
                **SPECIAL_TOKENS,
                **shape,
            }
            found.append((name + (", prompt" if prompt else ""), variables))
    return found
