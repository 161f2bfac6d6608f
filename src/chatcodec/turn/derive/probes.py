"""Probe conversations: what a template writes for them, cut into the assistant's fields and the template's own text.

A probe is rendered once; one that the template refuses is no turn. Nothing is known of a template beyond its renders.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias, cast

from ...errors import BudgetExceeded, TemplateError, UnsupportedInput
from .markers import closing_part, common_start

Message: TypeAlias = dict[str, Any]

USER, REASONING, CONTENT, RESULT, SYSTEM, NEXT = "zquser", "zqreason", "zqcontent", "zqresult", "zqsystem", "zqnext"
NAMES = ("zqalpha", "zqbeta", "zqgamma")
IDS = ("zqcallid1", "zqcallid2", "zqcallid3")
WORDS = {"zqkeya": "zqvaluea", "zqkeyb": "zqvalueb", "zqkeyc": "zqvaluec"}
"""Arguments that show how arguments are told apart."""
LONGEST = 200_000
"""Characters of a render."""
MOST_EXHAUSTED = 3

_MESSAGE_PATH = re.compile(r"messages\[(\d+)\]\.?(.*)", re.DOTALL)
_REASONING_PATH = re.compile(r"(?:reasoning_content|thinking|reasoning)\b|content\[\d+\]\.thinking\b")
_CALL_PATH = re.compile(r"tool_calls\[(\d+)\]\.(?:function\.)?(name|id|arguments)\b(.*)", re.DOTALL)


class Traced(Protocol):
    """Text that knows what wrote it: `spans` by path, `origins` by the values themselves."""

    @property
    def spans(self) -> Sequence[tuple[int, int, str | None]]: ...
    @property
    def origins(self) -> Sequence[tuple[int, int, object]]: ...


Trace: TypeAlias = Callable[..., Any]
"""`trace(messages, tools, add_generation_prompt, **variables)`: the traced text of a conversation."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Text that a message wrote: which, and from where in it (`tool_calls[0].function.name`)."""

    start: int
    end: int
    message: int
    path: str
    key: bool
    """The text is a key of the object that holds it."""


@dataclass(frozen=True, slots=True)
class Render:
    """A render as plain text, with the stretches that the messages wrote."""

    text: str
    stretches: tuple[Stretch, ...]

    @classmethod
    def of(cls, traced: Traced) -> Render:
        return cls(str.__str__(cast(str, traced)), tuple(_stretches(traced)))

    def of_message(self, number: int) -> Iterator[Stretch]:
        """What a message wrote, its role aside."""
        return (stretch for stretch in self.stretches if stretch.message == number)


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
        shared = common_start(opening, self.user_tail)
        return opening[len(shared if shared == self.user_tail else closing_part(shared)) :]

    @property
    def tail(self) -> str:
        return self.text[self.fields[-1].end :]

    def order(self) -> tuple[str, ...]:
        kinds = ("calls" if field.call >= 0 else field.kind for field in self.fields)
        return tuple(dict.fromkeys(kinds))


def assistant(content: str = CONTENT, reasoning: str | None = None, calls: Sequence[Message] = ()) -> Message:
    message: Message = {"role": "assistant", "content": content}
    if reasoning is not None:
        message["reasoning"] = reasoning
    if calls:
        message["tool_calls"] = list(calls)
    return message


def user(content: str = USER) -> Message:
    return {"role": "user", "content": content}


def call(number: int = 0, arguments: Message | None = None) -> Message:
    given = WORDS if arguments is None else arguments
    return {"id": IDS[number], "type": "function", "function": {"name": NAMES[number], "arguments": given}}


def results(calls: Sequence[Message]) -> list[Message]:
    return [
        {"role": "tool", "tool_call_id": made["id"], "name": made["function"]["name"], "content": RESULT}
        for made in calls
    ]


def definitions() -> list[Message]:
    properties = {"zqkeya": {"type": "string", "description": "d"}}
    parameters = {"type": "object", "properties": properties, "required": []}
    return [{"type": "function", "function": {"name": NAMES[0], "description": "d", "parameters": parameters}}]


class Probes:
    """Renders of one template.

    A template that is out of its budget a few times is not asked again, and what is far too long for a turn of a few
    words is as good as refused: a template is anybody's text.
    """

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._rendered: dict[str, Render | None] = {}
        self._exhausted = 0
        self.errors: list[str] = []

    def render(
        self, messages: list[Message], tools: Any = None, prompt: bool = False, **variables: Any
    ) -> Render | None:
        """The text of a conversation; None where the template, or what adapts messages to it, refuses."""
        key = repr((messages, bool(tools), prompt, variables))
        if key not in self._rendered:
            self._rendered[key] = self._render(messages, tools, prompt, variables)
        return self._rendered[key]

    def _render(self, messages: list[Message], tools: Any, prompt: bool, variables: dict[str, Any]) -> Render | None:
        if self._exhausted >= MOST_EXHAUSTED:
            return None
        try:
            traced = self._trace(messages, tools, prompt, **variables)
        except (TemplateError, UnsupportedInput) as error:
            self._exhausted += isinstance(error, BudgetExceeded)
            self.errors.append(str(error))
            return None
        if len(traced) > LONGEST:
            self.errors.append(f"a conversation of a few words becomes {len(traced):,} characters")
            return None
        return Render.of(traced)

    def after_user(self, prompt: bool, tools: Any = None, **variables: Any) -> str | None:
        """What stands after the user's text in a conversation of that text alone."""
        render = self.render([user()], tools, prompt, **variables)
        ends = [stretch.end for stretch in render.of_message(0)] if render else []
        return render.text[ends[-1] :] if render and ends else None

    def turn(
        self, message: Message, following: Sequence[Message] = (), tools: Any = None, **variables: Any
    ) -> Turn | None:
        """The turn that `message` becomes, with `following` after it; None where nothing of it is written."""
        render = self.render([user(), message, *following], tools, **variables)
        turn = _turn(render, 1) if render is not None else None
        return turn and replace(turn, user_tail=self.user_tail(tools, **variables))

    def user_tail(self, tools: Any = None, **variables: Any) -> str:
        """What ends the user's turn: what stands behind its text without a generation prompt.

        A template may write the prompt whether or not it is asked for: then this is what its turns do not begin with.
        """
        tail = self.after_user(False, tools, **variables) or ""
        if tail != self.after_user(True, tools, **variables):
            return tail
        render = self.render([user(), assistant()], tools, **variables)
        turn = _turn(render, 1) if render is not None else None
        opening = turn.text[: turn.fields[0].start] if turn is not None else ""
        shared = common_start(opening, tail)
        if shared == tail:
            return tail if re.search(r"\w", opening[len(tail) :]) else ""
        return shared if shared == closing_part(shared) else ""

    def turns(self, message: Message, **variables: Any) -> Iterator[Turn]:
        """The same wherever the template takes it: first as the last message, then with others after it."""
        calls = message.get("tool_calls", ())
        answers = results(calls)
        scenes: tuple[list[Message], ...] = ([], answers, [*answers, assistant("zqlater")], [*answers, user(NEXT)])
        for following in scenes if calls else (scenes[0], scenes[3]):
            for tools in (definitions(), None) if calls else (None, definitions()):
                turn = self.turn(message, following, tools, **variables)
                if turn is not None:
                    yield turn
                    break


def _stretches(traced: Traced) -> Iterator[Stretch]:
    """What the messages wrote in a traced text. `spans` has the paths, `origins` tells keys from values."""
    spans = iter(traced.spans)
    last, path = 0, None
    for start, end, origin in traced.origins:
        while start >= last:
            _, last, path = next(spans)
        found = _MESSAGE_PATH.fullmatch(path or "")
        if found is not None and found[2] != "role":
            yield Stretch(start, end, int(found[1]), found[2], type(origin).__name__ == "TracedKey")


def _turn(render: Render, message: int) -> Turn | None:
    found: list[Field] = []
    for stretch in render.of_message(message):
        field = _field(stretch)
        if field is None:
            continue
        if found and _continues(found[-1], field):
            field = replace(field, start=found.pop().start)
        found.append(field)
    if not found:
        return None
    first, last = found[0].start, found[-1].end
    begin = max((stretch.end for stretch in render.of_message(message - 1) if stretch.end <= first), default=0)
    later = [stretch.start for stretch in render.stretches if stretch.message > message and stretch.start >= last]
    stop = min(later, default=len(render.text))
    fields = tuple(replace(field, start=field.start - begin, end=field.end - begin) for field in found)
    return Turn(render.text[begin:stop], fields, not later)


def _continues(field: Field, other: Field) -> bool:
    """Whether two stretches are one: of the same text, perhaps with an escape of the template's between."""
    same = (field.kind, field.call, field.place, field.key) == (other.kind, other.call, other.place, other.key)
    return same and (field.end == other.start or field.kind in ("content", "reasoning"))


def _field(stretch: Stretch) -> Field | None:
    path = stretch.path
    if _REASONING_PATH.match(path):
        return Field(stretch.start, stretch.end, "reasoning")
    if path == "content" or path.startswith("content["):
        return None if path.endswith(".type") else Field(stretch.start, stretch.end, "content")
    found = _CALL_PATH.fullmatch(path)
    if found is None or (stretch.key and not found[3]):
        return None
    kind = "argument" if found[2] == "arguments" else found[2]
    return Field(stretch.start, stretch.end, kind, int(found[1]), found[3], stretch.key)
