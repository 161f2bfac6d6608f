"""Strategies for conversations that OpenAI's API takes, in every form, with a word of its own in each text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from hypothesis import strategies as st

Message = dict[str, Any]
Draw = Callable[[st.SearchStrategy[Any]], Any]

WORD = re.compile(r"zq\d+x")
AROUND = (
    *(
        "",
        " ",
        "\n",
        "\r\n",
        "\t",
        "a",
        "é",
        "e\u0301",
        "🙂",
        "👋🏽",
        "你好",
        "\u2028",
        "\u202e",
        "\x00",
        "\ud800",
        "\ue000",
    ),
    *('"', "'", "\\", "/", "{", "}", "{{ x }}", "{% if %}", "<", ">", "&", "&amp;", "[]", "%s", "</tool_call>"),
    *("<|im_end|>", "<|im_start|>user\n", "<|EOT|>", "<|user|>", "<_end>", "</parameter>", "</arg_value>"),
)
"""What stands around a word. No `</think>`: what templates do to that has tests of its own."""
KEYS = ("city", "a b", "", "x-y.z", "城市", "items", "it's", "0", "type", "name", "id", "arguments", "\n")
NAMES = ("get_weather", "now", "search-web", "f")


@dataclass
class Case:
    """A conversation. `words` tells for each word where it stands."""

    messages: list[Message]
    tools: list[Any] | None = None
    words: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in (("messages", self.messages), ("tools", self.tools)):
            self.words |= dict(find_words(value, name))


def step_into(path: str, key: str | int) -> str:
    """The path of what stands under `key`, as `Prompt.spans` writes it."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    return f"{path}.{key}" if key.isidentifier() else f"{path}[{key!r}]"


def is_json(path: str, value: str) -> bool:
    """Whether a text is a call's arguments, written as JSON."""
    return path.endswith(("function.arguments", "function_call.arguments")) and value.startswith("{")


def find_words(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Each word under `value` with its path; arguments in JSON are looked into."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from find_words(item, step_into(path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from find_words(item, step_into(path, index))
    elif isinstance(value, str) and is_json(path, value):
        yield from find_words(json.loads(value), path)
    elif isinstance(value, str):
        yield from ((word, path) for word in WORD.findall(value))


def covers(outer: str, inner: str) -> bool:
    """Whether `outer` is `inner`, or something that holds it."""
    return inner == outer or inner.startswith((f"{outer}.", f"{outer}["))


def is_path(path: str, roots: dict[str, Any]) -> bool:
    """Whether something stands at `path`."""
    return path in roots or any(path in set(all_paths(value, name)) for name, value in roots.items())


def all_paths(value: Any, path: str) -> Iterator[str]:
    yield path
    if isinstance(value, str) and is_json(path, value):
        value = json.loads(value)
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from all_paths(item, step_into(path, key))


@st.composite
def conversations(draw: Draw, plain: bool = False) -> Case:
    """`plain` ones have texts in strings and arguments in objects, and nothing left out."""
    return (_Plain if plain else _Writer)(draw).conversation()


class _Writer:
    """Draws the pieces of one conversation."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.numbers = count()
        self.has_media = self.one(False, False, False, False, True)

    def one(self, *values: Any) -> Any:
        return self.draw(st.sampled_from(values))

    def maybe(self) -> bool:
        return bool(self.draw(st.booleans()))

    def up_to(self, most: int) -> range:
        return range(self.draw(st.integers(0, most)))

    def text(self) -> str:
        return f"{self.one(*AROUND)}zq{next(self.numbers)}x{self.one(*AROUND)}"

    def conversation(self) -> Case:
        messages = [self.opening() for _ in self.up_to(1)]
        for _ in range(self.draw(st.integers(1, 3))):
            messages.append(self.user())
            messages += self.one(self.answer, self.round, self.round, self.legacy_round)()
        if self.maybe():
            messages.append(self.user())
        if self.one(False, False, True):
            messages.insert(self.draw(st.integers(0, len(messages))), self.opening())
        return Case(messages, self.one(None, [], [self.tool(name) for name in NAMES[: 1 + len(self.up_to(3))]]))

    # -- messages

    def opening(self) -> Message:
        return {"role": self.one("system", "developer"), "content": self.content(self.text_part)}

    def user(self) -> Message:
        message = {"role": "user", "content": self.content(self.text_part, self.media)}
        return {**message, "name": "Ann"} if self.one(False, False, False, True) else message

    def answer(self) -> list[Message]:
        message: Message = {"role": "assistant", **self.reasoning()}
        said = self.one("content", "content", "refusal", "refusal part", "nothing")
        if said == "content":
            message["content"] = self.content(self.text_part)
        elif said == "refusal":
            message |= {"content": None, "refusal": self.text()}
        elif said == "refusal part":
            message["content"] = [{"type": "refusal", "refusal": self.text()}]
        else:
            message["content"] = self.one(None, "", [])
        if self.maybe():
            message |= self.one({"tool_calls": None}, {"tool_calls": []}, {"refusal": None, "annotations": []})
        return [message]

    def reasoning(self) -> Message:
        names = self.one((), (), ("reasoning_content",), ("reasoning",), ("thinking",), ("reasoning_content", "name"))
        return {name: self.text() for name in names if name != "name"} | ({"name": "Bot"} if "name" in names else {})

    def round(self) -> list[Message]:
        """Calls, their results, and maybe a word on them."""
        names = [self.one(*NAMES) for _ in range(self.draw(st.integers(1, 3)))]
        ids = self.one("call_long{0:015d}", "abcdef{0:03d}", "same", None, "")
        calls = [self.call(name, self.identity(ids, number)) for number, name in enumerate(names)]
        content = self.one({}, {"content": None}, {"content": ""}, {"content": self.content(self.text_part)})
        results = [self.result(name, self.identity(ids, number)) for number, name in enumerate(names)]
        answered = self.one(results, results, results[::-1] if ids and ids != "same" else results, results[:-1])
        return [
            {"role": "assistant", **self.reasoning(), **content, "tool_calls": calls},
            *answered,
            *(self.answer() if self.maybe() else ()),
        ]

    def identity(self, ids: str | None, number: int) -> str | None:
        return ids and ids.format(number + next(self.numbers) * 10)[:25] if ids != "same" else ids

    def call(self, name: str, identity: str | None) -> Message:
        call = {"id": identity, "type": "function", "function": {"name": name, "arguments": self.arguments()}}
        return {key: value for key, value in call.items() if value is not None}

    def arguments(self) -> Any:
        arguments = {key: self.value() for key in self.draw(st.lists(st.sampled_from(KEYS), max_size=3, unique=True))}
        return json.dumps(arguments, ensure_ascii=self.maybe()) if self.maybe() else arguments

    def value(self, depth: int = 0) -> Any:
        kind = self.one("text", "text", "scalar", "list", "object") if depth < 3 else "text"
        if kind == "list":
            return [self.value(depth + 1) for _ in self.up_to(2)]
        if kind == "object":
            return {key: self.value(depth + 1) for key in KEYS[: len(self.up_to(2))]}
        return self.text() if kind == "text" else self.one(None, True, False, 0, -1, 1.5, 1e-9, 2**70, "")

    def result(self, name: str, identity: str | None) -> Message:
        content = self.one(
            self.text(), "", None, [{"type": "text", "text": self.text()}], {"t": self.text(), "n": [1, None]}
        )
        message = {"role": "tool", "tool_call_id": identity, "content": content}
        message = {key: value for key, value in message.items() if key != "tool_call_id" or value is not None}
        return {**message, "name": name} if self.maybe() else message

    def legacy_round(self) -> list[Message]:
        name = self.one(*NAMES)
        function = {"name": name, "arguments": json.dumps({"city": self.text()})}
        return [
            {"role": "assistant", "content": self.one(None, self.text()), "function_call": function},
            {"role": "function", "name": name, "content": self.text()},
        ]

    # -- content

    def content(self, *kinds: Callable[[], Message]) -> Any:
        return self.text() if self.maybe() else [self.one(*kinds)() for _ in self.up_to(3)]

    def text_part(self) -> Message:
        return {"type": "text", "text": self.text()}

    def media(self) -> Message:
        if not self.has_media:
            return self.text_part()
        return self.one(  # type: ignore[no-any-return]
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}},
            {"type": "image", "image": "a.png"},
            {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}},
            {"type": "video", "video": "a.mp4"},
            {"type": "file", "file": {"file_id": "file-1"}},
        )

    def tool(self, name: str) -> Message:
        function: Message = {"name": name, "description": self.text(), "parameters": self.schema()}
        return self.one(  # type: ignore[no-any-return]
            {"type": "function", "function": function},
            {"type": "function", "function": function},
            {"type": "function", "function": {**function, "strict": True}},
            {"function": function},
            function,
        )

    def schema(self) -> Message:
        properties = {name: self.property() for name in ("city", "days")[: len(self.up_to(2))]}
        return {"type": "object", "properties": properties, "$defs": {"d": {"type": "null"}}}

    def property(self) -> Message:
        city = {"type": "string", "description": self.text(), "enum": [self.text()]}
        return self.one(  # type: ignore[no-any-return]
            city,
            {"type": ["integer", "null"], "default": None},
            {"type": "array", "items": city},
            {"type": "object", "properties": {"a b": city}, "required": ["a b"]},
            {"anyOf": [city, {"$ref": "#/$defs/d"}]},
        )


class _Plain(_Writer):
    def conversation(self) -> Case:
        messages = [{"role": "system", "content": self.text()}] if self.maybe() else []
        for _ in range(self.draw(st.integers(1, 3))):
            messages += [{"role": "user", "content": self.text()}, *self.one(self.answer, self.round)()]
        messages.append({"role": "user", "content": self.text()})
        return Case(messages, self.one(None, [self.tool(name) for name in NAMES]))

    def answer(self) -> list[Message]:
        reasoning = {"reasoning_content": self.text()} if self.maybe() else {}
        return [{"role": "assistant", "content": self.text(), **reasoning}]

    def round(self) -> list[Message]:
        names = [self.one(*NAMES) for _ in range(self.draw(st.integers(1, 2)))]
        ids = [f"abcde{next(self.numbers):04d}" for _ in names]
        calls = [self.call(name, identity) for name, identity in zip(names, ids, strict=True)]
        results = [self.result(name, identity) for name, identity in zip(names, ids, strict=True)]
        return [{"role": "assistant", "content": self.text(), "tool_calls": calls}, *results, *self.answer()]

    def arguments(self) -> Any:
        return {key: self.value() for key in ("city", "a b", "items")[: len(self.up_to(3))]}

    def result(self, name: str, identity: str | None) -> Message:
        return {"role": "tool", "tool_call_id": identity, "name": name, "content": self.text()}

    def tool(self, name: str) -> Message:
        function = {"name": name, "description": self.text(), "parameters": self.schema()}
        return {"type": "function", "function": function}
