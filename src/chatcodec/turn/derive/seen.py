"""`Seen`: the turns that derivation looks at, each picked from what a template writes for the probe conversations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

from ...errors import FormatNotDerived
from .calls import Written, read_calls
from .probes import CONTENT, NEXT, REASONING, Message, Probes, Turn, assistant, call, definitions, user

SETTINGS: tuple[dict[str, Any], ...] = ({}, {"enable_thinking": True}, {"thinking": True})
"""What may bring a template to write reasoning."""
SHOWN = 160
"""Characters of a text that an error shows."""


@dataclass(frozen=True, slots=True)
class Thought:
    """A turn with reasoning, and the template variables that it takes."""

    turn: Turn
    variables: dict[str, Any]

    @property
    def spoken(self) -> bool:
        """Content stands right behind the reasoning."""
        return ("reasoning", "content") in pairwise(field.kind for field in self.turn.fields)


class Seen:
    """The turns of one template."""

    def __init__(self, probes: Probes, template: str) -> None:
        self.probes = probes
        self.template = template

    def failure(self, reason: str, *texts: str) -> FormatNotDerived:
        shown = [repr(text[-SHOWN:]) for text in texts] + self.probes.errors[:3]
        return FormatNotDerived(reason, template=self.template, seen=tuple(shown))

    def turn(self, message: Message, *kinds: str, **variables: Any) -> Turn | None:
        """The first turn of `message` in which fields of these kinds are written."""
        return next((turn for turn in self.probes.turns(message, **variables) if turn.has(*kinds)), None)

    @cached_property
    def tools(self) -> Any:
        """Definitions of tools, where nothing is written without them."""
        return None if self.probes.render([user(), assistant()]) is not None else definitions()

    @cached_property
    def plain(self) -> Turn:
        """A turn of content alone."""
        turn = self.turn(assistant(), "content")
        if turn is None:
            render = self.probes.render([user(), assistant()])
            raise self.failure(
                "no conversation brings it to write the content of an assistant's message",
                *((render.text,) if render else ()),
            )
        return turn

    @cached_property
    def past(self) -> Turn | None:
        """A turn of content alone that the user has answered."""
        turn = self.probes.turn(assistant(), [user(NEXT)], self.tools)
        return turn if turn is not None and turn.has("content") else None

    @cached_property
    def plain_tail(self) -> str:
        """What follows the content that is all of the last turn."""
        return self.plain.tail if self.plain.last else ""

    @cached_property
    def thought(self) -> Thought | None:
        """A turn with reasoning, and content or a call."""
        for variables in self._settings():
            for message, kinds in self._thoughts():
                turn = self.turn(message, *kinds, **variables)
                found = Thought(turn, variables) if turn is not None else None
                if found is not None and ("content" not in kinds or found.spoken):
                    return found
        return None

    def _settings(self) -> Iterator[dict[str, Any]]:
        """The settings that make a difference."""
        message = [user(), assistant(reasoning=REASONING)]
        texts: list[str | None] = []
        for variables in SETTINGS:
            render = self.probes.render(message, self.tools, **variables)
            text = render.text if render else None
            if text not in texts:
                texts.append(text)
                yield variables

    def _thoughts(self) -> Iterator[tuple[Message, tuple[str, ...]]]:
        """Messages with reasoning, and what of them a turn must show."""
        yield assistant(reasoning=REASONING), ("reasoning", "content")
        if self.calling is not None:
            yield assistant(CONTENT, REASONING, [call()]), ("reasoning", "content", "argument")
            yield assistant("", REASONING, [call()]), ("reasoning", "argument")
            yield assistant(CONTENT, REASONING, [call()]), ("reasoning", "argument")

    # -- calls

    @cached_property
    def calling(self) -> Written | None:
        """Calls, in a turn with content where the template keeps it."""
        found = self.talking
        return found if found is not None and found.turn.has("content") else self.silent or found

    @cached_property
    def talking(self) -> Written | None:
        """The calls of a message with content."""
        return read_calls(self.probes, CONTENT)

    @cached_property
    def silent(self) -> Written | None:
        """The calls of a message without content."""
        return read_calls(self.probes, "")

    @cached_property
    def thinking(self) -> Written | None:
        """The calls of a message without content that stand behind its reasoning."""
        if self.thought is None:
            return None
        found = read_calls(self.probes, "", REASONING, **self.thought.variables)
        shown = found.turn.of("reasoning") if found else []
        return found if found and shown and shown[0].start < found.start else None

    @property
    def heads(self) -> Iterator[str]:
        """All that is seen to open a turn."""
        yield self.plain.head
        if self.past is not None:
            yield self.past.head
        if self.thought is not None:
            yield self.thought.turn.head
        if self.silent is not None:
            yield self.silent.head

    @cached_property
    def user_opening(self) -> str:
        """What stands before the first user's text."""
        render = self.probes.render([user()], self.tools)
        start = next((stretch.start for stretch in render.of_message(0)), 0) if render else 0
        return render.text[:start] if render else ""
