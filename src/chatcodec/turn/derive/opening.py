"""`Opening`: the header of a turn, which all turns and the generation prompt share, and what the prompt adds to it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise
from typing import Any

from .markers import common_start, find_mirror, first_marker, leading_marker, markers, mirrors
from .seen import SETTINGS, Seen

OTHER_SETTINGS: tuple[dict[str, Any], ...] = ({"enable_thinking": False}, {"thinking": False})
"""What may bring a template to leave reasoning out."""


class Opening:
    """What opens a turn."""

    def __init__(self, seen: Seen) -> None:
        self.seen = seen

    @cached_property
    def prompts(self) -> list[str]:
        """The generation prompt, the template's own choice first, then what other settings make of it."""
        probes, tools = self.seen.probes, self.seen.tools
        found = []
        for variables in (*SETTINGS, *OTHER_SETTINGS):
            without, after = (probes.after_user(asked, tools, **variables) for asked in (False, True))
            tail = probes.user_tail(tools, **variables)
            if after and not (tail and after == without):
                found.append(after[len(common_start(tail, after)) :])
        return [prompt for prompt in found if prompt]

    @cached_property
    def header(self) -> str:
        heads = list(self.seen.heads)
        common = common_start(*self.prompts, *heads)
        if not re.search(r"\w", common):
            common = self._aligned(heads)
        return self._own(common[: min(self._reasoning_starts(common), default=len(common))])

    def body(self, text: str) -> str:
        """What stands behind the header in a text from a turn's start."""
        return text.partition(self.header)[2] if self.header and self.header in text else text

    @cached_property
    def prompt(self) -> str:
        prompt = self.prompts[0] if self.prompts else ""
        return prompt[prompt.index(self.header) :] if self.header in prompt else self.header

    @property
    def begun(self) -> str:
        """What the prompt opens behind the header."""
        return self.body(self.prompt)

    @property
    def all_begun(self) -> list[str]:
        """The same of each prompt."""
        return [self.body(prompt) for prompt in self.prompts if self.header in prompt]

    def _aligned(self, heads: list[str]) -> str:
        """The header where the prompt, or a turn, has something before it that the others do not have."""
        prompt = self.prompts[0] if self.prompts else ""
        for marker in markers(prompt):
            texts = [text[text.find(marker) :] for text in (prompt, *heads) if marker in text]
            if len(texts) == len(heads) + 1:
                return common_start(*texts)
        return prompt or self.seen.plain.user_tail.lstrip()

    def _own(self, header: str) -> str:
        """`header` without what ends the user's turn, as it ends the assistant's."""
        turns = (self.seen.past, self.seen.plain)
        ends = [leading_marker(turn.tail) for turn in turns if turn is not None]
        first = leading_marker(header)
        if first and (first in ends or first.startswith("</")):
            after = header.lstrip().removeprefix(first).lstrip()
            if leading_marker(after) or not (markers(after) or first in self.seen.user_opening):
                return after
        return header

    def _reasoning_starts(self, common: str) -> Iterator[int]:
        """Where in `common`, the start of all turns, reasoning or what stands for it may begin.

        It never begins at the first marker, which opens the turn.
        """
        found = first_marker(common)
        first = found.start() if found else 0
        starts = (*self._seen_reasoning(common), *self._empty_reasoning(common), *self._closed_reasoning(common))
        return (start for start in starts if start > first)

    def _seen_reasoning(self, common: str) -> Iterator[int]:
        if self.seen.thought is None:
            return
        turn = self.seen.thought.turn
        closing = find_mirror(turn.after(turn.of("reasoning")[0]), turn.head)
        if closing:
            yield from (common.rfind(marker) for marker in markers(turn.head) if closing[0] in mirrors(marker))

    def _empty_reasoning(self, common: str) -> Iterator[int]:
        """Of a marker and its mirror, with nothing but white space between."""
        head = self.seen.plain.head
        for text in (common, head[max(head.find(common), 0) :]):
            for marker, after in pairwise(markers(text)):
                start = text.rindex(marker)
                if after in mirrors(marker) and not text[start:].replace(marker, "").replace(after, "").strip():
                    yield start

    @staticmethod
    def _closed_reasoning(common: str) -> Iterator[int]:
        """Of a last marker that closes what nothing has opened."""
        *before, last = markers(common) or [""]
        paired = any(last in mirrors(marker) for marker in before)
        if last.startswith("</") and common.endswith(last) and not paired:
            yield common.rindex(last)
