"""The command `chatcodec`: the library for the terminal and for shell scripts.

In: arguments, files, standard input. Out: data on standard output, all else on standard error, and an exit code:
0 done, 1 the input or the template is wrong, 2 the arguments are, 130 interrupted, 141 nobody reads the output on.
What holds: the output is UTF-8 with `\\n` as line end, whatever the locale; a prompt that goes to a file or a pipe is
written to the byte; what goes to a terminal holds no control character of the input.

A command is a function from the parsed arguments to an exit code, and a row in `COMMANDS`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from . import __version__
from .errors import ChatCodecError, TemplateError, UnsupportedInput

if TYPE_CHECKING:
    from .codec import Codec
    from .prompt import Prompt
    from .view import Screen

PROGRAM = "chatcodec"
LINES_SUFFIXES = (".jsonl", ".ndjson")
RESERVED = {
    "messages": "the conversation itself",
    "tools": "the tools; see --tools",
    "strict": "an option here; see --strict",
    "self": "not a name that a template could read",
}
"""Names that are no template variables, and what they are instead."""

_TERMINAL_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_JSON_CONTROLS = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_SURROGATES = re.compile("[\ud800-\udfff]")


class InputError(ChatCodecError):
    """A file given on the command line is not what it should be; the message says which, where and why."""


# -- input


class Document(NamedTuple):
    """One JSON document of the input: the file's name, the line where it starts, whether others stand beside it."""

    name: str
    line: int
    many: bool
    data: bytes

    @property
    def where(self) -> str:
        return f"{self.name}:{self.line}" if self.many else self.name


class Conversation(NamedTuple):
    """What a document asks to encode. `beside` stands beside the messages: variables, or what else a data set tells."""

    messages: Any
    tools: Any
    beside: dict[str, Any]
    variables: dict[str, Any]


@contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    try:
        if path == "-":
            yield sys.stdin.buffer
        else:
            with open(path, "rb") as file:
                yield file
    except OSError as error:
        raise InputError(f"{_name(path)}: cannot be read: {error.strerror or error}") from error


def _name(path: str) -> str:
    return "standard input" if path == "-" else path


def documents(path: str, *, lines: bool = False) -> Iterator[Document]:
    """The documents of a file, or of standard input for `-`.

    A file is read as JSON lines if it is named so, if `lines` says so, or if its first line is a whole document and not
    its last.
    """
    with _opened(path) as file:
        if lines or path.lower().endswith(LINES_SUFFIXES):
            yield from _each_line(_name(path), file)
            return
        data = file.read()
    if _holds_lines(data):
        yield from _each_line(_name(path), data.split(b"\n"))
    else:
        yield Document(_name(path), 1, False, data)


def _each_line(name: str, lines: Iterable[bytes]) -> Iterator[Document]:
    return (Document(name, number, True, line.rstrip()) for number, line in enumerate(lines, 1) if line.strip())


def _holds_lines(data: bytes) -> bool:
    first, _, rest = data.strip().partition(b"\n")
    if not rest.strip():
        return False
    try:
        return isinstance(json.loads(first.decode("utf-8-sig")), dict | list)
    except (ValueError, RecursionError):
        return False


def parse(document: Document) -> Any:
    """The document's value. Raises `InputError`."""
    try:
        return json.loads(document.data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = document.line + document.data.count(b"\n", 0, error.start)
        raise InputError(f"{document.name}:{line}: not UTF-8 ({error.reason}); save it as UTF-8") from error
    except json.JSONDecodeError as error:
        where = f"{document.name}:{document.line + error.lineno - 1}:{error.colno}"
        why = "nothing but space" if not document.data.strip() else error.msg
        raise InputError(f"{where}: not valid JSON: {why}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{document.where}: JSON that cannot be read: {error}") from error


def conversation(document: Document) -> Conversation:
    """The conversation of a document: a list of messages, or an object with `messages`. Raises `InputError`."""
    value = parse(document)
    if isinstance(value, list):
        return Conversation(value, None, {}, {})
    if not isinstance(value, dict) or "messages" not in value:
        what = "an object without 'messages'" if isinstance(value, dict) else "neither a list nor an object"
        raise InputError(f"{document.where}: {what}; wanted is a list of messages, or an object that has 'messages'")
    beside = {name: item for name, item in value.items() if name not in RESERVED and name != "chat_template_kwargs"}
    variables = value.get("chat_template_kwargs") or {}
    if not isinstance(variables, dict):
        raise InputError(f"{document.where}: chat_template_kwargs is no object")
    for name in variables.keys() & RESERVED.keys():
        raise InputError(f"{document.where}: {name!r} is no template variable: it is {RESERVED[name]}")
    return Conversation(value["messages"], value.get("tools"), beside, variables)


def tools_in(path: str) -> Any:
    """The list of tools in a file that holds it, or an object with `tools`. Raises `InputError`."""
    with _opened(path) as file:
        document = Document(_name(path), 1, False, file.read())
    value = parse(document)
    tools = value.get("tools") if isinstance(value, dict) else value
    if not isinstance(tools, list):
        raise InputError(f"{document.where}: wanted is a list of tools, or an object that has 'tools'")
    return tools


# -- encoding


class Request:
    """A codec, and what the command line says over the documents' heads."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.codec = _load(arguments)
        self._tools = None if arguments.tools is None else tools_in(arguments.tools)
        self._strict = arguments.strict
        self._variables = dict(arguments.set)
        for name in self._variables:
            if not self._reads(name):
                known = ", ".join(self.codec.variables) or "none"
                raise InputError(f"--set {name}: the template never reads this variable; those it reads: {known}")
        if arguments.generation_prompt is not None:
            self._variables["add_generation_prompt"] = arguments.generation_prompt
        self._ignored: set[str] = set()

    def encode(self, document: Document) -> tuple[Prompt, Any]:
        """The prompt, and the messages it is made of. Raises `ChatCodecError`, naming the document."""
        given = conversation(document)
        beside = {name: value for name, value in given.beside.items() if self._reads(name)}
        self._note_ignored(document, given.beside.keys() - beside.keys())
        try:
            prompt = self.codec.encode(
                given.messages,
                tools=given.tools if self._tools is None else self._tools,
                strict=self._strict,
                **{**beside, **given.variables, **self._variables},
            )
        except (UnsupportedInput, TemplateError) as error:
            raise InputError(f"{document.where}: {error}") from error
        return prompt, given.messages

    def _reads(self, name: str) -> bool:
        read = self.codec.template.variables
        return name in read or name in self.codec.special_tokens or name == "add_generation_prompt"

    def _note_ignored(self, document: Document, names: Iterable[str]) -> None:
        for name in sorted(set(names) - self._ignored):
            self._ignored.add(name)
            _say("note", f"{document.where}: {name!r} is ignored: the template reads no variable of that name")


def _load(arguments: argparse.Namespace) -> Codec:
    from .codec import load

    return load(arguments.source, template_name=arguments.template)


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


def json_line(value: Any) -> str:
    """`value` as JSON on one line, readable, yet with nothing in it that a terminal would obey or UTF-8 cannot hold."""
    text = json.dumps(value, ensure_ascii=False, default=sorted)
    return _JSON_CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text) + "\n"


def encode(arguments: argparse.Namespace) -> int:
    request = Request(arguments)
    failed = False
    with Progress() as progress:
        for document in documents(arguments.conversation, lines=arguments.lines):
            try:
                prompt, _ = request.encode(document)
            except ChatCodecError as error:
                if not document.many:
                    raise
                failed = True
                progress.clear()
                _say("error", error)
                sys.stdout.write("null\n")
            else:
                _write(written(prompt, arguments.format, many=document.many))
            if document.many:
                progress.step()
    return 1 if failed else 0


def _write(text: str) -> None:
    if _SURROGATES.search(text):
        _say("note", r"the prompt holds lone surrogates, which UTF-8 cannot hold: written as \udXXX")
    if sys.stdout.isatty():
        text = _TERMINAL_CONTROLS.sub(lambda found: f"⟨U+{ord(found[0]):04X}⟩", text)
        text = text if text.endswith("\n") else text + "\n"
    sys.stdout.write(text)


class Progress:
    """A count on standard error, for people who wait for a file."""

    def __init__(self) -> None:
        self.shown = False
        self._wanted = sys.stderr.isatty() and not sys.stdout.isatty()
        self._count = 0
        self._next = time.monotonic() + 0.5

    def step(self) -> None:
        self._count += 1
        if self._wanted and time.monotonic() >= self._next:
            self._next = time.monotonic() + 0.1
            self.shown = True
            sys.stderr.write(f"\r{self._count:,} prompts")
            sys.stderr.flush()

    def clear(self) -> None:
        if self.shown:
            sys.stderr.write("\r\x1b[K")
            self.shown = False

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()


# -- the other commands


def show(arguments: argparse.Namespace) -> int:
    from . import view

    request = Request(arguments)
    screen = _screen(arguments)
    failed = False
    for document in documents(arguments.conversation, lines=arguments.lines):
        if document.many:
            screen.line(view.Styled(f"── {view.safe(document.where)}", "bold"))
        try:
            prompt, messages = request.encode(document)
        except ChatCodecError as error:
            if not document.many:
                raise
            failed = True
            sys.stdout.flush()
            _say("error", error)
        else:
            view.show(screen, prompt, messages)
        if document.many:
            screen.line()
    return 1 if failed else 0


def info(arguments: argparse.Namespace) -> int:
    import dataclasses

    from .view import safe

    codec = _load(arguments)
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
    }
    if arguments.json:
        sys.stdout.write(json_line({**facts, "capabilities": dataclasses.asdict(codec.capabilities)}))
        return 0
    rows = [(name.replace("_", " "), _told(value)) for name, value in facts.items()]
    takes = [(label, str(value)) for label, value in codec.capabilities.lines()]
    width = max(len(label) for label, _ in rows + takes)
    for heading, part in (("", rows), ("what the template takes", takes)):
        sys.stdout.write(f"\n{heading}\n" if heading else "")
        sys.stdout.writelines(f"{label:{width}}  {safe(value)}\n" for label, value in part)
    return 0


def _told(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {text}" for name, text in value.items()) or "none"
    return value if isinstance(value, str) else ", ".join(map(str, value)) or "none"


def demo(arguments: argparse.Namespace) -> int:
    from .demo import walk

    walk(_screen(arguments), arguments.formats)
    return 0


def _screen(arguments: argparse.Namespace) -> Screen:
    from . import view

    paint = None
    if view.wants_colour(arguments.color, sys.stdout):
        paint = view.painter(sys.stdout)
        if paint is None:
            _say("note", view.INSTALL_HINT)
    width: int | None = arguments.width
    if width is None and sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
    return view.Screen(sys.stdout, width=width or None, paint=paint)


# -- arguments


class Command(NamedTuple):
    name: str
    run: Callable[[argparse.Namespace], int]
    add_options: Callable[[argparse.ArgumentParser], None]
    summary: str
    description: str
    examples: str


def _source_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source",
        metavar="SOURCE",
        help="a model's folder, a template (.jinja), a tokenizer_config.json, a .gguf, or a built-in format's name",
    )
    parser.add_argument(
        "--template", metavar="NAME", help="the template to take, where the source has several (see info)"
    )


def _input_options(parser: argparse.ArgumentParser) -> None:
    _source_options(parser)
    parser.add_argument(
        "conversation",
        metavar="CONVERSATION",
        help="a JSON file: a list of messages, or an object with 'messages', 'tools' and template variables (also in "
        "'chat_template_kwargs'); - reads standard input",
    )
    parser.add_argument("--tools", metavar="FILE", help="a JSON list of tools, in place of the conversation's own")
    parser.add_argument(
        "--set",
        metavar="NAME=VALUE",
        type=assignment,
        action="append",
        default=[],
        help="a template variable; the value is JSON, or else text (--set enable_thinking=false)",
    )
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


def _encode_options(parser: argparse.ArgumentParser) -> None:
    _input_options(parser)
    parser.add_argument(
        "--format",
        choices=("text", "spans", "json"),
        default="text",
        help="text: the prompt to the byte, with nothing added unless it goes to a terminal; spans: start, end, the "
        "input's path or 'template', and the text, a line each; json: an object with text, spans and dropped. "
        "Default: text",
    )


def _screen_options(parser: argparse.ArgumentParser) -> None:
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


def _show_options(parser: argparse.ArgumentParser) -> None:
    _input_options(parser)
    _screen_options(parser)


def _info_options(parser: argparse.ArgumentParser) -> None:
    _source_options(parser)
    parser.add_argument("--json", action="store_true", help="as a JSON object")


def _demo_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "formats",
        metavar="FORMAT",
        nargs="*",
        help="a built-in format, or any other source. Default: all built-in formats",
    )
    _screen_options(parser)


def assignment(text: str) -> tuple[str, Any]:
    """`name=value`, the value as JSON if it is that."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"NAME=VALUE is wanted, not {text!r}")
    if name in RESERVED:
        raise argparse.ArgumentTypeError(f"{name!r} is no template variable: it is {RESERVED[name]}")
    try:
        return name, json.loads(value)
    except (ValueError, RecursionError):
        return name, value


COMMANDS = (
    Command(
        name="encode",
        run=encode,
        add_options=_encode_options,
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
    ),
    Command(
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
    ),
    Command(
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
    ),
    Command(
        name="demo",
        run=demo,
        add_options=_demo_options,
        summary="show one conversation in the built-in formats",
        description="""\
Shows one conversation (a system message, reasoning, two parallel tool calls with their results,
an answer and the next question) in each format, and what the format cannot carry.""",
        examples="""\
  chatcodec demo
  chatcodec demo step3-vl telechat3
  chatcodec demo ~/models/my-model""",
    ),
)


def parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    top = argparse.ArgumentParser(
        PROGRAM,
        description="A model's chat template at work: messages become the prompt, and every piece tells who wrote it.",
        epilog="examples:\n"
        + "\n".join(command.examples.splitlines()[0] for command in COMMANDS)
        + f"\n\n{PROGRAM} COMMAND --help tells more about a command.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    top.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND")
    for command in COMMANDS:
        sub = commands.add_parser(
            command.name,
            help=command.summary,
            description=command.description,
            epilog=f"examples:\n{command.examples}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        command.add_options(sub)
        sub.set_defaults(run=command.run)
    return top


# -- running


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (by default the process's own) and returns the exit code."""
    _use_utf8()
    try:
        code = _run(argv)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        code = 141
    except (ChatCodecError, OSError) as error:
        _say("error", error)
        code = 1
    _give_up_unwritten()
    return code


def _give_up_unwritten() -> None:
    """Lets go of output that cannot be written, about which Python would complain when it ends."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(argv: Sequence[str] | None) -> int:
    top = parser()
    try:
        arguments = top.parse_args(argv)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 2
    if not hasattr(arguments, "run"):
        top.print_help(sys.stderr)
        return 2
    code: int = arguments.run(arguments)
    return code


def _use_utf8() -> None:
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", newline="\n")


def _say(kind: str, message: object) -> None:
    from .view import safe

    with suppress(OSError):
        sys.stdout.flush()
    sys.stderr.write(f"{PROGRAM}: {kind}: {safe(message)}\n")
    sys.stderr.flush()
