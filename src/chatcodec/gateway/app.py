"""The server as an ASGI application: its routes, and what they are answered by."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from starlette.routing import Route, Router
from starlette.types import ASGIApp

from ..codec import Codec
from . import inspection
from .chat import Chat
from .engines.engine import Engine, EngineError
from .errors import ApiError, unavailable, unknown_model
from .exchange import Endpoint, Exchange, Handler, Stopping
from .gate import Gate
from .inspection import Inspection
from .metrics import Metrics
from .openapi import description
from .preparing import Preparing
from .records import Records
from .requests import ParseRequest, RenderRequest, TokenizeRequest
from .settings import Settings

OPEN = frozenset(("/health", "/metrics", "/openapi.json"))
"""What may be asked without a key, and while the server is stopping."""
INSPECTING, INSPECTIONS_WAITING = 1, 64
"""Requests to the codec alone that are worked on at once, and that wait: chats come first."""
CHECK_TIMEOUT = 5.0
CHECK_LASTS = 1.0
"""Seconds for which what was found out of the engine's health counts."""


class Gateway:
    """A server for one template in front of one engine; `app` is the ASGI application. Whoever started the engine
    closes it.

    Raises `ChatCodecError` where no turn can be read off the template.
    """

    def __init__(self, codec: Codec, engine: Engine, settings: Settings) -> None:
        self._engine = engine
        self._settings = settings
        self._created = int(time.time())
        self._checking = asyncio.Lock()
        self._checked = -CHECK_LASTS
        self._fault: str | None = None
        self.stopping = Stopping()
        self.metrics = Metrics()
        self.records = Records(self.metrics, log_messages=settings.log_messages)
        self.gate = Gate(settings.concurrency, settings.queue, settings.queue_timeout)
        self.preparing = Preparing(codec, settings, takes_ids=engine.takes_ids, context=engine.context)
        self.preparing.warm_up()
        self.metrics.watch("chatcodec_running", "Requests that are worked on.", lambda: self.records.running)
        self.metrics.watch("chatcodec_answers_running", "Answers that the engine writes.", lambda: self.gate.running)
        self.metrics.watch("chatcodec_waiting", "Requests that wait for the engine.", lambda: self.gate.waiting)
        self.app: ASGIApp = Router(
            self._routes(),
            redirect_slashes=False,
            default=self._endpoint("other", None, _unknown),
        )

    def _routes(self) -> list[Route]:
        settings, preparing = self._settings, self.preparing
        inspecting = Gate(INSPECTING, INSPECTIONS_WAITING, settings.queue_timeout)
        tokenize = Inspection(TokenizeRequest, inspection.tokenize, preparing, inspecting, settings)
        render = Inspection(RenderRequest, inspection.render, preparing, inspecting, settings)
        parse = Inspection(ParseRequest, inspection.parse, preparing, inspecting, settings)
        handlers: list[tuple[str, str, Handler]] = [
            ("POST", "/v1/chat/completions", Chat(preparing, self._engine, self.gate, settings)),
            ("GET", "/v1/models", self._models),
            ("GET", "/v1/models/{model}", self._model),
            ("POST", "/tokenize", tokenize),
            ("POST", "/render", render),
            ("POST", "/parse", parse),
            ("GET", "/health", self._health),
            ("GET", "/metrics", self._show_metrics),
            ("GET", "/openapi.json", self._openapi),
        ]
        return [
            # A model's name may hold a slash.
            Route(path.replace("{model}", "{model:path}"), self._endpoint(path, method, handler))
            for method, path, handler in handlers
        ]

    def _endpoint(self, path: str, method: str | None, handler: Handler) -> Endpoint:
        return Endpoint(
            path,
            method,
            handler,
            self._settings,
            self.stopping,
            self.records,
            guarded=path not in OPEN,
        )

    # -- routes that need no room of their own

    async def _models(self, exchange: Exchange, body: bytes) -> None:
        models = [self._described(model) for model in self._settings.models]
        await exchange.reply({"object": "list", "data": models})

    async def _model(self, exchange: Exchange, body: bytes) -> None:
        model = exchange.params["model"]
        if model not in self._settings.models:
            raise unknown_model(model, self._settings.models)
        await exchange.reply(self._described(model))

    def _described(self, model: str) -> dict[str, Any]:
        return {
            "id": model,
            "object": "model",
            "created": self._created,
            "owned_by": "chatcodec",
            "root": self._settings.models[0],
            "max_model_len": self._engine.context,
        }

    async def _health(self, exchange: Exchange, body: bytes) -> None:
        """Whether chats can be answered now: 200, or 503 with the reason."""
        reason = "the server is stopping" if self.stopping.begun else await self._engine_fault()
        if reason is not None:
            raise unavailable(reason)
        await exchange.reply({"status": "ok", "engine": self._engine.name})

    async def _engine_fault(self) -> str | None:
        """What is wrong with the engine; it is asked once for all who want to know at a time."""
        async with self._checking:
            if time.monotonic() - self._checked > CHECK_LASTS:
                self._fault = None
                try:
                    async with asyncio.timeout(CHECK_TIMEOUT):
                        await self._engine.check()
                except TimeoutError:
                    self._fault = "the engine is not ready: it does not answer"
                except EngineError as error:
                    self._fault = f"the engine is not ready: {error}"
                self._checked = time.monotonic()
            return self._fault

    async def _show_metrics(self, exchange: Exchange, body: bytes) -> None:
        await exchange.reply_bytes(self.metrics.text(), kind=self.metrics.kind)

    async def _openapi(self, exchange: Exchange, body: bytes) -> None:
        await exchange.reply(description(self._settings))


async def _unknown(exchange: Exchange, body: bytes) -> None:
    raise ApiError(
        404, "there is no such route (is /v1 missing?); /openapi.json lists those that there are", code="unknown_url"
    )
