"""Reads off how a call's arguments are written: where they stand in a turn, and as which payload.

Three arguments of plain words show what stands around and between them (`read_arguments`); a call with a value of each
type then shows how values are written (`refine`).
"""

from __future__ import annotations

import html
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from ..format import BareArguments, JsonArguments, KeywordArguments, Payload, TaggedArguments
from .markers import common_end, common_start
from .probes import WORDS, Field, Turn

MOST_OPENINGS = 8
"""So many braces before an argument may be the one that opens the arguments."""
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
    "zqj&<": "zqz",
}
"""Arguments that show how values are written, and the last one's name how names are."""
KINDS = {
    "zqa": "string",
    "zqb": "integer",
    "zqc": "number",
    "zqd": "boolean",
    "zqe": "null",
    "zqf": "array",
    "zqg": "object",
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
UNQUOTED: dict[str, Callable[[str], str]] = {"raw": str, "cdata": lambda text: f"<![CDATA[{text}]]>"}
STRING, NUMBER, LAST = "zqa", "zqb", "zqj&<"


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


def refine(payload: Payload, turn: Turn) -> Payload | None:
    """`payload` with what a call with `ALL_KINDS` for arguments shows of its values; None where it is no payload."""
    fields = turn.of("argument", 0)
    if isinstance(payload, JsonArguments):
        return _json_payload(turn, fields[0], ALL_KINDS) or payload
    if not isinstance(payload, TaggedArguments):
        return payload
    keys = _keys(fields)
    written = _written_name(turn, keys)
    escaped = written is not None and written == html.escape(LAST)
    return _tagged(replace(payload, escaped_names=escaped), _segments(turn, keys))


# -- one JSON object


def _as_json(turn: Turn, first: Field) -> Region | None:
    found = _json_extent(turn.text, first.start, WORDS)
    payload = _json_payload(turn, first, WORDS)
    return Region(*found, payload) if found and payload else None


def _json_extent(text: str, inside: int, arguments: Any) -> tuple[int, int] | None:
    """Where a JSON object that begins before `inside`, or a JSON string that holds it, says `arguments`."""
    start = inside
    for _ in range(MOST_OPENINGS):
        start = text.rfind("{", 0, start)
        for begin in (start, start - 1):
            value, end = _decoded(text, begin)
            if value == arguments:
                return begin, end
        if start <= 0:
            break
    return None


def _decoded(text: str, start: int) -> tuple[Any, int]:
    """The JSON object at `start`, also one inside a JSON string."""
    if start < 0 or text[start] not in '{"':
        return None, start
    try:
        value, end = json.JSONDecoder().raw_decode(text, start)
        return (json.loads(value) if isinstance(value, str) else value), end
    except (ValueError, RecursionError):
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


def _keys(fields: list[Field]) -> dict[str, Field]:
    """Where each argument's name stands first."""
    places = {place: name for name in ALL_KINDS for place in (f".{name}", f"[{name!r}]")}
    keys: dict[str, Field] = {}
    for field in fields:
        if field.key and field.place in places:
            keys.setdefault(places[field.place], field)
    return keys


def _written_name(turn: Turn, keys: dict[str, Field]) -> str | None:
    """How the last argument's name is written."""
    return turn.text[keys[LAST].start : keys[LAST].end] if LAST in keys else None


def _segments(turn: Turn, keys: dict[str, Field]) -> dict[str, str]:
    """What stands from each argument's name to that of the next."""
    following = list(keys.values())[1:]
    return {name: turn.text[key.end : after.start] for (name, key), after in zip(keys.items(), following, strict=False)}


def _tagged(payload: TaggedArguments, segments: dict[str, str]) -> Payload | None:
    """What `payload` really is, and how its values are written: what a number has less than a string are quotes."""
    joint = payload.separator + payload.open
    ending = _ending(payload, NUMBER)
    plain, _, rest = segments.get(NUMBER, "").removesuffix(joint).rpartition(str(ALL_KINDS[NUMBER]))
    if NUMBER not in segments or not ending.endswith(rest):
        return payload
    quote = ending[: len(ending) - len(rest)]
    payload = replace(payload, close=payload.close.removeprefix(quote), middle=payload.middle.removesuffix(quote))
    values = {}
    for name, segment in segments.items():
        text = segment.removesuffix(_ending(payload, name) + joint)
        if text != segment or not joint + _ending(payload, name):
            values[name] = _spelled(ALL_KINDS[name], text, bool(quote))
    return _settled(payload, quote, plain, {name: value for name, value in values.items() if value is not None})


def _ending(payload: TaggedArguments, name: str) -> str:
    """What closes an argument."""
    return payload.close if payload.named_close is None else payload.close + name + payload.named_close


@dataclass(frozen=True, slots=True)
class _Value:
    """How a value is written: what stands before it, and the ways in which it may be written so."""

    middle: str
    ways: frozenset[str]


def _spelled(value: Any, text: str, quoted: bool) -> _Value | None:
    """How `value` is written at the end of `text`."""
    ways = SPELLINGS if not isinstance(value, str) else QUOTINGS if quoted else UNQUOTED
    fitting = {way: spelled for way, spell in ways.items() if text.endswith(spelled := spell(value))}
    longest = max(fitting.values(), key=len, default="")
    same = frozenset(way for way, spelled in fitting.items() if spelled == longest)
    return _Value(text.removesuffix(longest), same) if same else None


def _settled(payload: TaggedArguments, quote: str, plain: str, values: dict[str, _Value]) -> Payload | None:
    if quote and quote not in QUOTES:
        return BareArguments(quote, payload.separator, plain)
    others = _others({kind: values[name].ways for name, kind in KINDS.items() if kind != "string" and name in values})
    string = values.get(STRING) or _Value(payload.middle, frozenset())
    unescaped = {"": "raw", '"': "bare", "'": "single"}.get(quote, "python")
    strings = next((way for way in QUOTINGS if way in string.ways), unescaped)
    if not payload.open and not payload.close and plain.strip() == "=":
        return KeywordArguments(payload.separator, plain, strings, others)
    if not _ending(payload, ""):
        return None
    middles = {KINDS[name]: value.middle for name, value in values.items() if name in KINDS}
    kinds = tuple(middles.items()) if len(set(middles.values())) > 1 else ()
    return replace(
        payload, middle=string.middle, strings=strings, others=others, kinds=kinds, cdata="cdata" in string.ways
    )


def _others(ways: dict[str, frozenset[str]]) -> str:
    """The one way in which all values but strings are written."""
    for way in ("json", "ascii", "python"):
        if all(way in found for found in ways.values()):
            return way
    containers = [found for kind, found in ways.items() if kind in ("array", "object")]
    return "mixed" if all("json" in found for found in containers) else "python"
