"""The gate in front of the engine: so many answers at once, so many waiting, and the rest is told to come again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from .errors import saturated


class Gate:
    """`places` answers run at once; `queue` requests wait for one, in their order, each at most `patience` seconds."""

    def __init__(self, places: int, queue: int, patience: float) -> None:
        self.places = places
        self._queue = queue
        self._patience = patience
        self._taken = 0
        self._waiting: dict[asyncio.Future[None], int] = {}

    @property
    def running(self) -> int:
        return self._taken

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @asynccontextmanager
    async def enter(self, places: int = 1) -> AsyncGenerator[None, None]:
        """Holds `places` places, at most all that there are. Raises `ApiError` 429 where the wait is too long."""
        places = min(places, self.places)
        await self._take(places)
        try:
            yield
        finally:
            self._give(places)

    async def _take(self, places: int) -> None:
        if not self._waiting and self._taken + places <= self.places:
            self._taken += places
            return
        if len(self._waiting) >= self._queue:
            raise saturated(f"{self._taken} answers are being written and {len(self._waiting)} requests wait", 1)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[turn] = places
        try:
            async with asyncio.timeout(self._patience):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self._give(places)
            else:
                self._waiting.pop(turn, None)
                self._wake()
            if isinstance(error, TimeoutError):
                raise saturated(f"no place became free within {self._patience:g} s", self._patience) from None
            raise

    def _give(self, places: int) -> None:
        self._taken -= places
        self._wake()

    def _wake(self) -> None:
        for turn, places in list(self._waiting.items()):
            if self._taken + places > self.places:
                break
            del self._waiting[turn]
            if not turn.cancelled():
                self._taken += places
                turn.set_result(None)
