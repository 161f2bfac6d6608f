"""A chat with a tool, held with a server and shown: whether template, engine and model work together."""

from __future__ import annotations

import json
import sys
from typing import Any

import httpx2

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "City name"}},
            "required": ["city"],
        },
    },
}
RESULT = "18 degrees, clear sky"
MOST_TOKENS = 500
TIMEOUT = 300.0


async def hold(url: str, model: str, key: str | None) -> None:
    """Holds the chat with the server at `url` and writes it to standard output. Nothing that goes wrong is raised."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    # That a call has been made already shows a small model how.
    function = {"name": "get_weather", "arguments": json.dumps({"city": "Oslo"})}
    example = {"id": "call00000", "type": "function", "function": function}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "What is the weather in Oslo?"},
        {"role": "assistant", "content": "", "tool_calls": [example]},
        {"role": "user", "content": "What is the weather in Paris?"},
    ]
    try:
        async with httpx2.AsyncClient(base_url=url, headers=headers, timeout=TIMEOUT, trust_env=False) as client:
            _say("Asked, with a call as an example:")
            for message in messages:
                _show(message)
            answer = await _ask(client, model, messages)
            _say("Answered:")
            _show(answer)
            calls = answer.get("tool_calls") or ()
            results = [{"role": "tool", "tool_call_id": call["id"], "content": RESULT} for call in calls]
            for result in results:
                _show(result)
            if results:
                _show(await _ask(client, model, [*messages, answer, *results]))
        called = "" if results else "The model made no call. "
        _say(f"\n{called}The server goes on. Ctrl+C stops it.")
    except (httpx2.HTTPError, _Refused) as error:
        _say(f"the chat failed: {error}")


class _Refused(Exception):
    """The server answered with an error."""


async def _ask(client: httpx2.AsyncClient, model: str, messages: list[dict[str, Any]]) -> dict[str, Any]:
    asked = {"model": model, "messages": messages, "tools": [TOOL], "temperature": 0, "max_tokens": MOST_TOKENS}
    response = await client.post("/v1/chat/completions", json=asked)
    answer = response.json()
    if response.status_code != 200:
        raise _Refused(answer["error"]["message"])
    message: dict[str, Any] = answer["choices"][0]["message"]
    return message


def _show(message: dict[str, Any]) -> None:
    role = message["role"]
    for name in ("reasoning_content", "content"):
        if message.get(name):
            _say(f"{role + (' (reasoning)' if name != 'content' else '')}: {message[name].strip()}")
    for call in message.get("invalid_tool_calls") or ():
        _say(f"{role} wrote a call that is {call['status']}: {call['raw']}")
    for call in message.get("tool_calls") or ():
        _say(f"{role} calls {call['function']['name']}({call['function']['arguments']})")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
