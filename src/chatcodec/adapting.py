"""Puts a conversation into the shape that a template takes, and refuses what it cannot carry.

Works on plain and on traced data alike, so that what is adapted keeps telling where it came from. A message that the
template renders without losing or garbling anything is left as it is, and so gives the bytes that transformers gives.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from typing import Any

from .capabilities import NINE, Capabilities
from .errors import UnsupportedInput
from .messages import REASONING_FIELDS, TEXT_PARTS, Message, Tool, plain
from .template import jsontext
from .template.traced import combine

MOST_OPEN_TURNS = 64
MEDIA_ALIASES = (("image", "image_url"), ("audio", "input_audio"), ("video", "video_url"))


def adapt(messages: list[Message], tools: list[Tool] | None, takes: Capabilities) -> tuple[list[Message], Any]:
    """The messages and tools that are rendered in place of the given ones. Raises `UnsupportedInput`."""
    adapted = [_message(message, f"messages[{index}]", takes) for index, message in enumerate(messages)]
    _identify(adapted, takes)
    if takes.tool_name_needed:
        for call, answer in _answers(adapted):
            answer.setdefault("name", _name(call))
    return adapted, [_tool(tool, takes) for tool in tools] if tools else tools


def alias_reasoning(message: Message) -> Message:
    """Reasoning given under one of its names is there under those that templates read, as transformers does it."""
    for name in REASONING_FIELDS:
        if name in message:
            said = message[name]
            return {"thinking": said, "reasoning": said, **message, "reasoning_content": said}
    return message


def is_plain(messages: list[Message], takes: Capabilities) -> bool:
    """Whether the conversation is only text by system, user and assistant, and needs no adapting."""
    if takes.parts_only:
        return False
    for message in messages:
        if message["role"] not in ("system", "user", "assistant") or type(message.get("content")) is not str:
            return False
        if message.keys() - {"role", "content", "name"}:
            return False
    return True


def _message(message: Message, path: str, takes: Capabilities) -> Message:
    message = dict(alias_reasoning(message))
    role = message["role"]
    if role == "developer" and not takes.developer:
        message["role"] = role = "system"
    if role == "function" and not takes.function_results:
        message["role"] = role = "tool"
    if role == "assistant":
        _refusal(message)
        _calls(message, path, takes)
    _content(message, path, takes)
    if role == "assistant" and takes.reasoning_parts:
        _reasoning_part(message)
    if message.get("tool_calls") and message.get("reasoning_content") and not takes.reasoning_beside_content:
        message["content"] = ""
    return message


# -- content


def _refusal(message: Message) -> None:
    """What the assistant said in refusing is what it said."""
    if message.get("refusal") and not message.get("content"):
        message["content"] = message.pop("refusal")


def _content(message: Message, path: str, takes: Capabilities) -> None:
    role = message["role"]
    content = message.get("content")
    place = "assistant with calls" if message.get("tool_calls") else role
    if content is None:
        if place not in takes.absent_content and place != "system":
            message["content"] = ""
    elif isinstance(content, str):
        pass
    elif role in ("tool", "function"):
        message["content"] = _result(content, f"{path}.content", takes)
    elif isinstance(content, list):
        message["content"] = _parts(content, f"{path}.content", role, takes)
    elif isinstance(content, dict):
        message["content"] = _parts([content], f"{path}.content", role, takes)
    else:
        raise UnsupportedInput(f"{path}.content", "content is a string or a list of parts")
    if role in takes.parts_only and isinstance(message.get("content"), str):
        message["content"] = [{"type": "text", "text": message["content"]}]


def _reasoning_part(message: Message) -> None:
    """Reasoning goes before the content, as a part of it."""
    reasoning, content = message.get("reasoning_content"), message.get("content")
    if isinstance(reasoning, str) and reasoning:
        rest = content if isinstance(content, list) else [{"type": "text", "text": content}] if content else []
        message["content"] = [{"type": "thinking", "thinking": reasoning}, *rest]


def _result(content: Any, path: str, takes: Capabilities) -> Any:
    if isinstance(content, list) and content and all(_part_type(part) in TEXT_PARTS for part in content):
        return content if "tool" in takes.text_parts else _flat(content, path)
    if isinstance(content, list) and any(_part_type(part) for part in content):
        return _parts(content, path, "tool", takes)
    if content == []:
        return content if "tool" in takes.text_parts else ""
    if takes.structured_results:
        return content
    return jsontext.dumps(content)


def _parts(content: list[Any], path: str, role: str, takes: Capabilities) -> Any:
    if role not in takes.text_parts:
        return _flat(content, path)
    return [_part(part, f"{path}[{index}]", takes) for index, part in enumerate(content)]


def _part(part: Any, path: str, takes: Capabilities) -> Any:
    kind = _part_type(part)
    if kind in TEXT_PARTS:
        return part if kind == "text" else {"type": "text", "text": _part_text(part, path)}
    known = media_kind(kind, takes.media)
    return part if known is None or known == kind else {**part, "type": known}


def media_kind(kind: Any, taken: frozenset[str]) -> str | None:
    """The name under which the template takes a part of this kind, if it does."""
    same = next((names for names in MEDIA_ALIASES if kind in names), (kind,))
    return next((name for name in (kind, *same) if name in taken), None)


def _flat(content: list[Any], path: str) -> str:
    """The text of text parts, one after the other."""
    return combine([_part_text(part, f"{path}[{index}]") for index, part in enumerate(content)])


def _part_text(part: Any, path: str) -> str:
    if isinstance(part, str):
        return part
    kind = _part_type(part)
    if kind in TEXT_PARTS:
        text = part.get(TEXT_PARTS[kind], part.get("text"))
        if isinstance(text, str):
            return text
        raise UnsupportedInput(path, "a text part needs a string under 'text'")
    if kind:
        raise UnsupportedInput(path, f"the template takes no content of type {str(kind)!r} here")
    raise UnsupportedInput(path, "a content part is an object with a type")


def _part_type(part: Any) -> Any:
    kind = part.get("type") if isinstance(part, dict) else None
    return kind if isinstance(kind, str) else None


# -- calls


def _calls(message: Message, path: str, takes: Capabilities) -> None:
    if message.get("function_call") and not message.get("tool_calls"):
        function = message.pop("function_call")
        call = _call({"type": "function", "function": function}, f"{path}.function_call", "", takes)
        message["tool_calls"] = [{"id": None, **call}]
        return
    calls = message.get("tool_calls")
    if not calls:
        message.pop("tool_calls", None)
        return
    message["tool_calls"] = [
        _call(call, f"{path}.tool_calls[{index}]", ".function", takes) for index, call in enumerate(calls)
    ]


def _call(call: dict[str, Any], path: str, inner: str, takes: Capabilities) -> dict[str, Any]:
    """A call with its arguments as they are taken; `inner` leads from the call's path to its function's."""
    function = call.get("function")
    if function is None and isinstance(call.get("name"), str):
        if takes.bare_calls and not (takes.tool_calls and takes.tool_call_ids == "none"):
            return {**call, "arguments": _arguments(call.get("arguments"), f"{path}.arguments", takes)}
        inner = ""
        function = {name: value for name, value in call.items() if name not in ("id", "type")}
        call = {name: value for name, value in call.items() if name in ("id", "type")}
    if not isinstance(function, dict):
        kind = call.get("type")
        known = kind in (None, "function")
        raise UnsupportedInput(
            path, "a call needs a function" if known else f"no template takes calls of type {kind!r}"
        )
    if not isinstance(function.get("name"), str) or not function["name"]:
        raise UnsupportedInput(f"{path}{inner}.name", "a tool call must name its function")
    arguments = _arguments(function.get("arguments"), f"{path}{inner}.arguments", takes)
    if takes.bare_calls and not takes.tool_calls:
        return {
            **{name: value for name, value in call.items() if name != "function"},
            **function,
            "arguments": arguments,
        }
    typed = call if "type" in call or takes.untyped_calls else {"type": "function", **call}
    return {**typed, "function": {**function, "arguments": arguments}}


def _arguments(arguments: Any, path: str, takes: Capabilities) -> Any:
    """Arguments as the template takes them; none, or an empty string, are an empty object."""
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        return "{}" if takes.arguments == "string" else {}
    if isinstance(arguments, str):
        parsed = _parsed(arguments, path)
        if takes.arguments != "object":
            return arguments
        if not isinstance(parsed, dict):
            raise UnsupportedInput(path, "the arguments are no JSON object")
        return parsed
    if takes.arguments == "string":
        return jsontext.dumps(arguments)
    return arguments


def _parsed(arguments: str, path: str) -> Any:
    try:
        plain(json.loads(arguments, parse_constant=_no_constant), path)
        return jsontext.loads(arguments)
    except (ValueError, RecursionError) as error:
        raise UnsupportedInput(path, f"the arguments are no valid JSON: {error}") from None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _answers(messages: list[Message]) -> Iterator[tuple[dict[str, Any], Message]]:
    """Each tool result with the call that it answers: the last one open with its id, else its name, else in order."""
    turns: list[list[Message]] = []
    for message in messages:
        if message["role"] == "assistant" and message.get("tool_calls"):
            turns.append(list(message["tool_calls"]))
        elif message["role"] in ("tool", "function"):
            turns = [turn for turn in turns[-MOST_OPEN_TURNS:] if turn]
            call = _answered_call(turns, message)
            if call is not None:
                yield call, message


def _answered_call(turns: list[list[Message]], answer: Message) -> Message | None:
    """Take the call that `answer` belongs to out of the open ones."""
    wanted, name = answer.get("tool_call_id"), answer.get("name")

    def fits(call: dict[str, Any]) -> bool:
        if wanted is not None:
            return bool(call.get("id") == wanted)
        return name is None or bool(_name(call) == name)

    for turn in reversed(turns):
        for index, call in enumerate(turn):
            if fits(call):
                return turn.pop(index)
    return turns[-1].pop(0) if turns and turns[-1] and wanted is None else None


def _name(call: dict[str, Any]) -> Any:
    return call.get("function", call)["name"]


def _identify(messages: list[Message], takes: Capabilities) -> None:
    """Give ids where the template needs them, needs other ones, or would mistake one call for another."""
    calls = [call for message in messages for call in message.get("tool_calls") or ()]
    results = [message for message in messages if message["role"] in ("tool", "function")]
    fresh = _calls_without_use(calls, takes)
    if not fresh and not _unlinked(results, takes):
        return
    pairs = list(_answers(messages))
    used = {str(call.get("id")) for call in calls}
    for number in fresh:
        calls[number]["id"] = next(new for new in map(NINE.format, count(number)) if new not in used)
        used.add(calls[number]["id"])
    for call, answer in pairs:
        if "id" in call:
            answer["tool_call_id"] = call["id"]
    for answer in results:
        if takes.tool_call_ids == "nine" and not _is_nine(answer.get("tool_call_id")):
            answer["tool_call_id"] = NINE.format(999)


def _calls_without_use(calls: list[dict[str, Any]], takes: Capabilities) -> list[int]:
    """The positions of the calls whose ids the template cannot use."""
    found = []
    seen: set[str] = set()
    for number, call in enumerate(calls):
        identity = call.get("id")
        hidden = takes.tool_call_ids == "none"
        missing = not isinstance(identity, str) or not identity
        unfit = takes.tool_call_ids == "nine" and not _is_nine(identity)
        legacy = "id" in call and identity is None
        if legacy or unfit or (missing and (hidden or not takes.missing_ids)) or (hidden and str(identity) in seen):
            found.append(number)
        seen.add(str(identity))
    return found


def _unlinked(results: list[Message], takes: Capabilities) -> bool:
    """Whether the template would look in vain for the id of a result."""
    ids = [answer.get("tool_call_id") for answer in results]
    if takes.tool_call_ids == "nine":
        return not all(map(_is_nine, ids))
    wanted = takes.tool_call_ids == "none" or not takes.missing_result_ids
    return wanted and not all(isinstance(identity, str) for identity in ids)


def _is_nine(identity: Any) -> bool:
    return isinstance(identity, str) and len(identity) == 9 and identity.isalnum() and identity.isascii()


def _tool(tool: Tool, takes: Capabilities) -> Tool:
    if "function" in tool:
        return tool if "type" in tool or takes.typeless_tools else {"type": "function", **tool}
    if takes.bare_tools or "name" not in tool:
        return tool
    return {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}
