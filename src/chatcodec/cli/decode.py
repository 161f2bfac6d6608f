"""`chatcodec decode`: what a model wrote to messages, whole or as it streams."""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import sys
from collections.abc import Iterable
from typing import Any, NamedTuple, get_args

from .. import view
from ..errors import ChatCodecError, UnsupportedInput
from ..events import Event, FinishReason, ToolCall
from ..messages import read_tools
from ..prompt import Prompt
from ..turn.decoder import Decoder
from .command import Command, source_options, tokenizer_option, turn_options, variable_options
from .inputs import (
    Conversation,
    Document,
    InputError,
    conversation,
    conversation_of,
    documents,
    ids_in,
    ids_of,
    is_lines,
    name_of,
    parse,
    pieces_in,
    text_in,
    tools_in,
)
from .outputs import Progress, json_block, json_line, say, side_screen
from .request import Request, check_tokenizer, load_codec, turn_variables

FINISH_REASONS: tuple[FinishReason, ...] = get_args(FinishReason)
RAW_SHOWN = 400
NO_CONVERSATION = Conversation(None, None, {}, {})


class Completion(NamedTuple):
    """What a model wrote, and what is told beside it: `prompt` is the prompt's text or ids, `given` may hold messages,
    tools and template variables."""

    where: str
    output: str | list[int]
    prompt: str | list[int] | None = None
    given: Conversation = NO_CONVERSATION
    finish_reason: FinishReason | None = None


def completion(document: Document, *, ids: bool = False) -> Completion:
    """The completion of a line: a JSON string (with `ids`, a list), or an object with `output`. Raises `InputError`."""
    value, where = parse(document), document.where
    value = {"output": value} if isinstance(value, list if ids else str) else value
    if not isinstance(value, dict) or "output" not in value:
        kind = "list of token ids" if ids else "string"
        what = "an object without 'output'" if isinstance(value, dict) else f"neither a {kind} nor an object"
        raise InputError(f"{where}: {what}; wanted is a JSON {kind}, or an object that has 'output'")
    output, prompt, reason = (value.pop(name, None) for name in ("output", "prompt", "finish_reason"))
    if ids:
        output = ids_of(output, f"{where}: 'output'")
    elif not isinstance(output, str):
        raise InputError(f"{where}: 'output' is no string; wanted is the text that the model wrote, with its markers")
    if ids and isinstance(prompt, list):
        prompt = ids_of(prompt, f"{where}: 'prompt'")
    elif not isinstance(prompt, str | None):
        raise InputError(f"{where}: 'prompt' is no string; a conversation is given as 'messages'")
    if reason not in (None, *FINISH_REASONS):
        raise InputError(f"{where}: 'finish_reason' is none of {', '.join(FINISH_REASONS)}")
    return Completion(where, output, prompt, conversation_of(value, where), reason)


class Turns:
    """Makes decoders of a codec and what the command line says over the completions' heads."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.codec = load_codec(arguments, with_format=True)
        if arguments.ids:
            check_tokenizer(self.codec)
        variables = turn_variables(self.codec, arguments.set)
        tools = None if arguments.tools is None else _checked_tools(arguments.tools)
        talk, where = NO_CONVERSATION, ""
        if arguments.messages is not None:
            talk, where = _only_conversation(arguments.messages)
        self._finish_reason: FinishReason | None = arguments.finish_reason
        self._request = Request(self.codec, tools=talk.tools if tools is None else tools, variables=variables)
        self._prompt: Prompt | str | None = None
        if talk.messages is not None:
            self._prompt = self._encoded(talk, where)
        elif arguments.prompt is not None:
            self._prompt = _prompt_in(arguments.prompt)
        self.decoder(Completion(name_of(arguments.output), ""))  # raises what would be wrong with each completion
        if arguments.prompt is not None and not os.path.exists(arguments.prompt):
            self._note_odd_prompt(arguments.prompt, self.codec.format_with(**variables).header)

    def _encoded(self, talk: Conversation, where: str) -> Prompt:
        """The prompt of a conversation, always with the assistant's turn begun."""
        beside = {**talk.beside, "add_generation_prompt": True}
        variables = {name: value for name, value in talk.variables.items() if name != "add_generation_prompt"}
        return self._request.encode(talk._replace(beside=beside, variables=variables), where)

    @staticmethod
    def _note_odd_prompt(text: str, header: str) -> None:
        if header.strip() not in text:
            say("note", f"--prompt {text!r} is no file, so it is the prompt's text; no assistant's turn begins in it")

    def decoder(self, given: Completion) -> Decoder:
        """Raises `ChatCodecError`, an `InputError` where the input is wrong."""
        prompt = given.prompt if self._prompt is None else self._prompt
        if prompt is None and given.given.messages is not None:
            prompt = self._encoded(given.given, given.where)
        try:
            tools = self._request.tools(given.given)
            return self.codec.decoder(prompt, tools, **self._variables(prompt, given))
        except UnsupportedInput as error:
            raise InputError(f"{given.where}: {error}") from error

    def _variables(self, prompt: Prompt | str | list[int] | None, given: Completion) -> dict[str, Any]:
        if isinstance(prompt, Prompt):
            return prompt.variables
        variables = self._request.variables(given.given, given.where)
        return {name: value for name, value in variables.items() if name != "add_generation_prompt"}

    def decoded(self, given: Completion) -> Decoder:
        """The decoder at its end. Raises as `decoder` does."""
        decoder = self.decoder(given)
        decoder.feed(given.output)
        decoder.close(self.finish_reason(given))
        return decoder

    def finish_reason(self, given: Completion) -> FinishReason | None:
        return self._finish_reason or given.finish_reason


def _checked_tools(path: str) -> Any:
    try:
        return read_tools(tools_in(path))
    except UnsupportedInput as error:
        raise InputError(f"{name_of(path)}: {error}") from error


def _only_conversation(path: str) -> tuple[Conversation, str]:
    found = [conversation(document) for document, _ in zip(documents(path), range(2), strict=False)]
    if len(found) != 1:
        raise InputError(f"{name_of(path)}: {'several' if found else 'no'} conversations; --messages wants one")
    return found[0], name_of(path)


def _prompt_in(given: str) -> str:
    return text_in(given) if os.path.exists(given) else given


def run(arguments: argparse.Namespace) -> int:
    many = arguments.lines or is_lines(arguments.output)
    if many and arguments.stream:
        arguments.refuse("--stream reads one completion, not JSON lines")
    if arguments.ids and arguments.stream:
        arguments.refuse("--stream reads text, not --ids")
    if "-" in (arguments.tools, arguments.messages, arguments.format):
        arguments.refuse("standard input can be the OUTPUT only")
    turns = Turns(arguments)
    if arguments.stream:
        return _stream(turns, arguments.output)
    return _each(turns, arguments) if many else _one(turns, arguments)


# -- whole completions


def _one(turns: Turns, arguments: argparse.Namespace) -> int:
    output = ids_in(arguments.output) if arguments.ids else text_in(arguments.output)
    given = Completion(name_of(arguments.output), output)
    decoder = turns.decoded(given)
    sys.stdout.write(json_block(_told(decoder, arguments.full)))
    if not arguments.full:
        _report(decoder, given, turns.finish_reason(given), details=True)
    return 0


def _each(turns: Turns, arguments: argparse.Namespace) -> int:
    failed = False
    with Progress("completions") as progress:
        for document in documents(arguments.output, lines=True):
            try:
                given = completion(document, ids=arguments.ids)
                decoder = turns.decoded(given)
            except ChatCodecError as error:
                failed = True
                progress.clear()
                say("error", _named(error, document))
                sys.stdout.write("null\n")
            else:
                sys.stdout.write(json_line(_told(decoder, arguments.full)))
                if not arguments.full:
                    _report(decoder, given, turns.finish_reason(given), details=False, progress=progress)
            progress.step()
    return 1 if failed else 0


def _named(error: ChatCodecError, document: Document) -> str:
    return str(error) if isinstance(error, InputError) else f"{document.where}: {error}"


def _told(decoder: Decoder, full: bool) -> dict[str, Any]:
    if not full:
        return decoder.message
    return {
        "message": decoder.message,
        "finish_reason": decoder.finish_reason,
        "calls": [dataclasses.asdict(call) for call in decoder.calls],
        "rest": decoder.rest,
    }


# -- what the message does not tell


def _report(
    decoder: Decoder,
    given: Completion,
    told: FinishReason | None,
    *,
    details: bool,
    progress: Progress | None = None,
) -> None:
    """Says on standard error what of the output is no part of the message."""
    notes = list(_notes(decoder, told))
    broken = [call for call in decoder.calls if call.status != "ok"]
    if details and broken:
        notes.append(f"{len(broken)} of {len(decoder.calls)} tool calls are no part of the message:")
    elif broken:
        notes += [f"{_attempt(call)}{': ' if call.notes else ''}{'; '.join(call.notes)}" for call in broken]
    if notes and progress:
        progress.clear()
    for note in notes:
        say("note", f"{given.where}: {note}")
    if details and broken:
        _show_attempts(broken)


def _notes(decoder: Decoder, told: FinishReason | None) -> Iterable[str]:
    if decoder.finish_reason == "length" and told != "length":
        yield "the output is cut"
    if decoder.rest.strip():
        yield f"behind the end of the turn stands {_clipped(decoder.rest)!r}"


def _attempt(call: ToolCall) -> str:
    return f"call {call.index}, of {call.name or 'no name'}, is {call.status}"


def _show_attempts(calls: Iterable[ToolCall]) -> None:
    out = side_screen()
    for call in calls:
        label = f"  call {call.index}  "
        rows = [(view.Styled(call.status, "red"), view.Styled(f"  {view.safe(call.name)}"))]
        rows += [(view.Styled("notes  ", "dim"), view.Styled(view.safe(note))) for note in call.notes]
        rows += [(view.Styled("raw    ", "dim"), view.Styled(view.safe(_clipped(call.raw))))]
        for row in rows:
            view.hang(out, view.Styled(label), row, column=10)
            label = ""


def _clipped(text: str) -> str:
    cut = f"… ({len(text):,} characters in all; --full writes them)"
    return text if len(text) <= RAW_SHOWN else text[:RAW_SHOWN] + cut


# -- streaming


def _stream(turns: Turns, path: str) -> int:
    given = Completion(name_of(path), "")
    decoder = turns.decoder(given)
    for piece in pieces_in(path):
        _write_events(decoder.feed(piece))
    _write_events(decoder.close(turns.finish_reason(given)))
    return 0


def _write_events(events: list[Event]) -> None:
    sys.stdout.writelines(json_line(_as_json(event)) for event in events)
    if events:
        sys.stdout.flush()


def _as_json(event: Event) -> dict[str, Any]:
    name = re.sub("(?<=[a-z])(?=[A-Z])", "_", type(event).__name__).lower()
    return {"event": name, **dataclasses.asdict(event)}


# -- the command


def _options(parser: argparse.ArgumentParser) -> None:
    source_options(parser)
    parser.add_argument(
        "output",
        metavar="OUTPUT",
        help="what the model wrote behind the prompt, with its markers: a text file, or JSON lines (.jsonl, .ndjson); "
        "- reads standard input",
    )
    parser.add_argument(
        "--tools", metavar="FILE", help="a JSON list of the declared tools: they give arguments their types"
    )
    prompt = parser.add_mutually_exclusive_group()
    prompt.add_argument(
        "--prompt",
        metavar="FILE|TEXT",
        help="the prompt that the model was given, as a file or as text: its end tells whether reasoning is open "
        "already. Default: the template's own generation prompt",
    )
    prompt.add_argument(
        "--messages",
        metavar="FILE",
        help="the conversation that the prompt is made of, with its tools and template variables, as encode takes it",
    )
    variable_options(parser)
    turn_options(parser)
    parser.add_argument(
        "--finish-reason", choices=FINISH_REASONS, help="why the engine stopped: length where it cut the output"
    )
    parser.add_argument("--lines", action="store_true", help="read JSON lines, whatever the file's name")
    parser.add_argument(
        "--ids",
        action="store_true",
        help="the output is token ids: a JSON list of them, in the file, on each line, or as 'output' of a line's "
        "object (whose 'prompt' may be ids then). A marker counts only where it is its token",
    )
    tokenizer_option(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--stream", action="store_true", help="read as the output comes, and write events as soon as they are certain"
    )
    form.add_argument(
        "--full",
        action="store_true",
        help="write an object with the message, the finish_reason, all calls (broken ones too, each with its status, "
        "notes, raw text and span), and the rest behind the end of the turn",
    )


DECODE = Command(
    name="decode",
    run=run,
    add_options=_options,
    summary="turn what a model wrote into a message",
    description="""\
Turns what a model wrote into an assistant's message in OpenAI's shape. How the turn is written
is derived from the template (chatcodec format shows it), or given with --format.

A text file is one completion, to the byte (use printf rather than echo: a line end at its end
is content). Of JSON lines, each is a string, or an object with 'output' and perhaps 'prompt' or
'messages', 'tools', 'finish_reason' and template variables, and gives one line; one that fails is
reported and gives null, the rest goes on, and the exit code is 1. What the command line gives
counts in place of what the lines give.

Calls that are broken, cut or of no declared tool are no part of the message: they are reported
on standard error, and with --full written. Spans and raw text of calls are those of the text that
the output reads as, also with --ids. --stream writes a line an event: reasoning_delta,
content_delta, tool_call_start, arguments_delta, tool_call_end, turn_end.""",
    examples="""\
  chatcodec decode step3-vl output.txt --tools tools.json
  chatcodec decode ~/models/my-model output.txt --messages conversation.json
  chatcodec decode my-model/chat_template.jinja outputs.jsonl --full > messages.jsonl
  echo '[9707, 0, 151645]' | chatcodec decode ~/models/my-model - --ids
  printf 'Hm.\\n</think>\\nHello!<_end>' | chatcodec decode telechat3 -
  tail -n +1 -f output.txt | chatcodec decode model.gguf - --stream | jq --unbuffered -r .event""",
)
