"""vLLM, by its `/v1/completions`, which takes token ids and tells them."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

from .connection import CHECK_TIMEOUT, Connection
from .engine import Answer, Ask, ContextExceeded, EngineAnswerInvalid, EngineRefused
from .failures import NotFound
from .fields import as_count, as_ids, as_object
from .openai import completion, completion_body


class Vllm:
    name = "vllm"
    takes_ids = True

    def __init__(self, connection: Connection, *, model: str | None = None, context: int | None = None) -> None:
        self._connection = connection
        self._model = model
        self.context = context

    async def complete(self, ask: Ask) -> Answer:
        max_tokens = ask.max_tokens if ask.max_tokens is not None else await self._room(ask)
        async with aclosing(completion(self._connection, self._body(ask, max_tokens), ask)) as answer:
            async for part in answer:
                yield part

    async def ids_of(self, text: str) -> list[int] | None:
        body: dict[str, Any] = {"prompt": text, "add_special_tokens": False}
        if self._model is not None:
            body["model"] = self._model
        try:
            told = as_object(await self._connection.post("/tokenize", body, timeout=CHECK_TIMEOUT), "the answer")
            return list(as_ids(told.get("tokens"), "tokens"))
        except (NotFound, EngineRefused, EngineAnswerInvalid):
            return None

    async def check(self) -> None:
        await self._connection.check("/health")

    async def close(self) -> None:
        await self._connection.close()

    def _body(self, ask: Ask, max_tokens: int | None) -> dict[str, Any]:
        return completion_body(self._model, ask.text if ask.ids is None else ask.ids, max_tokens, ask) | {
            "add_special_tokens": False,
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
            "return_token_ids": True,
            "stop_token_ids": list(ask.stop_ids),
            # The ids have the token that ends the turn, so the text must have it too.
            "include_stop_str_in_output": True,
        }

    async def _room(self, ask: Ask) -> int | None:
        """How many tokens the answer may have: unasked it is 16, and more than there is room for is refused."""
        prompt, context = (None if ask.ids is None else len(ask.ids)), self.context
        if prompt is None or context is None:
            prompt, context = await self._measured(ask)
        if prompt is None or context is None:
            return None
        if prompt >= context:
            raise ContextExceeded(prompt, context)
        return context - prompt

    async def _measured(self, ask: Ask) -> tuple[int | None, int | None]:
        """The prompt's tokens and the context, by the server's own tokenizer, where it lets us ask."""
        body: dict[str, Any] = {"prompt": ask.text, "add_special_tokens": False}
        if self._model is not None:
            body["model"] = self._model
        try:
            told = as_object(await self._connection.post("/tokenize", body), "the answer")
        except (NotFound, EngineRefused):
            return None, None
        return as_count(told.get("count"), "count"), as_count(told.get("max_model_len"), "max_model_len")
