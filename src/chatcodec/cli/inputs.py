"""Files and standard input: as JSON documents, one or one a line, and as text.

Whatever is wrong with them is an `InputError` that names the file, and the line where there is one.
"""

from __future__ import annotations

import codecs
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, NamedTuple

from ..errors import ChatCodecError, SourceError
from ..turn import TurnFormat, document

LINES_SUFFIXES = (".jsonl", ".ndjson")
PIECE = 16
"""Bytes of what is read as it comes: about what an engine sends at a time."""
RESERVED = {
    "messages": "the conversation itself",
    "tools": "the tools; see --tools",
    "strict": "an option here; see --strict",
    "special_in_content": "an option here; see --special-in-content",
    "self": "not a name that a template could read",
}
"""Names that are no template variables, and what they are instead."""


class InputError(ChatCodecError):
    """A file given on the command line is not what it should be; the message says which, where and why."""


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
def opened(path: str) -> Iterator[BinaryIO]:
    """A file, or standard input for `-`. Raises `InputError`, for what goes wrong while it is read too."""
    try:
        if path == "-":
            yield sys.stdin.buffer
        else:
            with open(path, "rb") as file:
                yield file
    except OSError as error:
        raise InputError(f"{name_of(path)}: cannot be read: {error.strerror or error}") from error


def name_of(path: str) -> str:
    return "standard input" if path == "-" else path


# -- documents


def documents(path: str, *, lines: bool = False) -> Iterator[Document]:
    """The documents of a file, or of standard input for `-`.

    A file is read as JSON lines if it is named so, if `lines` says so, or if its first line is a whole document and not
    its last.
    """
    with opened(path) as file:
        if lines or is_lines(path):
            yield from _each_line(name_of(path), file)
            return
        data = file.read()
    if holds_lines(data):
        yield from _each_line(name_of(path), data.split(b"\n"))
    else:
        yield Document(name_of(path), 1, False, data)


def is_lines(path: str) -> bool:
    """Whether the file is named as one of JSON lines."""
    return path.lower().endswith(LINES_SUFFIXES)


def _each_line(name: str, lines: Iterable[bytes]) -> Iterator[Document]:
    return (Document(name, number, True, line.rstrip()) for number, line in enumerate(lines, 1) if line.strip())


def holds_lines(data: bytes) -> bool:
    """Whether the first line is a whole document, and not the last."""
    first, _, rest = data.strip().partition(b"\n")
    if not rest.strip():
        return False
    try:
        return isinstance(json.loads(first.decode("utf-8-sig")), dict | list)
    except (ValueError, RecursionError):
        return False


def _whole(path: str) -> Document:
    with opened(path) as file:
        return Document(name_of(path), 1, False, file.read())


def parse(document: Document) -> Any:
    """The document's value. Raises `InputError`."""
    try:
        return json.loads(_decoded(document))
    except json.JSONDecodeError as error:
        where = f"{document.name}:{document.line + error.lineno - 1}:{error.colno}"
        why = "nothing but space" if not document.data.strip() else error.msg
        raise InputError(f"{where}: not valid JSON: {why}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{document.where}: JSON that cannot be read: {error}") from error


def _decoded(document: Document) -> str:
    try:
        return document.data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = document.line + document.data.count(b"\n", 0, error.start)
        raise InputError(f"{document.name}:{line}: not UTF-8 ({error.reason}); save it as UTF-8") from error


# -- what documents hold


def conversation(document: Document) -> Conversation:
    """The conversation of a document: a list of messages, or an object with `messages`. Raises `InputError`."""
    value = parse(document)
    if isinstance(value, list):
        return Conversation(value, None, {}, {})
    if not isinstance(value, dict) or "messages" not in value:
        what = "an object without 'messages'" if isinstance(value, dict) else "neither a list nor an object"
        raise InputError(f"{document.where}: {what}; wanted is a list of messages, or an object that has 'messages'")
    return conversation_of(value, document.where)


def conversation_of(value: dict[str, Any], where: str) -> Conversation:
    """The conversation of an object, whose messages may be None. Raises `InputError`."""
    beside = {name: item for name, item in value.items() if name not in RESERVED and name != "chat_template_kwargs"}
    variables = value.get("chat_template_kwargs") or {}
    if not isinstance(variables, dict):
        raise InputError(f"{where}: chat_template_kwargs is no object")
    for name in variables.keys() & RESERVED.keys():
        raise InputError(f"{where}: {name!r} is no template variable: it is {RESERVED[name]}")
    return Conversation(value.get("messages"), value.get("tools"), beside, variables)


def tools_in(path: str) -> Any:
    """The list of tools in a file that holds it, or an object with `tools`. Raises `InputError`."""
    document = _whole(path)
    value = parse(document)
    tools = value.get("tools") if isinstance(value, dict) else value
    if not isinstance(tools, list):
        raise InputError(f"{document.where}: wanted is a list of tools, or an object that has 'tools'")
    return tools


def ids_of(value: Any, what: str) -> list[int]:
    """Token ids that stand in JSON; `what` names them. Raises `InputError`."""
    if not isinstance(value, list) or not all(type(token) is int and token >= 0 for token in value):
        raise InputError(f"{what} is no list of token ids; wanted are numbers, as [1, 2, 3]")
    return value


def ids_in(path: str) -> list[int]:
    """The token ids of a file that holds a JSON list of them. Raises `InputError`."""
    document = _whole(path)
    return ids_of(parse(document), f"{document.where}: this")


def format_in(path: str) -> TurnFormat:
    """The turn format in a file that `chatcodec format --json` writes. Raises `InputError`."""
    file = _whole(path)
    value = parse(file)
    try:
        return document.from_document(value)
    except SourceError as error:
        raise InputError(f"{file.where}: no turn format: {error}") from error


# -- text


def text_in(path: str) -> str:
    """The text of a file, to the character. Raises `InputError`."""
    return _decoded(_whole(path))


def pieces_in(path: str) -> Iterator[str]:
    """The same text in small pieces, each as soon as it is there. Raises `InputError`."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    with opened(path) as file:
        try:
            while data := file.read1(PIECE):  # type: ignore[attr-defined]
                yield decoder.decode(data)
            yield decoder.decode(b"", True)
        except UnicodeDecodeError as error:
            raise InputError(f"{name_of(path)}: not UTF-8 ({error.reason}); save it as UTF-8") from error
