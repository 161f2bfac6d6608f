"""`Choice`: one answer, from what an engine writes to what a client is told of it.

A choice is fed the engine's pieces and says the deltas of OpenAI's stream; an answer that is not streamed is those
deltas joined, so both always agree.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from ..events import ArgumentsDelta, ContentDelta, Event, ReasoningDelta, ToolCall, ToolCallEnd, ToolCallStart
from ..messages import Message
from ..turn.decoder import Decoder, Vocabulary
from .engines.engine import Alternative, End, Logprob, Piece
from .errors import no_call

LEAST_LOGPROB = -9999.0
"""What stands for minus infinity, which JSON cannot say; OpenAI's number."""
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_BYTES = 2**40
"""Ids from here on stand for single bytes."""


class ByteVocabulary:
    """A vocabulary with a token for each byte, for text of which no ids came in an answer of ids."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def token_bytes(self, token: int) -> bytes:
        return bytes((token - _BYTES,)) if token >= _BYTES else self._vocabulary.token_bytes(token)

    def control_tokens(self) -> Mapping[str, int]:
        return self._vocabulary.control_tokens()

    def spelled(self, text: str, controls: tuple[str, ...]) -> list[int]:
        """The ids of an engine's text, in which control tokens are spelled."""
        known, ids, place = self.control_tokens(), list[int](), 0
        for match in _any_of(controls).finditer(text):
            ids += [_BYTES + byte for byte in text[place : match.start()].encode()]
            ids.append(known[match[0]])
            place = match.end()
        return ids + [_BYTES + byte for byte in text[place:].encode()]


@lru_cache(maxsize=64)
def _any_of(texts: tuple[str, ...]) -> re.Pattern[str]:
    """The longest wins."""
    return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or "(?!)")


def _sound(text: str) -> str:
    """The text with halves of surrogate pairs joined, or replaced: they cannot be sent."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


@dataclass(frozen=True, slots=True)
class Delta:
    """What is new in a choice: `fields` are those of OpenAI's `delta`."""

    fields: dict[str, Any]
    logprobs: tuple[Logprob, ...] = ()
    ids: tuple[int, ...] = ()


class Choice:
    """One answer.

    `begun` is the writing of what the client said of the message itself, `begun_length` how many characters that says,
    and `begun_in` where they end: they are not told again.
    `offers_tools` says whether the model may call; what it writes otherwise is content. With `must_call`, an answer
    that is over without a whole call is an error. With `parallel` false the first call is the last thing that counts.
    With `tells_tokens` the deltas have the ids and probabilities of their tokens.
    `vocabulary` is None where the engine writes text.
    """

    def __init__(
        self,
        index: int,
        decoder: Decoder,
        *,
        begun: str | Sequence[int] = "",
        begun_length: int = 0,
        begun_in: Literal["content", "reasoning"] = "content",
        stops: Sequence[str] = (),
        offers_tools: bool = True,
        must_call: bool = False,
        parallel: bool = True,
        tells_tokens: bool = False,
        vocabulary: ByteVocabulary | None = None,
        shown: Sequence[str] = (),
    ) -> None:
        self.index = index
        self.finish_reason: str | None = None
        self.tokens = 0
        self._decoder = decoder
        self._stops = Stops(stops)
        self._offers_tools = offers_tools
        self._must_call = must_call
        self._parallel = parallel
        self._tells_tokens = tells_tokens
        self._vocabulary = vocabulary
        self._shown = tuple(shown)
        self._open: ToolCallStart | None = None
        self._opening = ""
        self._numbers: dict[int, int] = {}
        self._broken = 0
        self._called = False
        self._logprobs: list[Logprob] = []
        self._ids: list[int] = []
        self._skip = begun_length - sum(
            len(event.text) for event in decoder.feed(begun) if isinstance(event, ContentDelta | ReasoningDelta)
        )
        self._skip_in = ContentDelta if begun_in == "content" else ReasoningDelta

    @property
    def attempts(self) -> list[ToolCall]:
        """All that the model tried to call."""
        return self._decoder.calls

    @property
    def message(self) -> Message:
        """What the model said, as the decoder has it."""
        return self._decoder.message

    @property
    def ended_itself(self) -> bool:
        """The turn is over by what the model wrote, where its engine stops too."""
        return self.finish_reason is not None and self._decoder.finish_reason is not None

    def feed(self, piece: Piece) -> list[Delta]:
        """What a piece of the answer adds. When the turn is over, `finish_reason` is set, and no more is wanted."""
        self.tokens += piece.tokens
        if self._tells_tokens:
            self._logprobs += map(self._with_bytes, piece.logprobs)
            self._ids += piece.ids or ()
        text = _sound(piece.text)
        said: str | Sequence[int] = text
        if self._vocabulary is not None:
            said = piece.ids if piece.ids is not None else self._vocabulary.spelled(text, self._shown)
        deltas = self._say(self._decoder.feed(said))
        if self.finish_reason is None and self._decoder.finish_reason is not None:
            deltas += self._finish("stop")
        return self._with_tokens(deltas)

    def _with_bytes(self, token: Logprob) -> Logprob:
        """A token that is no whole character has its bytes from the vocabulary, where its id is known."""
        vocabulary = self._vocabulary
        if vocabulary is None or all(one.bytes is not None or one.id is None for one in (token, *token.top)):
            return token

        def known(one: Alternative) -> bytes | None:
            return vocabulary.token_bytes(one.id) if one.bytes is None and one.id is not None else one.bytes

        top = tuple(replace(one, bytes=known(one)) for one in token.top)
        return replace(token, bytes=known(token), top=top)

    def close(self, end: End) -> list[Delta]:
        """The engine is done."""
        self.tokens = self.tokens if end.completion_tokens is None else end.completion_tokens
        if self.finish_reason is not None:
            return []
        deltas = self._say(self._decoder.close("length" if end.reason == "length" else "stop"))
        if self.finish_reason is None:
            deltas += self._finish(end.reason)
        return self._with_tokens(deltas)

    def _finish(self, reason: str) -> list[Delta]:
        """Raises `ApiError` where the client wants a call and there is none."""
        if self._must_call and reason == "stop" and not self._called:
            raise no_call(self.attempts)
        self.finish_reason = "tool_calls" if self._numbers and reason == "stop" else reason
        return self._rest()

    def _with_tokens(self, deltas: list[Delta]) -> list[Delta]:
        """Of what is held back, tokens are told with what they say, or at the end."""
        if not (self._logprobs or self._ids) or not (deltas or self.finish_reason):
            return deltas
        first = Delta(deltas[0].fields if deltas else {}, tuple(self._logprobs), tuple(self._ids))
        self._logprobs, self._ids = [], []
        return [first, *deltas[1:]]

    # -- events

    def _say(self, events: Sequence[Event]) -> list[Delta]:
        deltas: list[Delta] = []
        for event in events:
            if self.finish_reason is not None:
                break
            deltas += self._delta(event)
        return deltas

    def _delta(self, event: Event) -> list[Delta]:
        match event:
            case ContentDelta(text):
                return self._say_content(self._new_text(event))
            case ReasoningDelta(text):
                text = self._new_text(event)
                return [*self._rest(), Delta({"reasoning_content": text, "reasoning": text})] if text else []
            case ToolCallStart() if self._offers_tools:
                self._open = event
            case ArgumentsDelta(index, json) if self._offers_tools and json:
                return self._say_arguments(index, json)
            case ToolCallEnd():
                return self._end_call(event)
        return []

    def _new_text(self, event: ContentDelta | ReasoningDelta) -> str:
        """Its text without what of it the client wrote itself, which may be white space that the format strips."""
        text = event.text
        if type(event) is not self._skip_in:
            self._skip = 0
        skip, self._skip = self._skip, max(0, self._skip - len(text))
        return text[skip:] if skip > 0 else text

    def _say_content(self, text: str) -> list[Delta]:
        said = self._stops.feed(text)
        deltas = [_content(said)] if said else []
        if self._stops.found:
            deltas += self._finish("stop")
        return deltas

    def _say_arguments(self, index: int, json: str) -> list[Delta]:
        if self._open is None:
            return [_call(self._numbers[index], {"function": {"arguments": json}})]
        self._opening += json
        # A brace says nothing yet: an attempt that breaks behind it is better not begun.
        return [] if self._opening.strip() == "{" else self._begin_call(self._open, self._opening)

    def _begin_call(self, start: ToolCallStart, json: str) -> list[Delta]:
        self._open, self._opening = None, ""
        number = self._numbers[start.index] = len(self._numbers)
        function = {"name": start.name, "arguments": json}
        return [*self._rest(), _call(number, {"id": start.id, "type": "function", "function": function})]

    def _end_call(self, event: ToolCallEnd) -> list[Delta]:
        """A call that the client was told of stays as it is; of an attempt that is no call it is told apart."""
        start, self._open, self._opening = self._open, None, ""
        if not self._offers_tools:
            return self._say_content(event.call.raw)
        call, deltas = event.call, list[Delta]()
        if call.status == "unknown_tool":
            # As other servers have it: whoever runs the calls tells the model that there is no such tool.
            start = ToolCallStart(event.index, call.id, call.name)
        if call.status in ("ok", "unknown_tool"):
            if start is not None:
                deltas = self._begin_call(start, call.arguments)
            self._called |= call.status == "ok"
        else:
            deltas = [*self._rest(), _invalid(self._broken, call)]
            self._broken += 1
        return deltas if self._parallel or not self._numbers else [*deltas, *self._finish("stop")]

    def _rest(self) -> list[Delta]:
        """What of the content was held back: no stop string goes on behind a call or reasoning."""
        rest = self._stops.rest()
        return [_content(rest)] if rest else []


def _content(text: str) -> Delta:
    return Delta({"content": text})


def _call(index: int, fields: dict[str, Any]) -> Delta:
    return Delta({"tool_calls": [{"index": index, **fields}]})


def _invalid(index: int, call: ToolCall) -> Delta:
    """An attempt at a call that came to nothing: no field of OpenAI's, so that clients that do not know it pass it.

    OpenAI's own join deltas of any list, and want its place in each entry.
    """
    told = {"id": call.id, "name": call.name, "status": call.status, "raw": call.raw, "notes": list(call.notes)}
    return Delta({"invalid_tool_calls": [{"index": index, **told}]})


class Stops:
    """Looks for the first of some strings in a text that comes in pieces; `found` when one has come.

    What stands before it is said as soon as it is certain to be no part of it.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._longest = max(map(len, stops), default=0)
        self._held = ""
        self.found = False

    def feed(self, text: str) -> str:
        if not self._stops:
            return text
        text = self._held + text
        # The one that is whole first, however the text was cut into pieces.
        found = [(place + len(stop), place) for stop in self._stops if (place := text.find(stop)) >= 0]
        if found:
            self.found, self._held = True, ""
            return text[: min(found)[1]]
        safe = next(
            (
                place
                for place in range(max(0, len(text) - self._longest + 1), len(text))
                if any(stop.startswith(text[place:]) for stop in self._stops)
            ),
            len(text),
        )
        self._held = text[safe:]
        return text[:safe]

    def rest(self) -> str:
        """What was held back and turned out to be text."""
        held, self._held = self._held, ""
        return held


# -- in OpenAI's shape


def logprobs_content(logprobs: Sequence[Logprob]) -> list[dict[str, Any]]:
    """The entries of `logprobs.content`."""
    return [{**_alternative(token), "top_logprobs": list(map(_alternative, token.top))} for token in logprobs]


def _alternative(token: Alternative) -> dict[str, Any]:
    logprob = token.logprob if math.isfinite(token.logprob) else LEAST_LOGPROB
    text = _sound(token.text)
    known = text.encode() if token.bytes is None and REPLACEMENT not in text else token.bytes
    return {"token": text, "logprob": max(logprob, LEAST_LOGPROB), "bytes": None if known is None else list(known)}
