"""What the template writes between a completion and the model's next word: a tail.

In: a conversation, and which assistant's turn of it was the last to be sampled. Out: the tail behind that turn, as text
and as ids. It is read off a render of a short conversation that ends as the whole one does, so that it costs what is
new. What holds: wherever it was proven, it is how the render of the whole conversation ends; where it is not, the whole
one's tail is taken, and the proof is made anew at every turn from then on.

The proof costs what the whole conversation is long. It is made while that is within what `ALLOWANCE` has added up to,
and at each kind of turn that was not proven twice since something new came up, a kind of turn or a word that the
template knows: what templates do only once, only later or only in turn (numbering rounds or results, opening a block of
results), or from some word on (`/no_think`), is seen then.
"""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any

from .completions import STAND_IN, BothWays, Completions
from .errors import UnsupportedInput
from .messages import Message, Tool
from .prompt import Prompt
from .template.traced import keys_of

ALLOWANCE = 64
"""How many messages may be rendered for the sake of proof, one turn with another."""
ENOUGH = 2
"""How often a kind of turn is proven, whatever it costs."""

_MESSAGE = re.compile(r"^messages\[(\d+)\]")
_CONSTANT = re.compile(r"""'([^'\\\n]{3,60})'|"([^"\\\n]{3,60})\"""")
_PROSE = re.compile(r"[\w\s.,:;-]*")

Kind = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Tail:
    """What follows the turn of message `place` in a prompt, up to the model's next word: characters `start` to the
    prompt's end. What ends the turn is its beginning, up to `end`. In the whole conversation the message stands `shift`
    places later."""

    prompt: Prompt
    place: int
    start: int
    end: int
    shift: int

    @property
    def text(self) -> str:
        return self.prompt.text[self.start :]

    @property
    def ending(self) -> str:
        return self.prompt.text[self.start : self.end]

    def ids_from(self, character: int) -> list[int]:
        """The ids of its text from a place on. Raises `UnsupportedInput`."""
        try:
            return self.prompt.tokenized.ids_from(self.start + character)
        except UnsupportedInput as error:
            raise counted(error, self.shift) from None

    def owners(self) -> set[tuple[int, Any]]:
        """The messages that wrote in it, counted from the turn on, and the fields that they wrote."""
        keys = (keys_of(origin) for start, _, origin in self.prompt.trace.text.origins if start >= self.start)
        owned = ((key[1] - self.place, key[2]) for key in keys if key[0] == "messages" and len(key) > 2)
        return {owner for owner in owned if owner[0] >= 0}


class Tails:
    """The tails of one conversation that grows."""

    def __init__(
        self, codec: BothWays, completions: Completions, tools: list[Tool] | None, variables: Mapping[str, Any]
    ) -> None:
        self._codec = codec
        self._completions = completions
        self._tools = tools
        self._variables = variables
        self._words = _words(codec.template.source)
        self._heard: frozenset[str] = frozenset()
        self._proven: Counter[Kind] = Counter()
        self._allowance = 0
        self._doubted = False

    def copy(self) -> Tails:
        other = copy.copy(self)
        other._proven = self._proven.copy()
        return other

    def after(self, messages: list[Message], place: int) -> Tail:
        """What follows the turn of `messages[place]`. Raises `UnsupportedInput` where the template refuses it."""
        near = self._near(messages, place)
        kind = _kind(messages, place)
        self._listen(messages[place:])
        self._allowance = min(self._allowance + ALLOWANCE, max(ALLOWANCE, len(messages)))
        if near is not None and not self._is_due(kind, len(messages)):
            return near
        found = self._proof(near, messages, place)
        self._allowance = max(self._allowance - len(messages), 0)
        if kind not in self._proven:
            self._proven.clear()
        self._proven[kind] += 1
        return found

    def _listen(self, messages: list[Message]) -> None:
        """From a new word on, the template may write otherwise."""
        heard = {word for message in messages for word in self._words.findall(_text(message.get("content")))}
        if not heard <= self._heard:
            self._heard |= heard
            self._proven.clear()

    def _is_due(self, kind: Kind, length: int) -> bool:
        return self._doubted or self._proven[kind] < ENOUGH or self._allowance >= length

    def _proof(self, near: Tail | None, messages: list[Message], place: int) -> Tail:
        try:
            prompt = self._encode(messages)
        except UnsupportedInput:
            if near is None:
                raise
            return near  # the model's own message may be one that the template refuses
        if near is not None and prompt.text.endswith(near.text):
            return near
        self._doubted = True
        whole = self._tail(prompt, place, 0)
        if near is not None and (whole is None or whole.owners() != near.owners()):
            return near  # the template leaves the turn out, or writes some of it behind its end
        if whole is None:
            raise UnsupportedInput(f"messages[{place}]", "the template does not write this turn into the prompt")
        return whole

    def _near(self, messages: list[Message], place: int) -> Tail | None:
        """The tail in a short conversation; None where the template refuses that."""
        system = [message for message in messages[:1] if message["role"] in ("system", "developer")]
        turn: Message = {"role": "assistant", "content": STAND_IN}
        if messages[place].get("tool_calls"):
            turn = {"role": "assistant", "content": "", "tool_calls": messages[place]["tool_calls"]}
        short = [*system, {"role": "user", "content": STAND_IN}, turn, *messages[place + 1 :]]
        try:
            return self._tail(self._encode(short), len(system) + 1, place - len(system) - 1)
        except UnsupportedInput:
            return None

    def _encode(self, messages: list[Message]) -> Prompt:
        return self._codec.encode(messages, self._tools, **self._variables)

    def _tail(self, prompt: Prompt, place: int, shift: int) -> Tail | None:
        found = self._completions.after_turn(prompt, place)
        return None if found is None else Tail(prompt, place, *found, shift)


def counted(error: UnsupportedInput, before: int) -> UnsupportedInput:
    """An error of messages that stand `before` places later in the conversation."""
    path = _MESSAGE.sub(lambda match: f"messages[{int(match[1]) + before}]", error.path)
    return UnsupportedInput(path, error.reason)


def _kind(messages: list[Message], place: int) -> Kind:
    """The kind of turn that follows: who speaks, and who calls."""
    speakers = ((message["role"], bool(message.get("tool_calls"))) for message in messages[place:])
    return tuple(speaker for speaker, _ in groupby(speakers))


@lru_cache(maxsize=64)
def _words(source: str) -> re.Pattern[str]:
    """The texts in a template's code that are no prose, and that its author may look for in what is said."""
    texts = {(first or second).strip() for first, second in _CONSTANT.findall(source)}
    return re.compile("|".join(re.escape(text) for text in texts if not _PROSE.fullmatch(text)) or r"(?!)")


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(_text(part.get("text")) if isinstance(part, dict) else _text(part) for part in content)
    return content if isinstance(content, str) else ""
