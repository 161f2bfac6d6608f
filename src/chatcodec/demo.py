"""The demo: one conversation, shown in one format after the other, what each cannot carry, and the way back.

In: a screen and the names of formats (or other sources). Out: the walk through them on the screen. What a format cannot
carry is read off the prompt and the codec's capabilities, how a turn is written off the template: nothing here knows a
format.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby, takewhile
from typing import Any, NamedTuple, assert_never

from . import sources, view
from .capabilities import Capabilities
from .codec import Codec, load
from .errors import ChatCodecError, FormatNotDerived, UnsupportedInput
from .events import ArgumentsDelta, ContentDelta, Event, ReasoningDelta, ToolCallEnd, ToolCallStart, TurnEnd
from .messages import Message
from .prompt import Prompt
from .turn.decoder import Decoder
from .turn.explain import WIDTH, explain
from .view import Styled

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
ASKED = 2
"""Where in the messages the turn stands that is decoded."""
RESULTS = 2
"""How many messages behind it are its calls' results."""
PIECE = 5
"""Characters that are fed to the decoder at a time."""
CLIP = 80
_STREAM_STYLES = {"reasoning": "magenta", "content": "cyan", "call": "yellow"}


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
        _list(screen, "Of this conversation it drops", dropped(prompt.dropped))
        _list(screen, "It has no place for", lacks(codec.capabilities))
        _show_way_back(screen, codec)


def _list(screen: view.Screen, heading: str, items: Iterator[str]) -> None:
    told = [Styled(f"  {view.safe(item)}") for item in items]
    _heading(screen, heading, "" if told else "nothing")
    for item in told:
        screen.line(item)


def _heading(screen: view.Screen, heading: str, told: str = "") -> None:
    screen.line()
    parts = [Styled(f"{heading}:", "bold"), Styled(f" {view.safe(told)}" if told else "")]
    for line in view.broken(parts, screen.width):
        screen.line(*line)


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


# -- the way back


def _show_way_back(screen: view.Screen, codec: Codec) -> None:
    """How a turn is written; the first one as a model would write it, decoded piece by piece and encoded again."""
    try:
        turn = codec.format
    except FormatNotDerived as error:
        _heading(screen, "How a turn is written cannot be read off the template", error.reason)
        return
    _heading(screen, "How a turn is written, as the template shows it")
    view.show_format(screen, explain(turn).partition("\n\n")[0])
    prompt = codec.encode(MESSAGES[:ASKED], TOOLS)
    written = compose(codec, prompt)
    if written.refused:
        _list(screen, "What a model cannot write in it", iter(written.refused))
    if written.message:
        _heading(screen, f"The first turn as it streams in, {PIECE} characters at a time")
        decoder = codec.decoder(prompt, TOOLS)
        _show_stream(screen, decoder, written.completion)
        _heading(screen, "That message, encoded again", compared(codec, written.message, decoder.message))


class Written(NamedTuple):
    """A completion and its message, empty if there is none; and what of the demo's own it could not carry."""

    completion: str
    message: Message
    refused: list[str]


def compose(codec: Codec, prompt: Prompt) -> Written:
    """The first turn as a model writes it, without what the format refuses."""
    message = dict(MESSAGES[ASKED])
    refused: list[str] = []
    while message.keys() - {"role"}:
        try:
            return Written(codec.compose(message, prompt), message, refused)
        except UnsupportedInput as error:
            refused.append(str(error))
            if not _take_out(message, error.path):
                break
    return Written("", {}, refused)


def _take_out(message: Message, path: str) -> bool:
    """Takes the refused part out of the message, of calls this one and those behind it."""
    field, _, rest = path.partition("[")
    if field not in message:
        return False
    value = message.pop(field)
    index = rest.partition("]")[0]
    if isinstance(value, list) and index.isdecimal() and value[: int(index)]:
        message[field] = value[: int(index)]
        return len(message[field]) < len(value)
    return True


# -- the stream


def _show_stream(screen: view.Screen, decoder: Decoder, completion: str) -> None:
    """A row for each part of the turn, with a bar where what one piece has told ends."""
    pieces = [completion[start : start + PIECE] for start in range(0, len(completion), PIECE)]
    rows: dict[str, list[str]] = {}
    for events in (*map(decoder.feed, pieces), decoder.close("stop")):
        for row, parts in groupby(filter(None, map(_part, events)), key=lambda part: part[0]):
            rows.setdefault(row, []).append("".join(text for _, text in parts))
    for row, texts in rows.items():
        style = _STREAM_STYLES.get(row.partition(" ")[0], "")
        told = [part for text in texts for part in (Styled("│", "dim"), Styled(view.safe(text), style))]
        view.hang(screen, Styled(row), told[1:], column=WIDTH)


def _part(event: Event) -> tuple[str, str] | None:
    """The row of an event, and what it adds to that."""
    match event:
        case ReasoningDelta(text):
            return "reasoning", text
        case ContentDelta(text):
            return "content", text
        case ToolCallStart(index, _, name):
            return f"call {index}", f"{name} "
        case ArgumentsDelta(index, json):
            return f"call {index}", json
        case ToolCallEnd(index, call):
            return None if call.status == "ok" else (f"call {index}", f" {call.status}")
        case TurnEnd(reason):
            return "end", reason
        case _:
            assert_never(event)


# -- encoding again


def compared(codec: Codec, message: Message, decoded: Message) -> str:
    """What the whole conversation's prompt is with `decoded` in place of `message`, in words."""
    renamed = _with_ids(message, _ids(decoded))
    try:
        expected, found, named = (codec.encode(_conversation(m), TOOLS).text for m in (message, decoded, renamed))
    except ChatCodecError as error:
        return f"it cannot be, {error}"
    if expected == found:
        return "the same prompt as with the original"
    if named == found:
        return f"the same prompt as with the original, save for the calls' ids: {', '.join(_ids(decoded))}"
    start = _common(expected, found)
    end = _common(expected[start:][::-1], found[start:][::-1])
    old, new = (text[start : len(text) - end] for text in (expected, found))
    return f"differs from character {start} on, {_clipped(new)} in place of {_clipped(old)}"


def _ids(message: Message) -> list[str]:
    return [call["id"] for call in message.get("tool_calls", ())]


def _with_ids(message: Message, ids: Sequence[str]) -> Message:
    calls = message.get("tool_calls", ())
    return {**message, "tool_calls": [{**call, "id": own} for call, own in zip(calls, ids, strict=False)]}


def _common(one: str, other: str) -> int:
    """How many characters the two begin with alike."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _clipped(text: str) -> str:
    return repr(text if len(text) <= CLIP else text[:CLIP] + "…")


def _conversation(message: Message) -> list[Message]:
    """The demo's conversation with this message in it, and the results of just its calls, under their ids."""
    results = MESSAGES[ASKED + 1 : ASKED + 1 + RESULTS]
    named = [{**result, "tool_call_id": own} for own, result in zip(_ids(message), results, strict=False)]
    return [*MESSAGES[:ASKED], message, *named, *MESSAGES[ASKED + 1 + RESULTS :]]
