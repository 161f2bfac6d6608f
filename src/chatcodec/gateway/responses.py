"""What a chat is answered with, in OpenAI's shape: a stream of chunks, or the same joined."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from .choice import Choice, Delta, logprobs_content
from .engines.engine import End
from .errors import ApiError

COMMENT = b": waiting\n\n"
"""Keeps a stream open through what closes idle connections."""
DONE = b"data: [DONE]\n\n"
LINE_ENDS = tuple((end.encode(), f"\\u{ord(end):04x}".encode()) for end in ("\x85", "\u2028", "\u2029"))
"""What JSON leaves as it is, and many clients take for the end of a line; and how it is escaped."""


def event(data: dict[str, Any]) -> bytes:
    """A server-sent event: one line, whatever a client takes for a line's end."""
    line = msgspec.json.encode(data)
    if not line.isascii():
        for end, escaped in LINE_ENDS:
            line = line.replace(end, escaped)
    return b"data: " + line + b"\n\n"


def error_event(error: ApiError) -> bytes:
    """The end of a stream that failed: nothing follows, `[DONE]` least of all."""
    return event(error.body)


@dataclass(slots=True)
class Answer:
    """An answer to a chat, in either form."""

    model: str
    choices: Sequence[Choice]
    logprobs: bool = False
    token_ids: bool = False
    include_usage: bool = False
    prompt_ids: Sequence[int] = ()
    prompt_tokens: int = 0
    cached_tokens: int | None = None
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))
    first: float | None = None
    """When the model said something first, by `time.perf_counter`."""

    def begin(self) -> None:
        self.first = self.first or time.perf_counter()

    def count(self, end: End) -> None:
        """Takes the engine's counts where there are none of our own."""
        self.prompt_tokens = self.prompt_tokens or end.prompt_tokens or 0
        if end.cached_tokens is not None:
            self.cached_tokens = max(self.cached_tokens or 0, min(end.cached_tokens, self.prompt_tokens))

    @property
    def usage(self) -> dict[str, Any]:
        completion = sum(choice.tokens for choice in self.choices)
        usage: dict[str, Any] = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": completion,
            "total_tokens": self.prompt_tokens + completion,
        }
        if self.cached_tokens is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": self.cached_tokens}
        return usage

    # -- streamed

    def opening(self, choice: Choice) -> bytes:
        """The first chunk of a choice."""
        return self.chunk(choice, Delta({"role": "assistant", "content": ""}), first=True)

    def closing(self, choice: Choice) -> bytes:
        """The last chunk of a choice."""
        return self.chunk(choice, Delta({}), reason=choice.finish_reason)

    def usage_chunk(self) -> bytes:
        return event({**self._head("chat.completion.chunk"), "choices": [], "usage": self.usage})

    def chunk(self, choice: Choice, delta: Delta, *, first: bool = False, reason: str | None = None) -> bytes:
        said: dict[str, Any] = {
            "index": choice.index,
            "delta": delta.fields,
            "logprobs": self._logprobs(delta.logprobs),
            "finish_reason": reason,
        }
        if self.token_ids:
            said["token_ids"] = list(delta.ids)
        chunk = {**self._head("chat.completion.chunk"), "choices": [said]}
        if self.include_usage:
            chunk["usage"] = None
        if first and self.token_ids:
            chunk["prompt_token_ids"] = self.prompt_ids
        return event(chunk)

    # -- joined

    def joined(self, deltas: Sequence[Sequence[Delta]]) -> dict[str, Any]:
        """The whole answer, of the deltas of each choice."""
        whole = {
            **self._head("chat.completion"),
            "choices": [self._whole(choice, said) for choice, said in zip(self.choices, deltas, strict=True)],
            "usage": self.usage,
        }
        if self.token_ids:
            whole["prompt_token_ids"] = self.prompt_ids
        return whole

    def _whole(self, choice: Choice, deltas: Sequence[Delta]) -> dict[str, Any]:
        tokens = [token for delta in deltas for token in delta.logprobs]
        said: dict[str, Any] = {
            "index": choice.index,
            "message": join(deltas),
            "logprobs": self._logprobs(tokens) or ({"content": [], "refusal": None} if self.logprobs else None),
            "finish_reason": choice.finish_reason,
        }
        if self.token_ids:
            said["token_ids"] = [token for delta in deltas for token in delta.ids]
        return said

    def _logprobs(self, tokens: Sequence[Any]) -> dict[str, Any] | None:
        return {"content": logprobs_content(tokens), "refusal": None} if self.logprobs and tokens else None

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def join(deltas: Sequence[Delta]) -> dict[str, Any]:
    """The message that deltas say: what a client makes of a stream."""
    texts: dict[str, list[str]] = {}
    calls: list[dict[str, Any]] = []
    invalid: list[dict[str, Any]] = []
    for delta in deltas:
        for name, value in delta.fields.items():
            if name == "tool_calls":
                for piece in value:
                    _join_call(calls, piece)
            elif name == "invalid_tool_calls":
                invalid += [{key: told[key] for key in told if key != "index"} for told in value]
            else:
                texts.setdefault(name, []).append(value)
    message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None}
    message.update((name, "".join(pieces)) for name, pieces in texts.items())
    if calls:
        for call in calls:
            call["function"]["arguments"] = "".join(call["function"]["arguments"])
        message["tool_calls"] = calls
    if invalid:
        message["invalid_tool_calls"] = invalid
    return message


def _join_call(calls: list[dict[str, Any]], piece: dict[str, Any]) -> None:
    if piece["index"] == len(calls):
        function = {"name": piece["function"]["name"], "arguments": []}
        calls.append({"id": piece["id"], "type": "function", "function": function})
    calls[piece["index"]]["function"]["arguments"].append(piece["function"]["arguments"])
