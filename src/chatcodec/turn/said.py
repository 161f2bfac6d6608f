"""An assistant's message in OpenAI's shape, read into what there is to be written: the ground of `compose`.

Raises `UnsupportedInput` for what is no such message, with the path of what is wrong with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import UnsupportedInput
from ..messages import MAX_DEPTH, REASONING_FIELDS, TEXT_PARTS, child_path
from .payloads import values


@dataclass(frozen=True, slots=True)
class SaidCall:
    """`path` is that of what holds the name, `id_path` that of what holds the id."""

    index: int
    name: str
    arguments: dict[str, Any]
    id: str | None
    path: str
    id_path: str


@dataclass(frozen=True, slots=True)
class Said:
    reasoning: str
    reasoning_path: str
    content: str
    content_path: str
    calls: tuple[SaidCall, ...]


def read_message(message: Mapping[str, Any]) -> Said:
    role = message.get("role", "assistant")
    if role != "assistant":
        raise UnsupportedInput("role", f"only an assistant's message is a completion, not one by {role!r}")
    given = [name for name in REASONING_FIELDS if message.get(name) is not None]
    reasoning_path = given[0] if given else REASONING_FIELDS[0]
    content_path = "refusal" if message.get("refusal") and not message.get("content") else "content"
    return Said(
        _text(message.get(reasoning_path), reasoning_path),
        reasoning_path,
        _text(message.get(content_path), content_path),
        content_path,
        tuple(_read_calls(message)),
    )


def _text(given: Any, path: str) -> str:
    match given:
        case None:
            return ""
        case str():
            return str.__str__(given)
        case list() | tuple():
            return "".join(_part(part, child_path(path, index)) for index, part in enumerate(given))
        case _:
            raise UnsupportedInput(path, "a string or a list of text parts is needed")


def _part(part: Any, path: str) -> str:
    if isinstance(part, str):
        return str.__str__(part)
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(kind, str):
        raise UnsupportedInput(path, "a content part is an object with a type")
    if kind not in TEXT_PARTS:
        raise UnsupportedInput(path, f"a completion has no content of type {kind!r}")
    text = part.get(TEXT_PARTS[kind])
    if not isinstance(text, str):
        raise UnsupportedInput(path, f"a part of type {kind!r} needs a string under {TEXT_PARTS[kind]!r}")
    return str.__str__(text)


def _read_calls(message: Mapping[str, Any]) -> Iterator[SaidCall]:
    calls = message.get("tool_calls")
    if not calls and message.get("function_call"):
        yield _read_call({"function": message["function_call"]}, 0, "", "function_call")
    elif calls is not None:
        if not isinstance(calls, list | tuple):
            raise UnsupportedInput("tool_calls", "a list is needed")
        for index, call in enumerate(calls):
            yield _read_call(call, index, f"tool_calls[{index}]", f"tool_calls[{index}].function")


def _read_call(call: Any, index: int, id_path: str, path: str) -> SaidCall:
    if not isinstance(call, Mapping):
        raise UnsupportedInput(id_path, "a tool call is an object")
    function = call.get("function")
    if function is None and "name" in call:
        function, path = call, id_path
    if not isinstance(function, Mapping):
        raise UnsupportedInput(path, "a tool call needs a function")
    name, identity = function.get("name"), call.get("id")
    if not isinstance(name, str) or not name:
        raise UnsupportedInput(f"{path}.name", "a tool call must name its function")
    if identity is not None and not isinstance(identity, str):
        raise UnsupportedInput(f"{id_path}.id", "an id is a string")
    return SaidCall(
        index, name, _read_arguments(function.get("arguments"), f"{path}.arguments"), identity, path, id_path
    )


def _read_arguments(given: Any, path: str) -> dict[str, Any]:
    """None, or an empty string, are no arguments."""
    if given is None or (isinstance(given, str) and not given.strip()):
        return {}
    if isinstance(given, str):
        try:
            given = values.loads(given)
        except (ValueError, RecursionError) as error:
            raise UnsupportedInput(path, f"the arguments are no valid JSON: {error}") from None
    if not isinstance(given, Mapping):
        raise UnsupportedInput(path, "the arguments are no JSON object")
    if not all(isinstance(key, str) for key in given):
        raise UnsupportedInput(path, "keys are strings")
    return {key: _exact(value) for key, value in given.items()}


def _exact(value: Any, depth: int = 0) -> Any:
    """The value as it is read from JSON: what is written as one number is one number. Others are left to be refused."""
    match value:
        case float() if math.isfinite(value):
            return values.Spelled(float.__repr__(value))
        case Mapping() if depth < MAX_DEPTH:
            return {key: _exact(item, depth + 1) for key, item in value.items()}
        case list() | tuple() if depth < MAX_DEPTH:
            return [_exact(item, depth + 1) for item in value]
        case _:
            return value
