"""`Sections`: how reasoning and content are written, and what stands in the place of reasoning."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from ..format import WHITESPACE, Section
from .markers import common_end, find_mirror, first_marker, leading_marker, markers, mirrored
from .opening import Opening
from .probes import CONTENT, REASONING, assistant
from .seen import Seen, Thought

INLINE = ("<think>", "</think>")
"""How reasoning may be given within content, for a template to take out."""


class Sections:
    """Reasoning and content."""

    def __init__(self, seen: Seen, opening: Opening) -> None:
        self.seen = seen
        self.opening = opening

    # -- reasoning

    @cached_property
    def reasoning(self) -> Section | None:
        """As it is seen in a turn, else as the prompt opens it, else as the template takes it out of content."""
        thought = self.seen.thought
        if thought is not None:
            opening = self._reasoning_open(thought)
            close = self._reasoning_close(thought, opening)
            left, right = self._stripped("reasoning", thought.variables)
            return Section(opening, close, left, right) if opening or close.strip() else None
        for begun in (*self.opening.all_begun, *_empty_section(self._head)):
            section = _mirrored_section(begun)
            if section is not None and leading_marker(self.seen.plain.tail) not in markers(begun):
                return section
        return self._inline()

    @property
    def _head(self) -> str:
        """What stands between the header and a turn's content, where there is no reasoning."""
        return self.opening.body(self.seen.plain.head)

    def _reasoning_open(self, thought: Thought) -> str:
        turn = thought.turn
        field = turn.of("reasoning")[0]
        literal = self.opening.body(turn.head) if field == turn.fields[0] else turn.before(field)
        return literal or self.opening.begun

    def _reasoning_close(self, thought: Thought, opening: str) -> str:
        """What closes reasoning: up to the marker that mirrors its opening, with the white space before content."""
        literal = thought.turn.after(thought.turn.of("reasoning")[0])
        found = find_mirror(literal, opening) or first_marker(literal)
        if found is None:
            return literal
        rest = literal[found.end() :]
        if not thought.spoken or not rest:
            return literal[: found.end()]
        own = common_end(rest, self._head) if rest.strip() else ""
        return literal.removesuffix(own) if own or not rest.strip() else literal[: found.end()]

    def _inline(self) -> Section | None:
        """Reasoning that is given within content, where the template takes it out or writes it in its own way."""
        inside = REASONING.join(INLINE)
        for turn in self.seen.probes.turns(assistant(inside + CONTENT)):
            if not turn.has("content") or inside + CONTENT in turn.text:
                continue
            if REASONING not in turn.text:
                return Section(*INLINE)
            opening, _, rest = turn.past_user(turn.text).partition(REASONING)
            return Section(self.opening.body(opening), rest.partition(CONTENT)[0])
        return None

    @cached_property
    def no_reasoning(self) -> str | None:
        """What stands for reasoning; None where an empty one may as well, since the prompt has opened it."""
        if self.reasoning is None:
            return None
        head = self._head.removesuffix(self.content_open)
        opening, close = self.reasoning.open, self.reasoning.close
        if not head.strip():
            return head if head and opening.startswith(head) else None
        opened = self.opening.begun == opening
        return None if head == opening or (opened and head == opening + close) else head

    # -- content

    @cached_property
    def content_open(self) -> str:
        thought = self.seen.thought
        if self.reasoning is None:
            return self._head
        if thought is None or not thought.spoken:
            return self._past_reasoning(self.reasoning)
        close = self._reasoning_close(thought, self._reasoning_open(thought))
        return thought.turn.start_of("content").removeprefix(close)

    def _past_reasoning(self, reasoning: Section) -> str:
        """What stands between the header and content, without what stands there for reasoning."""
        head, found = self._head, first_marker(reasoning.close)
        if head == reasoning.open:
            return ""
        if found is None or found[0] not in head:
            return head
        rest = head.rpartition(found[0])[2]
        return rest.lstrip() if markers(rest) else ""

    @cached_property
    def content_close(self) -> str:
        tail = self.seen.plain.tail
        found = find_mirror(tail, self.content_open)
        return tail[: found.end()] if found and not tail[: found.start()].strip() else ""

    def content(self, ends: tuple[str, ...]) -> Section:
        """Content in turns that these ends end.

        Where there is none, the white space that the template writes behind content cannot be told from content.
        """
        left, right = self._stripped("content", self.seen.thought.variables if self.seen.thought else {})
        tail = self.seen.plain_tail
        if not ends and not tail.strip():
            right = "".join(dict.fromkeys(right + tail))
        return Section(self.content_open, self.content_close, left, right)

    def _stripped(self, kind: str, variables: dict[str, Any]) -> tuple[str, str]:
        """What is taken off the start and the end of a text of this kind."""
        text = "\n zqtext \n"
        if kind == "reasoning":
            message = assistant(reasoning=text)
        else:
            message = assistant(text, REASONING if self.seen.thought and self.seen.thought.spoken else None)
        turn = self.seen.turn(message, kind, **variables)
        if turn is None:
            return "", ""
        field = turn.of(kind)[0]
        left, _, right = turn.text[field.start : field.end].partition("zqtext")
        taken = {"\n ": "", " \n": "", " ": "\n"}
        return taken.get(left, WHITESPACE), taken.get(right, WHITESPACE)


def _mirrored_section(begun: str) -> Section | None:
    """Reasoning that only the prompt shows: `<think>\\n`, `<think>\\n\\n</think>\\n\\n` or `</think>`."""
    found = first_marker(begun)
    if found is None:
        return None
    if found[0].startswith("</"):
        return Section(found[0].replace("/", "", 1), begun)
    closing = find_mirror(begun, found[0])
    if closing is None:
        space, mirror = begun[found.end() :], mirrored(found[0])
        return Section(begun, f"{space}{mirror}{space}") if mirror and not space.strip() else None
    inner = begun[found.end() : closing.start()]
    half = len(inner) if inner.strip() else (len(inner) + 1) // 2
    return Section(begun[: found.end()] + inner[:half], inner[half:] + begun[closing.start() :])


def _empty_section(head: str) -> list[str]:
    """What stands for reasoning at the start of `head`: a marker and its mirror, with nothing but space between."""
    found = first_marker(head)
    closing = find_mirror(head, found[0]) if found else None
    if found is None or closing is None or (head[: found.start()] + head[found.end() : closing.start()]).strip():
        return []
    rest = head[closing.end() :]
    return [head[: len(head) - len(rest.lstrip())]]
