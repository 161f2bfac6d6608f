"""Starts a server as the command line says: engine, codec, gateway, port."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from ..codec import Codec
from . import trial
from .app import Gateway
from .engines import Embedded, Engine, EngineBusy, EngineError, EngineUnreachable, find_engine
from .engines.embedded import embedded_model
from .preparing import Preparing
from .serving import listen, serve
from .settings import EMBEDDED, Settings

LOGGER = logging.getLogger("chatcodec.gateway")
PROBE = "The quick brown fox, 12345 naïve cafés; 東京 🦙\ndef f(x):\n    return [x]"
"""What tells one vocabulary from another."""
_PAUSE = 1.0
_SAY_EVERY = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineChoice:
    """Which engine, and how it is reached. `url` may be "embedded"; `model_file`, `context`, `parallel` and `threads`
    are that one's, the rest is of a server. Times are in seconds."""

    url: str
    kind: str | None = None
    model: str | None = None
    key: str | None = None
    wait: float = 0.0
    timeout: float = 300.0
    model_file: Path | None = None
    context: int = 4096
    parallel: int = 4
    threads: int | None = None

    @property
    def is_embedded(self) -> bool:
        return self.url == EMBEDDED

    @property
    def embedded_file(self) -> Path:
        """The model of the embedded engine. Raises `EngineError` where there is none."""
        return self.model_file or embedded_model()

    async def start(self) -> Engine:
        """Raises `EngineError`."""
        if not self.is_embedded:
            return await _waiting(self._find, self.wait)
        return await Embedded.start(
            self.embedded_file,
            context=self.context,
            n_parallel=self.parallel,
            threads=self.threads,
            idle_timeout=self.timeout,
        )

    async def _find(self) -> Engine:
        return await find_engine(
            self.url, kind=self.kind, api_key=self.key, model=self.model, idle_timeout=self.timeout
        )


async def _waiting(find: Callable[[], Awaitable[Engine]], wait: float) -> Engine:
    """The engine, for which it is waited while it starts."""
    until = time.monotonic() + wait
    tried = 0
    while True:
        try:
            return await find()
        except (EngineBusy, EngineUnreachable) as error:
            if time.monotonic() + _PAUSE > until:
                raise
            if tried % _SAY_EVERY == 0:
                LOGGER.warning("waiting for the engine: %s", error)
        tried += 1
        await asyncio.sleep(_PAUSE)


async def run(
    codec: Codec, choice: EngineChoice, settings: Settings, *, host: str, port: int, trying: bool = False
) -> None:
    """Serves until the process is told to stop. With `trying`, a chat with a tool is held first, and shown.

    Raises `EngineError`, `ChatCodecError`, and `OSError` where it cannot listen.
    """
    with listen(host, port) as listener:
        engine = await choice.start()
        try:
            gateway = await asyncio.to_thread(Gateway, codec, engine, settings)
            await check_vocabulary(gateway.preparing, engine)
            address = listener.getsockname()
            shown = f"[{address[0]}]" if ":" in address[0] else address[0]
            url = f"http://{shown}:{address[1]}"
            tasks: list[asyncio.Task[None]] = []

            def ready() -> None:
                _tell(url, gateway, engine, choice, settings)
                if trying:
                    key = next(iter(settings.api_keys), None)
                    tasks.append(asyncio.create_task(trial.hold(_reachable(url), settings.models[0], key)))

            await serve(gateway, listener, drain=settings.drain, ready=ready)
        finally:
            await engine.close()


async def check_vocabulary(preparing: Preparing, engine: Engine) -> None:
    """Raises `EngineError` where the tokenizer of the prompts is not the engine's: it would answer garbage."""
    told = await engine.ids_of(PROBE) if preparing.by_ids else None
    if told is None:
        return
    read, own = (preparing.read(ids).strip() for ids in (told, preparing.ids(PROBE)))
    if read != own:
        raise EngineError(
            f"the tokenizer here is not the engine's: what that makes of {own[:20]!r} reads {read[:20]!r}; give the "
            "model's own with --tokenizer"
        )


def _reachable(url: str) -> str:
    """An address for a server that listens everywhere."""
    return url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")


def _tell(url: str, gateway: Gateway, engine: Engine, choice: EngineChoice, settings: Settings) -> None:
    fields = {
        "url": f"{url}/v1",
        "models": settings.models,
        "key": bool(settings.api_keys),
        "engine": engine.name,
        "model_file": str(choice.embedded_file) if choice.is_embedded else None,
        "context": engine.context,
        "prompts": "ids" if gateway.preparing.by_ids else "text",
    }
    LOGGER.info("listening", extra={"fields": fields})
    if not engine.takes_ids:
        LOGGER.warning("prompts are sent as text: the engine takes no token ids")
    elif not gateway.preparing.by_ids:
        LOGGER.warning(
            "prompts are sent as text, without a tokenizer: a control token that is spelled in a message is taken for "
            "one; give --tokenizer"
        )
