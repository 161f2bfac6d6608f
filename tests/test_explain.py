"""Formats explained, as they were once read and found right.

python tests/test_explain.py      writes the golden explanations anew; read the diff before you keep it
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from format_strategies import formats
from hypothesis import given
from turn_formats import DSML, FORMATS, GLM_COMPACT, HARMONY, KIMI, STEP3_VL

from chatcodec.turn.compose import compose
from chatcodec.turn.explain import explain
from chatcodec.turn.format import (
    Arguments,
    BareArguments,
    Call,
    Calls,
    Index,
    JsonArguments,
    Literal,
    Name,
    TaggedArguments,
    TurnFormat,
)

GOLDEN = Path(__file__).resolve().parent / "golden" / "formats"


@pytest.mark.parametrize("name", FORMATS)
def test_golden_explanation(name: str) -> None:
    assert explain(FORMATS[name]) == (GOLDEN / f"{name}.txt").read_bytes().decode()


def test_no_golden_explanation_is_left_over() -> None:
    assert {file.stem for file in GOLDEN.iterdir()} == FORMATS.keys()


@given(formats)
def test_any_format_is_explained(format: TurnFormat) -> None:
    lines = explain(format).splitlines()
    assert all(line.isprintable() for line in lines)
    assert lines[0] == f"header     {format.header!r}"


def with_call(*pieces: Literal | Name | Index | Arguments) -> TurnFormat:
    return replace(KIMI, calls=Calls(Call(pieces)))


@pytest.mark.parametrize(
    ("format", "line"),
    [
        (replace(STEP3_VL, prompt=STEP3_VL.header), "reasoning  '<think>\\n' R '\\n</think>\\n'"),
        (replace(STEP3_VL, prompt=STEP3_VL.header), "           reasoning is not begun"),
        (replace(STEP3_VL, prompt=STEP3_VL.prompt[:-1]), "reasoning  '\\n' R '\\n</think>\\n'"),
        (replace(STEP3_VL, prompt=STEP3_VL.prompt + "\n</think>"), "           after this prompt: '\\n'"),
        (replace(DSML, prompt=DSML.header), "           without any: '</think>'"),
        (with_call(Index(1), Name()), "           INDEX counts the turn's calls from 1"),
        (
            with_call(Arguments(JsonArguments(ascii=True, encoded=True))),
            "arguments  one JSON object in a JSON string in ASCII, as " + repr(r'"{\"city\": \"Paris\", \"days\": 2}"'),
        ),
        (
            with_call(Arguments(TaggedArguments("<", ">", "</", named_close=">", escaped_names=True))),
            "arguments  '<' KEY '>' VALUE '</' KEY '>'",
        ),
        (
            with_call(Arguments(TaggedArguments("<", ">", "</", named_close=">", escaped_names=True))),
            "           KEY with HTML's escapes",
        ),
        (
            with_call(Arguments(BareArguments("'"))),
            """           strings raw between "'", other values as JSON with bare keys""",
        ),
    ],
)
def test_a_line(format: TurnFormat, line: str) -> None:
    assert line in explain(format).splitlines()


def test_the_example_is_what_is_composed() -> None:
    written = explain(GLM_COMPACT).split("\n\n")[1]
    call = {"function": {"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}}
    other = {"function": {"name": "get_weather", "arguments": {"city": "Rome"}}}
    message = {"content": "Let me look.", "reasoning_content": "Weather, then.", "tool_calls": [call, other]}
    assert written == f"example    {compose(message, GLM_COMPACT, end=True)!r}\n"


def test_no_example_of_what_cannot_be_written() -> None:
    assert "example" not in explain(with_call(Literal("<call>"), Name(), Literal("_weather")))


def test_several_calls_on_channels() -> None:
    assert HARMONY.calls is not None
    format = replace(HARMONY, calls=replace(HARMONY.calls, several=True))
    assert "calls      CALL+, each ends with '<|call|>'" in explain(format).splitlines()


def write_golden_explanations() -> None:
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for name, format in FORMATS.items():
        (GOLDEN / f"{name}.txt").write_bytes(explain(format).encode())


if __name__ == "__main__":
    write_golden_explanations()
