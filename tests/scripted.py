"""An engine of the tests' own: it plays answers that are written down, token by token.

`Scripted` is an `Engine` inside the process; `serving` runs a gateway, or any ASGI application, on a port.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import uvicorn

from chatcodec.gateway.engines.engine import Answer, Ask, End, Piece

Play = Callable[[Ask], Iterable[Any] | AsyncIterator[Any]]
"""What is played for a prompt: pieces (`Piece`, or a text, or a list of ids), numbers (seconds to wait), exceptions to
raise, and an `End`; without one, the answer ends with "stop"."""


@dataclass
class Scripted:
    """Plays `play(ask)`, and remembers what it was asked, how many answers run, and how many were left."""

    play: Play
    takes_ids: bool = False
    context: int | None = None
    name: str = "scripted"
    asks: list[Ask] = field(default_factory=list)
    running: int = 0
    most_running: int = 0
    finished: int = 0
    left: int = 0
    closed: bool = False

    async def complete(self, ask: Ask) -> Answer:
        self.asks.append(ask)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        whole = False
        try:
            count = 0
            async for item in _each(self.play(ask)):
                await asyncio.sleep(0)
                match item:
                    case Exception():
                        raise item
                    case int() | float():
                        await asyncio.sleep(item)
                        continue
                    case str():
                        item = Piece(item)
                    case list():
                        item = Piece("", tuple(item), len(item))
                if isinstance(item, End):
                    whole = True
                    yield item
                    return
                count += item.tokens
                yield item
            whole = True
            yield End("stop", completion_tokens=count)
        finally:
            self.running -= 1
            self.finished += whole
            self.left += not whole

    async def ids_of(self, text: str) -> list[int] | None:
        return None

    async def check(self) -> None:
        pass

    async def close(self) -> None:
        self.closed = True


async def _each(items: Iterable[Any] | AsyncIterator[Any]) -> AsyncIterator[Any]:
    if isinstance(items, AsyncIterator):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item


@contextlib.asynccontextmanager
async def serving(app: Any) -> AsyncGenerator[str]:
    """The application on a port of the loopback; says its address."""
    config = uvicorn.Config(app, log_config=None, lifespan="off", ws="none")
    server = uvicorn.Server(config)
    with socket.socket(proto=socket.IPPROTO_TCP) as listener:  # asyncio sets TCP_NODELAY only where it is named
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        task = asyncio.create_task(server._serve([listener]))
        while not server.started:
            await asyncio.sleep(0.005)
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.should_exit = True
            await task


def said(text: str, size: int = 3) -> Sequence[str]:
    """A text in pieces of so many characters."""
    return [text[place : place + size] for place in range(0, len(text), size)]
