"""One chat, from the request to the answer: validate, encode, ask the engine, decode, respond."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, asynccontextmanager, suppress
from typing import NamedTuple

import msgspec

from . import responses
from .bodies import decode_body
from .choice import Choice, Delta
from .engines.engine import Ask, End, Engine, EngineAnswerInvalid, EngineError, Piece
from .errors import unknown_model
from .exchange import Exchange
from .gate import Gate
from .preparing import Prepared, Preparing
from .requests import ChatRequest
from .responses import Answer
from .settings import Settings
from .threads import in_thread

AHEAD = 32
"""Pieces that are read ahead of a slow client."""
LAST_COUNTS = 0.25
"""Seconds that the engine's last counts are waited for behind the end of a turn."""
MANY = 1_000
"""Tokens of a piece that is decoded in a thread: it would keep the others waiting."""


class Said(NamedTuple):
    """What a piece of the engine's answer added to a choice; with `over`, it was the last."""

    choice: Choice
    deltas: list[Delta]
    over: bool


class Chat:
    """Answers `POST /v1/chat/completions`."""

    def __init__(self, preparing: Preparing, engine: Engine, gate: Gate, settings: Settings) -> None:
        self._preparing = preparing
        self._engine = engine
        self._gate = gate
        self._settings = settings

    async def __call__(self, exchange: Exchange, body: bytes) -> None:
        asked = await in_thread(self._validate, body)
        exchange.asked(asked)
        async with self._gate.enter(asked.n or 1):
            prepared = await in_thread(self._preparing.prepare, asked)
            answer = self._answer(asked, prepared)
            exchange.answering(answer)
            async with self._answers(prepared, answer) as said:
                if asked.stream:
                    await exchange.stream(self._streamed(answer, said))
                else:
                    await exchange.reply_bytes(await self._joined(answer, said))

    def _validate(self, body: bytes) -> ChatRequest:
        asked = decode_body(body, ChatRequest, self._settings.limits)
        asked.check()
        if asked.model not in self._settings.models:
            raise unknown_model(asked.model, self._settings.models)
        self._preparing.check_chat(asked)
        return asked

    def _answer(self, asked: ChatRequest, prepared: Prepared) -> Answer:
        return Answer(
            self._settings.models[0],
            prepared.choices,
            logprobs=bool(asked.logprobs),
            token_ids=bool(asked.return_token_ids),
            include_usage=bool(asked.stream_options and asked.stream_options.include_usage),
            prompt_ids=prepared.prompt_ids or (),
            prompt_tokens=len(prepared.prompt_ids or ()),
        )

    # -- engine and decoding

    @asynccontextmanager
    async def _answers(self, prepared: Prepared, answer: Answer) -> AsyncGenerator[asyncio.Queue[Said | Exception]]:
        """What the choices say, as it comes, of all of them in one queue. Leaving it ends the engine's work."""
        said: asyncio.Queue[Said | Exception] = asyncio.Queue(AHEAD)
        places = asyncio.Semaphore(self._gate.places)
        writers = [
            asyncio.create_task(self._write(ask, choice, answer, said, places))
            for ask, choice in zip(prepared.asks, prepared.choices, strict=True)
        ]
        try:
            yield said
        finally:
            for writer in writers:
                writer.cancel()
            await asyncio.gather(*writers, return_exceptions=True)

    async def _write(
        self,
        ask: Ask,
        choice: Choice,
        answer: Answer,
        said: asyncio.Queue[Said | Exception],
        places: asyncio.Semaphore,
    ) -> None:
        over = False
        try:
            async with places, aclosing(self._engine.complete(ask)) as pieces:
                async for piece in pieces:
                    if isinstance(piece, End):
                        answer.count(piece)
                        deltas = choice.close(piece)
                    elif piece.tokens > MANY:
                        deltas = await in_thread(choice.feed, piece)
                    else:
                        deltas = choice.feed(piece)
                    over = choice.finish_reason is not None
                    if choice.ended_itself and not isinstance(piece, End):
                        await _count_end(pieces, answer)
                    if deltas or over:
                        await said.put(Said(choice, deltas, over))
                    if over:
                        return
            raise EngineAnswerInvalid("its answer stopped before its end")
        except Exception as error:
            task = asyncio.current_task()
            # What goes wrong when the engine is left is no matter of the answer's, and nobody listens any more.
            if not over and not (task and task.cancelling()):
                await said.put(error)

    async def _say(self, said: asyncio.Queue[Said | Exception], answer: Answer) -> AsyncGenerator[list[Said]]:
        """What is said, until all choices are over; an empty list each time that nothing came for a while."""
        over = 0
        while over < len(answer.choices):
            items = await self._next(said)
            batch = [item for item in items if isinstance(item, Said)]
            if batch:
                answer.begin()
            if batch or not items:
                yield batch
            for item in items:
                if isinstance(item, Exception):
                    raise item
            over += sum(item.over for item in batch)

    async def _next(self, said: asyncio.Queue[Said | Exception]) -> list[Said | Exception]:
        """All that was said meanwhile; nothing where nothing came for a while."""
        try:
            async with asyncio.timeout(self._settings.keep_alive):
                items = [await said.get()]
        except TimeoutError:
            return []
        while not said.empty():
            items.append(said.get_nowait())
        return items

    # -- responses

    async def _streamed(self, answer: Answer, said: asyncio.Queue[Said | Exception]) -> AsyncGenerator[bytes]:
        opened: set[int] = set()
        async with aclosing(self._say(said, answer)) as batches:
            async for batch in batches:
                yield b"".join(_chunks(answer, batch, opened)) if batch else responses.COMMENT
        yield answer.usage_chunk() + responses.DONE if answer.include_usage else responses.DONE

    async def _joined(self, answer: Answer, said: asyncio.Queue[Said | Exception]) -> bytes:
        deltas: list[list[Delta]] = [[] for _ in answer.choices]
        async with aclosing(self._say(said, answer)) as batches:
            async for batch in batches:
                for item in batch:
                    deltas[item.choice.index] += item.deltas
        return await in_thread(lambda: msgspec.json.encode(answer.joined(deltas)))


async def _count_end(pieces: AsyncGenerator[Piece | End], answer: Answer) -> None:
    """Reads on for a moment: the engine ends too where the turn does, and only then tells its counts."""
    with suppress(TimeoutError, EngineError):
        async with asyncio.timeout(LAST_COUNTS):
            async for piece in pieces:
                if isinstance(piece, End):
                    answer.count(piece)
                    return


def _chunks(answer: Answer, batch: list[Said], opened: set[int]) -> Iterator[bytes]:
    for choice, deltas, over in batch:
        if choice.index not in opened:
            opened.add(choice.index)
            yield answer.opening(choice)
        for delta in deltas:
            yield answer.chunk(choice, delta)
        if over:
            yield answer.closing(choice)
