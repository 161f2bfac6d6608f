"""The view of a prompt's tokens for people.

In: a prompt and its tokenizer. Out: lines on a `Screen`: behind a gutter, which tells the number of the first token,
who wrote it, in which message's turn it stands, and whether the model writes it, the tokens that have all these in
common. What holds: the marks are those of `view`, and each space of a token is `␣`, so that a space is what stands
between two tokens; a token that holds but a part of a character is shown as `⟨E4:BD⟩`, its bytes; no line is broken
inside of a token that fits; nothing that a message holds reaches a terminal as a control character.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import Any, NamedTuple

from .. import view
from ..prompt import Prompt
from ..tokens.attribution import Token
from ..tokens.tokenizer import Tokenizer
from ..view import Screen, Styled, Writer

SAMPLED = "●"
_NAMES = max(len(writer.value) for writer in Writer)
_CLIPPED = 60
_NARROWEST = 20


class Shown(NamedTuple):
    """A token as it is shown."""

    number: int
    token: Token
    text: str


def shown_tokens(prompt: Prompt, tokenizer: Tokenizer) -> list[Shown]:
    """The tokens of a prompt. Raises what `Prompt.tokens` raises."""
    tokens = prompt.tokens
    parts = _parts_of_characters(tokens)
    return [
        Shown(number, token, _bytes(tokenizer, token) if number in parts else _marked(prompt.text, token))
        for number, token in enumerate(tokens)
    ]


def _parts_of_characters(tokens: Sequence[Token]) -> set[int]:
    """The numbers of the tokens that share a character with a neighbour, or hold none."""
    found = {number for number, token in enumerate(tokens) if token.start == token.end}
    for number, (one, other) in enumerate(pairwise(tokens)):
        if other.start < one.end:
            found |= {number, number + 1}
    return found


def _bytes(tokenizer: Tokenizer, token: Token) -> str:
    return f"⟨{tokenizer.token_bytes(token.id).hex(':').upper()}⟩"


def _marked(text: str, token: Token) -> str:
    return view.safe(text[token.start : token.end]).replace(" ", view.SPACE).replace("\u3000", "⟨U+3000⟩")


def show_tokens(
    screen: Screen, prompt: Prompt, tokens: Sequence[Shown], messages: Sequence[Any], *, ids: bool = False
) -> None:
    """Writes the tokens, several a line, or with `ids` one a line with its id; then where the template's own mask
    differs, and what the template dropped."""
    digits = len(str(len(tokens)))
    id_digits = max((len(str(shown.token.id)) for shown in tokens), default=0)
    places = max((len(_place(shown.token)) for shown in tokens), default=0)
    for (writer, place, sampled, _), run in groupby(tokens, lambda shown: _group(shown, messages, ids)):
        group = list(run)
        first = group[0]
        number = f"{first.number:{digits}} " + (f"{first.token.id:{id_digits}} " if ids else "")
        gutter = f"{number} {writer.value:{_NAMES}} {place:{places}} {SAMPLED if sampled else ' '} │ "
        _write(screen, gutter, group, view.STYLES[writer] + (" underline" if sampled else ""))
    count = sum(bool(shown.token.sampled) for shown in tokens)
    screen.line()
    screen.line(Styled(f"{len(tokens):,} tokens, of which the model writes {count:,} ({SAMPLED})"))
    _show_differences(screen, prompt)
    view.show_dropped(screen, prompt, messages)


def _group(shown: Shown, messages: Sequence[Any], ids: bool) -> tuple[Writer, str, bool, int]:
    token = shown.token
    return view.writer_of(token.path, messages), _place(token), bool(token.sampled), shown.number if ids else 0


def _place(token: Token) -> str:
    return "" if token.message is None else f"[{token.message}]"


def _write(screen: Screen, gutter: str, group: Iterable[Shown], style: str) -> None:
    for row in _rows((shown.text for shown in group), screen.width, view.columns(gutter)):
        parts = [Styled(text, style) for text in row]
        spaced = [part for text in parts for part in (Styled(" "), text)][1:]
        screen.line(Styled(gutter), *spaced)
        gutter = " " * (view.columns(gutter) - 2) + "│ "


def _rows(texts: Iterable[str], width: int | None, used: int) -> Iterator[list[str]]:
    """The texts, in rows that fit."""
    room = None if width is None else max(width - used, _NARROWEST)
    row: list[str] = []
    filled = 0
    for text in texts:
        if row and room is not None and filled + 1 + view.columns(text) > room:
            yield row
            row, filled = [], 0
        *whole, text = ("".join(part.text for part in line) for line in view.broken([Styled(text)], room))
        yield from ([part] for part in whole)
        filled += view.columns(text) + (1 if row else 0)
        row.append(text)
    if row:
        yield row


def _show_differences(screen: Screen, prompt: Prompt) -> None:
    differences = prompt.mask_differences
    if differences:
        screen.line()
        screen.line(Styled("Where the template's generation tag says otherwise:", "bold"))
    for start, end, who in differences:
        text = prompt.text[start:end]
        told = "not in the tag" if who == "sampled" else "in the tag, though the model does not write it"
        clipped = view.safe(text[:_CLIPPED]) + ("…" if len(text) > _CLIPPED else "")
        view.hang(screen, Styled(f"  {start}–{end}  "), [Styled(f"{told}: "), Styled(clipped, "yellow")], column=4)
