"""`chatcodec encode`: conversations to prompts."""

from __future__ import annotations

import argparse
import sys

from ..errors import ChatCodecError, FormatNotDerived
from ..prompt import Prompt
from .command import Command, ids_options, input_options
from .inputs import conversation, documents
from .outputs import Progress, json_line, say, write
from .request import Request, check_tokenizer, named


def run(arguments: argparse.Namespace) -> int:
    form = _form(arguments)
    request = Request.of(arguments)
    if form == "ids" or arguments.ids:
        check_tokenizer(request.codec)
    failed = False
    with Progress("prompts") as progress:
        for document in documents(arguments.conversation, lines=arguments.lines):
            try:
                prompt = request.encode(conversation(document), document.where)
                with named(document.where):
                    text = written(prompt, form, ids=arguments.ids, many=document.many)
            except ChatCodecError as error:
                if not document.many:
                    raise
                failed = True
                progress.clear()
                say("error", error)
                sys.stdout.write("null\n")
            else:
                write(text)
            if document.many:
                progress.step()
    return 1 if failed else 0


def _form(arguments: argparse.Namespace) -> str:
    form: str = arguments.format or ("ids" if arguments.ids else "text")
    if arguments.ids and form not in ("ids", "json"):
        arguments.refuse("--ids stands alone, or with --format json")
    return form


def written(prompt: Prompt, form: str, *, many: bool, ids: bool = False) -> str:
    """The prompt as `encode` writes it; `ids` adds them to the form "json"."""
    if form == "text":
        return json_line(prompt.text) if many else prompt.text
    if form == "ids":
        return json_line(prompt.ids)
    spans = prompt.spans
    if form == "json":
        found = {"text": prompt.text, "spans": spans, "dropped": prompt.dropped}
        return json_line({**found, "ids": prompt.ids, "sampled": _sampled(prompt)} if ids else found)
    pieces = [(start, end, path, prompt.text[start:end]) for start, end, path in spans]
    if many:
        return json_line(pieces)
    return "".join(f"{start}\t{end}\t{path or 'template'}\t{json_line(text)}" for start, end, path, text in pieces)


def _sampled(prompt: Prompt) -> list[bool] | None:
    try:
        return prompt.sampled
    except FormatNotDerived:
        return None


def _options(parser: argparse.ArgumentParser) -> None:
    input_options(parser)
    parser.add_argument(
        "--format",
        choices=("text", "spans", "json", "ids"),
        help="text: the prompt to the byte, with nothing added unless it goes to a terminal; spans: start, end, the "
        "input's path or 'template', and the text, a line each; json: an object with text, spans and dropped; ids: "
        "the token ids as a JSON list. Default: text",
    )
    parser.add_argument(
        "--ids",
        action="store_true",
        help="the same as --format ids; with --format json, the object has ids too, and sampled: one bool a token, "
        "true where the model writes it (null where the turn's format is not known)",
    )
    ids_options(parser)


ENCODE = Command(
    name="encode",
    run=run,
    add_options=_options,
    summary="turn a conversation into the prompt",
    description="""\
Turns a conversation into the text that the model reads, or into its token ids.

Token ids need a tokenizer: the one beside the template, or --tokenizer. What a message spells is
never a control token, unless --special-in-content allow says so.

Of JSON lines, each line gives one line: as text the prompt as a JSON string, as spans a list
of [start, end, path or null, text], as ids a list. A line that fails is reported and gives null;
the rest goes on, and the exit code is 1.""",
    examples="""\
  chatcodec encode step3-vl conversation.json
  chatcodec encode ~/models/my-model conversation.json --format json | jq -r '.dropped[]'
  chatcodec encode ~/models/my-model conversation.json --ids
  chatcodec encode step3-vl conversation.json --format json --ids --tokenizer tokenizer.json | jq -c .sampled
  chatcodec encode my-model/chat_template.jinja conversation.json --set enable_thinking=false
  echo '[{"role": "user", "content": "Hello!"}]' | chatcodec encode telechat3 -
  chatcodec encode model.gguf training.jsonl --no-generation-prompt --strict > prompts.jsonl""",
)
