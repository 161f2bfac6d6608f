"""What a decoder keeps of a turn while it is read: the output, the events to say, and what came of them.

The reading itself, by the format's kind, is in `sections` and `channels`.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

from ..events import ContentDelta, Event, FinishReason, ReasoningDelta, Status, ToolCall, TurnEnd
from ..messages import Message
from .calls import CallRecord, Limits
from .controls import Controls
from .grammar import Grammar
from .passage import Passage
from .schemas import Schemas
from .stream import Reading, Stream


class Turn:
    """One turn: its reading, and what came of it so far."""

    def __init__(
        self, grammar: Grammar, prompt: str, schemas: Schemas, limits: Limits, control: Controls | None
    ) -> None:
        self.stream = Stream()
        self.grammar = grammar
        self.schemas = schemas
        self.limits = limits
        self.control = control
        self.events: list[Event] = []
        self.calls: list[ToolCall] = []
        self.reason: FinishReason | None = None
        self.rest: list[str] = []
        self.ended_by_marker = False
        self.told: FinishReason | None = None
        self.reasoning: list[str] = []
        self.content: list[str] = []
        self.passage: Passage | None = None
        self.cut_inside = False
        self._salt = blake2b(self.shown(prompt).encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
        self._over = False

    def begin(self, reading: Reading[None], said: str) -> None:
        """Read on with `reading`; `said` is what of the turn is in the prompt."""
        self._reading = reading
        self._advance()
        if said:
            self.stream.append(said)
            self._advance()
            self._forget()

    def _forget(self) -> None:
        """What the prompt said already is no part of the message."""
        self.events.clear()
        self.reasoning.clear()
        self.content.clear()
        self.calls.clear()
        self.rest.clear()
        if self.control is not None:
            self.control.forget()
        if self.passage is not None:
            self.passage.forget()
        self.stream.restart()

    def _advance(self) -> None:
        if not self._over:
            try:
                next(self._reading)
            except StopIteration:
                self._over = True

    def feed(self, text: str) -> list[Event]:
        if self.reason is not None and text:
            self.rest.append(self.shown(text))
            return []
        if text:
            if self.control is not None:
                self.control.count(text, self.stream.offset + self.stream.unread)
            self.stream.append(text)
            self._advance()
        return self._taken()

    def close(self, told: FinishReason | None) -> list[Event]:
        if self.reason is None:
            self.told = told
            self.stream.ended = True
            self._advance()
            self.end()
        return self._taken()

    def _taken(self) -> list[Event]:
        events = self.events.copy()
        self.events.clear()
        return events

    def end(self) -> None:
        if self.reason is not None:
            return
        whole = any(call.status == "ok" for call in self.calls)
        if self.told == "length" or (self.cut_inside and not self.ended_by_marker and self.told is None):
            self.reason = "length"
        else:
            self.reason = "tool_calls" if whole else "stop"
        self.rest.append(self.shown(self.stream.text[self.stream.position :]))
        self.stream.position = len(self.stream.text)
        self.events.append(TurnEnd(self.reason))

    def write(self, message: Message) -> None:
        if self.content:
            message["content"] = "".join(self.content)
        if self.reasoning:
            message["reasoning_content"] = "".join(self.reasoning)
        calls: list[dict[str, Any]] = [call.as_message() for call in self.calls if call.status == "ok"]
        if calls:
            message["tool_calls"] = calls

    # -- texts

    def shown(self, text: str) -> str:
        return self.control.shown(text) if self.control is not None else text

    def say_reasoning(self, text: str) -> None:
        if self.control is not None:
            text = self.control.shown(text)
        self.reasoning.append(text)
        self.events.append(ReasoningDelta(text))

    def say_content(self, text: str) -> None:
        if self.control is not None:
            text = self.control.shown(text)
        self.content.append(text)
        self.events.append(ContentDelta(text))

    # -- calls

    def new_call(
        self, *, strict: bool, awaits_id: bool = False, id_is_late: bool = False, ahead: int = 0
    ) -> CallRecord:
        index = len(self.calls) + ahead
        return CallRecord(
            self.events.append,
            self.schemas,
            self.limits,
            index=index,
            own_id=f"call_{self._salt}{index}",
            strict=strict,
            awaits_id=awaits_id,
            id_is_late=id_is_late,
            show=self.control.shown_in_json if self.control else None,
        )

    def finish(self, call: CallRecord, status: Status, raw: str, offset: int) -> None:
        """The call is over; `raw` is its text, `offset` where that stands."""
        raw, offset = raw[max(0, -offset) :], max(0, offset)
        span = offset, offset + len(raw)
        if self.control is not None:
            span = self.control.place(span[0]), self.control.place(span[1])
        self.calls.append(call.end(status, self.shown(raw), span))
