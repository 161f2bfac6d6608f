"""`chatcodec encode`: conversations to prompts."""

from __future__ import annotations

import argparse
import sys

from ..errors import ChatCodecError
from ..prompt import Prompt
from .command import Command, input_options
from .inputs import conversation, documents
from .outputs import Progress, json_line, say, write
from .request import Request


def run(arguments: argparse.Namespace) -> int:
    request = Request.of(arguments)
    failed = False
    with Progress("prompts") as progress:
        for document in documents(arguments.conversation, lines=arguments.lines):
            try:
                prompt = request.encode(conversation(document), document.where)
            except ChatCodecError as error:
                if not document.many:
                    raise
                failed = True
                progress.clear()
                say("error", error)
                sys.stdout.write("null\n")
            else:
                write(written(prompt, arguments.format, many=document.many))
            if document.many:
                progress.step()
    return 1 if failed else 0


def written(prompt: Prompt, form: str, *, many: bool) -> str:
    """The prompt as `encode` writes it."""
    if form == "text":
        return json_line(prompt.text) if many else prompt.text
    spans = prompt.spans
    if form == "json":
        return json_line({"text": prompt.text, "spans": spans, "dropped": prompt.dropped})
    pieces = [(start, end, path, prompt.text[start:end]) for start, end, path in spans]
    if many:
        return json_line(pieces)
    return "".join(f"{start}\t{end}\t{path or 'template'}\t{json_line(text)}" for start, end, path, text in pieces)


def _options(parser: argparse.ArgumentParser) -> None:
    input_options(parser)
    parser.add_argument(
        "--format",
        choices=("text", "spans", "json"),
        default="text",
        help="text: the prompt to the byte, with nothing added unless it goes to a terminal; spans: start, end, the "
        "input's path or 'template', and the text, a line each; json: an object with text, spans and dropped. "
        "Default: text",
    )


ENCODE = Command(
    name="encode",
    run=run,
    add_options=_options,
    summary="turn a conversation into the prompt",
    description="""\
Turns a conversation into the text that the model reads.

Of JSON lines, each line gives one line: as text the prompt as a JSON string, as spans a list
of [start, end, path or null, text]. A line that fails is reported and gives null; the rest
goes on, and the exit code is 1.""",
    examples="""\
  chatcodec encode step3-vl conversation.json
  chatcodec encode ~/models/my-model conversation.json --format json | jq -r '.dropped[]'
  chatcodec encode my-model/chat_template.jinja conversation.json --set enable_thinking=false
  echo '[{"role": "user", "content": "Hello!"}]' | chatcodec encode telechat3 -
  chatcodec encode model.gguf training.jsonl --no-generation-prompt --strict > prompts.jsonl""",
)
