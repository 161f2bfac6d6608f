"""A message as the completion that a model would have written: the inverse of decoding.

In goes an assistant's message in OpenAI's shape, out comes the text that stands after the generation prompt, byte for
byte as the template would go on from there. Nothing is guessed: what the format cannot carry raises `UnsupportedInput`
with its path in the message. Whether a text would be read as something else (reasoning with the end of reasoning in
it) is not looked at here; only the decoder knows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, assert_never

from ..errors import UnsupportedInput
from . import call_ids, payloads
from .begun import begun
from .format import (
    WHITESPACE,
    Arguments,
    Call,
    CallId,
    Channels,
    Index,
    Literal,
    Name,
    Piece,
    Section,
    TaggedArguments,
    TurnFormat,
)
from .payloads import values
from .said import Said, SaidCall, read_message


def compose(message: Mapping[str, Any], format: TurnFormat, *, prompt: str | None = None, end: bool = False) -> str:
    """The completion for `message` after `prompt`, which is the whole text as sent; without it, `format.prompt`.

    Engines cut the token that ends a turn, so it is not written; with `end` it is, as far as the model writes it.
    """
    said = read_message(message)
    begun = begin(format, prompt)
    text = _channels(said, format, format.channels, begun.tail) if format.channels else _sections(said, format, begun)
    return text + _end(said, format) if end else text


# -- what the prompt has begun


class State(Enum):
    """Of reasoning, at the end of a prompt."""

    NOT_BEGUN = "not begun"
    OPEN = "open"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Begun:
    """`tail` is what of the turn is in the prompt, from behind the turn's header."""

    state: State
    tail: str


def begin(format: TurnFormat, prompt: str | None = None) -> Begun:
    tail = begun(format, format.prompt if prompt is None else prompt)
    section = format.reasoning
    if section is None:
        return Begun(State.NOT_BEGUN, tail)
    opened, closed = _last(section.open, tail), _last(section.close, tail)
    if closed > opened:
        return Begun(State.CLOSED, tail)
    return Begun(State.OPEN if opened >= 0 else State.NOT_BEGUN, tail)


def _last(marker: str, tail: str) -> int:
    """Where the marker stands last; -1 where it does not, or is none."""
    core = _core(marker)
    return tail.rfind(core) if core else -1


def _core(text: str) -> str:
    return text.strip(WHITESPACE)


def _rest(writing: str, begun: str) -> str | None:
    """What of `writing` is yet to be written; None where something else has been begun."""
    return writing[len(begun) :] if writing.startswith(begun) else None


# -- sections


def _sections(said: Said, format: TurnFormat, begun: Begun) -> str:
    content = _content(said, format.content, begun.tail)
    calls = _calls(said, format)
    if calls and format.calls:
        lead = format.calls.lead if said.content else format.calls.lead_alone
        calls = lead + calls if format.order.index("content") < format.order.index("calls") else calls + lead
    texts = {"reasoning": _reasoning(said, format, begun), "content": content, "calls": calls}
    return "".join(texts[name] for name in format.order)


def _reasoning(said: Said, format: TurnFormat, begun: Begun) -> str:
    section, reasoning = format.reasoning, said.reasoning
    if section is None:
        if reasoning:
            raise UnsupportedInput(said.reasoning_path, "the format has no reasoning")
        return ""
    _check_ends(reasoning, section, said.reasoning_path)
    match begun.state:
        case State.CLOSED if reasoning:
            raise UnsupportedInput(said.reasoning_path, "the prompt has closed reasoning")
        case _ if reasoning:
            return f"{reasoning_open(section, begun)}{reasoning}{section.close}"
        case State.NOT_BEGUN:
            return _rest_or_all(format.no_reasoning or "", begun.tail)
        case State.OPEN:
            given = _rest(format.no_reasoning or "", begun.tail)
            return f"{reasoning_open(section, begun)}{section.close}" if given is None else given
        case State.CLOSED:
            given = _rest(format.no_reasoning or "", begun.tail)
            return _rest_of_marker(section.close, begun.tail) if given is None else given
        case _:
            assert_never(begun.state)


def reasoning_open(section: Section, begun: Begun) -> str:
    """What the model writes before its reasoning."""
    whole = begun.state is State.NOT_BEGUN
    return _rest_or_all(section.open, begun.tail) if whole else _rest_of_marker(section.open, begun.tail)


def _rest_or_all(writing: str, tail: str) -> str:
    rest = _rest(writing, tail)
    return writing if rest is None else rest


def _rest_of_marker(marker: str, tail: str) -> str:
    """What is left of the marker that stands last in the tail: white space, or nothing."""
    core = _core(marker)
    return _rest(marker[marker.index(core) :], tail[tail.rindex(core) :]) or ""


def _content(said: Said, section: Section, tail: str) -> str:
    _check_ends(said.content, section, said.content_path)
    opened = bool(section.open) and tail.endswith(section.open)
    if not said.content and not opened:
        return ""
    return f"{'' if opened else section.open}{said.content}{section.close}"


def _check_ends(text: str, section: Section, path: str) -> None:
    if text and (text[0] in section.strip_left or text[-1] in section.strip_right):
        where, character = ("starts", text[0]) if text[0] in section.strip_left else ("ends", text[-1])
        raise UnsupportedInput(path, f"it {where} with {character!r}, which the format strips")


def _end(said: Said, format: TurnFormat) -> str:
    if format.channels and said.calls and format.channels.call_end:
        return format.channels.call_end
    written = format.ends[0] if format.ends else ""
    return written.rstrip(WHITESPACE) or written


# -- channels


def _channels(said: Said, format: TurnFormat, channels: Channels, tail: str) -> str:
    """The turn's messages. The first goes on from the prompt, so it lacks its start."""
    begun = tail[: tail.rfind(channels.message) + len(channels.message)] if channels.message in tail else tail
    reasoning = f"{channels.channel}{channels.reasoning}{channels.message}"
    bodies = list(_bodies(said, format, channels, bool(said.reasoning) or begun == reasoning))
    text, end = bodies[0]
    for body, next_end in bodies[1:]:
        text += f"{end}{channels.start}{channels.role}{body}"
        end = next_end
    rest = _rest(text, begun)
    if rest is None and said.reasoning and not reasoning.startswith(begun):
        raise UnsupportedInput(said.reasoning_path, "the prompt has closed reasoning")
    if rest is None:
        raise UnsupportedInput("prompt", "it has begun another message than this one")
    return rest


def _bodies(said: Said, format: TurnFormat, channels: Channels, reasons: bool) -> Iterator[tuple[str, str]]:
    """Each message from behind its role, and what ends it."""
    if reasons:
        yield f"{channels.channel}{channels.reasoning}{channels.message}{said.reasoning}", channels.end
    if said.content or not said.calls:
        channel = channels.calls if said.calls else channels.content
        yield f"{channels.channel}{channel}{channels.message}{said.content}", channels.end
    for call in _call_texts(said, format):
        yield call, channels.call_end or channels.end


# -- calls


def _calls(said: Said, format: TurnFormat) -> str:
    calls = format.calls
    texts = _call_texts(said, format)
    return f"{calls.open}{calls.separator.join(texts)}{calls.close}" if calls and texts else ""


def _call_texts(said: Said, format: TurnFormat) -> list[str]:
    if not said.calls:
        return []
    if format.calls is None:
        raise UnsupportedInput("tool_calls", "the format has no tool calls")
    if len(said.calls) > 1 and not format.calls.several:
        raise UnsupportedInput("tool_calls[1]", "the format has one tool call in a turn")
    return [_call_text(call, format.calls.call) for call in said.calls]


def _call_text(said: SaidCall, call: Call) -> str:
    pieces = call.pieces if said.arguments or call.no_arguments is None else call.no_arguments
    in_json = bool(call.name_path)
    return "".join(_piece(piece, said, in_json, pieces[place + 1 :]) for place, piece in enumerate(pieces))


def _piece(piece: Piece, said: SaidCall, in_json: bool, after: tuple[Piece, ...]) -> str:
    match piece:
        case Literal():
            return piece.text
        case Name():
            return _word(said.name, f"{said.path}.name", in_json, after)
        case CallId(names=True):
            return _word(_naming_id(said), f"{said.path}.name", in_json, after)
        case CallId():
            return _word(said.id or f"call{said.index:05d}", f"{said.id_path}.id", in_json, after)
        case Index():
            return str(said.index + piece.first)
        case Arguments():
            return _arguments(piece, said)
        case _:
            assert_never(piece)


def _naming_id(said: SaidCall) -> str:
    """The call's own id if it is one that tells the name, since its number may count through the conversation."""
    own = said.id or ""
    return own if call_ids.is_written(own, said.name) else call_ids.write(said.name, said.index)


def _word(text: str, path: str, in_json: bool, after: tuple[Piece, ...]) -> str:
    """A name or an id. Outside of JSON it is read up to what follows it."""
    if in_json:
        return values.JSON.write(text, path)[1:-1]
    if any(character.isspace() for character in text):
        raise UnsupportedInput(path, f"the format cannot carry white space in {text!r}")
    for mark in _marks(after):
        if (text + mark).find(mark) < len(text):
            raise UnsupportedInput(path, f"the format cannot carry {mark!r} in {text!r}")
    return text


def _marks(after: tuple[Piece, ...]) -> Iterator[str]:
    """What may stand next, as far as it is the format's own."""
    for piece in after:
        match piece:
            case Arguments(payload=TaggedArguments() as payload):
                mark = _core(payload.open)
                if mark:
                    yield mark
            case Literal():
                mark = _core(piece.text)
                if mark:
                    yield mark
                    return
            case _:
                return


def _arguments(piece: Arguments, said: SaidCall) -> str:
    try:
        return payloads.write(piece.payload, said.arguments)
    except UnsupportedInput as error:
        raise UnsupportedInput(f"{said.path}.{error.path}", error.reason) from None
