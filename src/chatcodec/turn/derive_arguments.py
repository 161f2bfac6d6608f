"""Reads off how a call's arguments are written: where they stand in a turn, and as which payload.

Three arguments of plain words show what stands around and between them (`read_arguments`); a call with a value of each
type then shows how values are written (`refine`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from .derive_markers import common_end, common_start
from .format import BareArguments, JsonArguments, KeywordArguments, Payload, TaggedArguments
from .probes import WORDS, Field, Turn

QUOTES = ("'", '"')
NASTY = "zq\"'\\/\n<ü&{{日"
"""A string that every way of quoting writes in its own way."""
ALL_KINDS: dict[str, Any] = {
    "zqa": NASTY,
    "zqb": 7,
    "zqc": 1.5,
    "zqd": True,
    "zqe": None,
    "zqf": ["zqü", 3, True, None],
    "zqg": {"zqh": "zqü", "zqi": None},
    "zqj": "zqz",
}
KINDS = {
    "zqa": "string",
    "zqb": "integer",
    "zqc": "number",
    "zqd": "boolean",
    "zqe": "null",
    "zqf": "array",
    "zqg": "object",
    "zqj": "string",
}
SPELLINGS: dict[str, Callable[[Any], str]] = {
    "json": lambda value: json.dumps(value, ensure_ascii=False),
    "ascii": json.dumps,
    "python": str,
}
QUOTINGS: dict[str, Callable[[str], str]] = {
    "json": SPELLINGS["json"],
    "ascii": json.dumps,
    "python": repr,
    "bare": lambda text: f'"{text}"',
}
"""How a string may be quoted, by its name in a payload."""


@dataclass(frozen=True, slots=True)
class Region:
    """Where the arguments of a call stand in its turn."""

    start: int
    end: int
    payload: Payload


def read_arguments(turn: Turn, call: int) -> Region | None:
    """The arguments of a call with `WORDS` for arguments; None where they are not written in a way that is known."""
    fields = turn.of("argument", call)
    if not fields:
        return None
    return _as_json(turn, fields[0]) or _as_items(turn, call)


def refine(payload: Payload, turn: Turn | None) -> Payload:
    """`payload` with what a call with `ALL_KINDS` for arguments shows of its values."""
    fields = turn.of("argument", 0) if turn is not None else []
    if turn is None or not fields:
        return payload
    match payload:
        case JsonArguments():
            return _json_payload(turn, fields[0], ALL_KINDS) or payload
        case TaggedArguments():
            return _tagged(payload, turn, dict(_segments(turn, fields)))
        case KeywordArguments():
            return payload
        case BareArguments():
            return payload


# -- one JSON object


def _as_json(turn: Turn, first: Field) -> Region | None:
    found = _json_extent(turn.text, first.start, WORDS)
    payload = _json_payload(turn, first, WORDS)
    return Region(*found, payload) if found and payload else None


def _json_extent(text: str, inside: int, arguments: Any) -> tuple[int, int] | None:
    """Where a JSON object that begins before `inside`, or a JSON string that holds it, says `arguments`."""
    start = text.rfind("{", 0, inside)
    while start >= 0:
        for begin in (start, start - 1):
            value, end = _decoded(text, begin)
            if value == arguments:
                return begin, end
        start = text.rfind("{", 0, start)
    return None


def _decoded(text: str, start: int) -> tuple[Any, int]:
    """The JSON object at `start`, also one inside a JSON string."""
    if start < 0 or text[start] not in '{"':
        return None, start
    try:
        value, end = json.JSONDecoder().raw_decode(text, start)
        return (json.loads(value) if isinstance(value, str) else value), end
    except ValueError:
        return None, start


def _json_payload(turn: Turn, first: Field, arguments: Any) -> JsonArguments | None:
    extent = _json_extent(turn.text, first.start, arguments)
    if extent is None:
        return None
    text = turn.text[extent[0] : extent[1]]
    encoded = text.startswith('"')
    inner = json.loads(text) if encoded else text
    for comma, colon, ascii, indent in product((", ", ","), (": ", ":"), (False, True), (None, 2, 4, 1, 3)):
        separators = (comma if indent is None else comma.rstrip(), colon)
        if json.dumps(arguments, ensure_ascii=ascii, separators=separators, indent=indent) == inner:
            return JsonArguments(separators[0], colon, ascii, encoded, indent)
    return JsonArguments(encoded=encoded)


# -- one after the other


def _as_items(turn: Turn, call: int) -> Region | None:
    """Arguments that are each written by itself, from the three of `WORDS`."""
    fields = turn.of("argument", call)
    keys = [field for field in fields if field.key]
    values = [field for field in fields if not field.key]
    named = len(keys) == 2 * len(values)
    firsts = keys[::2] if named else keys
    if len(values) != len(WORDS) or len(firsts) != len(WORDS):
        return None
    middles = {turn.text[key.end : value.start] for key, value in zip(firsts, values, strict=True)}
    lasts = keys[1::2] if named else values
    between = {turn.text[last.end : key.start] for last, key in zip(lasts, firsts[1:], strict=False)}
    if len(middles) != 1 or len(between) != 1:
        return None
    opening, joint, ending = turn.before(firsts[0]), between.pop(), turn.after(lasts[-1])
    start = common_end(opening, joint).lstrip()
    close = common_start(joint, ending).rstrip()
    close = close[: max(len(joint) - len(start), 0)]
    payload = TaggedArguments(
        open=start,
        middle=middles.pop(),
        close=turn.text[values[0].end : lasts[0].start] if named else close,
        separator=joint[len(close) : len(joint) - len(start)],
        named_close=close if named else None,
    )
    return Region(firsts[0].start - len(start), lasts[-1].end + len(close), payload)


def _segments(turn: Turn, fields: list[Field]) -> Iterator[tuple[str, str]]:
    """Each argument's name and what stands from its key to the next argument's."""
    keys: dict[str, Field] = {}
    for field in fields:
        if field.key and field.place.removeprefix(".") in ALL_KINDS:
            keys.setdefault(field.place.removeprefix("."), field)
    ordered = list(keys.items())
    for (name, key), (_, following) in zip(ordered, ordered[1:], strict=False):
        yield name, turn.text[key.end : following.start]


def _tagged(payload: TaggedArguments, turn: Turn, segments: dict[str, str]) -> Payload:
    """What `payload` really is, and how its values are written: what the number has less than a string are quotes."""
    ending = payload.close + ("" if payload.named_close is None else "zqb" + payload.named_close)
    joint = payload.separator + payload.open
    plain, _, rest = segments.get("zqb", "").removesuffix(joint).rpartition(str(ALL_KINDS["zqb"]))
    if "zqb" not in segments or not ending.endswith(rest):
        return payload
    quote = ending[: len(ending) - len(rest)]
    bare = replace(payload, close=payload.close.removeprefix(quote))
    written = {}
    for name, segment in segments.items():
        ending = bare.close + ("" if bare.named_close is None else name + bare.named_close) + joint
        if segment.endswith(ending):
            written[name] = segment.removesuffix(ending)
    middles, ways = {}, {}
    for name, text in written.items():
        found = _spelled(ALL_KINDS[name], text, bool(quote))
        if found:
            middles[name], ways[name] = found
    return _settled(bare, quote, plain, middles, ways)


def _spelled(value: Any, text: str, quoted: bool) -> tuple[str, set[str]] | None:
    """What stands before the value in `text`, which ends with it, and the ways in which it may be written so."""
    spellings = QUOTINGS if isinstance(value, str) and quoted else SPELLINGS
    if isinstance(value, str) and not quoted:
        return (text.removesuffix(value), {"raw"}) if text.endswith(value) else None
    fitting = {way: spelled for way, spell in spellings.items() if text.endswith(spelled := spell(value))}
    longest = max(fitting.values(), key=len, default="")
    ways = {way for way, spelled in fitting.items() if spelled == longest}
    return (text.removesuffix(longest), ways) if ways else None


def _settled(
    payload: TaggedArguments, quote: str, plain: str, middles: dict[str, str], ways: dict[str, set[str]]
) -> Payload:
    others = _others({KINDS[name]: found for name, found in ways.items() if KINDS[name] != "string"})
    if quote and quote not in QUOTES:
        return BareArguments(quote, payload.separator, plain)
    unescaped = {"": "raw", '"': "bare"}.get(quote, "python")
    strings = next((way for way in ("raw", *QUOTINGS) if way in ways.get("zqa", ())), unescaped)
    if not payload.open and not payload.close and plain.strip() == "=":
        return KeywordArguments(payload.separator, plain, strings, others)
    middle = middles.get("zqa", payload.middle.removesuffix(quote))
    kinds: tuple[tuple[str, str], ...] = ()
    if len(set(middles.values())) > 1:
        kinds = tuple(dict.fromkeys((KINDS[name], written) for name, written in middles.items()))
    return replace(payload, middle=middle, strings=strings, others=others, kinds=kinds)


def _others(ways: dict[str, set[str]]) -> str:
    """The one way in which all values but strings are written."""
    for way in ("json", "ascii", "python"):
        if all(way in found for found in ways.values()):
            return way
    containers = [found for kind, found in ways.items() if kind in ("array", "object")]
    return "mixed" if all("json" in found for found in containers) else "python"
