"""Hostile output: megabytes of markers, of almost-markers, of brackets, quotes and drafts, in every format.

Whatever a model writes, the decoder ends without an exception, in bounded memory and in time that is linear in the
output, and says the same however the output was cut. The outputs in a format are decoded in a process of its own with a
limit on its processor time; what the tests assert besides is counted, not timed: the text that is held unread while
pieces come in, and memory. `python tests/test_hostile_output.py` prints what ten times the output costs.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from turn_formats import FORMATS

from chatcodec.errors import UnsupportedInput
from chatcodec.turn.compose import compose
from chatcodec.turn.decoder import Decoder
from chatcodec.turn.document import to_document
from chatcodec.turn.format import TurnFormat
from chatcodec.turn.grammar import tokens
from chatcodec.turn.stream import Stream

CPU_LIMIT = 20  # seconds of processor time until an output that hangs is killed
ADDRESS_SPACE = 2 << 30
UNREAD = 2_048
"""Characters that may be held unread while more come in: what is looked ahead for a marker, and no more."""
MEGABYTES, BYTES_PER_CHARACTER = 24.0, 300

NAME, TEXT, NUMBER, CONTENT, REASONING = "probe", "VALUE7", 7070707, "C0NTENT", "R3ASON"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": NAME,
            "parameters": {
                "type": "object",
                "properties": {
                    "text": {"type": "string"},
                    "number": {"type": "integer"},
                    "list": {"type": "array"},
                    "map": {"type": "object"},
                    "some": {"anyOf": [{"type": "string"}, {"type": "number"}, {"type": "array"}, {"type": "null"}]},
                },
            },
        },
    }
]


# -- the outputs


class Writing:
    """How a format writes a call, cut where an attacker would cut it.

    `start` is what stands before content, `think` what opens reasoning; `opening` goes up to the function's name,
    `name` up to the arguments' first key, `head` up to the inside of a string, `number` up to a number; `tail` follows
    the string, `between` goes from one call's string to the next one's.
    """

    def __init__(self, form: TurnFormat) -> None:
        self.form = form
        self.start = compose({"content": CONTENT}, form).partition(CONTENT)[0]
        one = self._calls(form, {"text": TEXT})
        self.opening = one.partition(NAME)[0]
        self.name = one[: one.index("text", len(self.opening) + len(NAME))]
        self.head, _, self.tail = one.partition(TEXT)
        self.number = self._calls(form, {"number": NUMBER}).partition(str(NUMBER))[0]
        self.array = self._calls(form, {"list": [NUMBER]}).partition(str(NUMBER))[0].rstrip("[")
        self.call = one
        several = form.calls is not None and form.calls.several
        two = self._calls(form, {"text": TEXT}, {"text": TEXT}) if several else f"{one}{self._next(form)}{one}"
        self.between = two[len(self.head) + len(TEXT) : two.rindex(TEXT)]
        try:
            self.think = compose({"reasoning_content": REASONING}, form).partition(REASONING)[0]
        except UnsupportedInput:
            self.think = ""
        self.end = form.ends[0] if form.ends else form.next_turns[0]
        self.markers = sorted({mark for text in _texts(to_document(form)) for mark in tokens(text) if len(mark) > 1})

    def _calls(self, form: TurnFormat, *arguments: dict[str, Any]) -> str:
        calls = [
            {"type": "function", "id": f"callid{index:03}", "function": {"name": NAME, "arguments": given}}
            for index, given in enumerate(arguments)
        ]
        return compose({"tool_calls": calls}, form).removeprefix(self.start)

    @staticmethod
    def _next(form: TurnFormat) -> str:
        return f"{form.ends[-1]}{form.header}" if form.channels else ""


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _texts(item) if key not in ("kind", "strings", "others", "order", "kinds") else ()
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


Pattern = tuple[str, str, str]
"""What stands at the start, what comes again and again, what stands at the end."""

PLAIN: dict[str, str] = {
    "less-than": "<",
    "less-than-bar": "<|",
    "control-tokens": "<|token|>",
    "square": "[",
    "brace": "{",
    "brackets": "[{(",
    "closing-brackets": "]})",
    "spaces": " ",
    "newlines": "\n",
    "white-space": " \n\t",
    "quotes": '"',
    "single-quotes": "'",
    "backslashes": "\\",
    "quote-escape": '"\\',
    "name-heads": '{"name":',
    "name-heads-open": '{"name": "',
    "surrogates": "\ud83d",
    "low-surrogates": "\udc00\udfff",
    "nul": "\0",
    "emoji": "🙂",
    "combining": "a\u0301\u200d",
    "word": "a",
    "lines": "a\n",
}
"""What comes again and again, as content and inside a string."""

VALUES: dict[str, str] = {
    "nested-lists": "[",
    "nested-objects": '{"a":',
    "nested-bare": "{a:",
    "nested-tuples": "(",
    "nested-flat": "[1,",
    "nested-closed": "[]",
    "digits": "1",
    "signs": "-",
    "exponents": "1e",
    "fractions": "0.",
    "underscores": "1_",
    "words": "nul",
    "commas": ",",
    "colons": ":",
    "strings": '"a",',
    "list-of-quotes": "['\\'",
    "list-of-strings": '["",',
}
"""What comes again and again where a value that is no string begins."""

KEYS: dict[str, str] = {
    "keys": '"a",',
    "keys-with-colons": '"a":',
    "keys-in-a-row": '"a" ',
    "bare-keys": "a ",
    "bare-keys-with-colons": "a:",
    "bare-keys-with-equals": "a=",
    "arguments": '"a": 1, ',
    "keyword-arguments": "a=1, ",
    "bare-arguments": "a:1,",
    "giant-key": "k",
    "quoted-giant-key": 'k\\"',
    "commas": ", ",
    "spaces": " ",
}
"""What comes again and again where an argument's name begins."""


def patterns(form: TurnFormat) -> dict[str, Pattern]:
    w = Writing(form)
    start, calls = w.start, form.calls
    separator = (calls.separator if calls else "") or "\n"
    found: dict[str, Pattern] = {}
    for name, unit in PLAIN.items():
        found[f"content {name}"] = (start, unit, "")
        found[f"reasoning {name}"] = (w.think, unit, "")
        found[f"string {name}"] = (start + w.head, unit, w.tail)
    for name, unit in VALUES.items():
        found[f"value {name}"] = (start + w.number, unit, "")
        found[f"value {name}, closed"] = (start + w.array, unit, w.tail)
    for name, unit in KEYS.items():
        found[f"key {name}"] = (start + w.name, unit, w.tail)
    for number, marker in enumerate(w.markers):
        found[f"content marker {number} {marker}"] = (start, marker, "")
        found[f"content marker {number} {marker}, lines"] = (start, marker + "\n", "")
        found[f"reasoning marker {number} {marker}"] = (w.think, marker, "")
        found[f"string marker {number} {marker}"] = (start + w.head, marker + "\n", w.tail)
        found[f"almost marker {number} {marker}"] = (start, marker[:-1], "")
        found[f"after a call, marker {number} {marker}"] = (start + w.call, marker, "")
    for place, before in (("content", start), ("reasoning", w.think)):
        found |= {
            f"{place} openings": (before, w.opening, ""),
            f"{place} openings apart": (before, w.opening + " x ", ""),
            f"{place} almost openings": (before, w.opening.rstrip()[:-1], ""),
            f"{place} openings far from calls": (before, w.opening + " " * 500, ""),
            f"{place} openings too far": (before, w.opening + "\n" * 700, ""),
            f"{place} names": (before, w.opening + NAME, ""),
            f"{place} names and more": (before, w.name, ""),
            f"{place} heads": (before, w.head, ""),
            f"{place} heads apart": (before, w.head + "\n", ""),
            f"{place} tails": (before, w.tail, ""),
            f"{place} calls": (before, w.call, ""),
            f"{place} drafts": (before, w.call + " perhaps ", ""),
            f"{place} chained calls": (before + w.head, "a" + w.between, "a" + w.tail),
            f"{place} chained drafts": (before + w.head, "a" + w.between, "a" + w.tail + " perhaps"),
            f"{place} broken calls": (before, w.head.replace(":", ";") + w.tail, ""),
            f"{place} unknown tools": (before, w.call.replace(NAME, "nobody"), ""),
            f"{place} soup": (before, soup(w, 1_000, 1), ""),
            f"{place} thick soup": (before, soup(w, 300, 2), ""),
        }
    return found | {
        "think open": (start, w.think.strip() or "<think>", ""),
        "think open, close": (start, w.think + "\n" + start, ""),
        "ends": (start, w.end, ""),
        "ends apart": (start, w.end + " x ", ""),
        "behind the end": (f"{start}x{w.end}{''.join(form.next_turns[:1])}", "more ", ""),
        "next turns": (start, "".join(form.next_turns) or "<|im_start|>", ""),
        "separators": (start + w.call, separator, ""),
        "spaced separators": (start + w.call, separator + " " * 400, ""),
        "name giant": (start + w.opening, "n", w.name[len(w.opening) + len(NAME) :]),
        "name giant, quotes": (start + w.opening, 'n\\"', w.name[len(w.opening) + len(NAME) :]),
        "string unclosed": (start + w.head, "a b ", ""),
        "string with its tail inside": (start + w.head, w.tail + "x", w.tail),
        "string with its head inside": (start + w.head, w.head + "x", w.tail),
        "string with calls inside": (start + w.head, w.call + "x", w.tail),
        "string closed and spaced": (start + w.head, w.tail.rstrip()[:-1] + " " * 300, w.tail),
        "string \\u escapes": (start + w.head, "\\u0041", w.tail),
        "string \\u surrogates": (start + w.head, "\\ud83d", w.tail),
        "string \\u pairs": (start + w.head, "\\ud83d\\ude42", w.tail),
        "string \\u broken": (start + w.head, "\\u12", w.tail),
        "string \\x": (start + w.head, "\\x4", w.tail),
        "id giant": (start + w.call.replace("callid000", "").partition(NAME)[0], f"{NAME}:0", w.tail),
        "ids": (start + w.call, f"functions.{NAME}:1", ""),
        "encoded arguments": (start + w.name, '"{\\"a\\": \\"', w.tail),
    }


def soup(writing: Writing, size: int, seed: int) -> str:
    """Pieces of the format's writing in a disorder that is always the same."""
    draw = random.Random(f"{seed} {writing.opening}")
    fragments = [*writing.markers, *PLAIN.values(), *VALUES.values(), *KEYS.values()]
    fragments += [writing.opening, writing.name, writing.head, writing.tail, writing.between, writing.call] * 4
    parts: list[str] = []
    while sum(map(len, parts)) < size:
        part = draw.choice(fragments)
        parts.append(part[: draw.randint(1, len(part))] if part and draw.random() < 0.3 else part)
    return "".join(parts)


def output(pattern: Pattern, size: int) -> str:
    first, unit, last = pattern
    return f"{first}{unit * max(1, size // max(1, len(unit)))}{last}"


# -- the feeds


class Letters:
    """A vocabulary whose tokens are the format's markers, as control tokens, and all characters."""

    def __init__(self, markers: list[str]) -> None:
        self._markers = {marker: 0x200000 + number for number, marker in enumerate(markers) if marker[0] in "<["}
        self._texts = {token: marker.encode() for marker, token in self._markers.items()}

    def token_bytes(self, token: int) -> bytes:
        return self._texts.get(token) or chr(token).encode("utf-8", "replace")

    def control_tokens(self) -> dict[str, int]:
        return self._markers

    def ids(self, text: str) -> list[int]:
        found: list[int] = []
        at = 0
        by_length = sorted(self._markers, key=len, reverse=True)
        while at < len(text):
            marker = next((marker for marker in by_length if text.startswith(marker, at)), "")
            found.append(self._markers[marker] if marker else ord(text[at]))
            at += len(marker) or 1
        return found


def whole(text: str, _: Letters) -> list[Any]:
    return [text]


def in_pieces(text: str, _: Letters) -> list[Any]:
    return [text[at : at + 4] for at in range(0, len(text), 4)]


def by_character(text: str, _: Letters) -> list[Any]:
    return list(text)


def in_ids(text: str, letters: Letters) -> list[Any]:
    return [[token] for token in letters.ids(text)]


FEEDS: dict[str, Callable[[str, Letters], list[Any]]] = {
    "whole": whole,
    "pieces": in_pieces,
    "characters": by_character,
    "ids": in_ids,
}
SHARES = {"whole": 20, "pieces": 3, "characters": 1, "ids": 1}
"""How much longer an output is taken that is cheaper to feed."""


def decode(form: TurnFormat, pieces: list[Any], letters: Letters, tools: Any = TOOLS) -> Decoder:
    decoder = Decoder(form, tools=tools, vocabulary=letters)
    for piece in pieces:
        decoder.feed(piece)
    decoder.close()
    return decoder


def told(decoder: Decoder) -> Any:
    return decoder.message, decoder.calls, decoder.rest, decoder.finish_reason


# -- the outputs of a format in a process of its own


Report = dict[str, Any]
"""What became of an output: `fault` (an exception, "split", "unread", "memory", how the process died; empty where all
is well), `seconds` of processor time a feed, `megabytes` that the process grew by."""


def examine(form: TurnFormat, pattern: Pattern, size: int) -> Report:
    letters = Letters(Writing(form).markers)
    unread = 0
    append = Stream.append

    def counted(stream: Stream, piece: str) -> None:
        nonlocal unread
        append(stream, piece)
        unread = max(unread, len(stream.text) - len(piece))

    Stream.append = counted  # type: ignore[method-assign]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds: dict[str, float] = {}
    fault = ""
    try:
        for name in ("whole", "pieces", "ids"):
            pieces = FEEDS[name](output(pattern, size * SHARES[name]), letters)
            started = time.process_time()
            decode(form, pieces, letters)
            if name == "whole":
                decode(form, pieces, letters, None)
            seconds[name] = time.process_time() - started
        fault = difference(form, pattern, letters)
    except Exception as error:
        fault = f"{type(error).__name__}: {error}"
    finally:
        Stream.append = append  # type: ignore[method-assign]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    megabytes = (peak - before) / (1 << 20 if sys.platform == "darwin" else 1 << 10)
    if unread > UNREAD:
        fault = fault or f"unread: {unread:,} characters are held"
    if megabytes > MEGABYTES + BYTES_PER_CHARACTER * size * max(SHARES.values()) / 1e6:
        fault = fault or f"memory: {megabytes:.0f} MB"
    return {"fault": fault, "seconds": seconds, "megabytes": megabytes}


def difference(form: TurnFormat, pattern: Pattern, letters: Letters) -> str:
    """What a cut output says otherwise than the whole."""
    for size, cuts in ((40, ("pieces", "characters")), (700, ("characters",))):
        text = output(pattern, size)
        expected = told(decode(form, [text], letters))
        for name in cuts:
            if told(decode(form, FEEDS[name](text, letters), letters)) != expected:
                return f"split: {name} of {size} characters say something else than the whole"
    return ""


def compare(form: TurnFormat, pattern: Pattern, size: int, feeds: Iterable[str]) -> Report:
    """How many times as long ten times the output takes, by feed."""
    letters = Letters(Writing(form).markers)
    ratios: dict[str, float] = {}
    seconds: dict[str, float] = {}
    gc.disable()  # a collection is linear too, but comes in steps
    for name in feeds:
        rows = [FEEDS[name](output(pattern, size * SHARES[name] * factor), letters) for factor in (1, 10)]
        best = [1e9, 1e9]
        for _ in range(6):
            for place, pieces in enumerate(rows):
                started = time.process_time()
                decode(form, pieces, letters)
                best[place] = min(best[place], time.process_time() - started)
            if best[1] <= 11 * best[0]:
                break
        ratios[name] = best[1] / max(best[0], 1e-6)
        seconds[name] = best[1]
    return {"fault": "", "seconds": seconds, "ratios": ratios}


def serve(name: str, size: int, kinds: list[str], cpu: int, ratios: Iterable[str]) -> None:
    """Decode all outputs in one format, and print a report a line; before it, what is decoded now."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    form = FORMATS[name]
    for kind, pattern in patterns(form).items():
        if not kinds or any(part in kind for part in kinds):
            if not ratios:  # some kernels' clocks are coarse under this limit
                used = resource.getrusage(resource.RUSAGE_SELF)
                limit = int(used.ru_utime + used.ru_stime) + cpu
                resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))
            print(json.dumps({"format": name, "kind": kind}), flush=True)
            report = compare(form, pattern, size, ratios) if ratios else examine(form, pattern, size)
            print(json.dumps({"format": name, "kind": kind, **report}), flush=True)


def reports_of(name: str, size: int, *more: str) -> list[Report]:
    """All reports of a process; where it died, the last one says at what."""
    command = [sys.executable, os.path.abspath(__file__), "--serve", name, "--size", str(size), *more]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    reports = [line for line in lines if "fault" in line]
    if done.returncode:
        hangs = done.returncode == -signal.SIGXCPU
        last = lines[-1] if lines else {"format": name, "kind": "the start"}
        reports.append({**last, "fault": "it hangs" if hangs else f"the process ended with {done.returncode}"})
    return reports


# -- the tests

SIZE = 300
"""Small, for there are thousands of outputs; the table below takes megabytes (`--faults --size 30000`)."""


@pytest.mark.skipif(sys.platform == "win32", reason="limits are those of Unix")
@pytest.mark.parametrize("name", FORMATS)
def test_hostile_output_is_decoded(name: str) -> None:
    reports = reports_of(name, SIZE)
    faults = [f"{report['kind']}: {report['fault']}" for report in reports if report["fault"]]
    assert not faults, "\n".join(faults)
    assert len(reports) == len(patterns(FORMATS[name]))


@cache
def written(name: str) -> tuple[Writing, Letters]:
    writing = Writing(FORMATS[name])
    return writing, Letters(writing.markers)


@st.composite
def disorder(draw: st.DrawFn) -> tuple[str, str]:
    """A format, and fragments of its writing in any order."""
    name = draw(st.sampled_from(sorted(FORMATS)))
    w, _ = written(name)
    frame = [w.start, w.think, w.opening, w.name, w.head, w.tail, w.between, w.call, w.number, w.end]
    fragment = st.sampled_from([*frame, *w.markers]) | st.sampled_from(
        [*PLAIN.values(), *VALUES.values(), *KEYS.values()]
    )
    cut = st.builds(lambda text, share: text[: round(len(text) * share)], fragment, st.floats(0, 1))
    return name, "".join(draw(st.lists(fragment | cut | st.text(max_size=3), max_size=14)))


@settings(max_examples=400)
@given(disorder(), st.booleans(), st.randoms(use_true_random=False))
def test_disorder_is_decoded_the_same_in_pieces(given: tuple[str, str], declared: bool, draw: random.Random) -> None:
    name, text = given
    form, letters = FORMATS[name], written(name)[1]
    tools = TOOLS if declared else None
    expected = told(decode(form, [text], letters, tools))
    cuts = sorted(draw.sample(range(len(text) + 1), min(len(text), draw.randint(0, 5))))
    pieces = [text[first:last] for first, last in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert told(decode(form, pieces, letters, tools)) == expected
    assert told(decode(form, list(text), letters, tools)) == expected
    for call in expected[1]:
        assert call.status != "ok" or isinstance(json.loads(call.arguments), dict)


# -- the table of ratios


def main() -> None:
    parser = argparse.ArgumentParser(description="Decode hostile outputs, and ten times as much, and print the ratios.")
    parser.add_argument("kinds", nargs="*", help="only outputs whose name contains one of these")
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS))
    parser.add_argument(
        "--size", type=int, default=5_000, help="characters fed one by one; in pieces thrice as many, …"
    )
    parser.add_argument("--feeds", nargs="+", choices=FEEDS, default=list(FEEDS))
    parser.add_argument("--cpu", type=int, default=CPU_LIMIT, help="seconds of processor time for an output")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--faults", action="store_true", help="look for faults, as the tests do, in place of ratios")
    parser.add_argument("--worst", type=int, default=40, help="rows to print")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--ratios", nargs="*", default=(), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.size, options.kinds, options.cpu, options.ratios)
        return

    def run(name: str) -> list[Report]:
        more = [*options.kinds, "--cpu", str(options.cpu), *([] if options.faults else ["--ratios", *options.feeds])]
        return reports_of(name, options.size, *more)

    with ThreadPoolExecutor(options.jobs) as pool:
        reports = [report for found in pool.map(run, options.formats) for report in found]
    if options.faults:
        show_faults(reports)
    else:
        show_ratios(reports, options.worst)


def show_faults(reports: list[Report]) -> None:
    for report in sorted(reports, key=lambda report: sum(report.get("seconds", {}).values())):
        spent = " ".join(f"{seconds:7.3f}" for seconds in report.get("seconds", {}).values())
        print(
            f"{report['format']:16} {report['kind']:50.50} {spent} {report.get('megabytes', 0):6.1f} {report['fault']}"
        )
    print(f"{len(reports)} outputs, {sum(bool(report['fault']) for report in reports)} with a fault")


def show_ratios(reports: list[Report], worst: int) -> None:
    rows = [
        (ratio, report["seconds"][feed], report["format"], report["kind"], feed)
        for report in reports
        for feed, ratio in report.get("ratios", {}).items()
    ]
    rows.sort()
    print(f"{'ratio':>6} {'seconds':>8}  format, output, feed")
    for ratio, seconds, name, kind, feed in rows[-worst:]:
        print(f"{ratio:6.1f} {seconds:8.3f}  {name}, {kind!r}, {feed}")
    for report in reports:
        if report["fault"]:
            print(f"{report['format']}, {report['kind']!r}: {report['fault']}")
    above = sum(ratio > 12 for ratio, *_ in rows)
    print(f"{len(rows)} rows: ten times the output takes more than twelve times as long in {above}")


if __name__ == "__main__":
    main()
