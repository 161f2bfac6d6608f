"""Probe conversations: what a template writes for them, cut into the assistant's fields and the template's own text.

A probe is rendered once; one that the template refuses is no turn. Nothing is known of a template beyond its renders.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias, cast

from ..errors import TemplateError, UnsupportedInput
from .derive_markers import common_start

Message: TypeAlias = dict[str, Any]

USER, REASONING, CONTENT, RESULT, SYSTEM, NEXT = "zquser", "zqreason", "zqcontent", "zqresult", "zqsystem", "zqnext"
NAMES = ("zqalpha", "zqbeta", "zqgamma")
IDS = ("zqcallid1", "zqcallid2", "zqcallid3")
WORDS = {"zqkeya": "zqvaluea", "zqkeyb": "zqvalueb", "zqkeyc": "zqvaluec"}
"""Arguments that show how arguments are told apart."""

_REASONING_PATH = re.compile(r"(?:reasoning_content|thinking|reasoning)\b|content\[\d+\]\.thinking\b")
_CALL_PATH = re.compile(r"tool_calls\[(\d+)\]\.(?:function\.)?(name|id|arguments)\b(.*)", re.DOTALL)
_SETTINGS: tuple[dict[str, Any], ...] = ({}, {"enable_thinking": True}, {"thinking": True})


class Traced(Protocol):
    """Text that knows what wrote it: `spans` by path, `origins` by the values themselves."""

    @property
    def spans(self) -> Sequence[tuple[int, int, str | None]]: ...
    @property
    def origins(self) -> Sequence[tuple[int, int, object]]: ...


Trace: TypeAlias = Callable[..., Any]
"""`trace(messages, tools, add_generation_prompt, **variables)`: the traced text of a conversation."""


@dataclass(frozen=True, slots=True)
class Field:
    """A stretch of a turn that its message wrote."""

    start: int
    end: int
    kind: str
    """"reasoning", "content", "name", "id" or "argument"."""
    call: int = -1
    place: str = ""
    """Where below its call's arguments an argument's text comes from: `.city`."""
    key: bool = False
    """The text is a key, not a value."""


@dataclass(frozen=True)
class Turn:
    """What stands from the end of the user's text to the next message's first field, or to the end of the text."""

    text: str
    fields: tuple[Field, ...]
    last: bool
    """Nothing follows the turn."""
    user_tail: str = ""
    """What the template writes behind the user's text, before any turn of the assistant's."""

    def of(self, kind: str, call: int = -1) -> list[Field]:
        return [field for field in self.fields if field.kind == kind and (call < 0 or field.call == call)]

    def has(self, *kinds: str) -> bool:
        return all(self.of(kind) for kind in kinds)

    def calls(self) -> set[int]:
        return {field.call for field in self.fields if field.call >= 0}

    def before(self, field: Field) -> str:
        """The literal that leads to `field`."""
        return self.text[max((other.end for other in self.fields if other.end <= field.start), default=0) : field.start]

    def after(self, field: Field) -> str:
        """The literal that follows `field`."""
        following = (other.start for other in self.fields if other.start >= field.end)
        return self.text[field.end : min(following, default=len(self.text))]

    def start_of(self, kind: str) -> str:
        return self.before(self.of(kind)[0])

    @property
    def head(self) -> str:
        """The literal that opens the turn."""
        return self.past_user(self.text[: self.fields[0].start])

    def past_user(self, opening: str) -> str:
        """`opening`, a text from the turn's start, without what ends the user's turn."""
        return opening[len(common_start(opening, self.user_tail)) :]

    @property
    def tail(self) -> str:
        return self.text[self.fields[-1].end :]

    def order(self) -> tuple[str, ...]:
        kinds = ("calls" if field.call >= 0 else field.kind for field in self.fields)
        return tuple(dict.fromkeys(kinds))


def assistant(content: str = CONTENT, reasoning: str | None = None, calls: Sequence[Message] = ()) -> Message:
    message: Message = {"role": "assistant", "content": content}
    if reasoning is not None:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = list(calls)
    return message


def user(content: str = USER) -> Message:
    return {"role": "user", "content": content}


def call(number: int = 0, arguments: Message | None = None, name: str | None = None) -> Message:
    given = WORDS if arguments is None else arguments
    return {
        "id": IDS[number],
        "type": "function",
        "function": {"name": NAMES[number] if name is None else name, "arguments": given},
    }


def results(calls: Sequence[Message]) -> list[Message]:
    return [
        {"role": "tool", "tool_call_id": made["id"], "name": made["function"]["name"], "content": RESULT}
        for made in calls
    ]


def definitions() -> list[Message]:
    parameters = {"type": "object", "properties": {key: {"type": "string", "description": "d"} for key in WORDS}}
    return [
        {"type": "function", "function": {"name": name, "description": "d", "parameters": parameters}} for name in NAMES
    ]


class Probes:
    """Renders of one template."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._rendered: dict[str, Traced | None] = {}
        self.errors: list[str] = []
        self.seen: list[str] = []

    def render(
        self, messages: list[Message], tools: Any = None, prompt: bool = False, **variables: Any
    ) -> Traced | None:
        """The traced text; None where the template, or what adapts messages to it, refuses."""
        key = repr((messages, bool(tools), prompt, variables))
        if key not in self._rendered:
            try:
                self._rendered[key] = self._trace(messages, tools, prompt, **variables)
            except (TemplateError, UnsupportedInput) as error:
                self._rendered[key] = None
                self.errors.append(str(error))
        return self._rendered[key]

    def after_user(self, prompt: bool, tools: Any = None, **variables: Any) -> str | None:
        """What stands after the user's text in a conversation of that text alone."""
        text = self.render([user()], tools, prompt, **variables)
        end = _end_of(text, 0) if text is not None else None
        return None if end is None else str.__str__(cast(str, text))[end:]

    def turn(
        self, message: Message, following: Sequence[Message] = (), tools: Any = None, **variables: Any
    ) -> Turn | None:
        """The turn that `message` becomes, with `following` after it; None where nothing of it is written."""
        text = self.render([user(), message, *following], tools, **variables)
        turn = _turn(text, 1) if text is not None else None
        return turn and replace(turn, user_tail=self.after_user(False, tools, **variables) or "")

    def turns(self, message: Message, **variables: Any) -> Iterator[Turn]:
        """The same in every setting that the template takes: as the last message first."""
        calls = message.get("tool_calls", ())
        answers = results(calls)
        scenes: tuple[list[Message], ...] = ([], answers, [*answers, assistant("zqlater")], [*answers, user(NEXT)])
        for following in scenes if calls else (scenes[0], scenes[3]):
            for tools in (definitions(), None) if calls else (None,):
                turn = self.turn(message, following, tools, **variables)
                if turn is not None:
                    yield turn
                    break


def _end_of(text: Traced, message: int) -> int | None:
    """Where the last text of a message ends."""
    ends = [end for _, end, path in text.spans if path is not None and _inside(path, message)]
    return ends[-1] if ends else None


def _inside(path: str, message: int) -> str | None:
    prefix = f"messages[{message}]"
    rest = path.removeprefix(prefix)
    return rest if rest != path and rest[:1] in (".", "[") and rest != ".role" else None


def _turn(text: Traced, message: int) -> Turn | None:
    plain = str.__str__(cast(str, text))
    found: list[Field] = []
    for start, end, path, key in _stretches(text):
        field = _field(start, end, _inside(path, message) or "", key)
        if field is None:
            continue
        if found and _continues(found[-1], field):
            field = Field(found.pop().start, end, field.kind, field.call, field.place, field.key)
        found.append(field)
    if not found:
        return None
    first, last = found[0].start, found[-1].end
    ends = [end for _, end, path in text.spans if path and end <= first and _inside(path, message - 1)]
    later = [
        start
        for start, _, path in text.spans
        if path and start >= last and any(_inside(path, number) for number in range(message + 1, message + 6))
    ]
    begin, stop = max(ends, default=0), min(later, default=len(plain))
    fields = tuple(
        Field(field.start - begin, field.end - begin, field.kind, field.call, field.place, field.key) for field in found
    )
    return Turn(plain[begin:stop], fields, not later)


def _continues(field: Field, other: Field) -> bool:
    """Whether two stretches are one: of the same text, perhaps with an escape of the template's between."""
    same = (field.kind, field.call, field.place, field.key) == (other.kind, other.call, other.place, other.key)
    return same and (field.end == other.start or field.kind in ("content", "reasoning"))


def _stretches(text: Traced) -> Iterator[tuple[int, int, str, bool]]:
    spans = iter(text.spans)
    first, last, path = 0, 0, None
    for start, end, origin in text.origins:
        while not (path is not None and first <= start < last):
            first, last, path = next(spans)
        yield start, end, path, type(origin).__name__ == "TracedKey"


def _field(start: int, end: int, path: str, key: bool) -> Field | None:
    path = path.removeprefix(".")
    if _REASONING_PATH.match(path):
        return Field(start, end, "reasoning")
    if path == "content" or path.startswith("content["):
        return None if path.endswith(".type") else Field(start, end, "content")
    found = _CALL_PATH.fullmatch(path)
    if found is None or (key and not found[3]):
        return None
    kind = "argument" if found[2] == "arguments" else found[2]
    return Field(start, end, kind, int(found[1]), found[3], key)
