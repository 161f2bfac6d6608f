"""llama.cpp's server, by its own `/completion`: the only route of it that tells token ids."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from .connection import CHECK_TIMEOUT, Connection, event_object
from .engine import (
    Alternative,
    Answer,
    Ask,
    End,
    EngineAnswerInvalid,
    EngineRefused,
    Logprob,
    Piece,
)
from .failures import NotFound
from .fields import (
    as_bytes,
    as_count,
    as_id,
    as_ids,
    as_list,
    as_logprob,
    as_object,
    as_text,
    optional_count,
)

_SAME_NAME = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "ignore_eos",
)
_LARGEST_INT = (1 << 31) - 1
_RANDOM_SEED = (1 << 32) - 1


class LlamaCpp:
    """`beginning` is the text of the token that the server puts before a prompt of text, if it does that."""

    name = "llama.cpp"
    takes_ids = True

    def __init__(self, connection: Connection, *, context: int | None = None, beginning: str = "") -> None:
        self._connection = connection
        self._beginning = beginning
        self.context = context

    def complete(self, ask: Ask) -> Answer:
        """With `ask.exact_ids` all comes in one piece at the end: streaming, the server tells only the last token of
        those that share a character."""
        return self._at_once(ask) if ask.exact_ids else self._streamed(ask)

    async def ids_of(self, text: str) -> list[int] | None:
        try:
            told = await self._connection.post(
                "/tokenize", {"content": text, "add_special": False}, timeout=CHECK_TIMEOUT
            )
            return list(as_ids(as_object(told, "the answer").get("tokens"), "tokens"))
        except (NotFound, EngineRefused, EngineAnswerInvalid):
            return None

    async def check(self) -> None:
        await self._connection.check("/health")

    async def close(self) -> None:
        await self._connection.close()

    async def _streamed(self, ask: Ask) -> Answer:
        counted = 0
        async with self._connection.events("/completion", self._body(ask, stream=True)) as events:
            async for data in events:
                event = event_object(data)
                before, counted = counted, as_count(event.get("tokens_predicted"), "tokens_predicted")
                if counted < before:
                    raise EngineAnswerInvalid("the engine's answer is of the wrong shape: its tokens become fewer")
                end = _end(event)
                piece = _piece(event, counted - before, ask)
                if end is None or piece.text or piece.ids or (end.reason == "length" and piece.tokens):
                    yield piece
                if end is not None:
                    yield end
                    return
        raise EngineAnswerInvalid("the engine's answer stopped before its end")

    async def _at_once(self, ask: Ask) -> Answer:
        # Nothing comes before all is written, however long that takes: whoever asks bounds it.
        told = await self._connection.post("/completion", self._body(ask, stream=False), timeout=math.inf)
        answer = as_object(told, "the answer")
        end = _end(answer)
        if end is None:
            raise EngineAnswerInvalid("the engine's answer stopped before its end")
        yield _piece(answer, as_count(answer.get("tokens_predicted"), "tokens_predicted"), ask)
        yield end

    def _body(self, ask: Ask, *, stream: bool) -> dict[str, Any]:
        return {
            "prompt": ask.text.removeprefix(self._beginning) if ask.ids is None else ask.ids,
            "n_predict": -1 if ask.max_tokens is None else min(ask.max_tokens, _LARGEST_INT),
            "stream": stream,
            "return_tokens": True,
            "cache_prompt": True,
            "preserved_tokens": list(ask.shown),
            "n_probs": 0 if ask.logprobs is None else max(ask.logprobs, 1),
            **_sampling(ask.sampling),
        }


async def props_of(connection: Connection, *, timeout: float | None = None) -> dict[str, Any]:
    """What the server says of itself; empty where it is no llama.cpp server."""
    try:
        props = await connection.get("/props", timeout=timeout)
    except (NotFound, EngineRefused, EngineAnswerInvalid):
        return {}
    return props if isinstance(props, dict) and isinstance(props.get("default_generation_settings"), dict) else {}


def context_in(props: Mapping[str, Any]) -> int | None:
    """How many tokens one slot holds."""
    context = props.get("default_generation_settings", {}).get("n_ctx")
    return context if isinstance(context, int) and context > 0 else None


async def beginning_of(connection: Connection, *, timeout: float | None = None) -> str:
    """The text of the token that the server puts before every prompt of text; empty where it puts none."""
    asked = {"content": "", "add_special": True, "with_pieces": True}
    try:
        told = await connection.post("/tokenize", asked, timeout=timeout)
    except (NotFound, EngineRefused, EngineAnswerInvalid):
        return ""
    match told:
        case {"tokens": [{"piece": str(piece)}, *_]}:
            return piece
        case _:
            return ""


def _sampling(sampling: Mapping[str, Any]) -> dict[str, Any]:
    """There is no `min_tokens` here: it is left out."""
    said = {name: sampling[name] for name in _SAME_NAME if name in sampling}
    if "repetition_penalty" in sampling:
        said["repeat_penalty"] = sampling["repetition_penalty"]
    if "seed" in sampling:
        said["seed"] = sampling["seed"] % _RANDOM_SEED
    if "logit_bias" in sampling:
        said["logit_bias"] = [[_token_id(token), bias] for token, bias in sampling["logit_bias"].items()]
    return said


def _token_id(key: object) -> int:
    # The server would take a string for text, and bias each of its tokens.
    try:
        return int(str(key))
    except ValueError:
        raise EngineRefused("logit_bias: a key is not a token id") from None


def _piece(event: Mapping[str, Any], tokens: int, ask: Ask) -> Piece:
    ids = as_ids(event.get("tokens"), "tokens")
    logprobs: tuple[Logprob, ...] = ()
    if ask.logprobs is not None:
        told = as_list(event.get("completion_probabilities", []), "completion_probabilities")
        logprobs = tuple(_logprob(as_object(item, "a probability"), ask.logprobs) for item in told)
    # Tokens that share a character come as the last of them, with the count of all.
    return Piece(as_text(event.get("content"), "content"), ids if len(ids) >= tokens else None, tokens, logprobs)


def _end(event: Mapping[str, Any]) -> End | None:
    if event.get("stop") is not True:
        return None
    kind = event.get("stop_type")
    if kind not in ("eos", "word", "limit"):
        raise EngineAnswerInvalid("the engine's answer is of the wrong shape: it does not say why it stopped")
    reason: Literal["stop", "length"] = "length" if kind == "limit" else "stop"
    timings = as_object(event.get("timings", {}), "timings")
    return End(
        reason,
        as_count(event.get("tokens_evaluated"), "tokens_evaluated"),
        as_count(event.get("tokens_predicted"), "tokens_predicted"),
        optional_count(timings.get("cache_n"), "cache_n"),
    )


def _logprob(told: Mapping[str, Any], most: int) -> Logprob:
    top = as_list(told.get("top_logprobs", []), "top_logprobs")[:most]
    return Logprob(*_alternative(told), tuple(Alternative(*_alternative(as_object(item, "a token"))) for item in top))


def _alternative(told: Mapping[str, Any]) -> tuple[str, float, bytes | None, int]:
    return (
        as_text(told.get("token"), "a token"),
        as_logprob(told.get("logprob"), "logprob"),
        as_bytes(told["bytes"], "bytes") if told.get("bytes") is not None else None,
        as_id(told.get("id"), "a token's id"),
    )
