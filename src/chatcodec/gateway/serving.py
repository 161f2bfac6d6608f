"""Runs a gateway on a port, until it is told to stop."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import uvicorn

from .app import Gateway
from .exchange import LAST_WORDS
from .records import JsonLines

GRACE = LAST_WORDS + 1
"""Seconds, behind those for running requests, in which cut ones are told so."""
KEPT = 65
"""Seconds that a connection is kept for the next request: longer than clients keep theirs, so that none sends a request
just as it is closed."""
MOST_CONNECTIONS = 8_192
SEND_BUFFER = 256 * 2**10
"""Bytes that the system keeps for a client that does not read."""
STUCK = 60
"""Seconds after which a connection is dropped that has sent no request, or takes no more of what it is still owed."""
_TICKS_A_SECOND = 10


class Server(uvicorn.Server):
    """uvicorn's server, which at the first signal lets running requests finish, and at the second cuts them off."""

    def __init__(self, config: uvicorn.Config, gateway: Gateway, drain: float) -> None:
        super().__init__(config)
        self._gateway = gateway
        self._drain = drain
        self._loop = asyncio.get_running_loop()
        self._owed: dict[asyncio.Transport, int] = {}

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._loop.call_soon_threadsafe(self.stop)

    def stop(self) -> None:
        if self._gateway.stopping.begun:
            self._cut()
            return
        self._gateway.stopping.begun = True
        self.should_exit = True
        self._loop.call_later(self._drain, self._cut)

    def _cut(self) -> None:
        self._gateway.stopping.cut.set()
        self._loop.call_later(GRACE, self._drop)

    def _drop(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    async def on_tick(self, counter: int) -> bool:
        if counter % (STUCK * _TICKS_A_SECOND) == 0:
            self._drop_stuck()
        return await super().on_tick(counter)

    def _drop_stuck(self) -> None:
        """Drops connections that nothing waits for any more, but that were as far one call ago."""
        owed: dict[asyncio.Transport, int] = {}
        for connection in list(self.server_state.connections):
            transport = connection.transport
            if transport.is_closing() or _waits(connection):
                owed[transport] = transport.get_write_buffer_size()
                if owed[transport] == self._owed.get(transport):
                    transport.abort()
        self._owed = owed


def _waits(connection: Any) -> bool:
    """Whether a connection has no request that is worked on, and no timer that ends its waiting for the next."""
    cycle = getattr(connection, "cycle", None)
    return cycle is None or (cycle.response_complete and connection.timeout_keep_alive_task is None)


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens. Raises `OSError`."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        listener.bind(address)
    except BaseException:
        listener.close()
        raise
    return listener


async def serve(gateway: Gateway, listener: socket.socket, *, drain: float, ready: Callable[[], None]) -> None:
    """Serves on `listener` until SIGINT or SIGTERM, then for `drain` seconds at most what still runs."""
    config = uvicorn.Config(
        gateway.app,
        log_config=None,
        access_log=False,
        server_header=False,
        ws="none",
        lifespan="off",
        timeout_keep_alive=KEPT,
        limit_concurrency=MOST_CONNECTIONS,
        timeout_graceful_shutdown=round(drain + 2 * GRACE),
    )
    server = Server(config, gateway, drain)
    task = asyncio.create_task(server.serve([listener]))
    while not server.started and not task.done():
        await asyncio.sleep(0.01)
    # What is there by now stays: the garbage collector, which stops everything while it looks, need not look at it.
    gc.collect()
    gc.freeze()
    try:
        if server.started:
            ready()
        await task
    finally:
        gc.unfreeze()


@contextmanager
def logging_to_stderr(level: str) -> Iterator[None]:
    """The log as lines of JSON on standard error, as long as the context lasts."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    loggers = [logging.getLogger(name) for name in ("chatcodec.gateway", "uvicorn")]
    before = [(logger.handlers, logger.propagate, logger.level) for logger in loggers]
    for logger in loggers:
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level.upper())
    try:
        yield
    finally:
        for logger, (handlers, propagate, number) in zip(loggers, before, strict=True):
            logger.handlers, logger.propagate = handlers, propagate
            logger.setLevel(number)
