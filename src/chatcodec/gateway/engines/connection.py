"""`Connection`: HTTP to one engine, with every failure as an `EngineError`."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Any

import httpx2

from .engine import (
    EngineAnswerInvalid,
    EngineError,
    EngineRefused,
    EngineTimeout,
    EngineUnreachable,
)
from .failures import body_of, failure, retry_after
from .fields import as_object, parse
from .server_events import ServerEvents

CONNECT_TIMEOUT = 5.0
IDLE_TIMEOUT = 300.0
CHECK_TIMEOUT = 5.0
ANSWER_LIMIT = 64 << 20
ERROR_LIMIT = 64 << 10


class Connection:
    """`base` is the engine's URL without a path of the API; `idle_timeout` is how long it may say nothing.

    A user and a password in the URL are sent, unless there is a key, and never shown.

    Each request has a connection of its own: a kept one may be closed by the engine just as it is used again, which
    fails a request that must not be sent twice, and it occupies a thread of llama.cpp's server.
    """

    def __init__(self, base: str, *, api_key: str | None = None, idle_timeout: float = IDLE_TIMEOUT) -> None:
        headers = {"Accept-Encoding": "identity", "Connection": "close"}
        if api_key is not None:
            headers["Authorization"] = f"Bearer {api_key}"
        url = httpx2.URL(base)
        self.base = str(url.copy_with(userinfo=b"")).rstrip("/")
        self._patient = httpx2.Timeout(idle_timeout, connect=min(CONNECT_TIMEOUT, idle_timeout), read=None)
        self._client = httpx2.AsyncClient(
            headers=headers,
            auth=(url.username, url.password) if url.userinfo and api_key is None else None,
            timeout=httpx2.Timeout(idle_timeout, connect=min(CONNECT_TIMEOUT, idle_timeout)),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=0),
            follow_redirects=False,
            trust_env=False,
        )

    async def get(self, path: str, *, timeout: float | None = None) -> Any:
        """The JSON that a GET answers; None for an empty body."""
        return await self._exchange("GET", path, None, timeout)

    async def check(self, path: str) -> None:
        """Asks a route that answers at once when the engine is ready."""
        await self.get(path, timeout=CHECK_TIMEOUT)

    async def post(self, path: str, body: dict[str, Any], *, timeout: float | None = None) -> Any:
        """The JSON that a POST answers; None for an empty body. With a `timeout` of infinity it is waited for."""
        return await self._exchange("POST", path, body, timeout)

    @asynccontextmanager
    async def events(self, path: str, body: dict[str, Any]) -> AsyncIterator[AsyncIterator[str]]:
        """The data of the server-sent events that a POST answers. Leaving the context closes the connection."""
        async with self._opened("POST", path, body, None) as response, aclosing(_events(response)) as events:
            yield events

    async def close(self) -> None:
        await self._client.aclose()

    async def _exchange(self, method: str, path: str, body: dict[str, Any] | None, timeout: float | None) -> Any:
        async with self._opened(method, path, body, timeout) as response:
            content = await _read(response, ANSWER_LIMIT)
        if len(content) > ANSWER_LIMIT:
            raise EngineAnswerInvalid(f"the engine's answer is longer than {ANSWER_LIMIT >> 20} MiB")
        return parse(content) if content else None

    @asynccontextmanager
    async def _opened(
        self, method: str, path: str, body: dict[str, Any] | None, timeout: float | None
    ) -> AsyncIterator[httpx2.Response]:
        """A response whose status says that all is well."""
        if self._client.is_closed:
            raise EngineUnreachable("the connection to the engine is closed")
        try:
            request = self._client.build_request(method, self.base + path, json=body, timeout=self._limit(timeout))
        except ValueError:
            raise EngineRefused("the request has a value that JSON cannot say") from None
        with _failures():
            response = await self._client.send(request, stream=True)
        try:
            if response.status_code != 200:
                content = await _read(response, ERROR_LIMIT)
                wait = retry_after(response.headers.get("retry-after"))
                raise failure(response.status_code, body_of(content[:ERROR_LIMIT]), wait)
            yield response
        finally:
            await response.aclose()

    def _limit(self, timeout: float | None) -> httpx2.Timeout:
        if timeout is None:
            return self._client.timeout
        return self._patient if math.isinf(timeout) else httpx2.Timeout(timeout)


def event_object(data: str) -> dict[str, Any]:
    """The object of an event; what it says of an error is raised."""
    event = as_object(parse(data), "an event")
    if event.get("error"):
        raise failure(None, event)
    return event


async def _events(response: httpx2.Response) -> AsyncGenerator[str, None]:
    reader = ServerEvents()
    async with aclosing(_chunks(response)) as chunks:
        async for chunk in chunks:
            for event in reader.feed(chunk):
                yield event


async def _chunks(response: httpx2.Response) -> AsyncGenerator[bytes, None]:
    async with aclosing(response.aiter_raw()) as stream:
        while True:
            with _failures():
                chunk = await anext(stream, None)
            if chunk is None:
                return
            yield chunk


async def _read(response: httpx2.Response, limit: int) -> bytes:
    """The body, and no more of it than tells that it is longer than `limit`."""
    content = bytearray()
    async with aclosing(_chunks(response)) as chunks:
        async for chunk in chunks:
            content += chunk[: limit + 1 - len(content)]
            if len(content) > limit:
                break
    return bytes(content)


@contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except httpx2.ConnectTimeout:
        raise EngineUnreachable("the engine cannot be reached: it does not answer") from None
    except httpx2.ConnectError:
        raise EngineUnreachable("the engine cannot be reached: no connection") from None
    except httpx2.TimeoutException:
        raise EngineTimeout("the engine said nothing for too long") from None
    except (httpx2.TransportError, httpx2.StreamError):
        raise EngineUnreachable("the connection to the engine broke") from None
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise EngineError(f"the engine cannot be asked: {type(error).__name__}") from None
