"""`Calling`: the calls of a turn in their place, between content and the turn's end."""

from __future__ import annotations

from functools import cached_property

from ..format import Calls, Literal
from .calls import Written, complete, grown
from .ends import Ends
from .markers import common_end, find_mirror, markers
from .opening import Opening
from .probes import CONTENT, REASONING, assistant, call
from .sections import Sections
from .seen import Seen


class Calling:
    """The calls. With `channels` each is a message, and has no section around it."""

    def __init__(self, seen: Seen, opening: Opening, sections: Sections, ends: Ends, *, channels: bool) -> None:
        self.seen = seen
        self.opening = opening
        self.sections = sections
        self.ends = ends
        self.channels = channels

    @cached_property
    def calls(self) -> Calls | None:
        if self.written is None:
            if turn := self.seen.turn(assistant(calls=[call()]), "name", "argument"):
                raise self.seen.failure("how it writes a call could not be told", turn.text)
            return None
        made = complete(self.seen.probes, self.written, self.end)
        if made is None:
            raise self.seen.failure("how it writes a call's arguments could not be told", self.written.turn.text)
        if self.channels:
            return Calls(made, several=self.written.several)
        opening, lead, lead_alone = self._openings(self.written)
        return Calls(
            call=made,
            open=opening,
            separator=self.written.separator,
            close=self.written.after,
            lead=lead,
            lead_alone=lead_alone,
            several=self.written.several,
        )

    @property
    def written(self) -> Written | None:
        return self._ended[0] if self._ended else None

    @property
    def end(self) -> str:
        """What ends a turn that calls end."""
        return self._ended[1] if self._ended else ""

    @cached_property
    def _ended(self) -> tuple[Written, str] | None:
        """The calls and what ends their turn. What stands around a call that stands alone is the call's."""
        if self.seen.calling is None:
            return None
        written, end = self._cut(self.seen.calling)
        if written.several:
            return written, end
        opening = written.before if written.preceded else self._body(written)
        if self.seen.silent is not None and not self.seen.silent.several:
            opening = common_end(opening, self._body(self.seen.silent))
        return grown(written, opening if self.channels else opening.lstrip(), written.after), end

    def _cut(self, written: Written) -> tuple[Written, str]:
        """The calls without their turn's end: what ends content, or the last marker that closes nothing of theirs."""
        last = written.turn.tail if written.followed else written.after
        end = self.ends.first
        if end and end in last:
            own = last.partition(end)[0]
        else:
            found = markers(last) if written.turn.last else []
            opening = "".join(piece.text for piece in written.call.pieces if isinstance(piece, Literal))
            closes = not found or find_mirror(found[-1], opening + written.before) is not None
            own = last if closes else last[: last.rindex(found[-1])]
            end = last[len(own) :]
        return written.ending(own), end

    def _body(self, written: Written) -> str:
        """What stands between the header, or what stands for reasoning, and the calls."""
        text = self.opening.body(written.head)
        head = self.opening.body(self.seen.plain.head)
        return text if head == self.sections.content_open else text.removeprefix(head)

    def _openings(self, written: Written) -> tuple[str, str, str]:
        """What opens the section of the calls, and what leads to it behind content and without content.

        The two ways to it end alike, and that opens it.
        """
        alone = self._alone(written)
        before = alone
        if written.preceded and written.turn.has("content"):
            before = written.before.removeprefix(self.sections.content_close)
        opening = common_end(before, alone).lstrip()
        if alone.removesuffix(opening).strip():
            return alone.lstrip(), "", ""
        return opening, before.removesuffix(opening), alone.removesuffix(opening)

    def _alone(self, written: Written) -> str:
        """What leads to calls without content: behind reasoning, as a model that reasons writes it, or else without."""
        silent, thinking = self.seen.silent, self.seen.thinking
        if silent is None:
            return written.before
        if thinking is not None and self.sections.reasoning is not None:
            close = self.sections.reasoning.close
            after = thinking.turn.text[thinking.turn.of("reasoning")[0].end : thinking.start]
            if after.startswith(close):
                return self._outside(thinking, after.removeprefix(close))
        return self._outside(silent, self._body(silent))

    def _outside(self, written: Written, before: str) -> str:
        """`before` without what is the call's own, where it stands alone."""
        first = self.written.call.pieces[0] if self.written else None
        return before.removesuffix(first.text) if isinstance(first, Literal) and not written.several else before

    @cached_property
    def order(self) -> tuple[str, ...]:
        """The order of the parts; what the prompt opens comes first whatever turns of the past look like."""
        message = assistant(CONTENT, REASONING, [call()])
        variables = self.seen.thought.variables if self.seen.thought else {}
        turn = self.seen.turn(message, "reasoning", "content", "name", **variables)
        if turn is None and self.seen.talking is not None:
            turn = self.seen.talking.turn
        shown = list(turn.order()) if turn is not None else []
        begun = self.sections.reasoning is not None and self.opening.begun
        if begun or "reasoning" not in shown:
            shown = ["reasoning", *(part for part in shown if part != "reasoning")]
        if "calls" not in shown:
            shown.append("calls")
        if "content" not in shown:
            shown.insert(shown.index("calls"), "content")
        return tuple(shown)
