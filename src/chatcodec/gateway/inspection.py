"""What the codec does on its own, without an engine: `/tokenize`, `/render` and `/parse`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, Generic, TypeVar

import msgspec

from ..errors import UnsupportedInput
from ..tokens.encoding import UnencodableText
from .bodies import decode_body
from .errors import ApiError, unknown_model, wrong
from .exchange import Exchange
from .gate import Gate
from .preparing import Begun, Preparing
from .requests import ParseRequest, PromptRequest, RenderRequest, TokenizeRequest
from .settings import Settings
from .threads import in_thread

T = TypeVar("T", bound=PromptRequest)


class Inspection(Generic[T]):
    """Answers a request of one kind with what `work` makes of it, in a thread. `gate` bounds how many run at once."""

    def __init__(
        self,
        kind: type[T],
        work: Callable[[Preparing, T], dict[str, Any]],
        preparing: Preparing,
        gate: Gate,
        settings: Settings,
    ) -> None:
        self._kind = kind
        self._work = work
        self._preparing = preparing
        self._gate = gate
        self._settings = settings

    async def __call__(self, exchange: Exchange, body: bytes) -> None:
        async with self._gate.enter():
            answer = await in_thread(self._answer, body)
        await exchange.reply_bytes(answer)

    def _answer(self, body: bytes) -> bytes:
        asked = decode_body(body, self._kind, self._settings.limits)
        if asked.model is not None and asked.model not in self._settings.models:
            raise unknown_model(asked.model, self._settings.models)
        self._preparing.check(asked)
        return msgspec.json.encode(self._work(self._preparing, asked))


def tokenize(preparing: Preparing, asked: TokenizeRequest) -> dict[str, Any]:
    """The ids of a text, or of the prompt of messages. In a text control tokens are those tokens."""
    if (asked.prompt is None) == (asked.messages is None):
        raise wrong("prompt", "either a prompt or messages are needed, and not both")
    vocabulary = preparing.vocabulary
    if vocabulary is None:
        raise ApiError(400, "this server has no tokenizer", code="no_tokenizer")
    ids = _begin(preparing, asked).all_ids or [] if asked.prompt is None else _text_ids(preparing, asked.prompt)
    strings = None
    if asked.return_token_strs:
        strings = [vocabulary.token_bytes(token).decode("utf-8", "replace") for token in ids]
    return {"count": len(ids), "max_model_len": preparing.context, "tokens": ids, "token_strs": strings}


def render(preparing: Preparing, asked: RenderRequest) -> dict[str, Any]:
    """The prompt, who wrote what in it (places in characters), and what of the input it leaves out."""
    begun = _begin(preparing, asked)
    prompt = begun.prompt
    spans = [{"start": start, "end": end, "path": path} for start, end, path in prompt.spans]
    if begun.written:
        path = f"messages[{len(asked.messages) - 1}]"
        spans.append({"start": len(prompt.text), "end": len(begun.text), "path": path})
    return {"text": begun.text, "spans": spans, "dropped": prompt.dropped, "ids": begun.all_ids}


def parse(preparing: Preparing, asked: ParseRequest) -> dict[str, Any]:
    """The message that a model's output says, and each attempt at a call in it."""
    if asked.prompt is not None and asked.messages is not None:
        raise wrong("prompt", "either a prompt or messages can be given, not both")
    if asked.continue_final_message:
        raise wrong("continue_final_message", "it is not supported here: give the whole answer as the output")
    for name, given in (("output", asked.output), ("prompt", asked.prompt)):
        if isinstance(given, list) and preparing.vocabulary is None:
            raise wrong(name, "ids need a tokenizer, and this server has none", "no_tokenizer")
    prompt = asked.prompt if asked.messages is None else _begin(preparing, asked).prompt
    decoder = preparing.codec.decoder(prompt, asked.tools or None, **preparing.variables(asked))
    decoder.feed(asked.output)
    decoder.close(asked.finish_reason)
    return {
        "message": decoder.message,
        "finish_reason": decoder.finish_reason,
        "calls": [asdict(call) for call in decoder.calls],
        "rest": decoder.rest,
    }


def _begin(preparing: Preparing, asked: PromptRequest) -> Begun:
    return preparing.begin(asked, asked.tools or None, generation_prompt=asked.add_generation_prompt is not False)


def _text_ids(preparing: Preparing, text: str) -> Sequence[int]:
    try:
        return preparing.ids(text)
    except UnencodableText as error:
        raise UnsupportedInput("prompt", f"character {error.place}: {error.reason}") from None
