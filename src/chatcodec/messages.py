"""OpenAI's message shapes, read from whatever holds them into plain data that nobody else can change.

A `Message` is a dict: `role` (`system`, `developer`, `user`, `assistant`, `tool`, `function`), `content` (a string,
None, or a list of parts such as `{"type": "text", "text": …}`), and, by role, `reasoning_content`, `tool_calls`,
`refusal`, `tool_call_id`, `name`. Source: OpenAI's API reference for chat completions, and transformers'
`apply_chat_template`.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any, TypeAlias

from .errors import UnsupportedInput

Message: TypeAlias = dict[str, Any]
Tool: TypeAlias = dict[str, Any]

REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
"""The names a message's reasoning goes by; the first that is given counts (transformers' order)."""
TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
"""The content parts that are text, and the key that holds it."""
MAX_DEPTH = 100
MAX_BITS = 14_000
"""Python refuses to write longer integers in decimal."""


def read_messages(messages: Any) -> list[Message]:
    """Plain copies of the messages: dicts, dataclasses or pydantic models.

    As transformers does, keys whose value is None are left out. Raises `UnsupportedInput` for what is no list
    of messages.
    """
    copied = plain(messages, "messages")
    if not isinstance(copied, list):
        raise UnsupportedInput("messages", f"a list of messages is needed, not {_kind(messages)}")
    if not copied:
        raise UnsupportedInput("messages", "the conversation is empty")
    return [_read_message(message, f"messages[{index}]") for index, message in enumerate(copied)]


def _read_message(message: Any, path: str) -> Message:
    if not isinstance(message, dict):
        raise UnsupportedInput(path, f"a message is an object with a role, not {_kind(message)}")
    role = message.get("role")
    if not isinstance(role, str):
        raise UnsupportedInput(f"{path}.role", "a message needs a role" if role is None else "the role is no string")
    given: Message = {name: value for name, value in message.items() if value is not None}
    _check_shape(given, path)
    return given


def _check_shape(message: Message, path: str) -> None:
    calls = message.get("tool_calls")
    if calls is None:
        return
    if not isinstance(calls, list):
        raise UnsupportedInput(f"{path}.tool_calls", f"a list is needed, not {_kind(calls)}")
    for index, call in enumerate(calls):
        if not isinstance(call, dict):
            raise UnsupportedInput(f"{path}.tool_calls[{index}]", f"a tool call is an object, not {_kind(call)}")


def read_tools(tools: Any) -> list[Tool] | None:
    """Plain copies of the tools, in OpenAI's shape or bare."""
    if tools is None:
        return None
    copied = plain(tools, "tools")
    if not isinstance(copied, list):
        raise UnsupportedInput("tools", f"a list of tools is needed, not {_kind(tools)}")
    for index, tool in enumerate(copied):
        if not isinstance(tool, dict):
            raise UnsupportedInput(f"tools[{index}]", f"a tool is an object, not {_kind(tool)}")
    return copied


def plain(value: Any, path: str, depth: int = 0) -> Any:
    """A deep copy of JSON-like data in exact builtin types. Raises `UnsupportedInput` for anything else."""
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return value
    if depth > MAX_DEPTH:
        raise UnsupportedInput(path, f"nested more than {MAX_DEPTH} levels deep")
    try:
        if kind is dict or isinstance(value, Mapping):
            return _plain_dict(value, path, depth)
        if kind is list or isinstance(value, list | tuple):
            return [
                item if type(item) is str else plain(item, f"{path}[{index}]", depth + 1)
                for index, item in enumerate(value)
            ]
        return _plain_scalar(value, path, depth)
    except UnsupportedInput:
        raise
    except Exception as error:
        raise UnsupportedInput(path, f"it cannot be read ({type(error).__name__}: {error})") from error


def _plain_dict(value: Mapping[Any, Any], path: str, depth: int) -> dict[str, Any]:
    copied = {}
    for name, item in value.items():
        if type(name) is not str:
            if not isinstance(name, str):
                raise UnsupportedInput(path, f"keys are strings, not {_kind(name)}")
            name = str.__str__(name)
        copied[name] = item if type(item) is str else plain(item, child_path(path, name), depth + 1)
    return copied


def _plain_scalar(value: Any, path: str, depth: int) -> Any:
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bool):
        return bool(value)
    if isinstance(value, int):
        if value.bit_length() > MAX_BITS:
            raise UnsupportedInput(path, f"a number of more than {MAX_BITS:,} bits")
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise UnsupportedInput(path, f"{value} is no JSON number")
        return float(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return plain(fields, path, depth + 1)
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return plain(dump(), path, depth + 1)
    raise UnsupportedInput(path, f"{_kind(value)} is not JSON")


def child_path(path: str, key: str | int) -> str:
    """The path of what stands under `key` at `path`: `path.key`, `path['odd key']` or `path[0]`."""
    if isinstance(key, str):
        return f"{path}.{key}" if _IDENTIFIER.match(key) else f"{path}[{key!r}]"
    return f"{path}[{key}]"


_IDENTIFIER = re.compile(r"[^\W\d]\w*\Z")


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), f"a value of type {type(value).__name__}")
