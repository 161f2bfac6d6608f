"""What the server does when clients leave, read slowly or are many, and when it is told to stop: measured figures.

Run by `benchmarks/gateway.py`. The gateway is a process of its own for each part, with the engine of the tests inside,
which plays what a prompt asks for; the clients are this process. Memory and descriptors are the gateway's, read from
/proc after its garbage collector has run.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import multiprocessing
import os
import random
import re
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from scripted import Scripted, said

import chatcodec
from chatcodec.gateway import Gateway, Settings
from chatcodec.gateway.engines import Answer, Ask
from chatcodec.gateway.serving import listen, serve

FORMAT = "intellect-3"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "book",
            "parameters": {"type": "object", "properties": {"number": {"type": "integer"}, "name": {"type": "string"}}},
        },
    }
]
VERDICTS = ("whole", "mixed up", "lost", "error")
DONE = b"data: [DONE]\n\n"
MEGABYTE = 2**20
PATIENCE = 30.0
SLOW_READERS = 100
PAUSE = 0.002
"""Seconds before each piece of the answers to a crowd."""
LATEST = 0.1
"""Seconds within which a client leaves that leaves after a time."""


# -- the engine, and the gateway's process


def message_of(number: int) -> list[dict[str, Any]]:
    return [{"role": "user", "content": f"Say the number {number}."}]


def message_for(pieces: int, size: int, pause: float, number: int = 0) -> list[dict[str, Any]]:
    """Asks for so many pieces of so many characters, each after a pause."""
    return [{"role": "user", "content": f"{pieces} pieces of {size} after {pause} s, number {number}."}]


class Player(Scripted):
    """Plays what the prompt asks for, and knows when each answer of pieces ended, and how much it wrote."""

    def __init__(self, codec: chatcodec.Codec) -> None:
        super().__init__(self._play)
        self.written = 0
        self.ends: dict[int, float] = {}
        calls = [
            {"type": "function", "id": name, "function": {"name": "book", "arguments": {"number": 77077, "name": name}}}
            for name in "ab"
        ]
        message = {"role": "assistant", "content": "It is 77077.", "tool_calls": calls}
        self._calls = codec.compose(message, tools=TOOLS)

    def _play(self, ask: Ask) -> Iterator[Any]:
        if wanted := re.search(r"(\d+) pieces of (\d+) after ([\d.]+) s", ask.text):
            return self._pieces(int(wanted[1]), int(wanted[2]), float(wanted[3]))
        return self._number(str(number_in(ask.text)), calls="book" in ask.text)

    def _number(self, number: str, *, calls: bool) -> Iterator[Any]:
        for piece in said(self._calls.replace("77077", number), 9) if calls else ("</think>It", " is ", number, "."):
            yield PAUSE
            yield piece

    def _pieces(self, pieces: int, size: int, pause: float) -> Iterator[Any]:
        yield "</think>Hello"
        for _ in range(pieces):
            if pause:
                yield pause
            self.written += size
            yield "x" * size

    async def complete(self, ask: Ask) -> Answer:
        try:
            async with aclosing(super().complete(ask)) as items:
                async for item in items:
                    yield item
        finally:
            self.asks.clear()
            if "pieces" in ask.text:
                self.ends[number_in(ask.text)] = time.monotonic()


def number_in(text: str) -> int:
    found = re.search(r"number (\d+)\.", text)
    assert found is not None
    return int(found[1])


@dataclass(frozen=True)
class State:
    """What the gateway's process says of itself."""

    idle: bool
    tasks: int
    finished: int
    left: int
    written: int
    ends: dict[int, float]


def serve_until_stopped(control: Connection, concurrency: int, drain: float) -> None:
    asyncio.run(gateway(control, concurrency, drain))


async def gateway(control: Connection, concurrency: int, drain: float) -> None:
    """Serves, tells its port on `control`, and its state whenever something comes there."""
    codec = chatcodec.load(FORMAT)
    engine = Player(codec)
    app = Gateway(codec, engine, Settings(models=("m",), concurrency=concurrency))
    loop = asyncio.get_running_loop()

    def tell() -> None:
        try:
            control.recv()
        except EOFError:
            loop.remove_reader(control.fileno())
            signal.raise_signal(signal.SIGTERM)
            return
        gc.collect()
        idle = not (engine.running or app.gate.running or app.gate.waiting or app.records.running)
        tasks = len(asyncio.all_tasks(loop))
        control.send(State(idle, tasks, engine.finished, engine.left, engine.written, dict(engine.ends)))

    loop.add_reader(control.fileno(), tell)
    with listen("127.0.0.1", 0) as listener:
        await serve(app, listener, drain=drain, ready=lambda: control.send(listener.getsockname()[1]))


@dataclass(frozen=True)
class Served:
    process: SpawnProcess
    port: int
    control: Connection

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    @property
    def state(self) -> State:
        self.control.send(None)
        state: State = self.control.recv()
        return state

    @property
    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    @property
    def memory(self) -> float:
        """Megabytes."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / MEGABYTE

    async def settled(self, descriptors: int) -> State:
        """Its state when it has nothing to do and no more is open than that, or when that does not come about."""
        await until(lambda: self.state.idle and self.descriptors <= descriptors)
        return self.state


async def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not true() and time.monotonic() < end:
        await asyncio.sleep(0.05)


@contextlib.contextmanager
def served(concurrency: int, drain: float = 1.0) -> Iterator[Served]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = multiprocessing.Pipe()
    process = context.Process(target=serve_until_stopped, args=(theirs, concurrency, drain), daemon=True)
    process.start()
    theirs.close()
    try:
        yield Served(process, ours.recv(), ours)
    finally:
        process.terminate()
        process.join()
        ours.close()


# -- clients


def request(**more: Any) -> bytes:
    data = json.dumps({"model": "m", **more}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


@contextlib.asynccontextmanager
async def asked(port: int, sent: bytes) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection on which something was sent; it is cut off at the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(sent)
        yield reader, writer
    finally:
        writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def answer_to(port: int, sent: bytes) -> bytes:
    """All that came; nothing where the connection broke."""
    with contextlib.suppress(ConnectionError):
        async with asked(port, sent) as (reader, _):
            return await reader.read()
    return b""


def unchunked(body: bytes) -> bytes:
    """What stands in HTTP's chunks, as far as it came."""
    whole = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        whole += body[: int(size, 16)]
        body = body[int(size, 16) + 2 :]
    return whole


def events(stream: bytes) -> list[dict[str, Any]]:
    lines = [line[6:] for line in stream.split(b"\n") if line.startswith(b"data: ")]
    return [json.loads(line) for line in lines if line != b"[DONE]"]


def verdict(answer: bytes, more: dict[str, Any], expected: list[Any]) -> str:
    """Which of `VERDICTS` an answer is."""
    head, _, body = answer.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        return "error" if head else "lost"
    if not more["stream"]:
        try:
            told = [message_told(choice["message"]) for choice in json.loads(body)["choices"]]
        except ValueError:
            return "lost"
        return "whole" if told == expected else "mixed up"
    stream = unchunked(body)
    if not stream.endswith(DONE):
        return "error" if b'data: {"error"' in stream else "lost"
    return "whole" if told_in(events(stream), more["n"]) == expected else "mixed up"


def told_in(chunks: list[dict[str, Any]], count: int) -> list[Any]:
    """What each of the answers of a stream says."""
    messages: list[dict[str, Any]] = [{"content": "", "tool_calls": []} for _ in range(count)]
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        message, delta = messages[choice["index"]], choice["delta"]
        message["content"] += delta.get("content") or ""
        for call in delta.get("tool_calls", ()):
            if call["index"] == len(message["tool_calls"]):
                message["tool_calls"].append({"function": {"arguments": ""}})
            message["tool_calls"][call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    return [message_told(message) for message in messages]


def message_told(message: dict[str, Any]) -> Any:
    calls = [json.loads(call["function"]["arguments"]) for call in message.get("tool_calls", ())]
    return (message["content"] or "").strip(), calls


# -- what is printed


def title(text: str, *columns: str) -> None:
    print("\n" + f"{text:70}{''.join(f'{column:>10}' for column in columns)}".rstrip(), flush=True)


def line(name: str, *values: float | str) -> None:
    print(f"  {name:68}{''.join(f'{shown(value):>10}' for value in values)}".rstrip(), flush=True)


def shown(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def part_of(values: list[float], hundredths: int) -> float:
    """In milliseconds."""
    return sorted(values)[min(len(values) - 1, len(values) * hundredths // 100)] * 1e3


# -- a crowd, half of which leaves


async def crowd(requests: int) -> None:
    with served(concurrency=16) as server:
        await play_crowd(server.port, requests // 10, set())
        await server.settled(server.descriptors)
        rounds = [await crowd_figures(server, requests, seed) for seed in (5, 6)]
    title(f"{requests:,} requests, 64 at once, {requests // 2:,} left by their client", "first", "once more")
    for name in rounds[0]:
        line(name, *(figures[name] for figures in rounds))


async def crowd_figures(server: Served, requests: int, seed: int) -> dict[str, float]:
    chance = random.Random(seed)
    before, descriptors, memory = server.state, server.descriptors, server.memory
    begun = time.perf_counter()
    verdicts = await play_crowd(server.port, requests, set(chance.sample(range(requests), requests // 2)), chance)
    seconds = time.perf_counter() - begun
    after = await server.settled(descriptors)
    return {
        **{f"answers of those that stay: {name}": verdicts[name] for name in VERDICTS},
        "the engine's answers: finished": after.finished - before.finished,
        "the engine's answers: left": after.left - before.left,
        "tasks before": before.tasks,
        "tasks after": after.tasks,
        "descriptors before": descriptors,
        "descriptors after": server.descriptors,
        "memory before, MB": memory,
        "memory after, MB": server.memory,
        "seconds": seconds,
    }


async def play_crowd(port: int, requests: int, leavers: set[int], chance: random.Random | None = None) -> Counter[str]:
    """Verdicts on the answers of those that stay."""
    chance = chance or random.Random(0)
    numbers, verdicts = iter(range(requests)), Counter[str]()

    async def client() -> None:
        for number in numbers:
            more = of_number(number)
            if number in leavers:
                await leave(port, request(**more), chance)
            else:
                verdicts[verdict(await answer_to(port, request(**more)), more, expected_of(number, more))] += 1

    await asyncio.gather(*(client() for _ in range(64)))
    return verdicts


def of_number(number: int) -> dict[str, Any]:
    """A request of one of several kinds: streamed, with tools, for two answers."""
    tools = {"tools": TOOLS} if number % 5 < 2 else {}
    return {"messages": message_of(number), "stream": number % 2 == 0, "n": 1 + (number % 3 == 0), **tools}


def expected_of(number: int, more: dict[str, Any]) -> list[Any]:
    calls = [{"number": number, "name": name} for name in "ab"] if "tools" in more else []
    return [(f"It is {number}.", calls)] * more["n"]


async def leave(port: int, sent: bytes, chance: random.Random) -> None:
    """Leaves after a random time, or after a random part of the answer."""
    with contextlib.suppress(ConnectionError):
        async with asked(port, sent) as (reader, _):
            if chance.random() < 0.5:
                await asyncio.sleep(chance.random() * LATEST)
            else:
                await reader.read(chance.randint(1, 3_000))


# -- slow readers


async def slow_readers(requests: int) -> None:
    with served(concurrency=2 * SLOW_READERS) as server:
        await latencies(server.port, 20)
        alone = await latencies(server.port, requests)
        rounds = [await slow_figures(server, requests) for _ in range(2)]
    title(f"{SLOW_READERS} clients that read 10 KB a second of a stream of 40 MB", "first", "once more")
    line(f"{requests:,} requests of others, one after the other, alone: p50, ms", part_of(alone, 50))
    line("the same alone: p99, ms", part_of(alone, 99))
    for name in rounds[0]:
        line(name, *(figures[name] for figures in rounds))


async def slow_figures(server: Served, requests: int) -> dict[str, float]:
    descriptors = server.descriptors
    written = (await server.settled(descriptors)).written
    memory = server.memory
    readers = [asyncio.create_task(read_slowly(server.port)) for _ in range(SLOW_READERS)]
    await filled(server)
    full, each = server.memory, (server.state.written - written) / MEGABYTE / SLOW_READERS
    meanwhile = await latencies(server.port, requests)
    running, later = SLOW_READERS - sum(task.done() for task in readers), server.memory
    for task in readers:
        task.cancel()
    await asyncio.gather(*readers, return_exceptions=True)
    await server.settled(descriptors)
    return {
        "the same meanwhile, all buffers full: p50, ms": part_of(meanwhile, 50),
        "the same meanwhile: p99, ms": part_of(meanwhile, 99),
        "slow readers that are served to the last": running,
        "written by the engine for each of them until the buffers were full, MB": each,
        "memory before, MB": memory,
        "memory more than that, MB: all buffers full": full - memory,
        "memory more than that: after the requests of others": later - memory,
        "memory more than that: the readers have left": server.memory - memory,
    }


async def latencies(port: int, requests: int) -> list[float]:
    """Seconds of requests for a short answer, every second one streamed."""
    times = []
    for number in range(requests):
        more = {"messages": message_for(4, 4, 0), "stream": number % 2 == 0, "n": 1}
        begun = time.perf_counter()
        answer = await answer_to(port, request(**more))
        times.append(time.perf_counter() - begun)
        if verdict(answer, more, [("Hello" + "x" * 16, [])]) != "whole":
            raise ValueError(f"no whole answer: {answer!r}")
    return times


async def read_slowly(port: int) -> None:
    loop = asyncio.get_running_loop()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        client.setblocking(False)
        await loop.sock_connect(client, ("127.0.0.1", port))
        await loop.sock_sendall(client, request(stream=True, messages=message_for(20_000, 2_000, 0)))
        while await loop.sock_recv(client, 1_024):
            await asyncio.sleep(0.1)


async def filled(server: Served) -> None:
    """Waits until the engine writes for the readers no more than they read."""
    begun = written = server.state.written
    more = 0
    while written == begun or more > MEGABYTE:
        await asyncio.sleep(0.5)
        state = server.state
        written, more = state.written, state.written - written


# -- clients that leave


async def leavers(requests: int) -> None:
    rows = []
    for name, pause in (("while tokens come, every 10 ms", 0.01), ("while none comes", 60.0)):
        with served(concurrency=64) as server:
            descriptors = server.descriptors
            left: dict[int, float] = {}
            numbers = iter(range(requests // 2))
            await asyncio.gather(*(leave_streams(server.port, numbers, pause, left) for _ in range(8)))
            state = await server.settled(descriptors)
            times = [state.ends[number] - moment for number, moment in left.items() if number in state.ends]
            rows.append((name, len(left) - len(times), part_of(times, 50), part_of(times, 99), max(times) * 1e3))
    title(f"{requests:,} clients leave their stream: ms to the end of the engine's work", "p50", "p99", "most", "never")
    for name, never, *figures in rows:
        line(name, *figures, never)


async def leave_streams(port: int, numbers: Iterator[int], pause: float, left: dict[int, float]) -> None:
    for number in numbers:
        sent = request(stream=True, messages=message_for(1_000, 4, pause, number))
        async with asked(port, sent) as (reader, _):
            await reader.readuntil(b"Hello")
            await asyncio.sleep(random.random() * 0.03)
            left[number] = time.monotonic()


# -- the stop


async def stop(streams: int) -> None:
    endless, drain = streams // 4, 3.0
    begun = [asyncio.Event() for _ in range(streams)]
    with served(concurrency=1_000, drain=drain) as server:
        running = [
            asyncio.create_task(stream_of(server.port, 5_000 if place < endless else 20 + place % 50, event))
            for place, event in enumerate(begun)
        ]
        await asyncio.gather(*(event.wait() for event in begun))
        os.kill(server.pid, signal.SIGTERM)
        told = time.perf_counter()
        await asyncio.sleep(0.2)
        late = [await answer_to(server.port, request(messages=message_of(number))) for number in range(20)]
        ends = Counter(await asyncio.gather(*running))
        await asyncio.to_thread(server.process.join, PATIENCE)
        seconds, code = time.perf_counter() - told, server.process.exitcode
    title(f"SIGTERM under load; running requests have {drain:g} s")
    line("streams that run", streams)
    line(f"of which end by themselves in time (the other {endless} do not)", streams - endless)
    line("finished whole", ends["whole"])
    line("ended by an error event", ends["error"])
    line("cut in silence", ends["cut"])
    line("new requests, of 20, that were refused", sum(not answer or b" 503 " in answer[:20] for answer in late))
    line("exit code", "none" if code is None else code)
    line("seconds from the signal to the process's end", seconds)


async def stream_of(port: int, pieces: int, begun: asyncio.Event) -> str:
    """How a stream ended: "whole", by an "error", or "cut"."""
    answer = b""
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        async with asked(port, request(stream=True, messages=message_for(pieces, 4, 0.02))) as (reader, _):
            answer = await reader.readuntil(b"Hello")
            begun.set()
            answer += await reader.read()
    body = unchunked(answer.partition(b"\r\n\r\n")[2])
    if body.endswith(DONE):
        return "whole" if body.count(b"xxxx") == pieces else "cut"
    return "error" if b'data: {"error"' in body else "cut"


# -- a long stream


async def long_stream(tokens: int) -> None:
    tenth = tokens // 10
    moments: list[float] = []
    memory: list[float] = []
    with served(concurrency=1) as server:
        await answer_to(server.port, request(stream=True, messages=message_for(tenth, 4, 0)))
        async with asked(server.port, request(stream=True, messages=message_for(tokens, 4, 0))) as (reader, _):
            count, last = 0, b""
            while piece := await reader.read(2**16):
                count += (last[-3:] + piece).count(b"xxxx")
                last = last[-100:] + piece
                if count >= len(moments) * tenth:
                    moments.append(time.perf_counter())
                    memory.append(server.memory)
        if count != tokens or DONE not in last:
            raise ValueError(f"no whole answer: {count} tokens … {last!r}")
    first, final = moments[1] - moments[0], moments[10] - moments[9]
    title(f"{tokens:,} tokens in one stream")
    line("microseconds a token: first tenth", first / tenth * 1e6)
    line("last tenth", final / tenth * 1e6)
    line("memory when it begins, MB", memory[0])
    line("more when it ends, MB", memory[-1] - memory[0])


async def faults(*, quick: bool) -> None:
    """Prints all of it."""
    await crowd(500 if quick else 2_000)
    await slow_readers(100 if quick else 500)
    await leavers(50 if quick else 200)
    await stop(32 if quick else 128)
    await long_stream(20_000 if quick else 100_000)
