"""`find_engine`: what kind of server is at a URL, and the adapter for it."""

from __future__ import annotations

import re
from typing import Any

import httpx2

from .connection import IDLE_TIMEOUT, Connection
from .engine import (
    Engine,
    EngineAnswerInvalid,
    EngineError,
    EngineRefused,
    EngineTimeout,
    EngineUnreachable,
)
from .failures import NotFound
from .llama_cpp import LlamaCpp, beginning_of, context_in, props_of
from .openai import OpenAI
from .sglang import SGLang
from .vllm import Vllm

KINDS = ("llama.cpp", "vllm", "sglang", "openai")

_PROBE_TIMEOUT = 10.0


async def find_engine(
    url: str,
    *,
    kind: str | None = None,
    api_key: str | None = None,
    model: str | None = None,
    idle_timeout: float = IDLE_TIMEOUT,
) -> Engine:
    """The engine at `url`, with or without `/v1` at its end. It is asked what it is, unless `kind`, one of `KINDS`,
    says it. `model` is needed only where the server has several.

    Raises `EngineError` where there is no engine, `EngineBusy` where it still loads its model.
    """
    if kind is not None and kind not in KINDS:
        raise EngineError(f"there is no kind of engine {kind!r}: name one of {', '.join(KINDS)}")
    connection = Connection(_base(url), api_key=api_key, idle_timeout=idle_timeout)
    probe = _Probe(connection, model)
    try:
        return await probe.engine(kind)
    except (EngineUnreachable, EngineTimeout) as error:
        await connection.close()
        raise type(error)(f"{error} (tried {probe.tried} at {connection.base}){_hint(kind)}") from None
    except BaseException:
        await connection.close()
        raise


def _hint(kind: str | None) -> str:
    named = f"; or name the kind of engine, one of {', '.join(KINDS)}, to skip the search" if kind is None else ""
    return f": start the engine first, or give its right URL{named}"


def _base(url: str) -> str:
    try:
        parsed = httpx2.URL(url)
    except httpx2.InvalidURL:
        raise EngineError(f"the engine's URL is none: {_shown(url)!r}") from None
    if parsed.scheme not in ("http", "https") or not parsed.host or parsed.query or parsed.fragment:
        raise EngineError(f"the engine's URL must look like http://127.0.0.1:8080, not {_shown(url)!r}")
    base = str(parsed).rstrip("/")
    for route in ("/chat/completions", "/completions", "/v1"):
        base = base.removesuffix(route).rstrip("/")
    return base


def _shown(url: str) -> str:
    """Without a user and a password."""
    return re.sub(r"^([a-z]+://)?.*@", r"\1", url, flags=re.I | re.S)


class _Probe:
    def __init__(self, connection: Connection, model: str | None) -> None:
        self._connection = connection
        self._model = model
        self._tried: list[str] = []

    @property
    def tried(self) -> str:
        return ", ".join(self._tried) or "nothing yet"

    async def engine(self, kind: str | None) -> Engine:
        makers = {"llama.cpp": self._llama_cpp, "vllm": self._vllm, "sglang": self._sglang}
        for name, make in makers.items():
            if kind in (None, name):
                found = await make(kind == name)
                if found is not None:
                    return found
        return await self._openai(kind == "openai")

    async def _llama_cpp(self, sure: bool) -> Engine | None:
        self._tried.append("/props")
        props = await props_of(self._connection, timeout=_PROBE_TIMEOUT)
        if not props and not sure:
            return None
        beginning = await beginning_of(self._connection, timeout=_PROBE_TIMEOUT)
        return LlamaCpp(self._connection, context=context_in(props), beginning=beginning)

    async def _vllm(self, sure: bool) -> Engine | None:
        models = await self._models("vllm" if not sure else None)
        if not models and not sure:
            return None
        name = self._choose(models)
        return Vllm(self._connection, model=name, context=_context_of(models, name))

    async def _sglang(self, sure: bool) -> Engine | None:
        info = await self._get("/get_model_info") or await self._get("/model_info")
        if "is_generation" not in info and not sure:
            return None
        server = await self._get("/get_server_info") or await self._get("/server_info")
        models = await self._models(None)
        context = _positive(server.get("context_length")) or _context_of(models, None)
        return SGLang(self._connection, context=context, incremental=server.get("incremental_streaming_output") is True)

    async def _openai(self, sure: bool) -> Engine:
        models = await self._listed()
        if models is None and not sure:
            raise EngineError(
                f"what answers at {self._connection.base} is no engine that is known (tried {self.tried}): give the "
                f"engine's URL, or name its kind, one of {', '.join(KINDS)}"
            )
        self._check_kind(models or [])
        name = self._choose(models or [])
        context = _context_of(models or [], name)
        return OpenAI(self._connection, model=name, context=context, lists_models=models is not None)

    async def _models(self, owner: str | None) -> list[dict[str, Any]]:
        """The models that the server lists: all, or those of one owner."""
        models = await self._listed() or []
        return [model for model in models if owner is None or model.get("owned_by") == owner]

    async def _listed(self) -> list[dict[str, Any]] | None:
        """None where the server lists no models."""
        listed = (await self._get("/v1/models")).get("data")
        return [_object(item) for item in listed] if isinstance(listed, list) else None

    def _check_kind(self, models: list[dict[str, Any]]) -> None:
        if any(model.get("owned_by") == "chatcodec" for model in models):
            raise EngineError("there is a chatcodec server, which chats, at that URL: give the engine's behind it")

    def _choose(self, models: list[dict[str, Any]]) -> str | None:
        names = [model["id"] for model in models if isinstance(model.get("id"), str)]
        if self._model is not None and names and self._model not in names:
            raise EngineError(f"the engine has no model {self._model!r}; it has {', '.join(names[:10])}")
        return self._model if self._model is not None else next(iter(names), None)

    async def _get(self, path: str) -> dict[str, Any]:
        """The object that a route answers; empty where there is no such route, or it answers something else."""
        self._tried.append(path)
        try:
            return _object(await self._connection.get(path, timeout=_PROBE_TIMEOUT))
        except (NotFound, EngineRefused, EngineAnswerInvalid):
            return {}


def _context_of(models: list[dict[str, Any]], name: str | None) -> int | None:
    for model in models:
        if name is None or model.get("id") == name:
            return _positive(model.get("max_model_len")) or _positive(_object(model.get("meta")).get("n_ctx"))
    return None


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _positive(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
