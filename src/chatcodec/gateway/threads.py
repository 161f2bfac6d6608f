"""Work of the processor in threads of its own, so that the event loop stays free."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

# Few, since they share one interpreter with the event loop; and not asyncio's own, which looks up the engine's address.
_POOL = ThreadPoolExecutor(3, thread_name_prefix="chatcodec")


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What the work comes to. It cannot be stopped: when this is cancelled it is waited for, so that a place that is
    held around it is held as long as it takes."""
    future = asyncio.get_running_loop().run_in_executor(_POOL, partial(work, *args, **kwargs))
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        if not future.cancel():
            with suppress(Exception):
                await asyncio.wait((future,))
                future.exception()
        raise
