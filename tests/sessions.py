"""Conversations in token ids for tests: codecs of small vocabularies, and strategies for what is said in a session."""

from __future__ import annotations

import json
import re
from functools import cache
from random import Random
from typing import Any

import vocabularies
from messages_strategy import (
    BRACKETS,
    FOREIGN,
    INTEGERS,
    QUOTES,
    SPACES,
    WORDS,
    literals,
    may_reason,
    near_misses,
)

import chatcodec
from chatcodec import Codec, TurnFormat, UnsupportedInput
from chatcodec.tokens.vocabularies.hugging_face import HuggingFaceTokenizer

Message = dict[str, Any]

MARK = re.compile(r"<[^<>\s]{1,40}>|\[/?[A-Z_]{2,20}\]")
SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}


def tool(name: str, **types: str) -> Message:
    properties = {key: {"type": kind} for key, kind in types.items()}
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "description": "What it does.", "parameters": parameters}}


TYPES = {
    "get_weather": {"city": "string", "days": "integer"},
    "now": {},
    "search": {"query": "string", "near": "array"},
}
TOOLS = [tool(name, **types) for name, types in TYPES.items()]


@cache
def tokenizer(marks: tuple[str, ...], vocabulary: str = "neox") -> HuggingFaceTokenizer:
    """A small vocabulary with these control tokens."""
    return HuggingFaceTokenizer.from_json(vocabularies.tokenizer_json(vocabulary, extra_special=marks))


def marks_of(form: TurnFormat) -> tuple[str, ...]:
    """What looks like a control token in a format's writing."""
    found = {mark for text in literals(form) for mark in MARK.findall(text)}
    return tuple(sorted(found | set(SPECIAL_TOKENS.values())))


@cache
def built_in(name: str, vocabulary: str = "neox") -> Codec:
    """The codec of a built-in format."""
    codec = chatcodec.load(name)
    marks = (*marks_of(codec.format), *filter(None, codec.special_tokens.values()), *codec.stops, "<tool_response>")
    return chatcodec.load(name, tokenizer=tokenizer(marks, vocabulary))


def of_template(source: str, name: str = "chat_template", vocabulary: str = "neox") -> Codec:
    """The codec of a template. Raises `FormatNotDerived`."""
    form = Codec(source, special_tokens=SPECIAL_TOKENS, name=name).format
    known = tokenizer(marks_of(form), vocabulary)
    return Codec(source, special_tokens=SPECIAL_TOKENS, name=name, format=form, tokenizer=known)


def text_of(codec: Codec, ids: list[int]) -> str:
    return b"".join(map(codec.tokenizer.token_bytes, ids)).decode("utf-8", "replace")


# -- what is said


class Pool:
    """Texts and messages to draw from, made once a format, since it is draws that take a random test's time.

    `benign` ones say what people and models commonly say; among the others are the format's own markers.
    """

    def __init__(self, form: TurnFormat, *, benign: bool, size: int = 400) -> None:
        self._form = form
        self._random = Random(f"{form.prompt} {benign}")
        self._pieces: tuple[str, ...] = (*WORDS, *FOREIGN, *SPACES, *QUOTES[:4])
        if not benign:
            own = (*literals(form), *near_misses(form))
            self._pieces = (*self._pieces, *QUOTES, *BRACKETS, *self._random.choices(own, k=60))
        self._benign = benign
        self.texts = [self._text() for _ in range(size)]
        self.reasoned = [self._message(reasons=True) for _ in range(size)] if may_reason(form) else []
        self.plain = [self._message(reasons=False) for _ in range(size)]

    def _text(self) -> str:
        text = "".join(self._random.choices(self._pieces, k=self._random.randint(1, 8)))
        if not self._benign:
            return text
        return text.strip() or "x"

    def _message(self, *, reasons: bool) -> Message:
        message: Message = {"role": "assistant", "content": self._text()}
        if reasons:
            message["reasoning_content"] = self._text()
        if self._form.calls and self._random.random() < 0.4:
            if self._random.random() < 0.5:
                message["content"] = None
            several = self._random.choice((1, 1, 2, 3)) if self._form.calls.several else 1
            message["tool_calls"] = [self._call(index) for index in range(several)]
        return message

    def _call(self, index: int) -> Message:
        name = self._random.choice(list(TYPES))
        picked = [key for key in TYPES[name] if self._random.random() < 0.7]
        arguments = {key: self._value(TYPES[name][key]) for key in picked}
        function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
        return {"id": f"functions.{name}:{index}", "type": "function", "function": function}

    def _value(self, kind: str) -> Any:
        match kind:
            case "string":
                return self._text()
            case "integer":
                return self._random.choice(INTEGERS)
            case _:
                return self._random.choice(([], ["a"], [1, "b", {"c": None}]))


@cache
def pool(form: TurnFormat, *, benign: bool) -> Pool:
    return Pool(form, benign=benign)


class Dice:
    """Decides by the digits of numbers, so that a test draws a number a step and no more."""

    def __init__(self) -> None:
        self.left = 0

    def throw(self, number: int) -> None:
        self.left = number

    def one(self, *values: Any) -> Any:
        self.left, digit = divmod(self.left, len(values))
        return values[digit]


class Writer:
    """Decides what is said in one conversation."""

    def __init__(self, dice: Dice, form: TurnFormat, *, benign: bool = False) -> None:
        self.one = dice.one
        self._pools = [pool(form, benign=True)] if benign else [pool(form, benign=kind) for kind in (True, False)]

    def text(self) -> str:
        return str(self.one(*self.one(*self._pools).texts))

    def user(self) -> Message:
        return {"role": "user", "content": self.text()}

    def results(self, said: Message) -> list[Message]:
        """A result for each call of a message."""
        return [
            {"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"], "content": self.text()}
            for call in said.get("tool_calls", ())
        ]

    def assistant(self, *, reasons: bool | None = None) -> Message:
        """What the model may say; `reasons` says whether it does, None leaves that open."""
        given = self.one(*self._pools)
        kinds = {True: [given.reasoned], False: [given.plain], None: [given.plain, given.reasoned]}[reasons]
        return dict(self.one(*self.one(*filter(None, kinds))))


def composed(codec: Codec, prompt: str, message: Message, *, end: bool = True) -> list[int] | None:
    """The completion's ids; None where the format cannot carry the message."""
    try:
        return codec.compose_ids(message, prompt, TOOLS, end=end)
    except UnsupportedInput:
        return None
