"""What a command is, and the options that several share."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any, NamedTuple

from .inputs import RESERVED


class Command(NamedTuple):
    name: str
    run: Callable[[argparse.Namespace], int]
    add_options: Callable[[argparse.ArgumentParser], None]
    summary: str
    description: str
    examples: str


def source_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source",
        metavar="SOURCE",
        help="a model's folder, a template (.jinja), a tokenizer_config.json, a .gguf, or a built-in format's name",
    )
    parser.add_argument(
        "--template", metavar="NAME", help="the template to take, where the source has several (see info)"
    )


def input_options(parser: argparse.ArgumentParser) -> None:
    source_options(parser)
    parser.add_argument(
        "conversation",
        metavar="CONVERSATION",
        help="a JSON file: a list of messages, or an object with 'messages', 'tools' and template variables (also in "
        "'chat_template_kwargs'); - reads standard input",
    )
    parser.add_argument("--tools", metavar="FILE", help="a JSON list of tools, in place of the conversation's own")
    variable_options(parser)
    parser.add_argument(
        "--generation-prompt",
        action=argparse.BooleanOptionalAction,
        help="whether to open the assistant's turn at the end; otherwise the conversation's 'add_generation_prompt' "
        "decides, and without one the turn is opened",
    )
    parser.add_argument(
        "--strict", action="store_true", help="fail where the template would drop a part of the input silently"
    )
    parser.add_argument(
        "--lines",
        action="store_true",
        help="read JSON lines, one conversation a line, whatever the file's name (.jsonl and .ndjson are always read "
        "so, and other input whose first line is a whole conversation and not the last line)",
    )


def variable_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        metavar="NAME=VALUE",
        type=assignment,
        action="append",
        default=[],
        help="a template variable; the value is JSON, or else text (--set enable_thinking=false)",
    )


def tokenizer_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tokenizer",
        metavar="PATH",
        help="the tokenizer that makes the token ids: a model's folder, or a file (tokenizer.json, a .gguf, …). "
        "Default: the one beside the template",
    )


def ids_options(parser: argparse.ArgumentParser) -> None:
    tokenizer_option(parser)
    parser.add_argument(
        "--special-in-content",
        choices=("text", "error", "allow"),
        default="text",
        help="what a control token's spelling in a message becomes: the tokens of that text; an error; or the control "
        "token, as other libraries have it. Default: text",
    )


def turn_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--format",
        metavar="FILE",
        help="take the turn format of this file, which 'chatcodec format' writes and people edit, in place of the one "
        "that the template shows",
    )


def screen_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--color",
        "--colour",
        choices=("auto", "always", "never"),
        default="auto",
        help="auto colours on a terminal; NO_COLOR, FORCE_COLOR and CLICOLOR_FORCE are honoured",
    )
    parser.add_argument(
        "--width", type=int, metavar="COLUMNS", help="where to wrap, 0 for nowhere. Default: the terminal's width"
    )


PYTHON_VALUES = {"True": True, "False": False, "None": None}


def assignment(text: str) -> tuple[str, Any]:
    """`name=value`, the value as JSON if it is that, or one of Python's `True`, `False` and `None`."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"NAME=VALUE is wanted, not {text!r}")
    if name in RESERVED:
        raise argparse.ArgumentTypeError(f"{name!r} is no template variable: it is {RESERVED[name]}")
    if value in PYTHON_VALUES:
        return name, PYTHON_VALUES[value]
    try:
        return name, json.loads(value)
    except (ValueError, RecursionError):
        return name, value
