"""The shapes that rows of training data come in, each read as a conversation.

In: a row as plain values. Out: a `Talk`: the conversation in OpenAI's shape, and from which message on it is trained.
What holds: a row that is no conversation (plain text, preferences, a prompt alone) raises `UnsupportedInput`, which
names the column. Lists and objects may come as JSON text wherever a data set may hold them so.

The shapes are those of TRL's data set guide (`messages`; `prompt` and `completion`; `tools` and `chat_template_kwargs`
beside them), of verl's data sets (`messages`, `tools`, `enable_thinking`; `prompt` and `response`), and ShareGPT's, as
LLaMA-Factory describes it (`conversations` of `from` and `value`, `system`, `tools`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from ...errors import UnsupportedInput
from ..inputs import Conversation, conversation_of

COLUMNS = frozenset(("messages", "conversations", "prompt", "completion", "response", "tools", "chat_template_kwargs"))
"""Those that a shape is made of; what stands beside them may be template variables."""
SPEAKERS = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "observation": "tool"}
"""ShareGPT's names, where they are not OpenAI's."""
CALLING = "function_call"


class Talk(NamedTuple):
    """A conversation to train on; messages before `start` are given, and not trained."""

    conversation: Conversation
    start: int = 0


def talk_of(row: Any, where: str) -> Talk:
    """The conversation of a row. Raises `UnsupportedInput`, and `InputError` where what stands beside it is wrong."""
    if isinstance(row, list):
        row = {"messages": row}
    if not isinstance(row, dict):
        raise UnsupportedInput("row", "neither an object nor a list of messages")
    row = {name: value for name, value in row.items() if value is not None}
    messages, start = _messages(row)
    beside = {name: value for name, value in row.items() if name not in COLUMNS}
    if "conversations" in row and "messages" not in row:
        system = beside.pop("system", None)
        messages = [{"role": "system", "content": system}, *messages] if system else messages
    given = {
        **beside,
        "messages": messages,
        "tools": _tools(row.get("tools")),
        "chat_template_kwargs": _loaded(row.get("chat_template_kwargs"), "chat_template_kwargs"),
    }
    return Talk(conversation_of(given, where), start)


def _messages(row: Mapping[str, Any]) -> tuple[list[Any], int]:
    for name in ("messages", "conversations"):
        if name in row:
            return [_message(entry, f"{name}[{n}]") for n, entry in enumerate(_list(row[name], name))], 0
    if "chosen" in row or "rejected" in row:
        raise UnsupportedInput(
            "chosen", "preferences are no samples to imitate; give the wanted answer as 'completion'"
        )
    if "completion" in row or "response" in row:
        return _prompt_and_completion(row)
    if "prompt" in row:
        raise UnsupportedInput("prompt", "a prompt without 'completion': there is nothing to train")
    found = ", ".join(sorted(row)) or "nothing"
    raise UnsupportedInput(
        "row",
        f"no conversation: wanted is 'messages', 'conversations', or 'prompt' and 'completion'; there is: {found}",
    )


def _prompt_and_completion(row: Mapping[str, Any]) -> tuple[list[Any], int]:
    name = "completion" if "completion" in row else "response"
    prompt, answer = _turns(row.get("prompt", [])), _turns(row[name])
    if isinstance(prompt, str) and name == "response":
        prompt = [{"role": "user", "content": prompt}]
    if isinstance(prompt, str):
        raise UnsupportedInput("prompt", "text to be continued is no conversation; wanted is a list of messages")
    if isinstance(answer, str):
        answer = [{"role": "assistant", "content": answer}]
    given = [_message(entry, f"prompt[{n}]") for n, entry in enumerate(_list(prompt, "prompt"))]
    return [*given, *(_message(entry, f"{name}[{n}]") for n, entry in enumerate(_list(answer, name)))], len(given)


def _turns(value: Any) -> Any:
    """`value`, or the messages of which it is the JSON text: an answer may be JSON too."""
    try:
        found = json.loads(value) if isinstance(value, str) and value.lstrip()[:1] == "[" else None
    except (ValueError, RecursionError):
        return value
    return found if isinstance(found, list) and found and all(map(_is_message, found)) else value


def _is_message(entry: Any) -> bool:
    return isinstance(entry, dict) and ("role" in entry or "from" in entry)


def _message(entry: Any, path: str) -> Any:
    """A message, in OpenAI's shape also where it came in ShareGPT's; what is none of both is left as it is."""
    entry = _loaded(entry, path)
    if not isinstance(entry, dict):
        return entry
    message = dict(entry)
    if "from" in message and "value" in message:
        speaker, value = message.pop("from"), message.pop("value")
        if speaker == CALLING:
            message |= {"role": "assistant", "tool_calls": _calls(value, f"{path}.value")}
        else:
            message |= {"role": SPEAKERS.get(speaker, speaker), "content": value}
    if isinstance(message.get("tool_calls"), str):
        message["tool_calls"] = _loaded(message["tool_calls"], f"{path}.tool_calls")
    return message


def _calls(value: Any, path: str) -> list[dict[str, Any]]:
    """Tool calls, of one `{"name": …, "arguments": …}` or a list of them."""
    found = _loaded(value, path)
    calls = found if isinstance(found, list) else [found]
    if not all(isinstance(call, dict) and isinstance(call.get("name"), str) for call in calls):
        raise UnsupportedInput(path, "a function call is an object with 'name' and 'arguments', as JSON")
    return [
        {"type": "function", "function": {"name": call["name"], "arguments": call.get("arguments", {})}}
        for call in calls
    ]


def _tools(value: Any) -> Any:
    tools = _loaded(value, "tools") or None
    return [_loaded(tool, f"tools[{n}]") for n, tool in enumerate(tools)] if isinstance(tools, list) else tools


def _list(value: Any, path: str) -> list[Any]:
    found = _loaded(value, path)
    if not isinstance(found, list):
        raise UnsupportedInput(path, "a list of messages is needed")
    return found


def _loaded(value: Any, path: str) -> Any:
    """`value`, or what it says where it is the JSON text of a list or an object."""
    if not isinstance(value, str) or value.lstrip()[:1] not in ("[", "{"):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise UnsupportedInput(path, f"not valid JSON: {error}") from error
