"""What goes to standard output, which is data, and to standard error, which is talk."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import time
from contextlib import suppress
from typing import Any, TextIO

from .. import view
from ..errors import FormatNotDerived
from .inputs import InputError

PROGRAM = "chatcodec"
NAME_TOKENS = "A special token is missing: give the model's folder, where it is found, or --set eos_token='</s>'."
BY_HAND = (
    "Encoding works all the same. To decode, say by hand how a turn is written: save a format that is like it",
    f"({PROGRAM} format step3-vl -o turn.json), edit it, and give it with --format turn.json; see docs/decoding.md.",
)

_TERMINAL_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_JSON_CONTROLS = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_SURROGATES = re.compile("[\ud800-\udfff]")


# -- data


def json_line(value: Any) -> str:
    """`value` as JSON on one line, readable, yet with nothing in it that a terminal would obey or UTF-8 cannot hold."""
    return _json(value, None)


def json_block(value: Any) -> str:
    """The same on several lines, indented."""
    return _json(value, 2)


def _json(value: Any, indent: int | None) -> str:
    text = json.dumps(value, ensure_ascii=False, default=_as_json, indent=indent)
    return _JSON_CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text) + "\n"


def _as_json(value: Any) -> Any:
    return sorted(value) if isinstance(value, set | frozenset) else str(value)


def write(text: str) -> None:
    """Writes a prompt to standard output: to the byte, unless that is a terminal."""
    if _SURROGATES.search(text):
        say("note", r"the prompt holds lone surrogates, which UTF-8 cannot hold: written as \udXXX")
    if sys.stdout.isatty():
        text = _TERMINAL_CONTROLS.sub(lambda found: f"⟨U+{ord(found[0]):04X}⟩", text)
        text = text if text.endswith("\n") else text + "\n"
    sys.stdout.write(text)


def save(path: str, text: str) -> None:
    """Writes a file. Raises `InputError` where that fails."""
    try:
        with open(path, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from error


# -- screens


def screen(arguments: argparse.Namespace) -> view.Screen:
    """Standard output, with colours and width as the arguments want them."""
    return _screen(sys.stdout, arguments.color, arguments.width)


def side_screen() -> view.Screen:
    """Standard error, for people to read."""
    return _screen(sys.stderr, "auto", None)


def _screen(stream: TextIO, color: str, width: int | None) -> view.Screen:
    paint = None
    if view.wants_colour(color, stream):
        paint = view.painter(stream)
        if paint is None and stream is sys.stdout:
            say("note", view.INSTALL_HINT)
    if width is None and stream.isatty():
        width = shutil.get_terminal_size().columns
    return view.Screen(stream, width=width or None, paint=paint)


# -- talk


def say(kind: str, message: object) -> None:
    """Writes a line to standard error, behind all data that came before."""
    with suppress(OSError):
        sys.stdout.flush()
    sys.stderr.write(f"{PROGRAM}: {kind}: {view.safe(message)}\n")
    sys.stderr.flush()


def say_error(error: Exception) -> None:
    if not isinstance(error, FormatNotDerived):
        say("error", error)
        return
    say("error", f"{error.template}: how a turn is written could not be read off the template: {error.reason}")
    seen = list(dict.fromkeys(error.seen))
    told = [*(["  what was seen:"] if seen else []), *(f"    {text}" for text in seen)]
    told += [NAME_TOKENS] if any("_token' is undefined" in text for text in seen) else BY_HAND
    sys.stderr.writelines(f"{view.safe(line)}\n" for line in told)
    sys.stderr.flush()


class Progress:
    """A count on standard error, for people who wait for a file; `aside`: standard output is not what they wait for."""

    def __init__(self, things: str, *, aside: bool = False) -> None:
        self.shown = False
        self._things = things
        self._wanted = sys.stderr.isatty() and (aside or not sys.stdout.isatty())
        self._count = 0
        self._next = time.monotonic() + 0.5

    def step(self, count: int = 1, more: str = "") -> None:
        """`count` more things are done; `more` is what else there is to tell, behind the count."""
        self._count += count
        if self._wanted and time.monotonic() >= self._next:
            self._next = time.monotonic() + 0.1
            wiped = "\x1b[K" if more else ""
            self.shown = True
            sys.stderr.write(f"\r{self._count:,} {self._things}{more}{wiped}")
            sys.stderr.flush()

    def clear(self) -> None:
        if self.shown:
            sys.stderr.write("\r\x1b[K")
            self.shown = False

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()
