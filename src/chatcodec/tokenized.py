"""`Tokenized`: a prompt as tokens. It wires the render's trace, the turn's format and the tokenizer together.

Who wrote what is asked of the trace only where it can matter: a conversation in which nothing looks like a part of a
control token has the ids of its plain text.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from .errors import FormatNotDerived, UnsupportedInput
from .template.traced import TracedKey, TracedText, keys_of, path_of
from .tokens.attribution import Token, attributed, covered, placed_tokens
from .tokens.controls import Piece, Range
from .tokens.encoding import Encoder, UnencodableText
from .tokens.innocence import ROLES, is_common
from .tokens.turns import Marks, Owned, Turn, Turns
from .turn.format import TurnFormat

SPECIAL_IN_CONTENT = ("text", "error", "allow")


@dataclass(frozen=True)
class Making:
    """What a prompt was made of, and how to find out more: `messages`, `tools` and `variables` are what was given,
    `template` is the template's source.

    `before(i)` is the text of the prompt that message i answers; `generation()` are the ranges of the template's
    `{% generation %}` blocks, None for none; `format()` is the turn's.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Any
    variables: Mapping[str, Any]
    special_in_content: str
    template: str
    encoder: Callable[[], Encoder]
    format: Callable[[], TurnFormat]
    before: Callable[[int], str]
    generation: Callable[[], list[Range] | None]


class Tokenized:
    def __init__(self, text: str, trace: Callable[[], TracedText], making: Making) -> None:
        self._text = text
        self._trace = trace
        self._making = making

    # -- ids

    @cached_property
    def ids(self) -> list[int]:
        return self.ids_from(0)

    def ids_from(self, start: int) -> list[int]:
        """The ids of the text from a place on, at which no token may stand across."""
        return self._ids(self._pieces, start)

    def ids_between(self, start: int, end: int) -> list[int]:
        """The ids of a part of the text."""
        first = max(bisect_right(self._starts, start) - 1, 0)
        pieces = self._pieces[first : bisect_left(self._starts, end)]
        if pieces and pieces[-1].end > end:
            pieces[-1] = pieces[-1]._replace(end=end)
        return self._ids(pieces, start)

    @cached_property
    def _starts(self) -> list[int]:
        return [piece.start for piece in self._pieces]

    def _ids(self, pieces: Sequence[Piece], start: int) -> list[int]:
        try:
            return self._encoder.ids(self._text, pieces, start=start)
        except UnencodableText as error:
            raise UnsupportedInput(self._path_at(error.place), error.reason) from None

    @cached_property
    def _encoder(self) -> Encoder:
        return self._making.encoder()

    @cached_property
    def _pieces(self) -> list[Piece]:
        controls, making = self._encoder.controls, self._making
        pieces = controls.cut(self._text)
        given = {"messages": making.messages, "tools": making.tools, **making.variables}
        if making.special_in_content == "allow" or controls.innocent(pieces, given, making.template):
            return pieces
        foreign = self._foreign
        if making.special_in_content == "error":
            place = controls.spelled(self._text, foreign)
            if place is not None:
                raise UnsupportedInput(
                    self._path_at(place),
                    "it spells a control token of the vocabulary",
                )
        return controls.cut(self._text, foreign)

    @property
    def _foreign(self) -> list[Range]:
        """What can be no part of a control token: what the input wrote, save what is the same in all conversations."""
        common: dict[int, bool] = {}
        found = []
        for start, end, origin in self._trace().origins:
            known = common.get(id(origin))
            if known is None:
                known = common[id(origin)] = self._is_common(origin)
            if not known:
                found.append((start, end))
        return found

    def _is_common(self, origin: Any) -> bool:
        if not isinstance(origin, str):
            return False
        known = self._encoder.controls.controls
        return is_common(keys_of(origin), str.__str__(origin), known, is_name=isinstance(origin, TracedKey))

    def _path_at(self, place: int) -> str:
        for start, end, origin in self._trace().origins:
            if start <= place < end:
                return path_of(origin)
        return "messages"

    # -- who wrote what

    @cached_property
    def owned(self) -> list[Owned]:
        """What the input wrote. A role that every template knows counts as the template's own writing: templates make
        control tokens of it (`<|user|>`)."""
        found: list[Owned] = []
        known: dict[int, int | None] = {}
        for start, end, origin in self._trace().origins:
            owner = known.get(id(origin), -1)
            if owner == -1:
                known[id(origin)] = owner = self._owner(origin)
            if owner == -2:
                continue
            if found and found[-1].end == start and found[-1].message == owner:
                found[-1] = Owned(found[-1].start, end, owner)
            else:
                found.append(Owned(start, end, owner))
        return found

    @staticmethod
    def _owner(origin: Any) -> int | None:
        """The place of the message that wrote it; None for what is no message, -2 for a role."""
        keys = keys_of(origin)
        if keys[0] != "messages" or len(keys) < 2:
            return None
        if keys[2:] == ["role"] and isinstance(origin, str) and str.__str__(origin) in ROLES:
            return -2
        return int(keys[1])

    @cached_property
    def _turns(self) -> Turns:
        form, making = self._making.format(), self._making
        assistants = [place for place, message in enumerate(making.messages) if message.get("role") == "assistant"]
        return Turns(self._text, self.owned, assistants, marks_of(form), making.before)

    @property
    def turns(self) -> list[Turn]:
        """Where the assistants' turns stand. Raises `FormatNotDerived`."""
        return self._turns.turns

    # -- tokens

    @cached_property
    def _placed(self) -> list[tuple[int, int, int]]:
        self.ids_from(0)  # raises where there are none
        return placed_tokens(self._encoder, self._text, self._pieces)

    @cached_property
    def sampled(self) -> list[bool]:
        return covered(self._placed, self._written)

    @cached_property
    def _written(self) -> list[Range]:
        """What the model writes; without a format that is what the template says."""
        try:
            return [(turn.start, turn.end) for turn in self.turns]
        except FormatNotDerived:
            if self._generation is None:
                raise
            return self._generation

    @cached_property
    def tokens(self) -> list[Token]:
        try:
            messages = self._turns.messages
            sampled: Sequence[bool | None] = self.sampled
        except FormatNotDerived:
            messages = [span for span in self.owned if span.message is not None]
            sampled = self.generation or [None] * len(self._placed)
        return attributed(self._placed, self._trace().spans, messages, sampled)

    # -- beside the template's own marks

    @cached_property
    def _generation(self) -> list[Range] | None:
        return self._making.generation()

    @cached_property
    def generation(self) -> list[bool] | None:
        return None if self._generation is None else covered(self._placed, self._generation)

    @cached_property
    def mask_differences(self) -> list[tuple[int, int, str]]:
        if self._generation is None:
            return []
        only_ours = [(*found, "sampled") for found in _without(self._written, self._generation)]
        return sorted([*only_ours, *((*found, "generation") for found in _without(self._generation, self._written))])


def marks_of(form: TurnFormat) -> Marks:
    ends = (*form.ends, form.channels.call_end) if form.channels else form.ends
    return Marks(form.header, form.prompt, tuple(filter(None, ends)), form.next_turns)


def _without(ranges: Sequence[Range], others: Sequence[Range]) -> list[Range]:
    """What of `ranges` is in none of `others`; both are in order."""
    found: list[Range] = []
    for start, end in ranges:
        for begin, stop in others:
            if stop <= start or begin >= end:
                continue
            if start < begin:
                found.append((start, begin))
            start = max(start, stop)
        if start < end:
            found.append((start, end))
    return found
