"""`Prompt`, what `encode` returns. Who wrote what in it, and what was left out, is worked out when it is asked for."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

from .adapting import media_kind
from .messages import REASONING_FIELDS, TEXT_PARTS, Message, child_path
from .template.traced import TracedKey, TracedText, path_of
from .tokenized import Making, Tokenized
from .tokens.attribution import Token

UNSAID = frozenset(("role", "id", "tool_call_id", "type"))
"""Fields of a message or a call that steer the template and tell the model nothing."""
SAID = frozenset(("content", "refusal", "tool_calls", "function_call"))
"""Fields of a message that `strict` does not let a template leave out; old reasoning is left out by many on purpose."""
_ARGUMENTS = re.compile(r"messages\[\d+\]\.(tool_calls\[\d+\](\.function)?|function_call)\.arguments")


class Prompt:
    """The prompt of a conversation.

    `text` is the prompt. `spans` are `(start, end, path)` in characters, in order and without gap over the text; path
    is None for what the template wrote. `dropped` are the paths of the input whose text never reached the prompt.
    `variables` are the template variables that it was made with. What is said of tokens needs a tokenizer; without one
    it raises `SourceError`.
    """

    def __init__(self, text: str, trace: Callable[[], Trace], making: Making) -> None:
        self.text = text
        self.variables = dict(making.variables)
        self._make_trace = trace
        self._making = making

    @cached_property
    def trace(self) -> Trace:
        return self._make_trace()

    @property
    def spans(self) -> list[tuple[int, int, str | None]]:
        return self.trace.text.spans

    @property
    def dropped(self) -> list[str]:
        return self.trace.dropped

    @cached_property
    def tokenized(self) -> Tokenized:
        return Tokenized(self.text, lambda: self.trace.text, self._making)

    @property
    def ids(self) -> list[int]:
        """The token ids: those of `apply_chat_template(tokenize=True)`, but that a control token's spelling in the
        input is encoded as the text it is (see `special_in_content` of `encode`).

        Raises `UnsupportedInput` for text that has no ids.
        """
        return list(self.tokenized.ids)

    @property
    def tokens(self) -> list[Token]:
        """The tokens with their characters and owners; see `Token`."""
        return list(self.tokenized.tokens)

    @property
    def sampled(self) -> list[bool]:
        """For each token whether the model writes it: what stands in an assistant's turn behind the generation
        prompt, up to and with the token that ends the turn. Of a token that was written only in part: False.

        Raises `FormatNotDerived` where the turn's format is not known and the template has no `{% generation %}`.
        """
        return list(self.tokenized.sampled)

    @property
    def generation(self) -> list[bool] | None:
        """The same as the template's `{% generation %}` blocks have it; None where it has none."""
        found = self.tokenized.generation
        return None if found is None else list(found)

    @property
    def mask_differences(self) -> list[tuple[int, int, str]]:
        """Where the two masks differ: characters from and to, and the one that marks them, "sampled" or "generation".
        Empty where the template has no `{% generation %}`."""
        return list(self.tokenized.mask_differences)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Prompt({self.text!r})"


class Trace:
    """A traced render beside the input that it was made from. `media` are the kinds of part that leave a mark."""

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
        """The paths of which nothing was shown; the outermost one where all below it is lost."""
        paths = [path for _, path in self._dropped_messages()]
        for name, value in self._others.items():
            if isinstance(value, list):
                paths += self._lost(value, name)
        return paths

    @property
    def unsaid(self) -> list[str]:
        """What was dropped of that which the messages say and call, contents of which a part was dropped included."""
        dropped = [path for name, path in self._dropped_messages() if name in SAID]
        return dropped or list(self._cut_contents())

    def _dropped_messages(self) -> Iterator[tuple[str, str]]:
        for index, message in enumerate(self._messages):
            for name, value in message.items():
                if name in UNSAID or (name == "name" and message["role"] in ("tool", "function")):
                    continue
                if name in REASONING_FIELDS and self._said_otherwise(index, message, name):
                    continue
                for path in self._lost(value, child_path(f"messages[{index}]", name), content=name == "content"):
                    yield name, path

    def _said_otherwise(self, index: int, message: Message, name: str) -> bool:
        """Whether the same reasoning, given under another name too, is shown."""
        return any(
            other != name and message.get(other) == message[name] and f"messages[{index}].{other}" in self._shown
            for other in REASONING_FIELDS
        )

    def _cut_contents(self) -> Iterator[str]:
        counts: dict[str, int] = {}
        for start, end, origin in self.text.origins:
            path = path_of(origin)
            counts[path] = counts.get(path, 0) + _visible(self.text[start:end])
        for index, message in enumerate(self._messages):
            path = f"messages[{index}].content"
            if isinstance(message.get("content"), str) and counts.get(path, 0) < _visible(message["content"]):
                yield path

    @cached_property
    def _shown(self) -> set[str]:
        """The paths of the values in the text, and of the JSON texts that held them."""
        shown: set[str] = set()
        seen: set[int] = set()
        for _, _, origin in self.text.origins:
            if isinstance(origin, TracedKey) or id(origin) in seen:
                continue
            seen.add(id(origin))
            shown.add(path_of(origin))
        return shown

    def _lost(self, value: Any, path: str, *, content: bool = False) -> list[str]:
        states = set(self._states(value, path, content))
        if states == {False}:
            return [path]
        if False not in states:
            return []
        return [
            lost
            for key, child in _children(value, path)
            for lost in self._lost(child, child_path(path, key), content=content)
        ]

    def _states(self, value: Any, path: str, content: bool) -> Iterator[bool]:
        """For each text or number under `value`, whether it is shown."""
        if path in self._shown:
            yield True
        elif content and _is_media(value):
            yield media_kind(value["type"], self._media()) is not None
        elif isinstance(value, dict | list) or _is_json_text(value, path):
            for key, child in _children(value, path):
                yield from self._states(child, child_path(path, key), content)
        elif value is not None and (not isinstance(value, str) or value.strip()):
            yield False


def _children(value: Any, path: str) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, str):
        value = json.loads(value) if _is_json_text(value, path) else None
    if isinstance(value, dict):
        steering = _is_steering(value, path)
        for name, item in value.items():
            if not (steering and name in UNSAID):
                yield name, item
    elif isinstance(value, list):
        yield from enumerate(value)


def _is_steering(value: dict[str, Any], path: str) -> bool:
    """Whether the `type` and `id` of an object only tell what it is: a call, a tool, a part with text."""
    return "function" in value or (path.endswith("]") and value.get("type") in (*TEXT_PARTS, "function"))


def _is_json_text(value: Any, path: str) -> bool:
    """Whether `value` is a call's arguments as JSON text."""
    return isinstance(value, str) and _ARGUMENTS.fullmatch(path) is not None and value.strip()[:1] in ("{", "[")


def _is_media(value: Any) -> bool:
    kind = value.get("type") if isinstance(value, dict) else None
    return isinstance(kind, str) and kind not in TEXT_PARTS


def _visible(text: str) -> int:
    return sum(not character.isspace() for character in text)
