"""`Ends`: what ends a turn, and what opens the next."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from ..format import Calls, Literal
from .markers import closing_part, common_end, common_start, leading_marker, markers, unique
from .probes import NEXT, SYSTEM, Message, assistant, call, definitions, results, user
from .sections import Sections
from .seen import Seen


class Ends:
    """The ends of turns of content; `next_turns` looks past those of calls too."""

    def __init__(self, seen: Seen, sections: Sections) -> None:
        self.seen = seen
        self.sections = sections

    @cached_property
    def after_content(self) -> tuple[str, ...]:
        """What ends a turn of content: the last one's end, and another where more turns follow."""
        close = self.sections.content_close
        tail = self.seen.plain_tail.removeprefix(close)
        if self.seen.past is None:
            return (tail,) if tail.strip() else ()
        following = self.seen.past.tail.removeprefix(close)
        if tail.strip() and following.startswith(tail):
            return (tail,)
        shared = closing_part(common_start(tail, following))
        ends = (shared,) if shared.strip() else (tail, self._end_before(following))
        return unique(end for end in ends if end.strip())

    @property
    def first(self) -> str:
        return next(iter(self.after_content), "")

    def _end_before(self, following: str) -> str:
        """What ends a turn in `following`, the text from it to the next user's, by what opens other turns."""
        ended = common_start(following, self.seen.plain.user_tail + self.seen.plain.head)
        if len(markers(ended)) > 1:
            return closing_part(ended)
        return following[: len(following) - len(common_end(self.seen.user_opening, following))]

    def next_turns(self, header: str, calls: Calls | None, ends: Sequence[str]) -> tuple[str, ...]:
        """What opens the turns of the user, of tools and of the system, and the assistant's own."""
        made, tools = [call()], self.seen.tools
        literals = (
            self._between(assistant(), [user(NEXT)], tools),
            self._between(assistant(calls=made), results(made), definitions(), calls),
            self._between(assistant(), [{"role": "system", "content": SYSTEM}], tools),
        )
        texts = [_past_ends(text, ends) for text in literals if text is not None]
        return unique(leading_marker(text) or "" for text in (*texts, header))

    def _between(
        self, message: Message, following: Sequence[Message], tools: Any, calls: Calls | None = None
    ) -> str | None:
        """What stands between the last text of a turn and that of the next."""
        turn = self.seen.probes.turn(message, following, tools)
        if turn is None or turn.last:
            return None
        if calls is None or not turn.calls():
            return turn.tail.removeprefix(self.sections.content_close)
        last = calls.call.pieces[-1]
        closing = (last.text if isinstance(last, Literal) else "") + calls.close
        return turn.tail.rpartition(closing)[2] if closing else turn.tail


def _past_ends(text: str, ends: Sequence[str]) -> str:
    for end in ends:
        text = text.lstrip().removeprefix(end.strip())
    return text
