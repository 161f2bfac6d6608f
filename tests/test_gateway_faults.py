"""What the server does when something goes wrong: the engine, the client, the crowd, the stop, and itself."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import random
import re
import signal
import socket
import sys
import textwrap
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import httpx2
import pytest
from scripted import Play, Scripted, said, serving
from tokenizers import Tokenizer
from uvicorn.protocols.http.h11_impl import H11Protocol
from vocabularies import CHAT, tokenizer_json

import chatcodec
from chatcodec.gateway import Gateway, Settings, app, exchange
from chatcodec.gateway.engines import (
    Alternative,
    Answer,
    Ask,
    ContextExceeded,
    End,
    EngineAnswerInvalid,
    EngineBusy,
    EngineError,
    EngineRefused,
    EngineTimeout,
    EngineUnreachable,
    Logprob,
    Piece,
)
from chatcodec.gateway.engines.connection import Connection
from chatcodec.gateway.engines.llama_cpp import LlamaCpp

CODEC = chatcodec.load("intellect-3")
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "book",
            "parameters": {"type": "object", "properties": {"number": {"type": "integer"}, "name": {"type": "string"}}},
        },
    }
]
MESSAGES = [{"role": "user", "content": "hi"}]
ROUTE = "/v1/chat/completions"
DONE = b"data: [DONE]\n\n"
PATIENCE = 10.0
"""Seconds after which a test gives up on what should have happened long before."""
SOON = 0.5
"""Seconds within which the engine's work for a client that left has ended."""


# -- a server, and what must hold when all is over


@dataclass
class Served:
    url: str
    engine: Scripted
    gateway: Gateway
    log: list[logging.LogRecord]
    expected: set[str] = field(default_factory=set)
    """Beginnings of what the log may tell as an error."""

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def idle(self) -> bool:
        gate, records = self.gateway.gate, self.gateway.records
        return not (self.engine.running or gate.running or gate.waiting or records.running)

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[httpx2.AsyncClient]:
        async with httpx2.AsyncClient(base_url=self.url, timeout=PATIENCE) as client:
            yield client


class Log(logging.Handler):
    def __init__(self, records: list[logging.LogRecord]) -> None:
        super().__init__(logging.WARNING)
        self._records = records

    def emit(self, record: logging.LogRecord) -> None:
        self._records.append(record)


@contextlib.contextmanager
def logged() -> Iterator[list[logging.LogRecord]]:
    records: list[logging.LogRecord] = []
    handler = Log(records)
    loggers = [logging.getLogger(name) for name in ("chatcodec.gateway", "uvicorn", "asyncio")]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield records
    finally:
        for logger in loggers:
            logger.removeHandler(handler)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@contextlib.asynccontextmanager
async def served(
    play: Play | Scripted, *, codec: chatcodec.Codec = CODEC, **settings: Any
) -> AsyncGenerator[Served, None]:
    """A server; when the test is done with it, nothing of it may be left: no place, task, socket or untold error."""
    engine = play if isinstance(play, Scripted) else Scripted(play)
    gateway = Gateway(codec, engine, Settings(models=("m",), **settings))
    tasks, sockets = asyncio.all_tasks(), descriptors()
    with logged() as log:
        async with serving(gateway.app) as url:
            server = Served(url, engine, gateway, log)
            yield server
            await until(lambda: server.idle)
        gc.collect()
        await until(lambda: asyncio.all_tasks() == tasks)
        await until(lambda: descriptors() == sockets)
        told = [record.getMessage() for record in log]
        assert [line for line in told if not line.startswith(tuple(server.expected))] == []


async def until(true: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Waits until it is true, and fails when it does not become so in time."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        await asyncio.sleep(0.005)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 50))


# -- clients


def body(**more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": MESSAGES, **more}


def request(**more: Any) -> bytes:
    data = json.dumps(body(**more)).encode()
    head = f"POST {ROUTE} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


@contextlib.asynccontextmanager
async def asked(port: int, sent: bytes) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection on which something was sent; it is cut off at the end, if it is still open."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(sent)
        yield reader, writer
    finally:
        writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def events(stream: bytes | str) -> list[Any]:
    """What the events of a stream say; comments are left out."""
    text = stream.decode() if isinstance(stream, bytes) else stream
    data = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in data]


def content(chunks: list[Any], index: int = 0) -> str:
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    return "".join(delta.get("content") or "" for delta in deltas)


def unchunked(answer: bytes) -> bytes:
    """The body of an answer in HTTP's chunks."""
    _, _, rest = answer.partition(b"\r\n\r\n")
    whole = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        whole += rest[: int(size, 16)]
        rest = rest[int(size, 16) + 2 :]
    return whole


def assert_error(answer: Any, *secrets: str) -> None:
    assert set(answer) == {"error"}
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    assert answer["error"]["message"]
    assert not any(secret in json.dumps(answer) for secret in secrets)


def assert_broken_stream(text: str | bytes, *secrets: str) -> list[Any]:
    """The last event is the error, nothing says that the answer is whole; what came before it."""
    *before, last = events(text)
    assert_error(last, *secrets)
    assert not any(choice["finish_reason"] for chunk in before for choice in chunk["choices"])
    return before


# -- the engine fails

FAILURES = [
    (EngineError("it broke"), 502, None),
    (EngineUnreachable("no connection"), 502, None),
    (EngineAnswerInvalid("garbage"), 502, None),
    (EngineTimeout("nothing came"), 504, None),
    (EngineBusy("too much to do", 7), 429, "7"),
    (EngineBusy("too much to do"), 429, "1"),
    (EngineRefused("temperature is too high"), 400, None),
    (ContextExceeded(10, 5), 400, None),
]


def test_an_engine_that_fails_at_once_is_told_by_the_status() -> None:
    failing: list[Exception] = []

    async def test() -> None:
        async with served(lambda ask: failing) as server, server.client() as client:
            for failure, status, retry in FAILURES:
                failing[:] = [failure]
                for stream in (False, True):
                    answer = await client.post(ROUTE, json=body(stream=stream))
                    assert answer.status_code == status
                    assert answer.headers["content-type"] == "application/json"
                    assert answer.headers.get("retry-after") == retry
                    assert_error(answer.json())

    run(test)


def test_an_engine_that_fails_in_the_middle_ends_the_stream_with_an_error() -> None:
    failing: list[Exception] = []

    async def test() -> None:
        async with served(lambda ask: ["</think>Hello", " you", *failing]) as server, server.client() as client:
            for failure, status, _ in FAILURES:
                failing[:] = [failure]
                answer = await client.post(ROUTE, json=body(stream=True))
                assert answer.status_code == 200
                assert content(assert_broken_stream(answer.text)) == "Hello you"
                answer = await client.post(ROUTE, json=body())
                assert answer.status_code == status
                assert_error(answer.json())

    run(test)


def test_one_of_several_answers_that_fails_fails_them_all() -> None:
    async def test() -> None:
        count = iter(range(100))

        def play(ask: Ask) -> list[Any]:
            return ["</think>Hello", 0.02, EngineError("it broke")] if next(count) % 3 == 1 else ["</think>A", 5, "B"]

        async with served(play) as server, server.client() as client:
            answer = await client.post(ROUTE, json=body(stream=True, n=3))
            assert_broken_stream(answer.text)
            assert (await client.post(ROUTE, json=body(n=3))).status_code == 502
            await until(lambda: server.idle, SOON)
            assert server.engine.left == 6

    run(test)


class Unending(Scripted):
    """An engine that stops without saying so."""

    async def complete(self, ask: Ask) -> Answer:
        async for item in super().complete(ask):
            if not isinstance(item, End):
                yield item


def test_an_answer_that_just_stops_is_no_answer() -> None:
    async def test() -> None:
        async with served(Unending(lambda ask: ["</think>Hello"])) as server, server.client() as client:
            assert (await client.post(ROUTE, json=body())).status_code == 502
            assert_broken_stream((await client.post(ROUTE, json=body(stream=True))).text)

    run(test)


@pytest.mark.parametrize("before", [[], ["</think>Hello"]])
def test_an_engine_that_hangs_has_no_more_time_than_the_request(before: list[str]) -> None:
    async def test() -> None:
        async with served(lambda ask: [*before, 60, "late"], timeout=0.2) as server, server.client() as client:
            answer = await client.post(ROUTE, json=body())
            assert answer.status_code == 504
            assert_error(answer.json())
            answer = await client.post(ROUTE, json=body(stream=True))
            if before:
                assert content(assert_broken_stream(answer.text)) == "Hello"
            else:
                assert answer.status_code == 504
                assert_error(answer.json())
            await until(lambda: server.idle, SOON)
            assert server.engine.left == 2

    run(test)


def test_a_stream_in_which_nothing_comes_is_kept_open_by_comments() -> None:
    async def test() -> None:
        play = ["</think>Hello", 0.3, " you"]
        async with served(lambda ask: play, keep_alive=0.05) as server, server.client() as client:
            answer = await client.post(ROUTE, json=body(stream=True))
            comments = [line for line in answer.text.split("\n") if line.startswith(":")]
            assert 2 <= len(comments) <= 6
            assert "data: \n" not in answer.text
            *chunks, last = events(answer.text)
            assert last == "[DONE]"
            assert content(chunks) == "Hello you"
            assert (await client.post(ROUTE, json=body())).json()["choices"][0]["message"]["content"] == "Hello you"

    run(test)


def test_an_error_after_a_comment_is_an_event() -> None:
    async def test() -> None:
        async with served(lambda ask: [0.2, EngineError("it broke")], keep_alive=0.05) as server:
            async with server.client() as client:
                answer = await client.post(ROUTE, json=body(stream=True))
            assert answer.text.startswith(":")
            assert assert_broken_stream(answer.text) == []

    run(test)


# -- an engine behind HTTP

Behaviour = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"


def token(text: str, count: int = 1, **more: Any) -> bytes:
    counts = {"tokens_predicted": count, "tokens_evaluated": 9}
    told = {"content": text, "tokens": [7], "stop": False, **counts, **more}
    return b"data: " + json.dumps(told, ensure_ascii=False).encode() + b"\n\n"


END = token("", 2, stop=True, stop_type="eos", tokens=[])


def sends(*items: bytes | float, cut: bool = False) -> Behaviour:
    """Writes what it is given, waiting where that is a number, and closes the connection, or cuts it off."""

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for item in items:
            if isinstance(item, bytes):
                writer.write(item)
                await writer.drain()
            else:
                await asyncio.sleep(item)
        if cut:
            writer.transport.abort()

    return behave


@contextlib.asynccontextmanager
async def fake_llama(behave: Behaviour) -> AsyncIterator[tuple[str, list[int]]]:
    """A server that behaves so at every request; says its address, and how many of its connections are open."""
    connected = [0]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected[0] += 1
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head.lower())
            await reader.readexactly(int(length[1]) if length else 0)
            gone = asyncio.ensure_future(reader.read())
            task = asyncio.ensure_future(behave(reader, writer))
            with contextlib.suppress(ConnectionError):
                await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
            for each in (task, gone):
                each.cancel()
            await asyncio.gather(task, gone, return_exceptions=True)
        finally:
            connected[0] -= 1
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", connected


@contextlib.asynccontextmanager
async def through(behave: Behaviour) -> AsyncIterator[tuple[httpx2.AsyncClient, Callable[[], int]]]:
    """A client of a server in front of such an engine."""
    async with fake_llama(behave) as (url, connected):
        engine = LlamaCpp(Connection(url, idle_timeout=0.3))
        gateway = Gateway(CODEC, engine, Settings(models=("m",)))
        sockets = descriptors()
        async with serving(gateway.app) as address:
            async with httpx2.AsyncClient(base_url=address, timeout=PATIENCE) as client:
                yield client, lambda: connected[0]
            await until(lambda: not (connected[0] or gateway.gate.running))
        await until(lambda: descriptors() == sockets)


BROKEN = {
    "says nothing": (504, sends(60)),
    "hangs": (504, sends(HEAD, token("</think>Hel"), 60)),
    "dies": (502, sends(HEAD, token("</think>Hel"), 0.02, cut=True)),
    "dies before it answers": (502, sends(cut=True)),
    "stops": (502, sends(HEAD, token("</think>Hel"))),
    "stops within an event": (502, sends(HEAD, token("</think>Hel") + token("lo")[:20])),
    "garbage": (502, sends(HEAD, token("</think>Hel"), b"data: \x00{]\n\n", 1)),
    "no HTTP": (502, sends(b"\x15\x03\x01 what?\r\n\r\n", 1)),
    "another shape": (502, sends(HEAD, token("</think>Hel"), b'data: {"content": 5}\n\n', 1)),
    "an error": (502, sends(HEAD, token("</think>Hel"), b'data: {"error": {"message": "oh", "code": 500}}\n\n', 1)),
    "half a character": (502, sends(HEAD, token("</think>Hel"), token("é").replace(b"\xa9", b""), 1)),
    "half a surrogate": (502, sends(HEAD, token("</think>Hel"), token("?").replace(b"?", b"\\ud83d"), 1)),
    "refuses": (502, sends(b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n")),
    "is busy": (429, sends(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\nRetry-After: 3\r\n\r\n")),
}


def test_an_engine_behind_http_that_goes_wrong() -> None:
    broken: list[Behaviour] = []

    async def test() -> None:
        async with through(lambda reader, writer: broken[-1](reader, writer)) as (client, connected):
            for name, (status, behave) in BROKEN.items():
                broken.append(behave)
                answer = await client.post(ROUTE, json=body())
                assert answer.status_code == status, name
                assert_error(answer.json())
                answer = await client.post(ROUTE, json=body(stream=True))
                if answer.status_code == 200:
                    assert "Hel".startswith(content(assert_broken_stream(answer.text))), name
                else:
                    assert answer.status_code == status, name
                    assert_error(answer.json())
                await until(lambda: connected() == 0, SOON)

    run(test)


def test_an_engine_that_is_not_there() -> None:
    async def test() -> None:
        with socket.socket() as unheard:
            unheard.bind(("127.0.0.1", 0))
            engine = LlamaCpp(Connection(f"http://127.0.0.1:{unheard.getsockname()[1]}"))
            gateway = Gateway(CODEC, engine, Settings(models=("m",)))
            async with serving(gateway.app) as url, httpx2.AsyncClient(base_url=url) as client:
                for stream in (False, True):
                    answer = await client.post(ROUTE, json=body(stream=stream))
                    assert answer.status_code == 502
                    assert_error(answer.json())
                assert (await client.get("/health")).status_code == 503

    run(test)


def test_characters_that_are_cut_by_packets_are_whole_again() -> None:
    async def test() -> None:
        said = b"".join((HEAD, token("</think>Zürich "), token("東京 🎉"), END))
        async with through(sends(*(said[place : place + 1] for place in range(len(said))))) as (client, _):
            answer = await client.post(ROUTE, json=body())
            assert answer.json()["choices"][0]["message"]["content"] == "Zürich 東京 🎉"

    run(test)


def test_the_connection_to_the_engine_is_closed_when_the_client_leaves() -> None:
    async def test() -> None:
        async with through(sends(HEAD, token("</think>Hello"), 60)) as (client, connected):
            async with client.stream("POST", ROUTE, json=body(stream=True)) as answer:
                await anext(answer.aiter_raw())
                assert connected() == 1
            await until(lambda: connected() == 0, SOON)

    run(test)


TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def codec_of_ids() -> chatcodec.Codec:
    return chatcodec.Codec(TEMPLATE, tokenizer=Tokenizer.from_str(tokenizer_json("neox", extra_special=CHAT)))


def test_half_a_character_in_ids_is_told_as_what_stands_for_it() -> None:
    codec = codec_of_ids()
    vocabulary = codec.tokenizer
    single = {vocabulary.token_bytes(token): token for token in range(1_000)}
    ids = [single[bytes((byte,))] for byte in "é東".encode()]
    end = vocabulary.control_tokens()["<|im_end|>"]

    async def test() -> None:
        for written, text in ((ids, "é東"), (ids[:4], "é\ufffd"), ([*ids[:4], end], "é\ufffd"), ([ids[0]], "\ufffd")):
            engine = Scripted(lambda ask, written=written: [[token] for token in written], takes_ids=True)
            async with served(engine, codec=codec) as server, server.client() as client:
                answer = await client.post(ROUTE, json=body())
                assert answer.json()["choices"][0]["message"]["content"] == text
                *chunks, last = events((await client.post(ROUTE, json=body(stream=True))).text)
                assert last == "[DONE]"
                assert content(chunks) == text

    run(test)


# -- the client leaves


def test_the_engines_work_ends_when_the_client_leaves() -> None:
    before: list[str] = []

    async def test() -> None:
        async with served(lambda ask: [*before, 60]) as server:
            for stream, polite, before[:] in product((True, False), (True, False), ([], ["</think>Hello"] * 3)):
                async with asked(server.port, request(stream=stream, n=2)) as (reader, writer):
                    if before and stream:
                        await reader.readuntil(b"Hello")
                    else:
                        await until(lambda: server.engine.running == 2)
                    if polite:
                        writer.close()
                await until(lambda: server.idle, SOON)
            assert server.engine.left == 16
            assert statuses(server) == {"499": 8}

    run(test)


def statuses(server: Served) -> dict[str, int]:
    """How many chats ended with which status."""
    found = re.findall(
        rf'requests_total{{route="{ROUTE}",status="(\w+)"}} (\d+)', server.gateway.metrics.text().decode()
    )
    return {status: int(count) for status, count in found}


def test_a_client_that_leaves_the_queue_leaves_no_trace() -> None:
    async def test() -> None:
        async with served(lambda ask: ["</think>Hello", 0.3], concurrency=1) as server, server.client() as client:
            first = asyncio.ensure_future(client.post(ROUTE, json=body()))
            await until(lambda: server.engine.running == 1)
            async with asked(server.port, request(stream=True)):
                await until(lambda: server.gateway.gate.waiting == 1)
            await until(lambda: server.gateway.gate.waiting == 0, SOON)
            assert (await first).status_code == 200
            assert (await client.post(ROUTE, json=body())).status_code == 200
            assert len(server.engine.asks) == 2

    run(test)


def test_a_client_that_leaves_while_it_sends_its_body() -> None:
    async def test() -> None:
        async with served(lambda ask: []) as server:
            for sent in (request()[:-10], request()[:-30], request(user="x" * 200_000)[:-10]):
                async with asked(server.port, sent):
                    await until(lambda: server.gateway.records.running == 1)
                await until(lambda: server.idle, SOON)
            assert server.engine.asks == []
            assert statuses(server) == {"499": 3}

    run(test)


def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    async def test() -> None:
        async with served(lambda ask: [], body_timeout=0.1) as server:
            async with asked(server.port, request()[:-10]) as (reader, _):
                answer = await reader.read()
            assert b" 408 " in answer.split(b"\r\n")[0]
            assert_error(json.loads(answer.partition(b"\r\n\r\n")[2]))

    run(test)


class SlowToLeave(Scripted):
    """An engine that takes its time to be closed."""

    async def complete(self, ask: Ask) -> Answer:
        try:
            async for item in super().complete(ask):
                yield item
        finally:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.05)
            await asyncio.sleep(0.05)


class FailsWhenLeft(Scripted):
    """An engine that cannot be closed without an error."""

    async def complete(self, ask: Ask) -> Answer:
        try:
            async for item in super().complete(ask):
                yield item
        finally:
            raise EngineUnreachable("the connection broke")


@pytest.mark.parametrize("engine", [Scripted, SlowToLeave, FailsWhenLeft])
def test_an_answer_that_its_client_got_is_not_taken_for_left(engine: type[Scripted]) -> None:
    async def test() -> None:
        async with served(engine(lambda ask: ["</think>Hello", "<|user|>", "more"])) as server:
            for number in range(10):
                async with asked(server.port, request(stream=bool(number % 2), n=3)) as (reader, _):
                    answer = await reader.read()
                    assert b" 200 " in answer
                    assert b"error" not in answer
            await until(lambda: server.idle)
            assert statuses(server) == {"200": 10}

    run(test)


# -- a crowd

CALLS = CODEC.compose(
    {
        "role": "assistant",
        "content": "It is NUMBER.",
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "book", "arguments": {"number": 77077, "name": "a"}}},
            {"id": "b", "type": "function", "function": {"name": "book", "arguments": {"number": 77077, "name": "b"}}},
        ],
    },
    tools=TOOLS,
)


def play_number(ask: Ask) -> list[Any]:
    """An answer that repeats the number of its request."""
    number = re.search(r"number (\d+)\.", ask.text)
    assert number is not None
    if "book" in ask.text:
        return list(said(CALLS.replace("NUMBER", number[1]).replace("77077", number[1]), 9))
    return ["</think>It", " is ", number[1], "."]


def of_number(number: int) -> dict[str, Any]:
    """A request of one of several kinds."""
    more: dict[str, Any] = {"messages": [{"role": "user", "content": f"Say the number {number}."}]}
    return {
        **more,
        "stream": number % 2 == 0,
        "n": 1 + (number % 3 == 0),
        **({"tools": TOOLS} if number % 5 < 2 else {}),
    }


def messages_of(answer: bytes, asked: dict[str, Any]) -> list[dict[str, Any]]:
    """The messages of an answer, streamed or not."""
    if not asked["stream"]:
        return [choice["message"] for choice in json.loads(answer.partition(b"\r\n\r\n")[2])["choices"]]
    *chunks, last = events(unchunked(answer))
    assert last == "[DONE]"
    messages: list[dict[str, Any]] = [{"content": "", "tool_calls": []} for _ in range(asked["n"])]
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        message, delta = messages[choice["index"]], choice["delta"]
        message["content"] += delta.get("content") or ""
        for call in delta.get("tool_calls", ()):
            if call["index"] == len(message["tool_calls"]):
                message["tool_calls"].append({"function": {"arguments": ""}})
            message["tool_calls"][call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    return messages


def assert_number(answer: bytes, number: int, asked: dict[str, Any]) -> None:
    messages = messages_of(answer, asked)
    assert len(messages) == asked["n"]
    for message in messages:
        assert message["content"].strip() == f"It is {number}."
        calls = [json.loads(call["function"]["arguments"]) for call in message.get("tool_calls", ())]
        booked = [{"number": number, "name": name} for name in "ab"] if "tools" in asked else []
        assert calls == booked


def resident() -> int:
    """Bytes of this process in memory."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_of_two_thousand_requests_none_is_lost_or_mixed_up_though_half_are_left() -> None:
    chance = random.Random(5)
    leavers = set(chance.sample(range(2_000), 1_000))

    async def test() -> None:
        answered: list[int] = []
        async with served(play_number, concurrency=16) as server:
            numbers = iter(range(2_000))

            async def leave(reader: asyncio.StreamReader) -> None:
                if chance.random() < 0.5:
                    await asyncio.sleep(chance.random() * 0.1)
                else:
                    await reader.read(chance.randint(1, 3_000))

            async def client() -> None:
                for number in numbers:
                    more = of_number(number)
                    async with asked(server.port, request(**more)) as (reader, _):
                        if number in leavers:
                            await leave(reader)
                        else:
                            assert_number(await reader.read(), number, more)
                            answered.append(number)
                    if number == 500:
                        memory.append(resident())

            memory: list[int] = []
            await asyncio.gather(*(client() for _ in range(64)))
            await until(lambda: server.idle, SOON)
            assert sorted(answered) == sorted(set(range(2_000)) - leavers)
            assert statuses(server)["200"] >= 1_000
            # A request that is begun is over: as a whole, or left.
            assert server.engine.finished + server.engine.left == len(server.engine.asks)
            server.engine.asks.clear()
            assert server.engine.most_running <= 16
            assert resident() - memory[0] < 24 * 2**20

    run(test)


def test_a_full_queue_and_a_long_wait_are_told_with_the_time_to_come_again() -> None:
    async def test() -> None:
        limits = {"concurrency": 1, "queue": 1, "queue_timeout": 0.3}
        async with (
            served(lambda ask: ["</think>Hello", 60], **limits) as server,
            server.client() as client,
            asked(server.port, request(stream=True)) as (reader, _),
        ):
            await reader.readuntil(b"Hello")
            waiting = asyncio.ensure_future(client.post(ROUTE, json=body(stream=True)))
            await until(lambda: server.gateway.gate.waiting == 1)
            for refused in (await client.post(ROUTE, json=body()), await waiting):
                assert refused.status_code == 429
                assert int(refused.headers["retry-after"]) >= 1
                assert_error(refused.json())

    run(test)


def test_more_answers_than_there_are_places_for_get_them_all() -> None:
    async def test() -> None:
        async with served(lambda ask: ["</think>Hello"], concurrency=2) as server, server.client() as client:
            answer = await client.post(ROUTE, json=body(n=5))
            assert len(answer.json()["choices"]) == 5

    run(test)


# -- slow readers, long answers, large requests


@pytest.fixture
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel takes little of what a client does not read."""
    made = H11Protocol.connection_made

    def connection_made(self: H11Protocol, transport: asyncio.Transport) -> None:
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8_192)
        made(self, transport)

    monkeypatch.setattr(H11Protocol, "connection_made", connection_made)


@pytest.mark.usefixtures("small_buffers")
def test_slow_readers_cost_little_and_hold_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "LAST_WORDS", 0.1)
    long = "x" * 2_000
    written = 0

    def play(ask: Ask) -> Iterator[str]:
        nonlocal written
        yield "</think>Hello"
        for _ in range(20_000 if "slowly" in ask.text else 3):
            written += len(long)
            yield long

    async def test() -> None:
        slowly = request(stream=True, messages=[{"role": "user", "content": "slowly"}])
        loop = asyncio.get_running_loop()

        async def read_slowly(port: int) -> bytes:
            last = b""
            with socket.socket() as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                client.setblocking(False)
                await loop.sock_connect(client, ("127.0.0.1", port))
                await loop.sock_sendall(client, slowly)
                while not over.is_set():
                    last = await loop.sock_recv(client, 1)
                    await asyncio.sleep(0.1)
            return last

        async with served(play, concurrency=200, timeout=3.0) as server:
            server.expected.add("ASGI callable returned without completing response")
            over, before, begun = asyncio.Event(), resident(), time.monotonic()
            readers = [asyncio.ensure_future(read_slowly(server.port)) for _ in range(100)]
            await until(lambda: server.engine.running == 100)
            async with server.client() as client:
                for stream in (True, False):
                    answer = await client.post(ROUTE, json=body(stream=stream))
                    assert answer.status_code == 200
                    assert long in answer.text
            assert time.monotonic() - begun < 3.0
            assert server.engine.running == 100
            assert resident() - before < 48 * 2**20
            await until(lambda: server.idle)
            assert server.engine.left == 100
            # The engine is not asked for what nobody reads.
            assert written < 100 * 100 * len(long)
            over.set()
            await asyncio.gather(*readers)

    run(test)


@pytest.mark.usefixtures("small_buffers")
@pytest.mark.parametrize("end", ["the client leaves", "the request's time is over", "it is waited for no longer"])
@pytest.mark.parametrize("engine", [Scripted, SlowToLeave, FailsWhenLeft])
def test_a_client_that_reads_nothing(engine: type[Scripted], end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    leaves = end == "the client leaves"
    times = {"the request's time is over": {"timeout": 0.5}, "it is waited for no longer": {"stall": 0.5}}
    monkeypatch.setattr(exchange, "LAST_WORDS", 0.1)

    async def test() -> None:
        pieces = ["</think>Hello", *["x" * 20_000] * 1_000]
        async with served(engine(lambda ask: pieces), **times.get(end, {})) as server:
            if not leaves:
                server.expected.add("ASGI callable returned without completing response")
            async with asked(server.port, request(stream=True)) as (reader, writer):
                await reader.readuntil(b"Hello")
                assert isinstance(writer.transport, asyncio.Transport)
                writer.transport.pause_reading()
                await asyncio.sleep(0.3)
                assert server.engine.running == 1
                if not leaves:
                    await until(lambda: server.idle, 2)
            await until(lambda: server.idle, SOON)
            assert server.engine.left == 1
            assert statuses(server) == ({"499": 1} if leaves else {"200": 1})

    run(test)


async def drained(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """How many chunks a stream had, and its end."""
    count, last = 0, b""
    while piece := await reader.read(2**16):
        count += piece.count(b"data: ")
        last = last[-200:] + piece
    return count, last


class Long(Scripted):
    """An engine that writes 100,000 pieces as fast as they are read, and marks how much memory is taken."""

    marks: ClassVar[list[int]] = []

    async def complete(self, ask: Ask) -> Answer:
        yield Piece("</think>")
        for place in range(100_000):
            if place in (20_000, 99_999):
                self.marks.append(resident())
            yield Piece("word ")
        yield End("stop")


def test_a_long_stream_takes_no_memory() -> None:
    engine = Long(lambda ask: [])

    async def test() -> None:
        async with served(engine) as server, asked(server.port, request(stream=True)) as (reader, _):
            count, last = await drained(reader)
            assert DONE in last
            assert count > 100_000
        first, last_mark = engine.marks
        assert last_mark - first < 16 * 2**20

    run(test)


@contextlib.asynccontextmanager
async def watched() -> AsyncIterator[list[float]]:
    """The longest time in seconds for which the event loop did nothing else."""
    longest = [0.0]

    async def tick() -> None:
        before = time.monotonic()
        while True:
            await asyncio.sleep(0.002)
            now = time.monotonic()
            longest[0], before = max(longest[0], now - before), now

    task = asyncio.ensure_future(tick())
    await asyncio.sleep(0.01)
    longest[0] = 0.0
    try:
        yield longest
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def probabilities(count: int, most: int = 0) -> tuple[Logprob, ...]:
    other = Alternative("word", -1.0, b"word", 7)
    return (Logprob("word", -1.0, b"word", 7, (other,) * most),) * count


LARGE: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "2,000 messages": (
        {
            "messages": [
                {"role": role, "content": "Wetter in Zürich, and more of it. " * 60}
                for role in ("user", "assistant") * 1_000
            ]
        },
        ["</think>Hello"],
    ),
    "one message": ({"messages": [{"role": "user", "content": 'a "quoted" line\n' * 250_000}]}, ["</think>Hello"]),
    "a long answer": (
        {"logprobs": True, "top_logprobs": 20},
        [Piece("word ", (7,), 1, probabilities(1, 20))] * 20_000,
    ),
    "an answer in one piece": (
        {"return_token_ids": True},
        [Piece("", tuple(300 + place % 200 for place in range(500_000)), 500_000)],
    ),
}


@pytest.fixture
def frozen() -> Iterator[None]:
    """The garbage collector looks at nothing that was there before, as in a server of its own."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("frozen")
@pytest.mark.parametrize("name", LARGE)
def test_nothing_large_holds_up_the_others(name: str) -> None:
    asking, pieces = LARGE[name]

    engine = Scripted(lambda ask: pieces, takes_ids=True)
    codec = codec_of_ids() if "return_token_ids" in asking else CODEC

    async def test() -> None:
        async with served(engine, codec=codec) as server:
            sent = request(**asking)
            async with watched() as longest, asked(server.port, sent) as (reader, _):
                answer = await reader.read()
            assert b" 200 " in answer[:20]
            assert longest[0] < 0.5

    run(test)


# -- the server itself


def test_an_error_of_the_servers_own_is_told_without_what_is_inside() -> None:
    async def test() -> None:
        for before in ([], ["</think>Hello", 0.02]):
            play = [*before, ValueError("secret 123")]
            async with served(lambda ask, play=play: play) as server, server.client() as client:
                server.expected.add("request ")
                answer = await client.post(ROUTE, json=body())
                assert answer.status_code == 500
                assert_error(answer.json(), "secret", "ValueError")
                answer = await client.post(ROUTE, json=body(stream=True))
                if before:
                    assert content(assert_broken_stream(answer.text, "secret", "ValueError")) == "Hello"
                else:
                    assert answer.status_code == 500
                assert [str(record.exc_info[1]) for record in server.log if record.exc_info] == ["secret 123"] * 2

    run(test)


class Ailing(Scripted):
    failure: Exception | None = None
    checks = 0
    slow = False

    async def check(self) -> None:
        self.checks += 1
        if self.slow:
            await asyncio.sleep(60)
        if self.failure is not None:
            raise self.failure


def test_health_asks_the_engine_once_for_all_and_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "CHECK_TIMEOUT", 0.2)

    async def test() -> None:
        engine = Ailing(lambda ask: [])
        engine.slow = True
        async with served(engine, api_keys=("key",)) as server, server.client() as client:
            answers = await asyncio.gather(*(client.get("/health") for _ in range(20)))
            assert {answer.status_code for answer in answers} == {503}
            assert engine.checks == 1

    run(test)


def test_requests_without_a_key_hold_up_nobody() -> None:
    """Routes that are open read no body, and do not count among the requests that are bounded."""

    async def test() -> None:
        async with served(lambda ask: ["</think>Hi"], api_keys=("key",), concurrency=1, queue=1) as server:
            head = "GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"
            async with contextlib.AsyncExitStack() as stack:
                for _ in range(100):
                    await stack.enter_async_context(asked(server.port, head.encode()))
                async with server.client() as client:
                    answer = await client.post(ROUTE, json=body(), headers={"Authorization": "Bearer key"})
                assert answer.status_code == 200

    run(test)


def test_health_is_the_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "CHECK_LASTS", 0.0)

    async def test() -> None:
        engine = Ailing(lambda ask: [])
        async with served(engine) as server, server.client() as client:
            assert (await client.get("/health")).status_code == 200
            for failure in (EngineUnreachable("no connection"), EngineTimeout("late"), EngineBusy("loading")):
                engine.failure = failure
                answer = await client.get("/health")
                assert answer.status_code == 503
                assert_error(answer.json())
            engine.failure = None
            assert (await client.get("/health")).status_code == 200

    run(test)


# -- the stop

SERVER = """
import asyncio, socket, sys
sys.path.insert(0, TESTS)
import chatcodec
from chatcodec.gateway import Gateway, Settings, exchange, serving
from chatcodec.gateway.serving import listen, logging_to_stderr, serve
from scripted import Scripted

exchange.LAST_WORDS = serving.GRACE = 0.5

async def main(pieces, pause, drain):
    engine = Scripted(lambda ask: ["</think>Hello", *[pause, " you"] * pieces])
    gateway = Gateway(chatcodec.load("intellect-3"), engine, Settings(models=("m",), concurrency=1_000))
    with logging_to_stderr("warning"), listen("127.0.0.1", 0) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8_192)
        ready = lambda: print(listener.getsockname()[1], flush=True)
        await serve(gateway, listener, drain=drain, ready=ready)
    assert not engine.running

asyncio.run(main(PIECES, PAUSE, DRAIN))
"""


@contextlib.asynccontextmanager
async def process(pieces: int, pause: float, drain: float) -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
    """A server in a process of its own, that writes so many pieces; and its port."""
    values = {"TESTS": str(Path(__file__).parent), "PIECES": pieces, "PAUSE": pause, "DRAIN": drain}
    code = "\n".join(f"{name} = {value!r}" for name, value in values.items()) + textwrap.dedent(SERVER)
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=pipe, stderr=pipe)
    assert child.stdout is not None
    try:
        yield child, int(await child.stdout.readline())
    finally:
        if child.returncode is None:
            child.kill()
        await child.communicate()


async def ended(child: asyncio.subprocess.Process) -> str:
    """What the process, which ends well, said of errors."""
    _, log = await child.communicate()
    assert child.returncode == 0, log.decode()
    return log.decode()


async def begin(port: int, count: int, **more: Any) -> list[asyncio.Task[bytes]]:
    """Requests, of which the streams have begun: what comes of them."""
    begun = [asyncio.Event() for _ in range(count)]

    async def one(event: asyncio.Event) -> bytes:
        async with asked(port, request(**more)) as (reader, _):
            first = b""
            if more.get("stream"):
                first = await reader.readuntil(b"Hello")
            event.set()
            return first + await reader.read()

    tasks = [asyncio.create_task(one(event)) for event in begun]
    await asyncio.gather(*(event.wait() for event in begun))
    return tasks


async def refused(port: int) -> bool:
    """Whether a new request is: by no connection, or by 503."""
    try:
        async with asked(port, request()) as (reader, _):
            answer = await reader.read()
    except ConnectionError:
        return True
    return not answer or b" 503 " in answer.split(b"\r\n")[0]


def test_at_a_stop_running_requests_are_finished_and_new_ones_refused() -> None:
    async def test() -> None:
        async with process(20, 0.05, drain=30) as (child, port):
            streams, wholes = await begin(port, 20, stream=True), await begin(port, 20)
            await asyncio.sleep(0.1)
            child.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.1)
            for _ in range(4):
                assert await refused(port)
                await asyncio.sleep(0.05)
            for stream in await asyncio.gather(*streams):
                *chunks, last = events(unchunked(stream))
                assert last == "[DONE]"
                assert content(chunks) == "Hello" + " you" * 20
            for whole in await asyncio.gather(*wholes):
                message = json.loads(whole.partition(b"\r\n\r\n")[2])["choices"][0]["message"]
                assert message["content"] == "Hello" + " you" * 20
            assert await ended(child) == ""

    run(test)


@pytest.mark.parametrize("twice", [False, True])
def test_what_runs_on_too_long_or_is_told_twice_is_cut_and_told_so(twice: bool) -> None:
    async def test() -> None:
        async with process(5_000, 0.02, drain=60 if twice else 0.3) as (child, port):
            streams, wholes = await begin(port, 20, stream=True), await begin(port, 5)
            sending = asyncio.create_task(send_slowly(port))
            await asyncio.sleep(0.1)
            child.send_signal(signal.SIGTERM)
            if twice:
                await asyncio.sleep(0.3)
                assert not any(task.done() for task in streams)
                child.send_signal(signal.SIGTERM)
            begun = time.monotonic()
            for stream in await asyncio.gather(*streams):
                assert content(assert_broken_stream(unchunked(stream))).startswith("Hello")
                assert stream.endswith(b"0\r\n\r\n")
            for whole in [*await asyncio.gather(*wholes), await sending]:
                assert b" 503 " in whole.split(b"\r\n")[0]
                assert_error(json.loads(whole.partition(b"\r\n\r\n")[2]))
            assert await ended(child) == ""
            assert time.monotonic() - begun < 5

    async def send_slowly(port: int) -> bytes:
        async with asked(port, request()[:-10]) as (reader, _):
            return await reader.read()

    run(test)


def test_a_second_stop_waits_for_no_reader() -> None:
    async def test() -> None:
        async with (
            process(1_000_000, 0, drain=60) as (child, port),
            asked(port, request(stream=True)) as (reader, writer),
        ):
            await reader.readuntil(b"Hello")
            assert isinstance(writer.transport, asyncio.Transport)
            writer.transport.pause_reading()
            await asyncio.sleep(1)
            for _ in range(2):
                child.send_signal(signal.SIGTERM)
                await asyncio.sleep(0.2)
            assert await asyncio.wait_for(child.wait(), 10) == 0

    run(test)
