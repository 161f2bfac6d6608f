"""`chatcodec show` and `chatcodec demo`: prompts, and what else a format does, for people to look at."""

from __future__ import annotations

import argparse
import sys

from .. import view
from ..demo import walk
from ..errors import ChatCodecError
from .command import Command, input_options, screen_options
from .inputs import conversation, documents
from .outputs import say, screen
from .request import Request


def show(arguments: argparse.Namespace) -> int:
    request = Request.of(arguments)
    out = screen(arguments)
    failed = False
    for document in documents(arguments.conversation, lines=arguments.lines):
        if document.many:
            out.line(view.Styled(f"── {view.safe(document.where)}", "bold"))
        try:
            given = conversation(document)
            prompt = request.encode(given, document.where)
        except ChatCodecError as error:
            if not document.many:
                raise
            failed = True
            sys.stdout.flush()
            say("error", error)
        else:
            view.show(out, prompt, given.messages)
        if document.many:
            out.line()
    return 1 if failed else 0


def demo(arguments: argparse.Namespace) -> int:
    walk(screen(arguments), arguments.formats)
    return 0


def _show_options(parser: argparse.ArgumentParser) -> None:
    input_options(parser)
    screen_options(parser)


def _demo_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "formats",
        metavar="FORMAT",
        nargs="*",
        help="a built-in format, or any other source. Default: all built-in formats",
    )
    screen_options(parser)


SHOW = Command(
    name="show",
    run=show,
    add_options=_show_options,
    summary="show a prompt, coloured by who wrote what",
    description="""\
Shows the prompt with every piece coloured by who wrote it: the template, the system, the user,
the assistant, a tool's result, a tool's definition, or another variable; then what was dropped.
Without colours a gutter names the writer.

⏎ is a line end, ⇥ a tab, ␣ a space at an end, ⟨U+001B⟩ a character that cannot be shown.
A line without ⏎ goes on in the next one.""",
    examples="""\
  chatcodec show step3-vl conversation.json
  chatcodec show my-model conversation.json --color always | less -R
  chatcodec show my-model conversation.json --no-generation-prompt --color never""",
)

DEMO = Command(
    name="demo",
    run=demo,
    add_options=_demo_options,
    summary="show one conversation in the built-in formats, both ways",
    description="""\
Shows one conversation (a system message, reasoning, two parallel tool calls with their results,
an answer and the next question) in each format, and what the format cannot carry. Then the way
back: how a turn is written, as derived from the template; the assistant's turn as a model would
write it, decoded piece by piece; and the decoded message, encoded again.""",
    examples="""\
  chatcodec demo
  chatcodec demo step3-vl telechat3
  chatcodec demo ~/models/my-model""",
)
