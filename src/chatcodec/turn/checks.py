"""Whether a format that was written by hand can be read by: what no type says of it."""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import SourceError
from .format import (
    Arguments,
    BareArguments,
    Call,
    CallId,
    KeywordArguments,
    Literal,
    Name,
    TaggedArguments,
    TurnFormat,
)
from .grammar import tokens

NEEDED: dict[type, tuple[str, ...]] = {
    TaggedArguments: ("open", "middle", "close"),
    KeywordArguments: ("equals",),
    BareArguments: ("quote", "comma", "colon"),
}
"""What of a payload's writing must not be white space alone."""


def check(turn: TurnFormat) -> None:
    """Raises `SourceError` with the place in the format and what is wrong there."""
    for place, fault in _faults(turn):
        raise SourceError(f"format.{place}: {fault}")


def _faults(turn: TurnFormat) -> Iterator[tuple[str, str]]:
    if turn.reasoning is not None and not tokens(turn.reasoning.close):
        yield "reasoning.close", "a marker is needed, for nothing else tells where reasoning ends"
    for name in ("ends", "next_turns"):
        for place, text in enumerate(getattr(turn, name)):
            if not tokens(text):
                yield f"{name}[{place}]", "a marker is needed, not white space alone"
    if turn.channels is not None:
        for name in ("start", "channel", "message", "end"):
            if not tokens(getattr(turn.channels, name)):
                yield f"channels.{name}", "a marker is needed"
    if turn.calls is not None:
        for piece, fault in _call_faults(turn.calls.call):
            yield f"calls.call.{piece}", fault


def _call_faults(call: Call) -> Iterator[tuple[str, str]]:
    if sum(isinstance(piece, Arguments) for piece in call.pieces) != 1:
        yield "pieces", "the arguments are needed once"
    if not any(piece in (Name(), CallId(names=True)) for piece in call.pieces):
        yield "pieces", "a name is needed, or an id that holds it"
    if call.name_path:
        first, last = call.pieces[0], call.pieces[-1]
        if not (isinstance(first, Literal) and "{" in first.text and isinstance(last, Literal) and "}" in last.text):
            yield "pieces", "with a name_path the first literal opens a JSON object, and the last one closes it"
        if not call.arguments_path:
            yield "arguments_path", "it is needed where there is a name_path"
    for place, piece in enumerate(call.pieces):
        if isinstance(piece, Arguments):
            for name in NEEDED.get(type(piece.payload), ()):
                if not tokens(getattr(piece.payload, name)):
                    yield f"pieces[{place}].payload.{name}", "a marker is needed"
            if isinstance(piece.payload, TaggedArguments) and not all(
                tokens(middle) for _, middle in piece.payload.kinds
            ):
                yield f"pieces[{place}].payload.kinds", "each needs a marker"
