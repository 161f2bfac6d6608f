"""What a decoder says while a turn comes in, and what is known of each tool call in the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

Status: TypeAlias = Literal["ok", "incomplete", "malformed", "unknown_tool"]
FinishReason: TypeAlias = Literal["stop", "tool_calls", "length"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One attempt at a tool call.

    `arguments` are JSON, valid where `status` is "ok" or "unknown_tool" (a function that is not declared); of an
    "incomplete" or "malformed" call they are what could be read. `raw` is the text that the model wrote for it, `span`
    where that stands in the output, in characters. `notes` tell where it departs from the template's writing, and what
    is wrong with it.
    """

    index: int
    id: str
    name: str
    arguments: str
    status: Status
    raw: str
    span: tuple[int, int]
    notes: tuple[str, ...] = ()

    def as_message(self) -> dict[str, Any]:
        """The call in OpenAI's shape."""
        return {
            "id": self.id,
            "type": "function",
            "function": {"name": self.name, "arguments": self.arguments},
        }


@dataclass(frozen=True, slots=True, init=False)
class ReasoningDelta:
    text: str

    def __init__(self, text: str) -> None:
        _reasoning_text(self, text)


@dataclass(frozen=True, slots=True, init=False)
class ContentDelta:
    text: str

    def __init__(self, text: str) -> None:
        _content_text(self, text)


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """A call has begun: its name is known. `index` counts the turn's calls from 0."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True, init=False)
class ArgumentsDelta:
    """A piece of a call's arguments; the pieces joined are its JSON."""

    index: int
    json: str

    def __init__(self, index: int, json: str) -> None:
        _arguments_index(self, index)
        _arguments_json(self, json)


@dataclass(frozen=True, slots=True)
class ToolCallEnd:
    """A call is over. Only an "ok" one is part of the message; one of an unknown tool never had a `ToolCallStart`."""

    index: int
    call: ToolCall


@dataclass(frozen=True, slots=True)
class TurnEnd:
    reason: FinishReason


# A delta is made for every piece of output: a frozen dataclass's own `__init__` takes twice as long as these.
_reasoning_text = ReasoningDelta.text.__set__  # type: ignore[misc, attr-defined]
_content_text = ContentDelta.text.__set__  # type: ignore[misc, attr-defined]
_arguments_index = ArgumentsDelta.index.__set__  # type: ignore[misc, attr-defined]
_arguments_json = ArgumentsDelta.json.__set__  # type: ignore[misc, attr-defined]

Event: TypeAlias = ReasoningDelta | ContentDelta | ToolCallStart | ArgumentsDelta | ToolCallEnd | TurnEnd
