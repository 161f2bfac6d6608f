"""`chatcodec show` and `chatcodec demo`: prompts, and what else a format does, for people to look at."""

from __future__ import annotations

import argparse
import sys

from .. import view
from ..demo import walk
from ..errors import ChatCodecError
from .command import Command, ids_options, input_options, screen_options
from .inputs import conversation, documents
from .outputs import say, screen
from .request import Request, check_tokenizer, named
from .tokens import show_tokens, shown_tokens


def show(arguments: argparse.Namespace) -> int:
    request = Request.of(arguments)
    if arguments.tokens or arguments.ids:
        check_tokenizer(request.codec)
    out = screen(arguments)
    failed = False
    for document in documents(arguments.conversation, lines=arguments.lines):
        if document.many:
            out.line(view.Styled(f"── {view.safe(document.where)}", "bold"))
        try:
            given = conversation(document)
            prompt = request.encode(given, document.where)
            if arguments.tokens or arguments.ids:
                with named(document.where):
                    shown = shown_tokens(prompt, request.codec.tokenizer)
        except ChatCodecError as error:
            if not document.many:
                raise
            failed = True
            sys.stdout.flush()
            say("error", error)
        else:
            if arguments.tokens or arguments.ids:
                show_tokens(out, prompt, shown, given.messages, ids=arguments.ids)
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
    parser.add_argument(
        "--tokens",
        action="store_true",
        help="show the tokens: by whom they were written, in which message's turn, and which the model writes",
    )
    parser.add_argument("--ids", action="store_true", help="the same, one token a line, with its id")
    ids_options(parser)
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
A line without ⏎ goes on in the next one.

With --tokens, each line shows tokens, with a space between them: ␣ is a space of the text, ⟨E4:BD⟩
bytes of a token that holds a part of a character. In front stand the number of the first token, the
writer, the place of the message in whose turn they stand, and ● where the model writes them (is
sampled, and trained): such tokens are underlined in colours. Where the template's own generation
tag marks others, that is told at the end.""",
    examples="""\
  chatcodec show step3-vl conversation.json
  chatcodec show my-model conversation.json --color always | less -R
  chatcodec show ~/models/my-model conversation.json --tokens
  chatcodec show step3-vl conversation.json --ids --tokenizer tokenizer.json | grep '●'
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
