"""Laws of the decoder on generated messages, and on output that is made to mislead it."""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st
from messages_strategy import Spoken, benign_texts, cuts, hostile_texts, literals, messages
from turn_formats import FIVE, FORMATS, JSON

import chatcodec
from chatcodec.errors import UnsupportedInput
from chatcodec.events import ArgumentsDelta, ContentDelta, Event, ReasoningDelta, ToolCallEnd, ToolCallStart, TurnEnd
from chatcodec.laws import decoding_undoes_composing, splitting_changes_nothing
from chatcodec.turn.compose import compose
from chatcodec.turn.decoder import Decoder
from chatcodec.turn.format import (
    Arguments,
    BareArguments,
    Call,
    CallId,
    Calls,
    Index,
    JsonArguments,
    KeywordArguments,
    Literal,
    Name,
    Payload,
    Section,
    TaggedArguments,
    TurnFormat,
)

ORIGINALS = Path(__file__).resolve().parents[2] / "shared" / "seeds"
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}}
    for name, properties in {
        "now": {},
        "get_weather": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "f2": {"x2": {"type": "array"}, "unit": {"type": ["string", "null"]}},
    }.items()
]
MANY = settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
SOME = settings(MANY, max_examples=30)


@cache
def derived(name: str) -> TurnFormat:
    """The format that is derived from the built-in template, or from the original."""
    return chatcodec.load(str(ORIGINALS / f"{name.split()[1]}.jinja") if " " in name else name).format


needs_originals = pytest.mark.skipif(not ORIGINALS.is_dir(), reason="the original templates are not at hand")
DERIVED = [*FIVE, *(pytest.param(f"original {name}", marks=needs_originals) for name in FIVE)]


# -- decoding undoes composing


def check_round_trip(form: TurnFormat, spoken: Spoken) -> str | None:
    """The completion of a message that the format carries, read back; None where it cannot.

    Where decoding it gives another message, `Codec.compose` refuses it: only a message with the format's own markers in
    it may be such.
    """
    try:
        broken = decoding_undoes_composing(form, spoken.message, tools=spoken.tools or None)
    except UnsupportedInput:
        event("not carried")
        return None
    assert broken is None or has_marker(form, spoken), broken
    event("ambiguous" if broken else "carried")
    return None if broken else compose(spoken.message, form)


def has_marker(form: TurnFormat, spoken: Spoken) -> bool:
    """Whether a text, a key or a raw value of the message holds something of a marker, or white space at its ends."""
    strings = list(all_strings(spoken.message))
    marks = {word for text in literals(form) for word in re.findall(r"[<\[][^\s<>\[\]]*[>\]=]?|\W{2,}", text)}
    marks |= {middle.split()[0] for middle in middles(form)}
    return any(mark in text or text.strip() != text for text in strings for mark in marks)


def middles(form: TurnFormat) -> list[str]:
    """What ends a key."""
    payloads = [piece.payload for piece in form.calls.call.pieces if isinstance(piece, Arguments)] if form.calls else []
    return [payload.middle for payload in payloads if isinstance(payload, TaggedArguments)]


def all_strings(value: Any) -> list[str]:
    match value:
        case str():
            inner = json.loads(value) if value.startswith("{") and is_json(value) else None
            return [value] if inner is None else all_strings(inner)
        case dict():
            return [text for pair in value.items() for item in pair for text in all_strings(item)]
        case list():
            return [text for item in value for text in all_strings(item)]
        case _:
            return []


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def check_message(form: TurnFormat, spoken: Spoken, data: st.DataObject) -> None:
    output = check_round_trip(form, spoken)
    if output is not None:
        tools = spoken.tools or None
        assert splitting_changes_nothing(form, output, tools=tools) is None
        assert splitting_changes_nothing(form, data.draw(cuts(output)), tools=tools) is None


@pytest.mark.parametrize("name", DERIVED)
@MANY
@given(st.data())
def test_a_composed_message_decodes_to_itself(name: str, data: st.DataObject) -> None:
    form = derived(name)
    check_message(form, data.draw(messages(form)), data)


@pytest.mark.parametrize("name", FORMATS)
@SOME
@given(st.data())
def test_in_each_format_by_hand_too(name: str, data: st.DataObject) -> None:
    check_message(FORMATS[name], data.draw(messages(FORMATS[name])), data)


def between_tags(payload: Payload, before: str = "|", after: str = "|") -> TurnFormat:
    pieces = (Literal("<call>"), Name(), Literal(before), Arguments(payload), Literal(f"{after}</call>"))
    return TurnFormat("<bot>", "<bot>", ("<end>",), calls=Calls(Call(pieces)), next_turns=("<user>",))


VARIANTS = {
    "json, compact": between_tags(JsonArguments(",", ":")),
    "json, ascii": between_tags(JsonArguments(ascii=True)),
    "json, indented": between_tags(JsonArguments(indent=2)),
    "json in a string": between_tags(JsonArguments(encoded=True)),
    "tags with names in both": between_tags(TaggedArguments("<a ", ">", "</a ", "", named_close=">")),
    "tags with quoted strings": between_tags(TaggedArguments("<a ", ">", "</a>", "\n", strings="json")),
    "tags with ascii": between_tags(TaggedArguments("<a ", ">", "</a>", strings="ascii", others="ascii")),
    "tags with strings in Python": between_tags(TaggedArguments("<a ", ">", "</a>", strings="python", others="python")),
    "tags with escaped names": between_tags(TaggedArguments('<a name="', '">', "</a>", escaped_names=True)),
    "keywords with strings in JSON": between_tags(KeywordArguments(strings="json", others="json"), "(", ")"),
    "keywords with ascii": between_tags(KeywordArguments(strings="ascii", others="ascii"), "(", ")"),
    "keywords in Python": between_tags(KeywordArguments(strings="python", others="python"), "(", ")"),
    "keywords with bare strings": between_tags(KeywordArguments(strings="bare", others="python"), "(", ")"),
    "bare keys": between_tags(BareArguments("<q>", ", ", ": "), "{", "}"),
    "content between marks": replace(FORMATS["hermes"], content=Section("<answer>", "</answer>")),
    "content with an end": replace(FORMATS["kimi"], content=Section("<|message|>", "<|end|>")),
    "numbered calls": replace(
        FORMATS["mistral-args"],
        calls=Calls(Call((Literal("<call "), Index(1), Literal(" "), Name(), Literal(">"), JSON, Literal("</call>")))),
    ),
    "calls with ids": replace(
        FORMATS["mistral-args"],
        calls=Calls(Call((Literal("[TOOL_CALLS]"), Name(), Literal("[CALL_ID]"), CallId(), Literal("[ARGS]"), JSON))),
    ),
    "no end at all": replace(FORMATS["telechat3"], ends=(), next_turns=()),
    "calls before content": replace(FORMATS["step-audio-r1"], order=("reasoning", "calls", "content")),
}


@pytest.mark.parametrize("name", VARIANTS)
@SOME
@given(st.data())
def test_in_other_ways_of_writing_too(name: str, data: st.DataObject) -> None:
    form = VARIANTS[name]
    check_message(form, data.draw(messages(form, benign=data.draw(st.booleans()))), data)


@pytest.mark.parametrize("name", FORMATS)
@SOME
@given(st.data())
def test_a_common_message_is_always_carried(name: str, data: st.DataObject) -> None:
    """Without markers in it, and without white space around its texts, nothing is ambiguous."""
    form = FORMATS[name]
    spoken = data.draw(messages(form, benign=True))
    assert decoding_undoes_composing(form, spoken.message, tools=spoken.tools or None) is None


@pytest.mark.parametrize("name", FORMATS)
@settings(SOME, max_examples=5, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(st.data())
def test_a_split_anywhere_changes_nothing(name: str, data: st.DataObject) -> None:
    form = FORMATS[name]
    spoken = data.draw(messages(form, benign=True))
    output = compose(spoken.message, form)
    for place in range(len(output)):
        pieces = [output[:place], output[place:]]
        assert splitting_changes_nothing(form, pieces, tools=spoken.tools or None) is None


@pytest.mark.parametrize("name", FIVE)
def test_most_messages_with_markers_in_them_are_carried(name: str) -> None:
    form = FIVE[name]
    carried = 0

    @settings(MANY, database=None, derandomize=True, phases=[Phase.generate])
    @given(messages(form))
    def count(spoken: Spoken) -> None:
        nonlocal carried
        with contextlib.suppress(UnsupportedInput):
            carried += decoding_undoes_composing(form, spoken.message, tools=spoken.tools or None) is None

    count()
    assert carried >= 0.75 * MANY.max_examples


@pytest.mark.parametrize("name", FORMATS)
@SOME
@given(st.data())
def test_text_waits_no_longer_than_it_may_be_a_marker(name: str, data: st.DataObject) -> None:
    """Of a text without markers, nothing is held back but white space and what may begin a marker."""
    form = FORMATS[name]
    text = data.draw(benign_texts())
    output = compose({"role": "assistant", "content": text}, form)
    start = output.rindex(text)
    decoder = Decoder(form)
    decoder.feed(output[:start])
    said = ""
    for fed, character in enumerate(text, 1):
        said += "".join(texts(decoder.feed(character)))
        assert text[len(said) : fed].strip() in beginnings(form)


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "mistral-list"])
@SOME
@given(st.data())
def test_a_string_argument_waits_no_longer_either(name: str, data: st.DataObject) -> None:
    """Where its call is announced without the id that stands behind it, as that of mistral-list is not."""
    form = FORMATS[name]
    text = data.draw(benign_texts().map(plain).filter(bool))
    call = {"id": "functions.get_weather:0", "function": {"name": "get_weather", "arguments": {"city": text}}}
    output = compose({"role": "assistant", "content": None, "tool_calls": [call]}, form)
    start = output.rindex(text)
    decoder = Decoder(form, tools=TOOLS)
    said = pieces_of(decoder.feed(output[:start]))
    for fed, character in enumerate(text, 1):
        said += pieces_of(decoder.feed(character))
        assert text[len(said.partition('"city": "')[2]) : fed].strip() in beginnings(form)


def plain(text: str) -> str:
    """The text without what any format writes with an escape."""
    return "".join(character for character in text if character.isprintable() and character not in "\"'\\").strip()


def pieces_of(events: list[Event]) -> str:
    return "".join(event.json for event in events if isinstance(event, ArgumentsDelta))


@cache
def beginnings(form: TurnFormat) -> frozenset[str]:
    """What may begin one of the format's markers."""
    words = [word for mark in literals(form) for word in mark.split()]
    return frozenset(word[:size] for word in words for size in range(len(word)))


# -- hostile output


def prompts(form: TurnFormat) -> list[str | None]:
    """The prompt's possible endings."""
    tails = ["", "Some text"]
    if form.reasoning:
        tails += [form.reasoning.open, f"{form.reasoning.open}Some", f"{form.reasoning.open}R{form.reasoning.close}"]
    return [None, "no header", *(form.header + tail for tail in tails)] if not form.channels else [None, form.header]


@st.composite
def outputs(draw: Any, form: TurnFormat) -> str:
    """Nonsense, or a message's completion with something in it changed."""
    if draw(st.booleans()):
        return str(draw(hostile_texts(form)))
    try:
        text = compose(draw(messages(form)).message, form)
    except UnsupportedInput:
        text = ""
    for _ in range(draw(st.integers(0, 2))):
        start = draw(st.integers(0, len(text)))
        end = draw(st.integers(start, min(len(text), start + 20)))
        new = draw(
            st.sampled_from(("", "null", "'", '"', ",", "}", "{", "]", ":", "\\", "\n", "<", "=", *literals(form)))
        )
        text = text[:start] + new + text[end:]
    return text


@pytest.mark.parametrize("name", FORMATS)
@settings(MANY, max_examples=100)
@given(st.data())
def test_hostile_output(name: str, data: st.DataObject) -> None:
    """Whatever the model writes: nothing is raised, nothing is lost, no split matters, and the events are in order."""
    form = FORMATS[name]
    output = data.draw(outputs(form), "output")
    options: dict[str, Any] = {
        "tools": data.draw(st.sampled_from((None, TOOLS)), "tools"),
        "prompt": data.draw(st.sampled_from(prompts(form)), "prompt"),
    }
    told = data.draw(st.sampled_from((None, "stop", "length")), "told")
    check_output(form, output, told, options)
    assert splitting_changes_nothing(form, output, finish_reason=told, **options) is None
    assert splitting_changes_nothing(form, data.draw(cuts(output), "cuts"), finish_reason=told, **options) is None


def check_output(form: TurnFormat, output: str, told: Any, options: dict[str, Any]) -> None:
    decoder = Decoder(form, **options)
    events = decoder.feed(output) + decoder.close(told)
    assert [event for event in events if isinstance(event, TurnEnd)] == events[-1:]
    assert [event.call for event in events if isinstance(event, ToolCallEnd)] == decoder.calls
    assert [output[slice(*call.span)] for call in decoder.calls] == [call.raw for call in decoder.calls]
    for call in decoder.calls:
        check_call(call, [event for event in events if getattr(event, "index", None) == call.index])
    assert not lost(form, outside(decoder, output), "".join(texts(events)) + decoder.rest)


def check_call(call: Any, events: list[Event]) -> None:
    """The pieces of its arguments joined are those of the call, and JSON where it is whole."""
    kinds = [type(event) for event in events]
    assert kinds[-1] is ToolCallEnd
    assert kinds[:-1] == [ToolCallStart, *[ArgumentsDelta] * (len(kinds) - 2)][: len(kinds) - 1]
    if call.status == "ok" or kinds[0] is ToolCallStart:
        assert events[0] == ToolCallStart(call.index, call.id, call.name)
        assert pieces_of(events) == call.arguments
    if call.status in ("ok", "unknown_tool"):
        assert isinstance(json.loads(call.arguments), dict)


def texts(events: list[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, ContentDelta | ReasoningDelta)]


def outside(decoder: Decoder, output: str) -> str:
    """The output without its calls."""
    parts = []
    place = 0
    for call in decoder.calls:
        assert call.span[0] >= place
        parts.append(output[place : call.span[0]])
        place = call.span[1]
    return "".join([*parts, output[place:]])


def lost(form: TurnFormat, output: str, said: str) -> bool:
    """Whether `output`, white space aside, is other than `said` with markers of the format in it."""
    output, said = "".join(output.split()), "".join(said.split())
    marks = markers(form)
    reached: dict[int, set[int]] = {0: {0}}
    for place in range(len(output)):
        counts = reached.pop(place, set())
        if not counts:
            continue
        going_on = {count + 1 for count in counts if said[count : count + 1] == output[place]}
        reached.setdefault(place + 1, set()).update(going_on)
        for mark in marks:
            match = mark.match(output, place)
            if match and match.end() > place:
                reached.setdefault(match.end(), set()).update(counts)
    return len(said) not in reached.get(len(output), set())


@cache
def markers(form: TurnFormat) -> list[re.Pattern[str]]:
    """What may stand in an output and in no text of a message."""
    edges = [*form.ends, *form.next_turns]
    for section in (form.reasoning, form.content):
        edges += [section.open, section.close] if section else []
    if form.calls and not form.channels:
        text = getattr(form.calls.call.pieces[-1], "text", "")
        text = text.rpartition("}")[2] if form.calls.call.name_path else text
        edges += [form.calls.open, form.calls.close, form.calls.separator, text]
    patterns = [re.escape(part) for edge in edges for part in re.split(r"\s+|(?<=[>\]])(?=[<\[])", edge) if part]
    if form.channels:
        inside = r"(?:(?!<\|(?:message|start|end|return|call)\|>).)*"
        patterns.append(rf"(<\|start\|>)?{inside}(<\|channel\|>|to=){inside}<\|message\|>")
        patterns += [r"<\|start\|>(assistant)?<\|message\|>", r"(<\|(start|channel)\|>[^<]*)+$"]
        patterns += [re.escape(mark) for mark in (form.channels.start, form.channels.end, form.channels.role)]
    return [re.compile(pattern) for pattern in {*patterns, r"<\|\w+\|>"}]


# -- ids


class Bytes:
    """A vocabulary of bytes, and of special tokens."""

    def __init__(self, form: TurnFormat) -> None:
        found = {mark for text in literals(form) for mark in re.findall(r"<[^<>\s]+>|\[[A-Z_/]+\]", text)}
        self.special = {mark: 256 + place for place, mark in enumerate(sorted(found))}
        self.names = {place: mark for mark, place in self.special.items()}
        self.pattern = re.compile("|".join(map(re.escape, self.special)) or "(?!)")

    def token_bytes(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else self.names[token].encode()

    def control_tokens(self) -> dict[str, int]:
        return self.special

    def encode(self, text: str, random: Random) -> list[int]:
        """The ids of a text; each marker in it a special token or, sometimes, spelled out."""
        ids: list[int] = []
        place = 0
        for match in self.pattern.finditer(text):
            ids += text[place : match.start()].encode("utf-8", "replace")
            ids += [self.special[match[0]]] if random.random() < 0.9 else match[0].encode()
            place = match.end()
        return ids + list(text[place:].encode("utf-8", "replace"))


@pytest.mark.parametrize("name", FORMATS)
@settings(SOME, max_examples=50)
@given(st.data())
def test_ids_in_any_grouping(name: str, data: st.DataObject) -> None:
    form = FORMATS[name]
    vocabulary = Bytes(form)
    ids = vocabulary.encode(data.draw(outputs(form)), data.draw(st.randoms(use_true_random=False)))
    size = data.draw(st.integers(1, 9))
    whole = decoded_ids(form, vocabulary, [ids])
    assert decoded_ids(form, vocabulary, [[token] for token in ids]) == whole
    assert decoded_ids(form, vocabulary, [ids[at : at + size] for at in range(0, len(ids), size)]) == whole


def decoded_ids(form: TurnFormat, vocabulary: Bytes, pieces: list[list[int]]) -> list[Any]:
    decoder = Decoder(form, tools=TOOLS, vocabulary=vocabulary)
    events = [event for piece in pieces for event in decoder.feed(piece)] + decoder.close()
    shown = b"".join(vocabulary.token_bytes(token) for piece in pieces for token in piece).decode("utf-8", "replace")
    assert [shown[slice(*call.span)] for call in decoder.calls] == [call.raw for call in decoder.calls]
    for call in decoder.calls:
        check_call(call, [event for event in events if getattr(event, "index", None) == call.index])
    return [decoder.message, decoder.calls, decoder.finish_reason, decoder.rest, "".join(texts(events))]
