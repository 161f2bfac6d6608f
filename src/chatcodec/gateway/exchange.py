"""One request and its answer on the wire: who may ask, what is sent, when it ends, and what is told of it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import aclosing, nullcontext, suppress
from ipaddress import ip_address
from typing import Any, NoReturn, TypeVar
from urllib.parse import urlsplit

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from . import errors, responses
from .bodies import read_body
from .errors import ApiError
from .records import Record, Records
from .requests import ChatRequest
from .responses import Answer
from .settings import Settings

T = TypeVar("T")

JSON = "application/json"
EVENTS = "text/event-stream; charset=utf-8"
LAST_WORDS = 5.0
"""Seconds in which a client that does not read can still be told of an error."""


class Stopping:
    """Whether the server is being stopped: `begun` refuses new requests, `cut` ends those that still run."""

    def __init__(self) -> None:
        self.begun = False
        self.cut = asyncio.Event()


class Exchange:
    """What a handler of requests is given to answer with."""

    def __init__(self, send: Send, record: Record, params: Mapping[str, str], stall: float) -> None:
        self._send = send
        self._stall = stall
        self.record = record
        self.params = params
        self.started = False
        self.over = False
        """All that there is to say is said."""

    def asked(self, asked: ChatRequest) -> None:
        self.record.request = asked

    def answering(self, answer: Answer) -> None:
        self.record.answer = answer

    async def reply(self, data: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        """A whole answer, as JSON."""
        await self.reply_bytes(msgspec.json.encode(data), status, headers)

    async def reply_bytes(
        self, body: bytes, status: int = 200, headers: Mapping[str, str] | None = None, *, kind: str = JSON
    ) -> None:
        await self._start(status, {"Content-Type": kind, "Content-Length": str(len(body)), **(headers or {})})
        await self._end(body)

    async def stream(self, pieces: AsyncGenerator[bytes]) -> None:
        """An answer as it comes. What is raised before the first piece is no part of it yet."""
        async with aclosing(pieces):
            async for piece in pieces:
                if not self.started:
                    await self._start(
                        200, {"Content-Type": EVENTS, "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
                    )
                try:
                    async with asyncio.timeout(self._stall):
                        await self._send({"type": "http.response.body", "body": piece, "more_body": True})
                except TimeoutError:
                    raise errors.timed_out("the client reads nothing of its stream") from None
        await self._end()

    async def fail(self, error: ApiError) -> None:
        """Tells the client of an error: by the status, or, in a stream, by an event after which nothing follows."""
        self.record.error = error
        if self.over:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS):
                if not self.started:
                    await self.reply(error.body, error.status, error.headers)
                elif self.record.streams:
                    await self._end(responses.error_event(error))

    async def _start(self, status: int, headers: Mapping[str, str]) -> None:
        self.started = True
        self.record.started(status)
        everything = {**headers, "X-Request-Id": self.record.id}
        pairs = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in everything.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": pairs})

    async def _end(self, body: bytes = b"") -> None:
        self.over = True
        await self._send({"type": "http.response.body", "body": body})


Handler = Callable[[Exchange, bytes], Coroutine[Any, Any, None]]


class Endpoint:
    """An ASGI application that answers one route by its handler, and lets nothing of it go wrong in silence."""

    def __init__(
        self,
        route: str,
        method: str | None,
        handler: Handler,
        settings: Settings,
        stopping: Stopping,
        records: Records,
        *,
        guarded: bool = True,
    ) -> None:
        self._route = route
        self._method = method
        self._handler = handler
        self._settings = settings
        self._stopping = stopping
        self._records = records
        self._guarded = guarded

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        with self._records.record(request, self._route) as record:
            exchange = Exchange(send, record, request.path_params, self._settings.stall)
            try:
                self._admit(request)
                with self._records.working() if self._guarded else nullcontext():
                    body = await self._body(request) if self._method == "POST" else b""
                    await self._work(exchange, body, receive)
            except ClientDisconnect:
                record.left()
            except Exception as failure:
                await exchange.fail(self._told(failure, record))

    def _admit(self, request: Request) -> None:
        """Raises `ApiError` for a request that need not be read."""
        if self._method is not None and request.method.replace("HEAD", "GET") != self._method:
            allowed = {"Allow": "GET, HEAD" if self._method == "GET" else self._method}
            raise ApiError(405, f"the method is {self._method} here", code="method_not_allowed", headers=allowed)
        if not self._guarded:
            return
        if self._settings.api_keys:
            self._check_key(request)
        else:
            self._check_page(request)
        if self._stopping.begun:
            raise errors.stopping()
        if self._records.worked_on >= self._settings.most_requests:
            raise errors.saturated(f"{self._records.worked_on} requests are worked on", 1)

    def _check_key(self, request: Request) -> None:
        # Headers are read as Latin-1, whatever their bytes are.
        scheme, _, key = request.headers.get("authorization", "").encode("latin-1").partition(b" ")
        known = [secrets.compare_digest(key.strip(), one.encode()) for one in self._settings.api_keys]
        if scheme.lower() != b"bearer" or not any(known):
            raise ApiError(
                401,
                "the API key is missing or wrong; give it in the header 'Authorization: Bearer KEY'",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )

    def _check_page(self, request: Request) -> None:
        """Without a key a web page could have its visitor's browser ask, also under a name of its own (rebinding)."""
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        hosts = self._settings.hosts
        if hosts is not None and not _is_address(host) and _without_port(host) not in hosts:
            raise ApiError(
                403,
                "this server does not know itself by that name: give it with --allow-host, or use a key (--api-key)",
                code="unknown_host",
            )
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            raise ApiError(403, "a web page may ask only with a key (--api-key)", code="foreign_origin")

    async def _body(self, request: Request) -> bytes:
        late = ApiError(408, "the body did not come in time", headers={"Connection": "close"})
        return await self._unless_ended(read_body(request, self._settings.limits), self._settings.body_timeout, late)

    async def _work(self, exchange: Exchange, body: bytes, receive: Receive) -> None:
        late = errors.timed_out("the request took too long", retry=False)
        await self._unless_ended(self._handler(exchange, body), self._settings.timeout, late, _left(exchange, receive))

    async def _unless_ended(
        self, work: Coroutine[Any, Any, T], seconds: float, late: ApiError, *ends: Coroutine[Any, Any, NoReturn]
    ) -> T:
        """What the work comes to; it is cancelled when its time is over, the server is cut off, or an end is raised."""
        task = asyncio.ensure_future(work)
        tasks = [task, *map(asyncio.ensure_future, (self._cut(), *ends))]
        try:
            done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if task in done:
            return task.result()
        for end in done:
            end.result()
        raise late

    async def _cut(self) -> NoReturn:
        await self._stopping.cut.wait()
        raise errors.stopping()

    def _told(self, failure: Exception, record: Record) -> ApiError:
        error = errors.of(failure)
        if error.status == 500:
            self._records.crashed(record, failure)
        return error


def _without_port(host: str) -> str:
    name, _, port = host.lower().rpartition(":")
    return name if port.isdigit() else host.lower()


def _is_address(host: str) -> bool:
    try:
        ip_address(_without_port(host).strip("[]"))
    except ValueError:
        return False
    return True


async def _left(exchange: Exchange, receive: Receive) -> NoReturn:
    """Raises when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass
    if exchange.over:
        # A server says the same when it has the whole answer: what is left to do is to clean up.
        await asyncio.get_running_loop().create_future()
    raise ClientDisconnect
