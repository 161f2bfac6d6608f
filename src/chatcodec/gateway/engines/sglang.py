"""SGLang, by its own `/generate`, which takes token ids and tells them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from .connection import Connection, event_object
from .engine import (
    Alternative,
    Answer,
    Ask,
    End,
    EngineAnswerInvalid,
    EngineError,
    EngineRefused,
    Logprob,
    Piece,
)
from .failures import failure
from .fields import (
    as_count,
    as_id,
    as_ids,
    as_list,
    as_logprob,
    as_object,
    as_text,
    optional_count,
    whole,
)

_OTHER_NAMES = {"min_tokens": "min_new_tokens", "seed": "sampling_seed"}
_DONE = "[DONE]"


class SGLang:
    """`incremental` is whether each event brings only what is new; by default all so far comes again."""

    name = "sglang"
    takes_ids = True

    def __init__(self, connection: Connection, *, context: int | None = None, incremental: bool = False) -> None:
        self._connection = connection
        self._incremental = incremental
        self.context = context

    async def complete(self, ask: Ask) -> Answer:
        end: End | None = None
        reader = _Reader(ask, self._incremental)
        async with self._connection.events("/generate", _body(ask)) as events:
            async for data in events:
                if data.strip() == _DONE:
                    break
                event = _event(data)
                meta = as_object(event.get("meta_info"), "meta_info")
                end = _end(meta)
                piece = reader.piece(event, meta)
                if piece is not None:
                    yield piece
            else:
                raise EngineAnswerInvalid("the engine's answer stopped before its end")
        if end is None:
            raise EngineAnswerInvalid("the engine's answer does not say why it stopped")
        yield end

    async def ids_of(self, text: str) -> list[int] | None:
        return None

    async def check(self) -> None:
        await self._connection.check("/health")

    async def close(self) -> None:
        await self._connection.close()


class _Reader:
    """What is new in each event.

    There are servers that repeat text and ids, servers that repeat only the text, and servers that repeat nothing. The
    count of tokens so far tells whether ids are repeated; text that is not repeated must be known beforehand.
    """

    def __init__(self, ask: Ask, incremental: bool) -> None:
        self._logprobs = ask.logprobs
        self._incremental = incremental
        self._text = ""
        self._tokens = 0

    def piece(self, event: Mapping[str, Any], meta: Mapping[str, Any]) -> Piece | None:
        """None where an event brings nothing new."""
        text = self._new_text(as_text(event.get("text"), "text"))
        ids = self._new_ids(event, meta)
        if not text and not ids:
            return None
        return Piece(text, ids, len(ids), _logprobs(meta, ids, self._logprobs) if self._logprobs is not None else ())

    def _new_text(self, text: str) -> str:
        if self._incremental:
            return text
        if not text.startswith(self._text):
            raise EngineAnswerInvalid("the engine's answer takes back what it said")
        new, self._text = text[len(self._text) :], text
        return new

    def _new_ids(self, event: Mapping[str, Any], meta: Mapping[str, Any]) -> tuple[int, ...]:
        told = as_list(event.get("output_ids"), "output_ids")
        before, self._tokens = self._tokens, as_count(meta.get("completion_tokens"), "completion_tokens")
        new = self._tokens - before
        if new < 0 or len(told) not in (new, self._tokens):
            raise EngineAnswerInvalid("the engine's answer is of the wrong shape: its token ids are not as many")
        return as_ids(told[len(told) - new :], "output_ids")


def _body(ask: Ask) -> dict[str, Any]:
    body: dict[str, Any] = {
        "stream": True,
        "sampling_params": {
            # None is no bound but the context; left out it is 128.
            "max_new_tokens": ask.max_tokens,
            "stop_token_ids": list(ask.stop_ids),
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
            # The ids have the token that ends the turn, so the text must have it too.
            "no_stop_trim": True,
            **_sampling(ask.sampling),
        },
    }
    body |= {"text": ask.text.removeprefix(ask.beginning)} if ask.ids is None else {"input_ids": ask.ids}
    if ask.logprobs is not None:
        body |= {"return_logprob": True, "top_logprobs_num": ask.logprobs, "return_text_in_logprobs": True}
    return body


def _sampling(sampling: Mapping[str, Any]) -> dict[str, Any]:
    said = {_OTHER_NAMES.get(name, name): value for name, value in sampling.items()}
    if said.get("top_k") == 0:
        said["top_k"] = -1
    return said


def _event(data: str) -> dict[str, Any]:
    try:
        return event_object(data)
    except EngineError as error:
        # Only a wrong request is answered by an error of its own, which older servers do not number.
        raise EngineRefused(str(error)) if type(error) is EngineError else error from None


def _end(meta: Mapping[str, Any]) -> End | None:
    if meta.get("finish_reason") is None:
        return None
    told = as_object(meta["finish_reason"], "finish_reason")
    if told.get("type") not in ("stop", "length"):
        raise failure(None, told)
    reason: Literal["stop", "length"] = "stop" if told["type"] == "stop" else "length"
    return End(
        reason,
        optional_count(meta.get("prompt_tokens"), "prompt_tokens"),
        optional_count(meta.get("completion_tokens"), "completion_tokens"),
        optional_count(meta.get("cached_tokens"), "cached_tokens"),
    )


def _logprobs(meta: Mapping[str, Any], ids: tuple[int, ...], most: int) -> tuple[Logprob, ...]:
    """Of the last tokens told: the lists may hold those of earlier events too."""
    told = as_list(meta.get("output_token_logprobs"), "output_token_logprobs")
    tops = as_list(meta.get("output_top_logprobs") or [None] * len(told), "output_top_logprobs")
    if len(told) < len(ids) or len(tops) != len(told):
        raise EngineAnswerInvalid("the engine's answer is of the wrong shape: its probabilities are not as many")
    logprobs = []
    for index in range(len(told) - len(ids), len(told)):
        this = _alternative(told[index])
        top = tuple(_alternative(item) for item in as_list(tops[index] or [], "output_top_logprobs")[:most])
        logprobs.append(Logprob(this.text, this.logprob, this.bytes, this.id, top))
    return tuple(logprobs)


def _alternative(told: object) -> Alternative:
    """From [logprob, id, text]; the text is null where the server gives none."""
    parts = as_list(told, "a probability")
    if len(parts) < 2:
        raise EngineAnswerInvalid("the engine's answer is of the wrong shape: a probability has no token")
    text = None if len(parts) < 3 or parts[2] is None else as_text(parts[2], "a token")
    logprob = as_logprob(parts[0], "logprob")
    return Alternative(text or "", logprob, None if text is None else whole(text), as_id(parts[1], "a token's id"))
