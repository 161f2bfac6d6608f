"""The demo: one conversation, shown in one format after the other, and what each cannot carry.

In: a screen and the names of formats (or other sources). Out: the walk through them on the screen. What a format cannot
carry is read off the prompt and the codec's capabilities: nothing here knows a format.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from . import sources, view
from .codec import load
from .view import Styled

if TYPE_CHECKING:
    from .capabilities import Capabilities

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather in a city.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "The city's name"},
                    "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
                },
                "required": ["city"],
            },
        },
    }
]


def _call(call_id: str, city: str) -> dict[str, Any]:
    arguments = {"city": city, "unit": "celsius"}
    return {"id": call_id, "type": "function", "function": {"name": "get_weather", "arguments": arguments}}


MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "You are a weather guide. Be brief."},
    {"role": "user", "content": "Is it warmer in Lisbon or in Oslo?"},
    {
        "role": "assistant",
        "reasoning_content": "I need the weather of both cities.",
        "content": "Let me look.",
        "tool_calls": [_call("call_1", "Lisbon"), _call("call_2", "Oslo")],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": '{"temperature": 24}'},
    {"role": "tool", "tool_call_id": "call_2", "content": '{"temperature": 11}'},
    {
        "role": "assistant",
        "reasoning_content": "24 is more than 11.",
        "content": "In Lisbon: 24 °C, not 11.",
    },
    {"role": "user", "content": "And in Rome?"},
]


def walk(screen: view.Screen, formats: Sequence[str] = ()) -> None:
    """Shows the conversation in each of `formats`, or in all the built-in ones."""
    for index, name in enumerate(formats or sources.builtin_names()):
        codec = load(name)
        prompt = codec.encode(MESSAGES, TOOLS)
        if index:
            screen.line()
        screen.line(Styled(f"══ {view.safe(name)}", "bold"))
        screen.line()
        view.show(screen, prompt, MESSAGES, dropped=False)
        for heading, losses in (
            ("Of this conversation it drops", list(dropped(prompt.dropped))),
            ("It has no place for", list(lacks(codec.capabilities))),
        ):
            screen.line()
            screen.line(Styled(f"{heading}:", "bold"), Styled("" if losses else " nothing"))
            for loss in losses:
                screen.line(Styled(f"  {loss}"))


def dropped(paths: Sequence[str]) -> Iterator[str]:
    """The dropped paths in words; those that differ in their indices only are told once."""
    told = Counter(_told(path) for path in paths)
    return (f"{what}, {count} times" if count > 1 else what for what, count in told.items())


def _told(path: str) -> str:
    head, _, field = path.partition(".")
    writer = view.writer_of(path, MESSAGES)
    return f"{writer.value}: {field or head}"


def lacks(takes: Capabilities) -> Iterator[str]:
    """What the template cannot carry at all, in words."""
    found = {
        "a system message": not takes.system,
        "a system message later on": takes.system and not takes.late_system,
        "tool definitions": not takes.tools,
        "tool calls": not takes.tool_calls,
        "several tool calls in one turn": takes.tool_calls and not takes.parallel_tool_calls,
        "the ids of tool calls": takes.tool_calls and takes.tool_call_ids == "none",
        "tool results": not takes.tool_results,
        "reasoning": not takes.reasoning and not takes.past_reasoning,
        "reasoning of earlier turns": takes.reasoning and not takes.past_reasoning,
        "images, audio, video": not takes.media,
    }
    return (what for what, lacking in found.items() if lacking)
