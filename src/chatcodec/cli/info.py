"""`chatcodec info` and `chatcodec format`: what is known of a template."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from typing import Any

from .. import view
from ..codec import Codec
from ..tokens.vocabularies.finding import find_tokenizer
from ..turn.document import to_document
from ..turn.explain import explain
from .command import Command, screen_options, source_options, turn_options, variable_options
from .outputs import json_block, json_line, save, screen
from .request import load_codec, turn_variables


def info(arguments: argparse.Namespace) -> int:
    codec = load_codec(arguments)
    source = codec.source
    assert source is not None, "load always tells the source"
    facts: dict[str, Any] = {
        "name": source.name,
        "found": source.found,
        "template_name": source.template_name,
        "templates": list(source.templates),
        "special_tokens": dict(source.special_tokens),
        "stops": list(source.stops),
        "stop_ids": list(source.stop_ids),
        "variables": list(codec.variables),
        "tokenizer": _engine(codec),
    }
    if arguments.json:
        sys.stdout.write(json_line({**facts, "capabilities": dataclasses.asdict(codec.capabilities)}))
        return 0
    rows = [(name.replace("_", " "), _told(value)) for name, value in facts.items()]
    takes = [(label, str(value)) for label, value in codec.capabilities.lines()]
    width = max(len(label) for label, _ in rows + takes)
    for heading, part in (("", rows), ("what the template takes", takes)):
        sys.stdout.write(f"\n{heading}\n" if heading else "")
        sys.stdout.writelines(f"{label:{width}}  {view.safe(value)}\n" for label, value in part)
    return 0


def _engine(codec: Codec) -> str | None:
    """What encodes: the library in use, None where no tokenizer stands beside the template."""
    found = find_tokenizer(codec.source.path) if codec.source and codec.source.path else None
    return found.engine if found else None


def _told(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, dict):
        return ", ".join(f"{name} {text}" for name, text in value.items()) or "none"
    return value if isinstance(value, str) else ", ".join(map(str, value)) or "none"


def format(arguments: argparse.Namespace) -> int:
    codec = load_codec(arguments, with_format=True)
    turn = codec.format_with(**turn_variables(codec, arguments.set))
    if arguments.output is not None:
        save(arguments.output, json_block(to_document(turn)))
    elif arguments.json:
        sys.stdout.write(json_block(to_document(turn)))
    else:
        view.show_format(screen(arguments), explain(turn))
    return 0


def _info_options(parser: argparse.ArgumentParser) -> None:
    source_options(parser)
    parser.add_argument("--json", action="store_true", help="as a JSON object")


def _format_options(parser: argparse.ArgumentParser) -> None:
    source_options(parser)
    variable_options(parser)
    turn_options(parser)
    parser.add_argument(
        "--json", action="store_true", help="as a JSON document, to be saved, edited, and given to --format"
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write that document to this file")
    screen_options(parser)


INFO = Command(
    name="info",
    run=info,
    add_options=_info_options,
    summary="tell what is known of a template",
    description="""\
Tells where a template was found, its special tokens and stops, the variables that it reads,
and what it takes: found out by rendering small conversations.""",
    examples="""\
  chatcodec info step3-vl
  chatcodec info ~/models/my-model --template tool_use
  chatcodec info model.gguf --json | jq .capabilities.tools""",
)

FORMAT = Command(
    name="format",
    run=format,
    add_options=_format_options,
    summary="tell how the assistant's turn is written",
    description="""\
Tells how the assistant's turn is written: what opens and closes reasoning, where content stands,
how tool calls and their arguments are written, what ends the turn. It is read off the template,
by rendering small conversations and comparing them.

Quotes hold what is written literally; a word in capitals stands for what the message says:
R its reasoning, C its content. (…)* comes any number of times, X+ once or more.

A format that cannot be derived, or that shall be another, is given by hand: save one, edit it,
look at it with --format, and decode with --format.""",
    examples="""\
  chatcodec format step3-vl
  chatcodec format ~/models/my-model --set enable_thinking=false
  chatcodec format my-model/chat_template.jinja -o turn.json
  chatcodec format my-model/chat_template.jinja --format turn.json""",
)
