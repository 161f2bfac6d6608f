"""Any server with OpenAI's `/v1/completions`: a prompt of text, an answer of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Literal

from .connection import Connection, event_object
from .engine import (
    Alternative,
    Answer,
    Ask,
    ContextExceeded,
    End,
    EngineAnswerInvalid,
    EngineError,
    Logprob,
    Piece,
)
from .failures import NotFound
from .fields import (
    as_ids,
    as_list,
    as_logprob,
    as_object,
    as_text,
    optional_count,
    whole,
)

UNSAID_MAX_TOKENS = 4096
"""Asked for where the client sets no bound and the context is unknown: OpenAI's default is 16."""

_DONE = "[DONE]"
_ID_PREFIX = "token_id:"


class OpenAI:
    """`lists_models` is whether the server has `/v1/models`, which then tells that it is ready."""

    name = "openai"
    takes_ids = False

    def __init__(
        self,
        connection: Connection,
        *,
        model: str | None = None,
        context: int | None = None,
        lists_models: bool = True,
    ) -> None:
        self._connection = connection
        self._model = model
        self._lists_models = lists_models
        self.context = context

    async def complete(self, ask: Ask) -> Answer:
        """Where the client sets no bound and too much was asked for, it is asked again for what there is room for."""
        max_tokens = self._max_tokens(ask)
        for last in (ask.max_tokens is not None, True):
            said = False
            try:
                async with aclosing(completion(self._connection, self._body(ask, max_tokens), ask)) as answer:
                    async for part in answer:
                        said = True
                        yield part
                return
            except ContextExceeded as error:
                room = (error.context or 0) - (error.prompt_tokens or 0)
                if last or said or error.prompt_tokens is None or room <= 0:
                    raise
                max_tokens = room

    async def ids_of(self, text: str) -> list[int] | None:
        return None

    async def check(self) -> None:
        try:
            await self._connection.check("/v1/models")
        except (NotFound, EngineAnswerInvalid):
            # A server that never listed its models is there when it answers.
            if self._lists_models:
                raise

    async def close(self) -> None:
        await self._connection.close()

    def _body(self, ask: Ask, max_tokens: int) -> dict[str, Any]:
        return completion_body(self._model, ask.text.removeprefix(ask.beginning), max_tokens, ask)

    def _max_tokens(self, ask: Ask) -> int:
        if ask.max_tokens is not None:
            return ask.max_tokens
        if self.context is None:
            return UNSAID_MAX_TOKENS
        # A token is a byte at least, so this fits, whatever the tokenizer is.
        prompt = len(ask.text.encode()) if ask.ids is None else len(ask.ids)
        return max(self.context - prompt, min(UNSAID_MAX_TOKENS, self.context // 4), 1)


def completion_body(model: str | None, prompt: str | list[int], max_tokens: int | None, ask: Ask) -> dict[str, Any]:
    body: dict[str, Any] = {
        "prompt": prompt,
        "max_tokens": max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        **ask.sampling,
    }
    if model is not None:
        body["model"] = model
    if ask.logprobs is not None:
        body["logprobs"] = ask.logprobs
    return body


async def completion(connection: Connection, body: dict[str, Any], ask: Ask) -> Answer:
    """The answer of `/v1/completions`, with token ids where the server tells them.

    It is over when the server says why it stopped: some close without `[DONE]` then.
    """
    reason: Literal["stop", "length"] | None = None
    usage = _Usage()
    async with connection.events("/v1/completions", body) as events:
        async for data in events:
            if data.strip() == _DONE:
                break
            event = event_object(data)
            if event.get("usage") is not None:
                usage = _usage(as_object(event["usage"], "usage"))
            for choice in as_list(event.get("choices"), "choices")[:1]:
                piece = _piece(as_object(choice, "a choice"), ask)
                if piece is not None:
                    yield piece
                reason = _reason(choice.get("finish_reason")) or reason
    if reason is None:
        raise EngineAnswerInvalid("the engine's answer stopped before its end")
    yield End(reason, usage.prompt, usage.completion, usage.cached)


@dataclass(frozen=True, slots=True)
class _Usage:
    prompt: int | None = None
    completion: int | None = None
    cached: int | None = None


def _usage(told: Mapping[str, Any]) -> _Usage:
    details = as_object(told.get("prompt_tokens_details") or {}, "prompt_tokens_details")
    return _Usage(
        optional_count(told.get("prompt_tokens"), "prompt_tokens"),
        optional_count(told.get("completion_tokens"), "completion_tokens"),
        optional_count(details.get("cached_tokens"), "cached_tokens"),
    )


def _reason(told: object) -> Literal["stop", "length"] | None:
    match told:
        case None | "":
            return None
        case "stop" | "length":
            return told
        case "abort":
            raise EngineError("the engine gave the answer up")
        case _:
            raise EngineError("the engine failed in the middle of its answer")


def _piece(choice: Mapping[str, Any], ask: Ask) -> Piece | None:
    """None where a chunk brings neither text nor tokens."""
    text = as_text(choice.get("text") or "" if "text" in choice else None, "text")
    ids = as_ids(choice["token_ids"], "token_ids") if choice.get("token_ids") is not None else None
    logprobs: tuple[Logprob, ...] = ()
    if ask.logprobs is not None and choice.get("logprobs") is not None:
        logprobs = _logprobs(as_object(choice["logprobs"], "logprobs"), ids, ask.logprobs)
    if not text and not ids and not logprobs:
        return None
    return Piece(text, ids, len(ids) if ids is not None else len(logprobs) or 1, logprobs)


def _logprobs(told: Mapping[str, Any], ids: Sequence[int] | None, most: int) -> tuple[Logprob, ...]:
    """From three lists of one length: tokens, their probabilities, and objects of the alternatives."""
    tokens = as_list(told.get("tokens"), "tokens")
    values = as_list(told.get("token_logprobs"), "token_logprobs")
    tops = as_list(told.get("top_logprobs") or [None] * len(tokens), "top_logprobs")
    if not len(tokens) == len(values) == len(tops) or (ids is not None and len(ids) != len(tokens)):
        raise EngineAnswerInvalid("the engine's answer is of the wrong shape: its probabilities are not as many")
    logprobs = []
    for index, (token, value, top) in enumerate(zip(tokens, values, tops, strict=True)):
        this = _alternative(token, value)
        likeliest = [_alternative(*item) for item in as_object(top or {}, "top_logprobs").items()]
        likeliest.sort(key=lambda item: -item.logprob)
        known = ids[index] if ids is not None else this.id
        logprobs.append(Logprob(this.text, this.logprob, this.bytes, known, tuple(likeliest[:most])))
    return tuple(logprobs)


def _alternative(token: object, value: object) -> Alternative:
    text = as_text(token, "a token")
    logprob = as_logprob(value, "logprob")
    number = text.removeprefix(_ID_PREFIX)
    if text.startswith(_ID_PREFIX) and number.isascii() and number.isdigit():
        return Alternative("", logprob, None, as_ids([int(number[:20])], "a token's id")[0])
    return Alternative(text, logprob, whole(text))
