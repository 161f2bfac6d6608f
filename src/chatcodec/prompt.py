"""`Prompt`, what `encode` returns. Who wrote what in it, and what was left out, is worked out when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

from .adapting import TEXT_PARTS, media_kind
from .messages import Message
from .template.traced import Traced, TracedBool, TracedFloat, TracedInt, TracedText

UNSAID = frozenset(("role", "id", "tool_call_id", "type"))
"""Fields of a message, a call or a part that steer the template and tell the model nothing."""
SAID = frozenset(("content", "refusal", "tool_calls", "function_call"))
"""Fields of a message that `strict` does not let a template leave out; old reasoning is left out by many on purpose."""


class Prompt:
    """The prompt of a conversation.

    `text` is the prompt. `spans` are `(start, end, path)` in characters, in order and without gap over the text; path
    is None for what the template wrote. `dropped` are the paths of the input whose text never reached the prompt.
    """

    def __init__(self, text: str, trace: Callable[[], Trace]) -> None:
        self.text = text
        self._make_trace = trace

    @cached_property
    def trace(self) -> Trace:
        return self._make_trace()

    @property
    def spans(self) -> list[tuple[int, int, str | None]]:
        return self.trace.text.spans

    @property
    def dropped(self) -> list[str]:
        return self.trace.dropped

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Prompt({self.text!r})"


class Trace:
    """A traced render beside the traced input it was made from. `media` are the kinds of part that leave a mark."""

    def __init__(
        self,
        text: TracedText,
        messages: list[Message],
        others: dict[str, Any],
        media: Callable[[], frozenset[str]],
    ) -> None:
        self.text = text
        self._messages = messages
        self._others = others
        self._media = media

    @cached_property
    def dropped(self) -> list[str]:
        paths = [path for _, path in self._dropped_messages()]
        for name, value in self._others.items():
            if isinstance(value, list):
                paths += self._lost(value, name)
        return paths

    @property
    def unsaid(self) -> list[str]:
        """What was dropped of that which the messages say and call."""
        return [path for name, path in self._dropped_messages() if name in SAID]

    def _dropped_messages(self) -> Iterator[tuple[str, str]]:
        for index, message in enumerate(self._messages):
            for name, value in message.items():
                if name not in UNSAID and not (name == "name" and message["role"] in ("tool", "function")):
                    for path in self._lost(value, f"messages[{index}].{name}"):
                        yield name, path

    @cached_property
    def _shown(self) -> set[int]:
        """The identities of the values in the text; a text that was read as JSON is shown by what it held."""
        shown: set[int] = set()
        for _, _, origin in self.text.origins:
            while origin is not None and id(origin) not in shown:
                shown.add(id(origin))
                origin = origin[0] if type(origin) is tuple else origin._parent
        return shown

    def _lost(self, value: Any, path: str) -> list[str]:
        """The paths at or under `path` of which nothing is shown: the outermost one where all below it is lost."""
        states = set(self._states(value))
        if states == {False}:
            return [path]
        if False not in states:
            return []
        return [lost for place, child in _children(value, path) for lost in self._lost(child, place)]

    def _states(self, value: Any) -> Iterator[bool]:
        """For each text under `value`, whether it is shown."""
        if isinstance(value, Traced):
            if value.strip():
                yield id(value) in self._shown
        elif isinstance(value, TracedInt | TracedFloat | TracedBool):
            yield id(value) in self._shown
        elif isinstance(value, dict) and (kind := value.get("type")) is not None and _is_part(value):
            if kind in TEXT_PARTS:
                for _, child in _children(value, ""):
                    yield from self._states(child)
            else:
                yield media_kind(kind, self._media()) is not None
        else:
            for _, child in _children(value, ""):
                yield from self._states(child)


def _is_part(value: dict[str, Any]) -> bool:
    """Whether an object is a part of a message's content: it holds something under the name of its type."""
    kind = value["type"]
    return isinstance(kind, str) and (kind in value or kind in TEXT_PARTS) and "function" not in value


def _children(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        call_or_tool = "function" in value
        for name, item in value.items():
            if not (name in UNSAID and (call_or_tool or _holds_text(value))):
                yield f"{path}.{name}", item
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield f"{path}[{index}]", item


def _holds_text(value: dict[str, Any]) -> bool:
    return value.get("type") in TEXT_PARTS and "text" in value
