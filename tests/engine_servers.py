"""A server of the tests' own that answers HTTP as it is told to the byte: in pieces, late, cut off, or not at all."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

EXCHANGES = Path(__file__).parent / "exchanges"


@dataclass(frozen=True)
class Reply:
    """`parts` are sent one by one, `wait` seconds late. After them the body ends, or with `cut` the connection breaks,
    or with `hang` nothing comes any more."""

    parts: Sequence[bytes] = ()
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: bool = False
    hang: bool = False
    wait: float = 0.0


HANGS = Reply(status=0, hang=True)
"""Not even a status."""


def stream(text: str | bytes, *, size: int | None = None, **how: Any) -> Reply:
    """A body of server-sent events, in parts of `size` bytes."""
    content = text.encode() if isinstance(text, str) else text
    size = size or max(len(content), 1)
    return Reply([content[at : at + size] for at in range(0, len(content), size)], **how)


def told(value: Any, status: int = 200, **headers: str) -> Reply:
    """A body of JSON."""
    return Reply([json.dumps(value).encode()], status, {name.replace("_", "-"): headers[name] for name in headers})


def exchange(name: str, *, size: int | None = None, **how: Any) -> Reply:
    """What is written in a file."""
    return stream((EXCHANGES / name).read_bytes(), size=size, **how)


def event(value: Any) -> str:
    return f"data: {value if isinstance(value, str) else json.dumps(value)}\n\n"


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: Any


class Server:
    """Answers each route as `routes` says, one reply after the other where there are several; all others are not
    found."""

    def __init__(self, routes: Mapping[str, Reply | list[Reply]]) -> None:
        self.routes = routes
        self.requests: list[Request] = []
        self.left = asyncio.Event()
        """A client went away while its answer was not over."""
        self.url = ""

    def asked(self, path: str) -> Request:
        return next(request for request in self.requests if request.path == path)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await _request(reader)
            self.requests.append(request)
            reply = self.routes.get(request.path, told({"detail": "Not Found"}, 404))
            await self._reply(reply.pop(0) if isinstance(reply, list) else reply, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            self.left.set()
        finally:
            writer.close()

    async def _reply(self, reply: Reply, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(reply.wait)
        if reply.status:
            fields = {"transfer-encoding": "chunked", "connection": "close"} | dict(reply.headers)
            head = [f"HTTP/1.1 {reply.status} Some", *(f"{name}: {value}" for name, value in fields.items())]
            writer.write("\r\n".join([*head, "", ""]).encode())
        for part in reply.parts:
            writer.write(b"%x\r\n%b\r\n" % (len(part), part))
            await writer.drain()
            await asyncio.sleep(0)
        if reply.hang:
            await reader.read()
            self.left.set()
        elif not reply.cut:
            writer.write(b"0\r\n\r\n")
            await writer.drain()


async def _request(reader: asyncio.StreamReader) -> Request:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().rstrip().split("\r\n")
    method, path, _ = first.split()
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    length = int(headers.get("content-length", 0))
    return Request(method, path, headers, json.loads(await reader.readexactly(length)) if length else None)


@asynccontextmanager
async def serving(routes: Mapping[str, Reply | list[Reply]]) -> AsyncIterator[Server]:
    server = Server(routes)
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(server.answer(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    listening = await asyncio.start_server(accept, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listening.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await listening.wait_closed()
