"""The view of a prompt for people: every piece of its text with the one who wrote it. And of a turn format.

In: a prompt (its text, its spans, the paths it dropped) and the messages it was made of. Out: lines on a `Screen`.
What holds:

- With colours, the text flows as the model reads it, and a colour tells the writer. Without, each piece stands on lines
  of its own behind a gutter that names the writer; there, the punctuation of a value written as JSON counts as the
  value's, so that a tool's definition is one piece.
- No character is lost, added or changed but for these marks: `⏎` a line's end, `⇥` a tab, `␣` a space at the end of a
  line or a piece, `⟨U+XXXX⟩` whatever a terminal would obey or not show, and the four signs themselves. `reading`
  takes the marks off again. A line without `⏎` goes on in the next.
- Nothing that a message holds reaches a terminal as a control character.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from functools import cache
from typing import Any, NamedTuple, Protocol, TextIO
from unicodedata import category, east_asian_width

from .turn.explain import WIDTH as LABEL_WIDTH

NEWLINE, TAB, SPACE = "⏎", "⇥", "␣"
INSTALL_HINT = "for colours, install the extra: pip install 'chatcodec[cli]'"


class Writer(Enum):
    """Who wrote a piece of the prompt; the value is the name that people see."""

    TEMPLATE = "template"
    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool result"
    DEFINITION = "tool definition"
    OTHER = "other"


_ROLES = {
    "system": Writer.SYSTEM,
    "developer": Writer.SYSTEM,
    "user": Writer.USER,
    "assistant": Writer.ASSISTANT,
    "tool": Writer.TOOL,
    "function": Writer.TOOL,
}
STYLES = {
    Writer.TEMPLATE: "dim",
    Writer.SYSTEM: "magenta",
    Writer.USER: "green",
    Writer.ASSISTANT: "cyan",
    Writer.TOOL: "yellow",
    Writer.DEFINITION: "bright_blue",
    Writer.OTHER: "red",
}
_GUTTER = max(len(writer.value) for writer in Writer)
_NARROWEST = 20

_MARK = re.compile(f"{NEWLINE}|{TAB}|{SPACE}+|⟨U\\+[0-9A-F]+⟩")
_MESSAGE = re.compile(r"messages\[(\d+)\]")
_PUNCTUATION = "{}[]\"',: "
_WIDE = "⺀-\u2fff\u3001-鿿가-힣豈-\ufaff！-｠\U00020000-\U0003ffff"
_WORD = re.compile(f"[{_WIDE}] *|[^ {_WIDE}]+ *| +")


_FORMAT_WORD = re.compile(
    r"""(?P<literal>(?<!\w)'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
    r"|(?P<field>\b(?:R|C|CALL|NAME|ARGUMENTS|ID|INDEX|KEY|MIDDLE|VALUE)\b)"
)
_FORMAT_STYLES = {"literal": "cyan", "field": "green"}


class Prompt(Protocol):
    """What the view needs of a prompt."""

    @property
    def text(self) -> str: ...
    @property
    def spans(self) -> Sequence[tuple[int, int, str | None]]: ...
    @property
    def dropped(self) -> Sequence[str]: ...


class Piece(NamedTuple):
    """A stretch of the prompt that one writer wrote."""

    writer: Writer
    text: str


class Styled(NamedTuple):
    """Text for the screen, and how it looks there: a style of rich's, or nothing."""

    text: str
    style: str = ""


# -- who wrote it


def writer_of(path: str | None, messages: Sequence[Any]) -> Writer:
    """Who wrote what stands at `path` of the input."""
    if path is None:
        return Writer.TEMPLATE
    if path.startswith(("tools[", "tools.")) or path == "tools":
        return Writer.DEFINITION
    found = _MESSAGE.match(path)
    if found is None or int(found[1]) >= len(messages):
        return Writer.OTHER
    message = messages[int(found[1])]
    role = message.get("role") if isinstance(message, dict) else None
    return _ROLES.get(role, Writer.OTHER) if isinstance(role, str) else Writer.OTHER


def pieces_of(prompt: Prompt, messages: Sequence[Any]) -> list[Piece]:
    """The prompt, cut where the writer changes; joined, the pieces are its text."""
    return _joined(Piece(writer_of(path, messages), prompt.text[start:end]) for start, end, path in prompt.spans)


def folded(pieces: Sequence[Piece]) -> list[Piece]:
    """The same text in fewer pieces: JSON's punctuation in and around a value counts as the value's writer's."""
    todo = list(reversed(pieces))
    done: list[Piece] = []
    while todo:
        writer, text = todo.pop()
        joints = ""
        while writer is not Writer.TEMPLATE and len(todo) > 1 and _is_joint(todo[-1], writer, todo[-2]):
            joint = todo.pop().text
            joints += joint
            text += joint + todo.pop().text
        if joints and done and done[-1].writer is Writer.TEMPLATE:
            before = done.pop().text
            opening = _opening(before)
            closing = _closing(todo[-1].text, _depth(opening + joints)) if todo and opening else ""
            done.append(Piece(Writer.TEMPLATE, before.removesuffix(opening)))
            text = opening + text + closing
            if closing:
                todo.append(Piece(Writer.TEMPLATE, todo.pop().text.removeprefix(closing)))
        done.append(Piece(writer, text))
    return _joined(piece for piece in done if piece.text)


def _is_joint(piece: Piece, before: Writer, after: Piece) -> bool:
    if piece.writer is not Writer.TEMPLATE or before is not after.writer:
        return False
    return not piece.text.strip(_PUNCTUATION)


def _opening(text: str) -> str:
    """The end of `text` that opens a JSON value: brackets, and the quotes and spaces behind them."""
    end = text[len(text.rstrip("{[\"' ")) :]
    return end.lstrip("\"' ")


def _closing(text: str, depth: int) -> str:
    """The start of `text` that closes `depth` brackets; nothing if it does not."""
    for position, char in enumerate(text):
        if depth == 0:
            return text[:position]
        if char not in "]}\"' ":
            return ""
        depth -= char in "]}"
    return text if depth == 0 else ""


def _depth(text: str) -> int:
    return sum((char in "{[") - (char in "]}") for char in text)


def _joined(pieces: Iterable[Piece]) -> list[Piece]:
    runs: list[tuple[Writer, list[str]]] = []
    for piece in pieces:
        if not runs or runs[-1][0] is not piece.writer:
            runs.append((piece.writer, []))
        runs[-1][1].append(piece.text)
    return [Piece(writer, "".join(texts)) for writer, texts in runs]


# -- what a terminal may be given


class _Shown(dict[int, str]):
    def __missing__(self, code: int) -> str:
        char = chr(code)
        plain = char.isprintable() and char not in (NEWLINE, TAB, SPACE, "⟨")
        self[code] = shown = char if plain or char == "\u3000" else f"⟨U+{code:04X}⟩"
        return shown


_SHOWN = _Shown({ord("\n"): NEWLINE, ord("\t"): TAB})


def safe(text: object) -> str:
    """`text` on one line, with marks for whatever a terminal would obey or not show."""
    return str(text).translate(_SHOWN)


def rows_of(text: str) -> list[str]:
    """The lines of `text` with marks; all but the last end in `⏎`, and the last is missing where it is empty."""
    *lines, last = text.split("\n")
    rows = [_row(line) + NEWLINE for line in lines]
    return [*rows, _row(last)] if last else rows


def _row(line: str) -> str:
    body = line.rstrip(" ")
    return safe(body) + SPACE * (len(line) - len(body))


def reading(rows: Iterable[str]) -> str:
    """The text that `rows` show: the inverse of `rows_of`, wrapped or not."""
    return _MARK.sub(_unmarked, "".join(rows))


def _unmarked(mark: re.Match[str]) -> str:
    sign = mark[0][0]
    if sign == SPACE:
        return " " * len(mark[0])
    return chr(int(mark[0][3:-1], 16)) if sign == "⟨" else "\n" if sign == NEWLINE else "\t"


# -- wrapping


def breaks_of(text: str, width: int | None) -> list[int]:
    """Where to break one line of marked text, so that each part fits: between words, or else anywhere."""
    if width is None or columns(text) <= width:
        return []
    breaks: list[int] = []
    used = 0
    for word in _WORD.finditer(text):
        if used and used + columns(word[0]) > width:
            breaks.append(word.start())
            used = 0
        for position in range(*word.span()):
            cells = _cells(text[position])
            if used and used + cells > width:
                breaks.append(position)
                used = 0
            used += cells
    return breaks


def broken(line: Iterable[Styled], width: int | None) -> Iterator[list[Styled]]:
    """One line, broken into as many as `width` asks for."""
    parts = list(line)
    breaks = iter(breaks_of("".join(part.text for part in parts), width))
    at = next(breaks, None)
    current: list[Styled] = []
    position = 0
    for text, style in parts:
        start = 0
        while at is not None and at <= position + len(text):
            yield [*current, Styled(text[start : at - position], style)]
            current, start, at = [], at - position, next(breaks, None)
        current.append(Styled(text[start:], style))
        position += len(text)
    yield current


def columns(text: str) -> int:
    """How many columns of a terminal `text` takes; where terminals differ, rather too many."""
    return len(text) if text.isascii() else sum(map(_cells, text))


@cache
def _cells(char: str) -> int:
    if char != "\ufe0f" and category(char) in ("Mn", "Me"):
        return 0
    return 2 if east_asian_width(char) in "WF" else 1


# -- the screen


class Screen:
    """Where a view is written: `width` is None where nothing is to be wrapped, `paint` where there are no colours."""

    def __init__(
        self, stream: TextIO, *, width: int | None = None, paint: Callable[[list[Styled]], None] | None = None
    ):
        self.stream = stream
        self.width = width if width is None else max(width, _NARROWEST)
        self.paint = paint

    def line(self, *parts: Styled) -> None:
        if self.paint is None:
            self.stream.write("".join(part.text for part in parts) + "\n")
        else:
            self.paint([part for part in parts if part.text])


def hang(screen: Screen, label: Styled, parts: Iterable[Styled], *, column: int) -> None:
    """Writes `parts` behind `label`, at `column`, and there the lines that they are broken into."""
    width = None if screen.width is None else max(screen.width - column, _NARROWEST)
    for part in broken(parts, width):
        screen.line(label, Styled(" " * (column - columns(label.text))), *part)
        label = Styled("")


def wants_colour(choice: str, stream: TextIO) -> bool:
    """Whether to colour what goes to `stream`, where `choice` is "always", "never" or "auto".

    For "auto", NO_COLOR says no; then FORCE_COLOR or CLICOLOR_FORCE (but for the value 0) says yes; then a terminal
    says yes, unless TERM is "dumb" or CLICOLOR is 0.
    """
    if choice != "auto":
        return choice == "always"
    if os.environ.get("NO_COLOR"):
        return False
    if any(os.environ.get(name, "0") not in ("", "0") for name in ("FORCE_COLOR", "CLICOLOR_FORCE")):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb" and os.environ.get("CLICOLOR") != "0"


def painter(stream: TextIO) -> Callable[[list[Styled]], None] | None:
    """Writes lines in colour to `stream`; None where rich is not installed."""
    try:
        from rich.console import Console
        from rich.segment import Segment, Segments
        from rich.style import Style
    except ImportError:
        return None

    class Terminal(Console):
        def on_broken_pipe(self) -> None:
            raise  # the command line handles it

    terminal = Terminal(file=stream, force_terminal=True, color_system="standard", no_color=False)

    def paint(parts: list[Styled]) -> None:
        # Segments are written as they are: rich reads no markup in them, wraps and crops nothing.
        segments = [Segment(text, Style.parse(style)) for text, style in parts]
        terminal.print(Segments([*segments, Segment.line()]), soft_wrap=True, end="")

    return paint


# -- the view


def show(screen: Screen, prompt: Prompt, messages: Sequence[Any], *, dropped: bool = True) -> None:
    """Writes the prompt, each piece with its writer, then, if `dropped` says so, what the template dropped."""
    pieces = pieces_of(prompt, messages)
    if screen.paint is None:
        _show_in_gutter(screen, folded(pieces))
    else:
        _show_flowing(screen, pieces)
    if dropped:
        show_dropped(screen, prompt, messages)


def show_dropped(screen: Screen, prompt: Prompt, messages: Sequence[Any]) -> None:
    if prompt.dropped:
        screen.line()
        screen.line(Styled("Dropped by the template:", "bold"))
    for path in prompt.dropped:
        screen.line(Styled("  "), Styled(safe(path), STYLES[writer_of(path, messages)]))


def _show_in_gutter(screen: Screen, pieces: Iterable[Piece]) -> None:
    width = None if screen.width is None else screen.width - _GUTTER - 3
    for writer, text in pieces:
        label = writer.value
        for row in rows_of(text):
            for part in broken([Styled(row)], width):
                screen.line(Styled(f"{label:{_GUTTER}} │ "), *part)
                label = ""


def _show_flowing(screen: Screen, pieces: Sequence[Piece]) -> None:
    present = {piece.writer for piece in pieces}
    legend = [Styled(f"■ {writer.value}   ", STYLES[writer]) for writer in Writer if writer in present]
    for line in ([*legend, Styled(f"{NEWLINE} line end", "dim")], [], *_lines(pieces)):
        for part in broken(line, screen.width):
            screen.line(*part)


def _lines(pieces: Iterable[Piece]) -> Iterator[list[Styled]]:
    """The marked text of all pieces, cut behind each `⏎`."""
    line: list[Styled] = []
    for writer, text in pieces:
        for row in rows_of(text):
            line += _with_dim_marks(row, STYLES[writer])
            if row.endswith(NEWLINE):
                yield line
                line = []
    if line:
        yield line


def _with_dim_marks(row: str, style: str) -> Iterator[Styled]:
    position = 0
    for mark in _MARK.finditer(row):
        yield Styled(row[position : mark.start()], style)
        yield Styled(mark[0], f"{style} dim")
        position = mark.end()
    yield Styled(row[position:], style)


# -- a turn format


def show_format(screen: Screen, explained: str) -> None:
    """Writes what `explain` tells of a turn format: labels, literals and the fields of a message apart."""
    for row in explained.splitlines():
        label, text = safe(row[:LABEL_WIDTH]), safe(row[LABEL_WIDTH:])
        if text:
            hang(screen, Styled(label, "bold"), _coloured(text), column=LABEL_WIDTH)
        else:
            screen.line(Styled(label, "bold"))


def _coloured(text: str) -> Iterator[Styled]:
    position = 0
    for word in _FORMAT_WORD.finditer(text):
        yield Styled(text[position : word.start()])
        yield Styled(word[0], _FORMAT_STYLES[word.lastgroup or ""])
        position = word.end()
    yield Styled(text[position:])
