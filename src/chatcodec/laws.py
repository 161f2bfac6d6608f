"""What must hold between the rooms, as functions that look for a counter-example and return it, or None.

The property tests use them, and so does the derivation: a format is the template's only where they hold on it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .errors import FormatNotDerived, UnsupportedInput
from .events import ArgumentsDelta, ContentDelta, ReasoningDelta, ToolCallStart
from .messages import Message, Tool
from .turn import call_ids
from .turn.compose import compose
from .turn.decoder import Decoder
from .turn.derive.probes import Probes, Trace, Turn
from .turn.format import CallId, TurnFormat
from .turn.said import read_message

GOES_ON = "…"
"""A text behind one that is not over."""


@dataclass(frozen=True, slots=True)
class CounterExample:
    """Where a law breaks: the completion, what it should say and what it says."""

    law: str
    completion: str
    expected: Any
    found: Any

    def __str__(self) -> str:
        return f"{self.law}: {self.completion!r} is read as {self.found!r}, not as {self.expected!r}"


def said(message: Mapping[str, Any], *, ids: bool = False) -> dict[str, Any]:
    """What a message says, whatever the shape that says it: arguments as values with exact numbers, no empty texts.

    With `ids`, the calls' ids count.
    """
    read = read_message(message)
    calls = [(call.name, call.arguments, call.id) if ids else (call.name, call.arguments) for call in read.calls]
    return {"reasoning": read.reasoning or "", "content": read.content or "", "calls": calls}


def decoding_undoes_composing(
    turn: TurnFormat, message: Mapping[str, Any], *, prompt: str | None = None, tools: list[Tool] | None = None
) -> CounterExample | None:
    """A message that is composed decodes to what it was. Raises `UnsupportedInput` where it cannot be composed."""
    return _read_back(turn, message, compose(message, turn, prompt=prompt), prompt, tools)


def _read_back(
    turn: TurnFormat, message: Mapping[str, Any], completion: str, prompt: str | None, tools: list[Tool] | None
) -> CounterExample | None:
    ids = _carries_ids(turn, message)
    expected = said(message, ids=ids)
    decoder = Decoder(turn, prompt=prompt, tools=tools)
    decoder.feed(completion)
    decoder.close("stop")
    found = said(decoder.message, ids=ids)
    departs = [call.status for call in decoder.calls if call.status != "ok"]
    if _plain(found) == _plain(expected) and not departs:
        return None
    return CounterExample("decoding undoes composing", completion, expected, departs or found)


def _carries_ids(turn: TurnFormat, message: Mapping[str, Any]) -> bool:
    """Whether the format writes the ids that the message has."""
    pieces = turn.calls.call.pieces if turn.calls else ()
    written = next((piece for piece in pieces if isinstance(piece, CallId)), None)
    calls = read_message(message).calls
    if written is None or not all(call.id for call in calls):
        return False
    return not written.names or all(call_ids.is_written(call.id or "") for call in calls)


def compose_faithfully(
    turn: TurnFormat, message: Mapping[str, Any], *, prompt: str | None = None, tools: list[Tool] | None = None
) -> str:
    """The completion of a message, known to decode to that message. Raises `UnsupportedInput` where it would not."""
    completion = compose(message, turn, prompt=prompt)
    broken = _read_back(turn, message, completion, prompt, tools)
    if broken is None:
        return completion
    expected, found = broken.expected, broken.found
    if not isinstance(found, dict):
        raise UnsupportedInput(
            "tool_calls", f"the format cannot carry it: in {broken.completion!r} a call is {found[0]}"
        )
    fields = [name for name in expected if _plain(expected[name]) != _plain(found[name])]
    path = {"reasoning": "reasoning_content", "calls": "tool_calls"}.get(fields[0], fields[0])
    typed = "; with `tools`, the arguments' types are known" if path == "tool_calls" and not tools else ""
    raise UnsupportedInput(path, f"the format cannot carry it: {broken.completion!r} would be read as {found!r}{typed}")


def compose_open(turn: TurnFormat, message: Mapping[str, Any], *, prompt: str | None = None) -> str:
    """The completion up to the end of the last text that `message` has: its content, or else its reasoning.

    Raises `UnsupportedInput` where the message has neither, or has calls, and as `compose_faithfully` does.
    """
    read = read_message(message)
    if read.calls:
        raise UnsupportedInput("tool_calls", "a message that goes on has no calls yet")
    if not read.content and not read.reasoning:
        raise UnsupportedInput("content", "a message that goes on has content or reasoning to go on from")
    # What a format takes off a text's end it does not take off before this: the text goes on behind it.
    content, reasoning = (read.content + GOES_ON, read.reasoning) if read.content else ("", read.reasoning + GOES_ON)
    whole = {"role": "assistant", "content": content, "reasoning_content": reasoning}
    written = compose_faithfully(turn, whole, prompt=prompt)
    return written[: written.rindex(GOES_ON)]


def prove(turn: TurnFormat, trace: Trace, *, template: str = "chat_template") -> None:
    """Raises `FormatNotDerived` where the format does not hold on fresh turns of its own template.

    The template writes each of `PROOFS`; what it writes must decode to what it shows of the message, and the message
    must compose to what decodes to it, however that is split. A message that the template writes differently from place
    to place (as the last one, in history) is read where one of these reads right; what it refuses proves nothing.
    """
    probes = Probes(trace)
    for message in PROOFS:
        written = list(probes.turns(message))
        readings = [reading_the_template(turn, found, message) for found in written]
        broken = (None if None in readings else next(iter(readings), None)) or _composed(turn, message)
        if broken:
            raise FormatNotDerived(
                "the format that was read off the template does not hold on it", template=template, seen=(str(broken),)
            )


def reading_the_template(turn: TurnFormat, written: Turn, message: Mapping[str, Any]) -> CounterExample | None:
    """A turn as the template wrote it decodes to what it shows of its message."""
    text = written.past_user(written.text)
    start = text.find(turn.header)
    completion = text[start + len(turn.header) if start >= 0 else 0 :]
    decoder = Decoder(turn, prompt=turn.header, tools=PROOF_TOOLS)
    decoder.feed(completion)
    decoder.close("stop")
    found, expected = said(decoder.message), said(message)
    expected["calls"] = [call for place, call in enumerate(expected["calls"]) if place in written.calls()]
    for part, kind in (("reasoning", "reasoning"), ("content", "content"), ("calls", "name")):
        if not written.has(kind) or _plain(found[part]) == _plain(expected[part]):
            continue
        if part == "content" and not expected["reasoning"] and found["reasoning"] == expected["content"]:
            continue  # the template writes it as reasoning
        return CounterExample(f"reading the template's own {part}", completion, expected[part], found[part])
    return None


def _composed(turn: TurnFormat, message: Mapping[str, Any]) -> CounterExample | None:
    try:
        broken = decoding_undoes_composing(turn, message, tools=PROOF_TOOLS)
        return broken or splitting_changes_nothing(turn, compose(message, turn), tools=PROOF_TOOLS)
    except UnsupportedInput:
        return None


def _proof_call(number: int, **arguments: Any) -> dict[str, Any]:
    return {
        "id": f"functions.look_up:{number}",
        "type": "function",
        "function": {"name": "look_up", "arguments": arguments},
    }


_TYPES = {"city": "string", "days": "integer", "exact": "boolean", "note": "string", "near": "array"}
PROOF_TOOLS: list[Tool] = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "d",
            "parameters": {
                "type": "object",
                "properties": {name: {"type": kind, "description": "d"} for name, kind in _TYPES.items()},
            },
        },
    }
]
_ONE = _proof_call(0, city='Zürich "West"', days=12, exact=True)
_TWO = _proof_call(1, note="two lines,\nsecond <b>bold</b>", near=[1, 2])
PROOFS: tuple[Message, ...] = (
    {"role": "assistant", "content": "Two words, and `more`.\n\nA second part: 1 < 2."},
    {"role": "assistant", "content": "So it is.", "reasoning_content": "First this,\nthen that."},
    {"role": "assistant", "content": "", "tool_calls": [_ONE]},
    {"role": "assistant", "content": "Let me see.", "tool_calls": [_ONE]},
    {"role": "assistant", "content": "", "reasoning_content": "I look it up.", "tool_calls": [_ONE]},
    {"role": "assistant", "content": "", "tool_calls": [_ONE, _TWO]},
    {"role": "assistant", "content": "", "tool_calls": [_proof_call(0)]},
)
"""What a template is made to write when a format is proven on it: other words than those it was derived from."""


def composing_undoes_decoding(
    turn: TurnFormat, completion: str, *, prompt: str | None = None, tools: list[Tool] | None = None
) -> CounterExample | None:
    """A completion in the template's own writing, once decoded, composes to itself."""
    decoder = Decoder(turn, prompt=prompt, tools=tools)
    decoder.feed(completion)
    decoder.close("stop")
    try:
        composed = compose(decoder.message, turn, prompt=prompt)
    except UnsupportedInput as error:
        return CounterExample("composing undoes decoding", completion, completion, str(error))
    return (
        None
        if composed == completion
        else CounterExample("composing undoes decoding", completion, completion, composed)
    )


def splitting_changes_nothing(
    turn: TurnFormat,
    pieces: Iterable[str],
    *,
    prompt: str | None = None,
    tools: list[Tool] | None = None,
    finish_reason: Any = None,
) -> CounterExample | None:
    """An output in pieces says what it says at once: the same message, calls and joined events."""
    cut = list(pieces)
    whole = "".join(cut)
    expected = _told(turn, [whole], prompt, tools, finish_reason)
    found = _told(turn, cut, prompt, tools, finish_reason)
    return None if expected == found else CounterExample("splitting changes nothing", whole, expected, (cut, found))


def _told(
    turn: TurnFormat, pieces: list[str], prompt: str | None, tools: list[Tool] | None, finish_reason: Any
) -> dict[str, Any]:
    decoder = Decoder(turn, prompt=prompt, tools=tools)
    events = [event for piece in pieces for event in decoder.feed(piece)] + decoder.close(finish_reason)
    joined: dict[Any, str] = {}
    starts = []
    for event in events:
        match event:
            case ReasoningDelta(text):
                joined["reasoning"] = joined.get("reasoning", "") + text
            case ContentDelta(text):
                joined["content"] = joined.get("content", "") + text
            case ArgumentsDelta(index, piece):
                joined[index] = joined.get(index, "") + piece
            case ToolCallStart():
                starts.append(event)
            case _:
                pass
    return {
        "message": decoder.message,
        "calls": decoder.calls,
        "joined": joined,
        "starts": starts,
        "reason": decoder.finish_reason,
        "rest": decoder.rest,
    }


def _number(value: Any) -> dict[str, str]:
    """A number that a float would change; it must not be taken for the text that spells it."""
    return {"number": str(value)}


def _plain(value: Any) -> str:
    return json.dumps(value, ensure_ascii=True, sort_keys=True, default=_number)
