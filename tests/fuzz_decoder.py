"""Fuzz the decoder, guided by coverage: no exception, every split says the same, and calls that are "ok" hold JSON.

    pip install atheris && python tests/fuzz_decoder.py -max_total_time=600 [libFuzzer's other options, a corpus folder]

An input's first bytes choose the format and whether tools are declared; each byte after that is a fragment of the
format's own writing, or a character, or begins a new piece.
"""

from __future__ import annotations

import json
import sys

import atheris

with atheris.instrument_imports(include=["chatcodec.turn"]):
    from test_hostile_output import KEYS, PLAIN, TOOLS, VALUES, Letters, Writing, decode, told
    from turn_formats import FORMATS

CUT = 255
WRITINGS = [Writing(form) for form in FORMATS.values()]
COMMON = sorted({*PLAIN.values(), *VALUES.values(), *KEYS.values()})


def fragments(writing: Writing) -> list[str]:
    own = [writing.start, writing.think, writing.opening, writing.name, writing.head, writing.tail]
    own += [writing.between, writing.call, writing.number, writing.array, writing.end, *writing.markers]
    halves = [half for text in own for half in (text[: len(text) // 2], text[len(text) // 2 :])]
    return [*own, *halves, *COMMON, *map(chr, range(32, 127))][:CUT]


TABLES = [fragments(writing) for writing in WRITINGS]
LETTERS = [Letters(writing.markers) for writing in WRITINGS]


def one_input(data: bytes) -> None:
    if len(data) < 3:
        return
    place = data[0] % len(WRITINGS)
    table, letters, form = TABLES[place], LETTERS[place], WRITINGS[place].form
    tools = TOOLS if data[1] % 2 else None
    pieces = [""]
    for byte in data[2:]:
        if byte == CUT:
            pieces.append("")
        else:
            pieces[-1] += table[byte % len(table)]
    text = "".join(pieces)
    expected = told(decode(form, [text], letters, tools))
    for cut in (pieces, list(text)):
        found = told(decode(form, cut, letters, tools))
        assert found == expected, f"{place} {cut!r}\n{expected}\n{found}"
    for call in expected[1]:
        assert call.status != "ok" or isinstance(json.loads(call.arguments), dict), f"{place} {text!r}: {call}"


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
